"""A process that stands still says where."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

from segmentstore.runtime.process import report_stacks_on_signal, stack_lines


async def outer(gate: asyncio.Event) -> None:
    await inner(gate)


async def inner(gate: asyncio.Event) -> None:
    async for _ in passing(gate):
        pass


async def passing(gate: asyncio.Event) -> AsyncIterator[None]:
    await gate.wait()
    yield


async def test_a_task_is_a_line_from_its_beginning_to_what_it_waits_for() -> None:
    gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(outer(gate), name="the one")
        await asyncio.sleep(0)
        (line,) = [each for each in stack_lines(asyncio.get_running_loop()) if "the one" in each]
        gate.set()
    first, last = line.index("outer(runtime/test_stack_report.py:"), line.index("inner(")
    assert first < last


async def test_tasks_that_wait_at_one_place_share_a_line() -> None:
    gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(gate.wait())
        await asyncio.sleep(0)
        lines = [
            line for line in stack_lines(asyncio.get_running_loop()) if line.startswith("task")
        ]
        gate.set()
    assert len(lines) == 2, "this test, and all of those"
    assert [line for line in lines if "count=1000" in line and "Event.wait" in line]


async def test_threads_are_told_as_well() -> None:
    lines = list(stack_lines(asyncio.get_running_loop()))
    assert [line for line in lines if line.startswith("thread") and "stack_lines" in line]


async def test_a_signal_asks_for_it_and_ends_nothing() -> None:
    lines: list[str] = []
    report_stacks_on_signal(lines.append)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        while not lines:
            await asyncio.sleep(0)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    assert lines[-1].startswith("thread")
