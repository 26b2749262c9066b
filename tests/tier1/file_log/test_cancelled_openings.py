"""Whoever opens a log may be cancelled at any moment, and again while that is being told: nothing stays open.

Goal: an opening that was cancelled leaves no descriptor and no lock behind, and the next one finds the log as it was.
Method: the opening is cancelled in each of its steps in turn; a step in a thread is held while its caller is cancelled
again and again.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import pytest

from segmentstore.runtime.cancellation import run_blocking
from tests.contracts.durable_data_log_suite import payloads
from tests.sim.disk import SimulatedFile
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.worlds import TINY, SimulatedLogWorld
from tier1.file_log.log import FileDurableDataLog


@pytest.mark.parametrize("times", [1, 2])
def test_an_opening_that_is_cancelled_at_any_await_leaves_no_file_open(times: int) -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        first = world.log()
        await first.initialize()
        await first.append([b"kept"])
        await first.close()
        for step in range(400):
            log = world.log()
            opened = noted_files(world, log)
            opening = loop.create_task(log.initialize())
            with cancelled_in_step(loop, log, step, opening.cancel, times) as cancelled:
                await asyncio.gather(opening, return_exceptions=True)
            await log.close()
            left = [file for file in opened if file.open]
            assert not left, f"cancelled in step {step}: {left}"
            if not cancelled:
                assert step > 10, "an opening has more steps"
                break
        else:
            raise AssertionError("no opening came to its end")
        last = world.log()
        await last.initialize()
        assert await payloads(last) == [b"kept"]
        await last.close()

    run_simulation(1, main)


@contextmanager
def cancelled_in_step(
    loop: SimLoop, log: FileDurableDataLog, number: int, cancel: Callable[[], object], times: int
) -> Iterator[list[int]]:
    """Cancel while that step is under way; what is given has something in it then."""
    honest: Any = loop.run_in_executor
    steps = iter(range(number + 1))
    cancelled: list[int] = []

    def run(executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if next(steps, None) == number and not log._writer:
            cancelled.append(number)
            for _ in range(times):
                loop.call_soon(cancel)
        return honest(executor, func, *args)

    loop.run_in_executor = run  # type: ignore[method-assign]
    try:
        yield cancelled
    finally:
        loop.run_in_executor = honest  # type: ignore[method-assign]


def noted_files(world: SimulatedLogWorld, log: FileDurableDataLog) -> list[SimulatedFile]:
    """All that the log opens, whoever forgets them."""
    mount = world.mount_of(log)
    honest: Callable[..., SimulatedFile] = mount.open
    opened: list[SimulatedFile] = []

    def note(path: str, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        file = honest(path, create=create, exclusive=exclusive)
        opened.append(file)
        return file

    mount.open = note  # type: ignore[method-assign]
    return opened


class HeldExecutor(Executor):
    """One job, which ends when the test says so."""

    def __init__(self) -> None:
        self.job: Future[Any] = Future()

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return self.job


async def test_a_caller_that_is_cancelled_twice_waits_for_the_step_that_it_began() -> None:
    executor = HeldExecutor()
    caller = asyncio.ensure_future(run_blocking(executor, lambda: None))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done(), "the thread still writes"
    executor.job.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await caller
