"""One group after the other: who goes on with the next one, and who is told when."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import cast

import pytest

from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from tests.tier2.volumes.engines import SetClock
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.index_database import PrefetchedRows
from tier2.volumes.mutations import Delete, Mutation, Put, UnhashedPut
from tier2.volumes.objects import Description
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.write_batch import Outcome, PreparedBatch
from tier2.volumes.write_queue import WriteQueue

PATIENCE_SECONDS = 60.0
_THREAD = threading.local()


class Commit:
    """In the place of GroupCommit: notes its calls, and lets the test hold them up."""

    def __init__(self) -> None:
        self.full = False
        self.groups: list[list[bytes]] = []
        self.flushes = 0
        self.calls: list[str] = []
        """Of the executor, in which groups were made."""
        self.has_begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.failures: dict[int, Exception] = {}
        self.prepared: list[list[bytes]] = []
        self.is_busy = False
        self.overlaps = 0
        """Times that somebody came in while somebody else was here."""

    def commit(
        self, mutations: Sequence[Mutation], now_ms: int, ahead: Sequence[object]
    ) -> list[Outcome]:
        self._enter()
        number = len(self.groups)
        self.groups.append([one.key for one in mutations if isinstance(one, Delete | Put)])
        self.calls.append(_THREAD.call)
        self.has_begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_SECONDS)
        self._leave()
        if number in self.failures:
            raise self.failures[number]
        return [None] * len(mutations)

    def prepare(self, puts: Sequence[Put], now_ms: int) -> PreparedBatch:
        self.prepared.append([one.key for one in puts])
        return PreparedBatch(PrefetchedRows(0, {}))

    def flush_index(self) -> None:
        self._enter()
        self.flushes += 1
        self._leave()

    def close(self) -> None:
        self._enter()

    def _enter(self) -> None:
        self.overlaps += self.is_busy
        self.is_busy = True
        time.sleep(0)  # others may come in, if they can

    def _leave(self) -> None:
        self.is_busy = False

    def let_go(self, groups: int) -> None:
        self.may_end.release(groups)


class Threads(ThreadPoolExecutor):
    """Counts the calls."""

    def __init__(self, max_workers: int = 2) -> None:
        super().__init__(max_workers=max_workers)
        self.calls = 0

    def submit(self, call, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as the class above has it
        self.calls += 1

        def run() -> object:
            _THREAD.call = getattr(call, "__name__", "")
            return call(*args, **kwargs)

        return super().submit(run)


@pytest.fixture
def commit() -> Commit:
    return Commit()


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    with Threads() as executor:
        yield executor


@asynccontextmanager
async def line_over(
    commit: Commit, executor: Threads, *, index_delay_seconds: float
) -> AsyncIterator[WriteQueue]:
    started = WriteQueue(
        commit=cast("GroupCommit", commit),
        check=lambda put, _: put,
        executor=executor,
        readers=executor,
        wall_clock=SetClock(),
        settings=VolumeSettings(index_delay_seconds=index_delay_seconds),
        failure=EngineFailure(),
    )
    started.start()
    yield started
    commit.let_go(1000)
    await started.close()


@pytest.fixture
async def queue(commit: Commit, threads: Threads) -> AsyncIterator[WriteQueue]:
    """The database's turn does not come by itself."""
    async with line_over(commit, threads, index_delay_seconds=1e6) as started:
        yield started


def deleted(queue: WriteQueue, *keys: bytes) -> list["asyncio.Future[object]"]:
    """Joined to the queue in the order of the keys."""
    futures = []
    for key in keys:
        future = queue.submit_at_once(Delete(key))
        assert future is not None
        futures.append(cast("asyncio.Future[object]", future))
    return futures


def put_of(number: int) -> UnhashedPut:
    return UnhashedPut(b"%d" % number, [b"%d" % number], len(b"%d" % number), Description())


async def reached(moment: threading.Semaphore) -> None:
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, moment.acquire, True, PATIENCE_SECONDS)


async def test_the_thread_goes_on_with_what_became_ready_meanwhile(
    queue: WriteQueue, commit: Commit, threads: Threads
) -> None:
    first = deleted(queue, b"a")
    await reached(commit.has_begun)
    later = deleted(queue, b"b", b"c")
    commit.let_go(2)
    await asyncio.gather(*first, *later)
    assert commit.groups == [[b"a"], [b"b", b"c"]]
    assert threads.calls == 1, "the second group went over the loop"


async def test_callers_are_told_before_the_next_group_is_durable(
    queue: WriteQueue, commit: Commit
) -> None:
    (first,) = deleted(queue, b"a")
    await reached(commit.has_begun)
    (second,) = deleted(queue, b"b")
    commit.let_go(1)
    await asyncio.wait_for(first, PATIENCE_SECONDS)
    await reached(commit.has_begun)
    assert not second.done(), "told before it was written"
    commit.let_go(1)
    await second


async def test_the_thread_that_has_hashed_commits_if_nobody_else_does(commit: Commit) -> None:
    # Of one thread nobody else can have the next call before this one ends.
    with Threads(max_workers=1) as threads:
        async with line_over(commit, threads, index_delay_seconds=1e6) as queue:
            commit.let_go(2)
            for number in range(2):
                await asyncio.wait_for(queue.submit(put_of(number)), PATIENCE_SECONDS)
            assert commit.groups == [[b"0"], [b"1"]]
            assert commit.prepared == [[b"0"], [b"1"]]
            assert commit.calls == ["_hash_in_thread", "_hash_in_thread"]


async def test_closing_waits_for_the_thread_that_has_the_turn(commit: Commit) -> None:
    with Threads(max_workers=2) as threads:
        async with line_over(commit, threads, index_delay_seconds=1e6) as queue:
            put = asyncio.create_task(queue.submit(put_of(1)))
            await reached(commit.has_begun)
            closing = asyncio.create_task(queue.close())
            await asyncio.sleep(0.01)
            assert not closing.done()
            assert not commit.overlaps
            commit.let_go(1)
            await asyncio.wait_for(asyncio.gather(put, closing), PATIENCE_SECONDS)
            assert not commit.overlaps


async def test_what_was_hashed_while_a_group_ended_is_not_left_lying(
    queue: WriteQueue, commit: Commit, threads: Threads
) -> None:
    """Whoever hashes finds the turn taken, and whoever has it may be about to leave: one of the two sees the other."""
    commit.let_go(2000)
    for number in range(300):
        deletes = deleted(queue, b"d%d" % number)
        puts = [asyncio.create_task(queue.submit(put_of(one))) for one in range(number, number + 3)]
        await asyncio.wait_for(asyncio.gather(*deletes, *puts), PATIENCE_SECONDS)


async def test_nobody_commits_beside_the_database_getting_its_turn(
    commit: Commit, threads: Threads
) -> None:
    async with line_over(commit, threads, index_delay_seconds=0.001) as queue:
        commit.let_go(3000)
        for number in range(200):
            await asyncio.gather(*(queue.submit(put_of(number + one)) for one in range(3)))
        assert commit.flushes, "the database never had its turn"
    assert not commit.overlaps


async def test_a_group_that_fails_takes_neither_the_one_before_nor_the_one_behind_along(
    queue: WriteQueue, commit: Commit
) -> None:
    commit.failures[1] = OSError("the disk says no")
    commit.failures[2] = StorageUnavailableError("stopped", state="index_failed")
    futures = deleted(queue, b"a")
    for key in (b"b", b"c", b"d"):
        await reached(commit.has_begun)
        futures += deleted(queue, key)
        commit.let_go(1)
    await reached(commit.has_begun)
    commit.let_go(1)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(one) for one in outcomes] == [
        type(None),
        StorageError,
        StorageUnavailableError,
        type(None),
    ]


async def test_the_database_gets_its_turn_although_there_is_always_a_next_group(
    commit: Commit, threads: Threads
) -> None:
    async with line_over(commit, threads, index_delay_seconds=0.001) as queue:
        deleted(queue, b"first")
        groups = 0
        while not commit.flushes:
            await reached(commit.has_begun)
            deleted(queue, b"%d" % groups)
            await asyncio.sleep(0.001)
            commit.let_go(1)
            groups += 1
            assert groups < 1000, "the database waits for the line to be empty"


async def test_the_executor_is_given_back_now_and_then(
    queue: WriteQueue, commit: Commit, threads: Threads
) -> None:
    futures = deleted(queue, b"first")
    for number in range(40):
        await reached(commit.has_begun)
        futures += deleted(queue, b"%d" % number)
        commit.let_go(1)
    commit.let_go(1)
    await asyncio.gather(*futures)
    assert len(commit.groups) == 41
    assert threads.calls == 3, "16 groups, 16 more, and the rest"
