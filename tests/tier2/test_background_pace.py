"""Background work gives way while the loop is late, and never stops."""

import asyncio
import time

import pytest

from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tier2 import background_pace
from tier2.background_pace import BackgroundPace

LOW, HIGH = 0.1, 0.5


def new_pace() -> BackgroundPace:
    return BackgroundPace(busy_share_min=LOW, busy_share_max=HIGH)


async def beside_a_late_loop(pace: BackgroundPace, pieces: int) -> list[float]:
    """Seconds of the rests behind pieces of work, while something holds the loop for 10 ms at a time."""
    rests = []
    with pace.working():
        for _ in range(pieces):
            await asyncio.sleep(0)
            time.sleep(0.01)
            await asyncio.sleep(0)
            begin = time.monotonic()
            await pace.rest()
            rests.append(time.monotonic() - begin)
    return rests


async def test_while_the_loop_is_late_rests_become_longer_up_to_a_bound() -> None:
    pace = new_pace()
    rests = await beside_a_late_loop(pace, 6)
    assert pace.busy_share == LOW
    assert rests[-1] >= 0.01 * (1 / LOW - 1) * 0.99


async def test_in_a_hurry_a_late_loop_changes_nothing() -> None:
    pace = new_pace()
    pace.hurried = True
    rests = await beside_a_late_loop(pace, 9)
    assert min(rests[4:]) < 0.01 * (1 / LOW - 1) * 0.9
    assert pace.busy_share == LOW


async def test_a_loop_that_is_late_is_noticed_however_short_the_pieces_are() -> None:
    pace, loop = new_pace(), asyncio.get_running_loop()
    with pace.working():
        for _ in range(20):
            loop.call_soon(time.sleep, 0.01)
            await pace.rest(at_most=0.001)
    assert pace.busy_share == LOW


def test_while_nothing_is_late_the_share_comes_back() -> None:
    async def main(loop: SimLoop) -> None:
        pace = new_pace()
        pace.busy_share = LOW
        shares = []
        with pace.working():
            for _ in range(60):
                await asyncio.sleep(0.02)
                begin = loop.time()
                await pace.rest()
                shares.append(0.02 / (loop.time() - begin + 0.02))
        assert shares == sorted(shares)
        assert shares[0] < 0.12
        assert shares[-1] == pytest.approx(HIGH)

    run_simulation(1, main)


def test_a_rest_keeps_to_the_bounds_of_its_caller() -> None:
    async def main(loop: SimLoop) -> None:
        pace = new_pace()
        with pace.working():
            for at_least, at_most, expected in ((0.3, 9.0, 0.3), (0.0, 0.01, 0.01), (0, 9, 0.02)):
                await asyncio.sleep(0.02)
                begin = loop.time()
                await pace.rest(at_least=at_least, at_most=at_most)
                assert loop.time() - begin == pytest.approx(expected)

    run_simulation(1, main)


def test_a_look_whose_time_has_come_when_it_is_asked_for_is_no_timer_on_uvloop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that the kernel leaves aside for two milliseconds asks too late; uvloop then calls soon."""
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(background_pace, "_LOOK_SECONDS", 0.0)

    async def work() -> None:
        pace = new_pace()
        with pace.working():
            for _ in range(5):
                await pace.rest(at_least=0.001)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
