"""Contents are hashed beside the group before theirs, in order, and nobody's round is anybody else's trouble."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segmentstore.contracts.errors import InvalidRequestError, StorageError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.guarded_callback import raise_again
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.counting_threads import CountingThreads
from tests.tier2.volumes.engines import SetClock, let_run, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index_database import PrefetchedRows
from tier2.volumes.mutations import Delete, Put, UnhashedPut
from tier2.volumes.objects import Description, IndexRecord, digest, digest_by_name
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.write_batch import PreparedBatch, QueuedMutation
from tier2.volumes.write_queue import HashingQueue

SETTINGS = VolumeSettings()
LARGE = 200_000


@pytest.fixture
async def threads() -> AsyncIterator[CountingThreads]:
    with CountingThreads() as executor:
        yield executor


class Line(HashingQueue):
    """With one who makes its groups, in place of all who may have the turn."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.hashed_at_once: list[int] = []
        """Contents of each call."""
        super().__init__(
            executor=executor,
            wall_clock=SetClock(),
            settings=SETTINGS,
            prepare=self._prepare_in_time,
            hashed=lambda _: None,
            fail=raise_again,
        )

    def _prepare_in_time(self, puts: Sequence[Put], _: int) -> PreparedBatch:
        self.hashed_at_once.append(len(puts))
        return PreparedBatch(PrefetchedRows(0, {}))

    async def next(self) -> list[QueuedMutation]:
        """The next group; the one before it has ended."""
        while not self.has_ready:
            await self.changed()
        return self.take_batch()


def line_of(executor: ThreadPoolExecutor) -> Line:
    return Line(executor)


def content_of(number: int, size: int) -> list[BufferView]:
    return [b"%8d" % number, memoryview(bytes(size - 8))]


def undigested(number: int, size: int = 10_000, **given: object) -> QueuedMutation:
    new = UnhashedPut(b"%d" % number, content_of(number, size), size, Description(), **given)  # type: ignore[arg-type]  # as the test says
    return waiting_for(new)


def waiting_for(mutation: UnhashedPut | Delete) -> QueuedMutation:
    future: asyncio.Future[IndexRecord | None] = asyncio.get_running_loop().create_future()
    return QueuedMutation(mutation, future)


def join_all(queue: HashingQueue, some: list[QueuedMutation]) -> list[QueuedMutation]:
    for one in some:
        queue.join(one)
    return some


def put_of(waiting: QueuedMutation) -> Put:
    assert isinstance(waiting.mutation, Put), f"{waiting.mutation=} {waiting.error=}"
    return waiting.mutation


async def hashed(some: list[QueuedMutation]) -> None:
    while not all(isinstance(one.mutation, Put) for one in some):
        await asyncio.sleep(0.001)


async def test_small_contents_of_one_turn_are_hashed_by_one_call_and_are_one_group(
    threads: CountingThreads,
) -> None:
    queue = line_of(threads)
    some = join_all(queue, [undigested(number) for number in range(16)])
    assert await queue.next() == some
    assert threads.jobs == 1
    for number, one in enumerate(some):
        found = digest(content_of(number, 10_000), SETTINGS.piece_bytes)
        draft = put_of(one).draft
        assert (draft.content_hash, draft.pieces) == (found.content_hash, found.pieces)
    assert not queue.has_ready


async def test_what_comes_beside_a_group_under_way_is_hashed_meanwhile(
    threads: CountingThreads,
) -> None:
    queue = line_of(threads)
    some = join_all(queue, [undigested(number, LARGE) for number in range(8)])
    assert await queue.next() == some
    # The first group is under way: nobody asks for the next one yet.
    again = join_all(queue, [undigested(number, LARGE) for number in range(8, 16)])
    await hashed(again)
    assert await queue.next() == again
    assert threads.jobs == 1 + 1


async def test_a_round_is_bounded(threads: CountingThreads) -> None:
    queue = line_of(threads)
    some = join_all(queue, [undigested(number, LARGE) for number in range(100)])
    groups = [await queue.next()]
    while sum(map(len, groups)) < len(some):
        groups.append(await queue.next())
    assert [one for group in groups for one in group] == some
    assert sum(queue.hashed_at_once) == len(some)
    assert max(queue.hashed_at_once) <= (4 << 20) // LARGE + 1


async def test_what_needs_no_hashing_does_not_overtake_what_does(threads: CountingThreads) -> None:
    queue = line_of(threads)
    some: list[QueuedMutation] = []
    for number in range(20):
        delete = waiting_for(Delete(b"%d" % number))
        some += join_all(queue, [delete, undigested(number), waiting_for(Delete(b"x"))])
        await asyncio.sleep(0)
    made: list[QueuedMutation] = []
    while len(made) < len(some):
        made += await queue.next()
    assert made == some


async def test_a_unique_content_is_named_and_not_hashed(threads: CountingThreads) -> None:
    queue = line_of(threads)
    hashed, named = some = join_all(queue, [undigested(1), undigested(1, unique=True)])
    assert await queue.next() == some
    whole = b"".join(content_of(1, 10_000))
    assert put_of(hashed).draft.content_hash == hashlib.sha256(whole).digest()
    by_name = digest_by_name(b"1", [whole], SETTINGS.piece_bytes)
    assert put_of(named).draft.content_hash == by_name.content_hash
    assert put_of(named).unique


async def test_the_worker_is_woken_without_a_group(threads: CountingThreads) -> None:
    queue = line_of(threads)
    changed = asyncio.create_task(queue.changed())
    await let_run()
    assert not changed.done()
    queue.wake()
    await changed
    assert not queue.has_ready


async def test_a_put_that_is_refused_takes_nothing_from_its_round(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    puts = [
        engine.put(b"%d" % number, content_of(number, 9000), version_id=None if number else "")
        for number in range(6)
    ]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert isinstance(outcomes[0], InvalidRequestError)
    assert not any(isinstance(one, BaseException) for one in outcomes[1:])
    assert [one.key for one in await engine.list(b"", limit=10)] == [b"%d" % n for n in range(1, 6)]
    await engine.check()
    await opened.close()


async def test_a_caller_that_goes_away_while_it_is_hashed_takes_nothing_from_its_round(
    tmp_path: Path,
) -> None:
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    tasks = [
        asyncio.create_task(engine.put(b"%d" % number, content_of(number, 9000)))
        for number in range(6)
    ]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in outcomes[::2])
    assert all(isinstance(one, IndexRecord) for one in outcomes[1::2])
    # A change in the queue is made all the same.
    assert len(await engine.list(b"", limit=10)) == 6
    await engine.check()
    await opened.close()


async def test_callers_are_told_when_nobody_hashes_any_more() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    queue = line_of(executor)
    for number in range(2):
        (one,) = join_all(queue, [undigested(number)])
        assert await queue.next() == [one]
        assert isinstance(one.error, RuntimeError)


async def test_callers_of_the_engine_are_told_too(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        opened = await open_small(str(tmp_path), executor=executor)
    with pytest.raises(StorageError, match="shutdown"):
        await opened.engine.put(b"key", content_of(1, 9000))
    with pytest.raises(RuntimeError, match="shutdown"):
        await opened.close()


@pytest.mark.parametrize("seed", range(10))
def test_closing_waits_for_what_is_being_hashed(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        opened = await open_small(
            "/machine/engine", files=disk.mount("one"), open_index=lambda _: index
        )
        puts = [
            asyncio.create_task(opened.engine.put(b"%d" % number, content_of(number, 9000)))
            for number in range(8)
        ]
        # One round is under way when it closes, and others are behind it.
        await let_run()
        closing = asyncio.create_task(opened.close())
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*puts, closing, return_exceptions=True)
        assert not any(isinstance(one, BaseException) for one in outcomes), outcomes
        again = await open_small(
            "/machine/engine", files=disk.mount("two"), open_index=lambda _: index
        )
        assert len(await again.engine.list(b"", limit=10)) == 8
        await again.engine.check()
        await again.close()

    run_simulation(seed, main)


async def test_sixteen_callers_of_100_kb_find_what_they_have_put(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path), settings=SETTINGS)
    engine = opened.engine

    async def caller(first: int) -> None:
        for number in range(first, 128, 16):
            # Every third content is one of the caller before: deduplication across groups.
            seed = number - 1 if number % 3 == 1 else number
            await engine.put(b"%d" % number, content_of(seed, 100_000))
            assert (await engine.get(b"%d" % number)).content == b"".join(content_of(seed, 100_000))

    async with asyncio.TaskGroup() as tasks:
        for first in range(16):
            tasks.create_task(caller(first))
    await engine.check()
    await opened.close()
