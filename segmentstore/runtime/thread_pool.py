"""Threads that several containers share in turn: one that is busy cannot starve the others.

Each user has a lane, which is a `concurrent.futures.Executor`. Jobs of one lane start in the order in which they were
submitted; lanes with waiting jobs take turns, one job a turn.

Invariants:

- At most `thread_count` jobs run at once.
- A lane with a waiting job starts it after at most one further job of each other lane.
- All state belongs to the loop: `submit` is called on it, and a finished job reports to it. There is no lock.
- A job wakes one thread, the one that was free last, whose memory is still in a processor's cache. (Of threads that
  wait at one queue, as in `ThreadPoolExecutor`, the one that takes a job wakes the next, which finds the queue empty;
  both take the interpreter for it.)
- A finished job wakes the loop once: its outcome and its free thread are told together.
- Behind close() no job is taken, so that none waits when the last ones report.
- Threads end with close(), when the pool is garbage, or at the exit of the process; a job that runs is finished first.
"""

import asyncio
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
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
        self._name = name
        self._niceness = niceness
        self._workers: list[_Worker] = []
        """All that were started."""
        self._idle: list[_Worker] = []
        """The one that was free last is at the end."""
        self._turns: deque[Lane] = deque()
        self._running = 0
        self._end = weakref.finalize(self, _end_workers, self._workers)

    def lane(self) -> "Lane":
        """A new user of the threads."""
        return Lane(self)

    def close(self) -> None:
        """Jobs that run are finished, waiting ones are cancelled. Blocks for as long as the longest job. Idempotent."""
        for lane in self._turns:
            lane.cancel_waiting()
        self._turns.clear()
        self._end()

    def check(self) -> None:
        """O(number of waiting jobs)."""
        assert 0 <= self._running <= self._thread_count, (
            f"jobs out of bounds running={self._running} threads={self._thread_count}"
        )
        assert self._running + len(self._idle) == len(self._workers), (
            f"a thread is lost running={self._running} idle={len(self._idle)}"
            f" threads={len(self._workers)}"
        )
        assert self._running == self._thread_count or not self._turns, (
            f"jobs wait beside a free thread running={self._running} lanes={len(self._turns)}"
        )
        for lane in self._turns:
            assert lane.waiting_count > 0, "a lane without jobs has a turn"

    def require_open(self) -> None:
        """Raises RuntimeError when closed: no report of a job that ran until then may meet a further job."""
        if not self._end.alive:
            raise RuntimeError("a job behind the end of its threads")

    def enqueue(self, lane: "Lane") -> None:
        """The lane has a job to start, and had none before."""
        self._turns.append(lane)
        self.start_jobs()

    def start_jobs(self) -> None:
        """Give free threads to the lanes whose turn it is. Raises RuntimeError without a thread."""
        while self._turns and self._running < self._thread_count:
            lane = self._turns.popleft()
            job = lane.take_job()
            if lane.waiting_count:
                self._turns.append(lane)
            if job.future.cancelled():
                continue
            worker = self._free_worker()
            self._running += 1
            worker.start(partial(_run, job, partial(self._finished, worker)))

    def _free_worker(self) -> "_Worker":
        if self._idle:
            return self._idle.pop()
        worker = _Worker(f"{self._name}_{len(self._workers)}", self._niceness)
        self._workers.append(worker)
        return worker

    def _finished(
        self, worker: "_Worker", job: _Job, result: object, error: BaseException | None
    ) -> None:
        self._running -= 1
        self._idle.append(worker)
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
        self._threads.require_open()
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


class _Worker:
    """A thread that makes one call after the other."""

    def __init__(self, name: str, niceness: int) -> None:
        """Raises RuntimeError if the system has no thread."""
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # The process would wait for any other thread at its exit, before what ends this one is called.
        self._thread = threading.Thread(
            target=_make_calls, args=(self._calls, niceness), name=name, daemon=True
        )
        self._thread.start()

    def start(self, call: Callable[[], None]) -> None:
        """Not before the one before it has ended."""
        self._calls.put(call)

    def end(self) -> None:
        """Behind the call that is being made."""
        self._calls.put(None)

    def join(self) -> None:
        """Returns when it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()


def _end_workers(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.join()


def _make_calls(calls: "SimpleQueue[Callable[[], None] | None]", niceness: int) -> None:
    """In a new thread. It holds on to nothing of a call that was made."""
    _step_back(niceness)
    while (call := calls.get()) is not None:
        call()
        del call


def _step_back(niceness: int) -> None:
    """On Linux niceness is a thread's own; elsewhere it is the whole process's, so it stays."""
    if niceness and sys.platform == "linux":
        os.nice(niceness)


def _run(job: _Job, report: Callable[[_Job, object, BaseException | None], None]) -> None:
    """In a thread."""
    result: object = None
    error: BaseException | None = None
    try:
        result = job.call()
    except BaseException as raised:  # noqa: BLE001 - it belongs to the caller that waits for the job
        error = raised
    try:
        job.future.get_loop().call_soon_threadsafe(report, job, result, error)
    except RuntimeError:
        # The loop is closed: it starts no further jobs.
        return
