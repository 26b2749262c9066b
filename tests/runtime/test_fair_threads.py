import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from segmentstore.runtime.thread_pool import FairThreadPool, Lane

BUSY = [f"busy{number}" for number in range(100)]
QUIET = [f"quiet{number}" for number in range(3)]


class Gate:
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        self._open: Future[None] = Future()

    def wait(self) -> None:
        self._open.result(timeout=60)

    def open(self) -> None:
        self._open.set_result(None)


async def run(lane: Lane, call: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(lane, call)


async def test_h37_a_busy_lane_gets_one_turn_for_each_turn_of_the_others() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    busy, quiet, gate = threads.lane(), threads.lane(), Gate()
    started: list[str] = []
    jobs = [asyncio.ensure_future(run(busy, gate.wait))]
    await asyncio.sleep(0)
    for lane, names in ((busy, BUSY), (quiet, QUIET)):
        jobs += [asyncio.ensure_future(run(lane, partial(started.append, name))) for name in names]
    await asyncio.sleep(0)
    threads.check()
    gate.open()
    await asyncio.gather(*jobs)
    threads.check()
    threads.close()
    assert started[:6] == ["busy0", "quiet0", "busy1", "quiet1", "busy2", "quiet2"]
    assert started[6:] == BUSY[3:]


async def test_no_more_jobs_run_at_once_than_there_are_threads() -> None:
    threads = FairThreadPool(thread_count=2, name="test")
    gates = [Gate() for _ in range(6)]
    entered: list[int] = []

    def job(number: int) -> None:
        entered.append(number)
        gates[number].wait()

    lanes = [threads.lane() for _ in range(3)]
    jobs = [asyncio.ensure_future(run(lanes[n % 3], partial(job, n))) for n in range(6)]
    async with asyncio.timeout(60):
        while len(entered) < 2:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)  # a third one would come by now
    assert sorted(entered) == [0, 1]
    threads.check()
    for gate in gates:
        gate.open()
    await asyncio.gather(*jobs)
    threads.close()
    assert sorted(entered) == list(range(6))


async def test_what_a_job_raises_reaches_its_submitter_and_frees_the_thread() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    lane = threads.lane()

    def broken() -> None:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        await run(lane, broken)
    await run(lane, lambda: None)
    threads.check()
    threads.close()


async def test_a_cancelled_job_that_has_not_started_never_starts() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    lane, gate = threads.lane(), Gate()
    started: list[str] = []
    first = asyncio.ensure_future(run(lane, gate.wait))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(run(lane, partial(started.append, "second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    gate.open()
    await first
    await run(lane, partial(started.append, "third"))
    threads.check()
    threads.close()
    assert started == ["third"]


async def test_closing_cancels_what_waits() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    lane, gate = threads.lane(), Gate()
    first = asyncio.ensure_future(run(lane, gate.wait))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(run(lane, lambda: None))
    await asyncio.sleep(0)
    gate.open()
    threads.close()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_a_job_goes_to_the_thread_that_was_free_last() -> None:
    threads = FairThreadPool(thread_count=3, name="test")
    lanes = [threads.lane() for _ in range(3)]
    gates = [Gate() for _ in range(3)]
    names: list[str] = []

    def job(gate: Gate) -> None:
        gate.wait()
        names.append(threading.current_thread().name)

    jobs = [
        asyncio.ensure_future(run(lane, partial(job, gate)))
        for lane, gate in zip(lanes, gates, strict=True)
    ]
    await asyncio.sleep(0)
    for number in (0, 2, 1):
        gates[number].open()
        await jobs[number]
    opened = Gate()
    opened.open()
    for _ in range(5):
        await run(lanes[0], partial(job, opened))
    threads.check()
    threads.close()
    assert len(set(names[:3])) == 3
    assert names[3:] == [names[2]] * 5


class Held:
    """What a job gives back."""


async def test_a_thread_that_is_free_holds_on_to_nothing() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    lane = threads.lane()
    given = Held()
    kept = weakref.ref(given)
    assert await asyncio.get_running_loop().run_in_executor(lane, lambda held: held, given) is given
    del given
    # Its next call begins when it has let go of the one before.
    await run(lane, lambda: None)
    threads.check()
    assert kept() is None
    threads.close()


async def test_behind_the_end_no_job_is_taken() -> None:
    threads = FairThreadPool(thread_count=2, name="test")
    lane = threads.lane()
    await run(lane, lambda: None)
    threads.close()
    threads.close()
    with pytest.raises(RuntimeError, match="behind the end"):
        await run(lane, lambda: None)


async def test_a_job_behind_the_end_is_refused_also_while_the_last_ones_are_not_told_yet() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    lane, gate = threads.lane(), Gate()
    last = asyncio.ensure_future(run(lane, gate.wait))
    await asyncio.sleep(0)
    gate.open()
    threads.close()  # the thread has ended; what it says of its job is yet to come
    with pytest.raises(RuntimeError, match="behind the end"):
        lane.submit(lambda: None)
    async with asyncio.timeout(60):
        await last
    threads.check()


async def test_threads_end_with_a_pool_that_is_garbage() -> None:
    threads = FairThreadPool(thread_count=1, name="test")
    found: list[threading.Thread] = []
    lane = threads.lane()
    await run(lane, lambda: found.append(threading.current_thread()))
    del threads, lane
    # The loop's own reference goes with the turn in which the job was told of.
    await asyncio.sleep(0)
    found[0].join(timeout=60)
    assert not found[0].is_alive()


def test_a_process_that_exits_finishes_the_job_that_runs() -> None:
    program = """
import asyncio, time
from segmentstore.runtime.thread_pool import FairThreadPool
threads = FairThreadPool(thread_count=2, name="test")

def slow():
    print("begun", flush=True)
    time.sleep(0.2)
    print("ended", flush=True)

async def main():
    asyncio.get_running_loop().run_in_executor(threads.lane(), slow)
    await asyncio.get_running_loop().run_in_executor(threads.lane(), lambda: None)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["begun", "ended"]
    assert done.stderr == ""
