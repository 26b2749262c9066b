"""Threads that several containers share in turn: one that is busy cannot starve the others.

Each user has a lane, which is a `concurrent.futures.Executor`. Jobs of one lane start in the order in which they were
submitted; lanes with waiting jobs take turns, one job a turn.

Invariants:

- At most `thread_count` jobs run at once.
- A lane with a waiting job starts it after at most one further job of each other lane.
- All state belongs to the loop: `submit` is called on it, and a finished job reports to it. There is no lock.
- A finished job wakes the loop once: its outcome and its free thread are told together.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Job:
    future: "asyncio.Future[Any]"  # of whatever the job returns; typed for its submitter
    call: Callable[[], object]


class FairThreadPool:
    """A pool of threads with lanes."""

    def __init__(self, *, thread_count: int, name: str, niceness: int = 0) -> None:
        """`niceness` is added to that of the process: threads that compress must not hold up those that sync."""
        self._thread_count = thread_count
        self._pool = ThreadPoolExecutor(
            max_workers=thread_count,
            thread_name_prefix=name,
            initializer=_step_back,
            initargs=(niceness,),
        )
        self._turns: deque[Lane] = deque()
        self._running = 0

    def lane(self) -> "Lane":
        """A new user of the threads."""
        return Lane(self)

    def close(self) -> None:
        """Jobs that run are finished, waiting ones are cancelled. Blocks for as long as the longest job."""
        for lane in self._turns:
            lane.cancel_waiting()
        self._turns.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def check(self) -> None:
        """O(number of waiting jobs)."""
        assert 0 <= self._running <= self._thread_count, (
            f"jobs out of bounds running={self._running} threads={self._thread_count}"
        )
        assert self._running == self._thread_count or not self._turns, (
            f"jobs wait beside a free thread running={self._running} lanes={len(self._turns)}"
        )
        for lane in self._turns:
            assert lane.waiting_count > 0, "a lane without jobs has a turn"

    def enqueue(self, lane: "Lane") -> None:
        """The lane has a job to start, and had none before."""
        self._turns.append(lane)
        self.start_jobs()

    def start_jobs(self) -> None:
        """Give free threads to the lanes whose turn it is."""
        while self._turns and self._running < self._thread_count:
            lane = self._turns.popleft()
            job = lane.take_job()
            if lane.waiting_count:
                self._turns.append(lane)
            if job.future.cancelled():
                continue
            self._running += 1
            self._pool.submit(_run, job, job.future.get_loop(), self._finished)

    def _finished(self, job: _Job, result: object, error: BaseException | None) -> None:
        self._running -= 1
        self.start_jobs()
        if error is not None:
            fail_unless_done(job.future, error)
        else:
            complete_unless_done(job.future, result)


class Lane(Executor):
    """One user's jobs, in order. Call it on the loop only."""

    def __init__(self, threads: FairThreadPool) -> None:
        self._threads = threads
        self._waiting: deque[_Job] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(future, partial(fn, *args, **kwargs)))
        if len(self._waiting) == 1:
            self._threads.enqueue(self)
        # run_in_executor() gives a future of the loop to its caller as it is. One of concurrent.futures it would have
        # to chain to another, which wakes the loop a second time.
        return cast("Future[_Result]", future)

    def take_job(self) -> _Job:
        """The oldest waiting job."""
        return self._waiting.popleft()

    def cancel_waiting(self) -> None:
        """None of the waiting jobs will start."""
        while self._waiting:
            self._waiting.popleft().future.cancel()


def _step_back(niceness: int) -> None:
    """In a new thread. On Linux niceness is a thread's own; elsewhere it is the whole process's, so it stays."""
    if niceness and sys.platform == "linux":
        os.nice(niceness)


def _run(
    job: _Job,
    loop: asyncio.AbstractEventLoop,
    report: Callable[[_Job, object, BaseException | None], None],
) -> None:
    """In a thread."""
    result: object = None
    error: BaseException | None = None
    try:
        result = job.call()
    except BaseException as raised:  # noqa: BLE001 - it belongs to the caller that waits for the job
        error = raised
    try:
        loop.call_soon_threadsafe(report, job, result, error)
    except RuntimeError:
        # The loop is closed: it starts no further jobs.
        return
