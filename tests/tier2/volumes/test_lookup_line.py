"""Gets are looked up by the batch: each sees what it should, fails alone, and keeps nobody from closing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from tests.tier2.counting_threads import CountingThreads
from tests.tier2.volumes.engines import SMALL, open_small
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.index import current_key
from tier2.volumes.index_database import BufferedIndex, LmdbIndex
from tier2.volumes.opening import OpenEngine
from tier2.volumes.reader import ObjectReader, ReadQueue, ReadRequest

KEYS = [b"key/%02d" % number for number in range(16)]
QUIET = replace(SMALL, index_delay_seconds=1e9)
"""The database gets its rows when a test says so: no thread has a job that nothing asked for, and no row leaves memory
by itself."""


def content_of(key: bytes, length: int = 30) -> bytes:
    return key * length


@pytest.fixture
def threads() -> Iterator[CountingThreads]:
    with CountingThreads() as executor:
        yield executor


@pytest.fixture
async def opened(tmp_path: Path, threads: CountingThreads) -> AsyncIterator[OpenEngine]:
    store = await open_small(str(tmp_path), executor=threads, settings=QUIET)
    yield store
    await store.close()


@pytest.fixture
def engine(opened: OpenEngine) -> VolumeEngine:
    return opened.engine


async def put_all(engine: VolumeEngine, length: int = 30) -> None:
    await asyncio.gather(*(engine.put(key, [content_of(key, length)]) for key in KEYS))
    engine._index.sync()


async def test_gets_of_one_turn_share_one_call(
    engine: VolumeEngine, threads: CountingThreads
) -> None:
    await put_all(engine)
    before = threads.jobs
    found = await asyncio.gather(*(engine.get(key) for key in KEYS))
    assert [one.content for one in found] == [content_of(key) for key in KEYS]
    assert threads.jobs == before + 1
    heads = await asyncio.gather(*(engine.head(key) for key in KEYS))
    assert heads == [one.record for one in found]
    assert threads.jobs == before + 2


async def test_a_range_and_a_version_are_looked_up_beside_whole_objects(
    engine: VolumeEngine, threads: CountingThreads
) -> None:
    await put_all(engine)
    await engine.put(b"versions", [b"first"], version_id="1")
    await engine.put(b"versions", [b"second"], version_id="2")
    engine._index.sync()
    before = threads.jobs
    whole, part, behind, first, current = await asyncio.gather(
        engine.get(KEYS[0]),
        engine.get_range(KEYS[1], 3, 5),
        engine.get_range(KEYS[1], 1000, 5),
        engine.get(b"versions", version_id="1"),
        engine.get(b"versions"),
    )
    assert whole.content == content_of(KEYS[0])
    assert part.content == content_of(KEYS[1])[3:8]
    assert behind.content == b""
    assert (first.content, current.content) == (b"first", b"second")
    assert threads.jobs == before + 1


async def test_blobs_of_a_batch_are_read_side_by_side_and_one_alone_by_one_call(
    engine: VolumeEngine, threads: CountingThreads
) -> None:
    await put_all(engine, length=200)
    before = threads.jobs
    found = await asyncio.gather(*(engine.get(key) for key in KEYS))
    assert [one.content for one in found] == [content_of(key, 200) for key in KEYS]
    assert threads.jobs == before + 1 + len(KEYS)
    assert (await engine.get(KEYS[3])).content == content_of(KEYS[3], 200)
    assert threads.jobs == before + 2 + len(KEYS)


async def test_what_was_just_changed_is_answered_from_memory_behind_a_turn_of_the_loop(
    engine: VolumeEngine, threads: CountingThreads
) -> None:
    await engine.put(b"small", [b"bytes"])
    await engine.put(b"gone", [b"bytes"])
    await engine.delete(b"gone")
    before = threads.jobs
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(turn)
    assert (await engine.get(b"small")).content == b"bytes"
    assert turns == 1
    with pytest.raises(ObjectNotFoundError):
        await engine.get(b"gone")
    assert threads.jobs == before


async def test_one_turn_answers_a_bounded_number_from_memory(
    engine: VolumeEngine, threads: CountingThreads
) -> None:
    await engine.put(b"small", [b"bytes"])
    before = threads.jobs
    found = await asyncio.gather(*(engine.get(b"small") for _ in range(200)))
    assert {one.content for one in found} == {b"bytes"}
    assert threads.jobs == before + 3  # 136 of them, 64 at a time


async def test_a_damaged_object_fails_its_own_caller_alone(engine: VolumeEngine) -> None:
    await put_all(engine)
    await engine.put(b"recent", [b"bytes"])
    row = engine._index.get(current_key(KEYS[5]))
    recent = engine._index.get(current_key(b"recent"))
    assert row is not None
    assert recent is not None
    engine._index.apply([(current_key(KEYS[5]), row[:-1] + b"?"), (current_key(KEYS[6]), row[:20])])
    engine._index.sync()
    engine._index.apply([(current_key(b"recent"), recent[:-1] + b"?")])
    outcomes = await asyncio.gather(
        *(engine.get(key) for key in [*KEYS, b"none", b"recent"]), return_exceptions=True
    )
    failed = [n for n, one in enumerate(outcomes) if isinstance(one, CorruptedDataError)]
    assert failed == [5, 6, 17]
    assert isinstance(outcomes[16], ObjectNotFoundError)
    assert sum(not isinstance(one, BaseException) for one in outcomes) == 14
    assert not isinstance(await engine.get(KEYS[0]), BaseException)


class _Index(LmdbIndex):
    """Stops in the middle of looking up, or cannot read one key."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.entered = threading.Semaphore(0)
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.unreadable = b""
        self.looks = count()
        self.is_closed = False

    def get(self, key: bytes) -> bytes | None:
        assert not self.is_closed
        if key == self.unreadable:
            raise OSError("the disk says no")
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = super().get_many(keys)
        if len(keys) > 1 and not self.goes_on.is_set():
            next(self.looks)
            self.entered.release()
            assert self.goes_on.wait(60)
        assert not self.is_closed
        if self.unreadable in keys:
            raise OSError("the disk says no")
        return found

    def stop(self) -> None:
        """Batches stop here until `goes_on` is set; a change, which looks for one key, does not."""
        self.goes_on.clear()
        self.entered = threading.Semaphore(0)
        self.looks = count()

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.fixture
async def stopping(tmp_path: Path) -> AsyncIterator[tuple[VolumeEngine, _Index]]:
    indexes: list[_Index] = []

    def open_index(directory: str) -> _Index:
        indexes.append(_Index(directory))
        return indexes[-1]

    with ThreadPoolExecutor(8) as executor:
        store = await open_small(
            str(tmp_path), executor=executor, open_index=open_index, settings=QUIET
        )
        yield store.engine, indexes[-1]
        indexes[-1].goes_on.set()
        await store.close()


async def entered(index: _Index) -> None:
    while not index.entered.acquire(blocking=False):
        await asyncio.sleep(0.001)


async def test_a_page_that_cannot_be_read_fails_only_those_who_need_it(
    stopping: tuple[VolumeEngine, _Index],
) -> None:
    engine, index = stopping
    await put_all(engine)
    index.unreadable = current_key(KEYS[2])
    outcomes = await asyncio.gather(*(engine.get(key) for key in KEYS), return_exceptions=True)
    failed = [n for n, one in enumerate(outcomes) if isinstance(one, BaseException)]
    assert failed == [2]
    assert isinstance(outcomes[2], StorageError)


async def test_a_get_sees_what_was_acknowledged_while_others_of_its_key_are_looked_up(
    stopping: tuple[VolumeEngine, _Index],
) -> None:
    engine, index = stopping
    await put_all(engine)
    index.stop()
    # Two of them: one alone is not looked up by the batch.
    early = [asyncio.create_task(engine.get(KEYS[0])) for _ in range(2)]
    await entered(index)
    await engine.put(KEYS[0], [b"newer"])
    engine._index.sync()
    late = [asyncio.create_task(engine.get(KEYS[0])) for _ in range(2)]
    await entered(index)
    index.goes_on.set()
    assert [(await task).content for task in early] == [content_of(KEYS[0])] * 2
    assert [(await task).content for task in late] == [b"newer"] * 2


async def test_a_bounded_number_of_batches_is_under_way_and_nobody_is_forgotten(
    stopping: tuple[VolumeEngine, _Index],
) -> None:
    engine, index = stopping
    await put_all(engine)
    index.stop()
    tasks = []
    for _ in range(7):
        tasks += [asyncio.create_task(engine.get(key)) for key in KEYS]
        await asyncio.sleep(0.01)
    for _ in range(4):
        await entered(index)
    await asyncio.sleep(0.05)
    assert next(index.looks) == 4
    index.goes_on.set()
    assert [(await task).content for task in tasks] == [content_of(key) for key in KEYS] * 7


async def test_callers_that_go_away_take_nothing_from_others_and_close_waits_for_their_look_ups(
    tmp_path: Path,
) -> None:
    indexes: list[_Index] = []

    def open_index(directory: str) -> _Index:
        indexes.append(_Index(directory))
        return indexes[-1]

    with ThreadPoolExecutor(8) as executor:
        store = await open_small(
            str(tmp_path), executor=executor, open_index=open_index, settings=QUIET
        )
        engine, index = store.engine, indexes[-1]
        await put_all(engine)
        index.stop()
        tasks = [asyncio.create_task(engine.get(key)) for key in KEYS]
        await entered(index)
        waiting = [asyncio.create_task(engine.get(key)) for key in KEYS]
        await asyncio.sleep(0)
        for task in [*tasks[::2], *waiting[::2]]:
            task.cancel()
        index.goes_on.set()
        outcomes = await asyncio.gather(*tasks, *waiting, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in outcomes[::2])
        assert all(not isinstance(one, BaseException) for one in outcomes[1::2])
        index.stop()
        gone = [asyncio.create_task(engine.get(key)) for key in KEYS]
        await entered(index)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        assert not index.is_closed
        index.goes_on.set()
        await closing
        assert index.is_closed


async def test_callers_are_told_when_nobody_looks_up_any_more(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    index = LmdbIndex(str(tmp_path))
    lookups = ObjectReader(index=BufferedIndex(index, rows_max=1, bytes_max=1), volumes=None)  # type: ignore[arg-type]
    queue = ReadQueue(lookups=lookups, executor=executor, failure=EngineFailure())
    for checked in (True, False):
        outcomes = await asyncio.gather(
            *(queue.read(ReadRequest(key, None, checked=checked)) for key in KEYS),
            return_exceptions=True,
        )
        assert all(isinstance(one, RuntimeError) for one in outcomes)
    await queue.close()
    index.close()
