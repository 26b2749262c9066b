"""How long what works over containers waits between its runs; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.run_pauses import (
    BREAK_SECONDS_MAX,
    FIRST_SECONDS,
    WAIT_SECONDS_MAX,
    RunEnd,
    RunPauses,
)
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

AWAY = ContainerNotFoundError(ContainerId(1), "recovering")
BUG = ValueError("our bug")


async def attempt(
    pauses: RunPauses,
    error: Exception,
    *,
    is_lost: bool = False,
    worked_seconds: float | None = None,
    seconds: float = 0.0,
) -> RunEnd:
    """One that takes so long to fail, or to work for so long."""
    pauses.attempt()
    await asyncio.sleep(seconds)
    if worked_seconds is not None:
        pauses.works()
        await asyncio.sleep(worked_seconds)
    return pauses.end(error, ExceptionGroup("its end", [error]), is_lost=is_lost)


def simulate(main: Callable[[], Awaitable[None]]) -> None:
    async def run(_: SimLoop) -> None:
        await main()

    run_simulation(1, run)


def test_pauses_grow_over_failures_in_a_row_up_to_what_fits_them() -> None:
    async def main() -> None:
        for error, seconds_max in ((AWAY, WAIT_SECONDS_MAX), (BUG, BREAK_SECONDS_MAX)):
            pauses = RunPauses()
            seen = [(await attempt(pauses, error)).pause_seconds for _ in range(60)]
            assert seen == sorted(seen)
            assert (seen[0], seen[-1]) == (FIRST_SECONDS, seconds_max)

    simulate(main)


def test_a_run_that_lost_its_containers_is_no_failure_however_short_it_was() -> None:
    async def main() -> None:
        pauses = RunPauses()
        for _ in range(60):
            await attempt(pauses, AWAY)
        end = await attempt(pauses, AWAY, is_lost=True, worked_seconds=0.0)
        assert (end.worked, end.pause_seconds) == (True, FIRST_SECONDS)
        # An attempt that was cut short by a further move has not worked.
        end = await attempt(pauses, AWAY, is_lost=True)
        assert not end.worked
        assert end.pause_seconds > FIRST_SECONDS

    simulate(main)


def test_a_run_that_breaks_is_a_failure_until_one_has_worked_for_a_while() -> None:
    async def main() -> None:
        pauses = RunPauses()
        seen = [(await attempt(pauses, BUG, worked_seconds=9.9)).pause_seconds for _ in range(60)]
        assert seen[-1] == BREAK_SECONDS_MAX
        assert (await attempt(pauses, BUG, worked_seconds=10.1)).pause_seconds == FIRST_SECONDS

    simulate(main)


def test_silence_is_counted_from_the_first_attempt_and_from_the_end_of_a_run() -> None:
    async def main() -> None:
        pauses = RunPauses()
        assert (await attempt(pauses, AWAY, seconds=2.0)).silent_seconds == 2.0
        assert (await attempt(pauses, AWAY, seconds=3.0)).silent_seconds == 5.0
        end = await attempt(pauses, AWAY, seconds=1.0, worked_seconds=7.0)
        assert (end.silent_seconds, pauses.runs) == (0.0, 1)
        assert (await attempt(pauses, AWAY, seconds=4.0)).silent_seconds == 4.0

    simulate(main)
