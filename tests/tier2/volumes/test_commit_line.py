"""One group after the other: who goes on with the next one, and who is told when."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import cast

import pytest

from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from tests.tier2.volumes.engines import SetClock
from tier2.volumes.commit_line import CommitLine
from tier2.volumes.group import Outcome
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.mutations import Delete, Mutation
from tier2.volumes.settings import VolumeSettings

PATIENCE_SECONDS = 20.0


class Commit:
    """In the place of GroupCommit: notes its calls, and lets the test hold them up."""

    def __init__(self) -> None:
        self.full = False
        self.groups: list[list[bytes]] = []
        self.flushes = 0
        self.is_judging = threading.Semaphore(0)
        self.may_judge = threading.Semaphore(0)
        self.is_writing = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.failures: dict[int, Exception] = {}

    def commit(
        self, mutations: Sequence[Mutation], now_ms: int, *, judged: Callable[[], None]
    ) -> list[Outcome]:
        number = len(self.groups)
        self.groups.append([one.key for one in mutations if isinstance(one, Delete)])
        self.is_judging.release()
        assert self.may_judge.acquire(timeout=PATIENCE_SECONDS)
        judged()
        self.is_writing.release()
        assert self.may_end.acquire(timeout=PATIENCE_SECONDS)
        if number in self.failures:
            raise self.failures[number]
        return [None] * len(mutations)

    def flush_index(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        pass

    def let_go(self, groups: int) -> None:
        self.may_judge.release(groups)
        self.may_end.release(groups)


class Threads(ThreadPoolExecutor):
    """Counts the calls."""

    def __init__(self) -> None:
        super().__init__(max_workers=2)
        self.calls = 0

    def submit(self, call, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as the class above has it
        self.calls += 1
        return super().submit(call, *args, **kwargs)


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
) -> AsyncIterator[CommitLine]:
    started = CommitLine(
        commit=cast("GroupCommit", commit),
        executor=executor,
        wall_clock=SetClock(),
        settings=VolumeSettings(index_delay_seconds=index_delay_seconds),
    )
    started.start()
    yield started
    commit.let_go(1000)
    await started.close()


@pytest.fixture
async def line(commit: Commit, threads: Threads) -> AsyncIterator[CommitLine]:
    """The database's turn does not come by itself."""
    async with line_over(commit, threads, index_delay_seconds=1e6) as started:
        yield started


def deleted(line: CommitLine, *keys: bytes) -> list["asyncio.Future[object]"]:
    """Joined to the line in the order of the keys."""
    futures = []
    for key in keys:
        future = line.submit_at_once(Delete(key))
        assert future is not None
        futures.append(cast("asyncio.Future[object]", future))
    return futures


async def reached(moment: threading.Semaphore) -> None:
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, moment.acquire, True, PATIENCE_SECONDS)


async def test_the_thread_goes_on_with_what_became_ready_meanwhile(
    line: CommitLine, commit: Commit, threads: Threads
) -> None:
    first = deleted(line, b"a")
    await reached(commit.is_judging)
    later = deleted(line, b"b", b"c")
    commit.let_go(2)
    await asyncio.gather(*first, *later)
    assert commit.groups == [[b"a"], [b"b", b"c"]]
    assert threads.calls == 1, "the second group went over the loop"


async def test_callers_are_told_when_the_next_group_is_on_its_way_to_the_disk(
    line: CommitLine, commit: Commit
) -> None:
    (first,) = deleted(line, b"a")
    await reached(commit.is_judging)
    (second,) = deleted(line, b"b")
    commit.let_go(1)
    await reached(commit.is_judging)
    commit.may_judge.release()
    await asyncio.wait_for(first, PATIENCE_SECONDS)
    assert not second.done(), "told before it was written"
    commit.may_end.release()
    await second


async def test_callers_do_not_wait_until_a_long_group_is_judged(
    line: CommitLine, commit: Commit
) -> None:
    (first,) = deleted(line, b"a")
    await reached(commit.is_judging)
    many = deleted(line, *(b"%d" % number for number in range(100)))
    commit.let_go(1)
    await reached(commit.is_judging)
    await asyncio.wait_for(first, PATIENCE_SECONDS)
    assert not any(one.done() for one in many)
    commit.let_go(1)
    await asyncio.gather(*many)


async def test_a_group_that_fails_takes_neither_the_one_before_nor_the_one_behind_along(
    line: CommitLine, commit: Commit
) -> None:
    commit.failures[1] = OSError("the disk says no")
    commit.failures[2] = StorageUnavailableError("stopped", state="index_failed")
    futures = deleted(line, b"a")
    for key in (b"b", b"c", b"d"):
        await reached(commit.is_judging)
        futures += deleted(line, key)
        commit.let_go(1)
    await reached(commit.is_judging)
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
    async with line_over(commit, threads, index_delay_seconds=0.001) as line:
        deleted(line, b"first")
        groups = 0
        while not commit.flushes:
            await reached(commit.is_judging)
            deleted(line, b"%d" % groups)
            await asyncio.sleep(0.001)
            commit.let_go(1)
            groups += 1
            assert groups < 1000, "the database waits for the line to be empty"


async def test_the_executor_is_given_back_now_and_then(
    line: CommitLine, commit: Commit, threads: Threads
) -> None:
    futures = deleted(line, b"first")
    for number in range(40):
        await reached(commit.is_judging)
        futures += deleted(line, b"%d" % number)
        commit.let_go(1)
    commit.let_go(1)
    await asyncio.gather(*futures)
    assert len(commit.groups) == 41
    assert threads.calls == 3, "16 groups, 16 more, and the rest"
