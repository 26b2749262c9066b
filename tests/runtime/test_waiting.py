import asyncio
import time
from math import inf

import pytest

from segmentstore.runtime.waiting import (
    Change,
    gather_all,
    sleep_and_tell_lateness,
    wait_for_event,
)
from tests.sim.simulation import run_simulation


def test_a_wait_ends_at_its_time_or_when_the_event_is_set_even_beforehand() -> None:
    async def main(_: object) -> list[float]:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        times = []

        async def wait(until: float) -> None:
            await wait_for_event(event, until=until)
            event.clear()
            times.append(loop.time())

        await wait(loop.time() + 5)
        loop.call_later(2, event.set)
        await wait(inf)
        event.set()
        await wait(inf)
        await wait(loop.time() + 1)
        return times

    assert run_simulation(1, main).result == [5, 7, 7, 8]


def test_a_wait_that_is_cancelled_leaves_no_timer() -> None:
    async def main(_: object) -> bool:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        waiting = asyncio.ensure_future(wait_for_event(event, until=loop.time() + 2))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(3)
        return event.is_set()

    assert run_simulation(1, main).result is False


async def test_a_sleep_tells_how_late_it_ended() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 0.2)
    assert await sleep_and_tell_lateness(0.01) >= 0.18


def test_a_sleep_that_ends_in_time_is_not_late() -> None:
    async def main(_: object) -> float:
        return await sleep_and_tell_lateness(5)

    assert run_simulation(1, main).result == 0


def test_a_change_wakes_all_that_wait_and_none_that_come_later() -> None:
    async def main(_: object) -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        change = Change()
        woken = []

        async def wait(name: str, seconds_max: float) -> None:
            await change.wait(seconds_max)
            woken.append((name, loop.time()))

        async with asyncio.TaskGroup() as tasks:
            for name in ("first", "second"):
                tasks.create_task(wait(name, 60))
            await asyncio.sleep(3)
            change.tell()
            tasks.create_task(wait("late", 5))
        await wait("again", 7)
        change.tell()
        return woken

    woken = [("first", 3), ("second", 3), ("late", 8), ("again", 15)]
    assert run_simulation(1, main).result == woken


async def test_results_come_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_all(after(turns) for turns in (3, 1, 2)) == [3, 1, 2]
    assert await gather_all([]) == []


async def test_a_failure_is_raised_when_all_have_ended() -> None:
    ended: list[str] = []

    async def fail(text: str) -> None:
        ended.append(text)
        raise ValueError(text)

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("work")

    with pytest.raises(ValueError, match="first"):
        await gather_all([work(), fail("first"), fail("second")])
    assert ended == ["first", "second", "work"]
