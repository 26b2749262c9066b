"""What a node says of Tier 2: reached, silent, or neither; in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from random import Random

from segmentstore.contracts.cluster import Tier2State
from segmentstore.contracts.errors import StorageUnavailableError
from segmentstore.host.tier2_reach import REACHED_SECONDS, Tier2Reach
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

SILENT_SECONDS = 60.0


class AskedTier2:
    """Counts what it answers, as a bucket does; `away` refuses or hangs."""

    def __init__(self) -> None:
        self.answers = 0
        self.asked = 0
        self.away = ""

    async def ask(self) -> None:
        self.asked += 1
        if self.away == "refused":
            raise StorageUnavailableError("connection refused", state="unavailable")
        if self.away == "lost":
            await asyncio.Event().wait()
        if self.away == "broken":
            raise ValueError("a bug of ours, or of a library")
        await asyncio.sleep(0.1)
        self.answers += 1

    def reach(self) -> Tier2Reach:
        return Tier2Reach(answers=lambda: self.answers, ask=self.ask, silent_seconds=SILENT_SECONDS)


@asynccontextmanager
async def looking(reach: Tier2Reach) -> AsyncIterator[None]:
    task = asyncio.create_task(reach.run())
    try:
        yield
    finally:
        task.cancel()


async def seconds_until(reach: Tier2Reach, state: Tier2State) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while reach.state is not state:
        await asyncio.sleep(0.05)
    return loop.time() - began


def simulate(main: Coroutine[object, object, None]) -> None:
    async def run(_: SimLoop) -> None:
        await main

    run_simulation(1, run)


def test_it_says_nothing_until_it_has_had_an_answer_or_long_none() -> None:
    async def main() -> None:
        tier2 = AskedTier2()
        reach = tier2.reach()
        assert reach.state is Tier2State.UNKNOWN
        async with looking(reach):
            assert await seconds_until(reach, Tier2State.REACHED) < 1
        never = AskedTier2()
        never.away = "refused"
        reach = never.reach()
        async with looking(reach):
            seconds = await seconds_until(reach, Tier2State.SILENT)
            assert abs(seconds - SILENT_SECONDS) < 1
            (told,) = reach.complaints()
            assert "60 s: connection refused" in told

    simulate(main())


def test_a_question_that_breaks_is_one_without_an_answer() -> None:
    async def main() -> None:
        tier2 = AskedTier2()
        tier2.away = "broken"
        reach = tier2.reach()
        async with looking(reach):
            await seconds_until(reach, Tier2State.SILENT)
            assert "a bug of ours" in reach.complaints()[0]
            tier2.away = ""
            await seconds_until(reach, Tier2State.REACHED)

    simulate(main())


def test_an_idle_node_asks_and_a_busy_one_does_not() -> None:
    async def main() -> None:
        tier2 = AskedTier2()
        reach = tier2.reach()
        async with looking(reach):
            await asyncio.sleep(600)
            assert reach.state is Tier2State.REACHED
            assert 100 <= tier2.asked <= 125
            before = tier2.asked
            for _ in range(600):
                tier2.answers += 1
                await asyncio.sleep(1)
            assert tier2.asked == before
            assert reach.state is Tier2State.REACHED
            assert reach.complaints() == []

    simulate(main())


def test_answers_of_other_requests_count_while_a_question_has_none() -> None:
    """A way that is full of large objects answers questions late."""

    async def main() -> None:
        tier2 = AskedTier2()
        tier2.away = "lost"
        reach = tier2.reach()
        async with looking(reach):
            for _ in range(60):
                await asyncio.sleep(12)
                tier2.answers += 1
                assert reach.state is not Tier2State.SILENT
            assert await seconds_until(reach, Tier2State.SILENT) >= SILENT_SECONDS - 12
            assert "no answer within 5 s" in reach.complaints()[0]
            tier2.away = ""
            assert await seconds_until(reach, Tier2State.REACHED) < 11
            assert reach.complaints() == []

    simulate(main())


def test_no_node_says_silent_while_another_says_reached_when_tier2_goes_away_for_all() -> None:
    """Whatever their looks, and with reports that are up to ten seconds late: no container moves for it."""

    async def main() -> None:
        random = Random(7)
        for _ in range(50):
            tier2 = [AskedTier2() for _ in range(5)]
            reaches = [each.reach() for each in tier2]
            tasks = []
            for reach in reaches:
                tasks.append(asyncio.create_task(reach.run()))
                await asyncio.sleep(random.uniform(0, 3))
            await asyncio.sleep(random.uniform(10, 30))
            for each in tier2:
                each.away = random.choice(["refused", "lost"])
            last_reached, first_silent = 0.0, float("inf")
            loop = asyncio.get_running_loop()
            until = loop.time() + 90
            while loop.time() < until:
                states = {each.state for each in reaches}
                if Tier2State.REACHED in states:
                    last_reached = loop.time()
                if Tier2State.SILENT in states:
                    first_silent = min(first_silent, loop.time())
                await asyncio.sleep(0.25)
            assert last_reached + 10 < first_silent < float("inf")
            for task in tasks:
                task.cancel()

    simulate(main())


def test_the_time_in_which_a_process_stood_still_is_no_silence() -> None:
    async def main(loop: SimLoop) -> None:
        tier2 = AskedTier2()
        seen: list[Tier2State] = []

        async def node() -> None:
            reach = tier2.reach()
            async with looking(reach):
                while True:
                    seen.append(reach.state)
                    await asyncio.sleep(1.0)

        for asking in ("", "lost"):
            tier2.away = asking
            process = loop.start("node", node())
            await asyncio.sleep(21)
            loop.pause(process)
            await asyncio.sleep(10 * SILENT_SECONDS)
            tier2.away = ""
            seen.clear()
            loop.resume(process)
            # The look behind it may be one turn later than who asks.
            await asyncio.sleep(REACHED_SECONDS + 6)
            assert seen[1:].count(Tier2State.SILENT) == 0
            assert seen[-1] is Tier2State.REACHED
            loop.crash(process)

    run_simulation(3, main)
