"""The simulated wall clock follows virtual time, with steps and drift."""

import asyncio

import pytest

from tests.sim.clock import SimulatedWallClock
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation


def test_it_follows_virtual_time_with_offset_steps_and_drift() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimulatedWallClock(loop)
        ahead = SimulatedWallClock(loop, offset_ms=500)
        start = clock.now_ms()
        assert ahead.now_ms() - start == 500
        await asyncio.sleep(10)
        assert clock.now_ms() - start == 10_000
        clock.step(-3_600_000)
        assert clock.now_ms() - start == 10_000 - 3_600_000
        clock.step(3_600_000)
        clock.set_drift(0.5)
        await asyncio.sleep(10)
        assert clock.now_ms() - start == 25_000
        clock.set_drift(0.0)
        await asyncio.sleep(10)
        assert clock.now_ms() - start == 35_000

    run_simulation(1, main)
