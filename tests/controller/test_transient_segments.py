"""What a writer of a large event left behind goes by age, and nothing else does."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from segmentstore.contracts.segments import SegmentProperties
from segmentstore.controller.settings import TransientSegmentSettings
from segmentstore.controller.transient_segments import TransientSegments
from segmentstore.runtime.clock import ClockWatch
from tests.http.memory_segments import MemorySegments
from tests.sim.clock import SimulatedWallClock
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

DAY = 86_400.0
SETTINGS = TransientSegmentSettings(segments_per_read=3)
PARENT = "s/a/0.#epoch.0"


def transient(number: int) -> str:
    return f"{PARENT}#transient.{number:032x}.{number:032x}"


class DatedSegments(MemorySegments):
    """Says when each was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.modified_ms: dict[str, int] = {}
        self.since_the_listing: dict[str, int] = {}
        """Written to behind it."""

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        page = await super().list_segments(prefix, start_after, limit)
        dated = [
            replace(each, last_modified_ms=self.modified_ms.get(each.name, 0)) for each in page
        ]
        self.modified_ms |= self.since_the_listing
        return dated

    async def info(self, name: str) -> SegmentProperties:
        return replace(await super().info(name), last_modified_ms=self.modified_ms.get(name, 0))


class Sweep:
    """A store whose clock the simulation moves."""

    def __init__(self, loop: SimLoop) -> None:
        self.wall = SimulatedWallClock(loop)
        self.segments = DatedSegments()
        self.clock_watch = ClockWatch(
            wall_clock=self.wall, difference_seconds_max=2.0, settle_seconds=600.0
        )
        self.transients = TransientSegments(
            segments=self.segments,
            wall_clock=self.wall,
            clock_watch=self.clock_watch,
            settings=SETTINGS,
        )

    async def create(self, *names: str) -> None:
        for name in names:
            await self.segments.create(name)
            self.segments.modified_ms[name] = self.wall.now_ms()


def test_only_transient_segments_that_were_not_written_to_for_long_go() -> None:
    async def scenario(loop: SimLoop) -> None:
        sweep = Sweep(loop)
        others = [PARENT, f"{PARENT}#transaction.{1:032x}", "notes#transient.file", "a#transient."]
        await sweep.create(*others, *(transient(number) for number in range(8)))
        await asyncio.sleep(SETTINGS.keep_seconds + 1)
        await sweep.create(transient(8))
        sweep.segments.modified_ms[transient(1)] = sweep.wall.now_ms()
        sweep.segments.modified_ms[transient(2)] = 0
        assert await sweep.transients.run_once() == 6
        left = {*others, transient(1), transient(2), transient(8)}
        assert set(sweep.segments.names()) == left
        assert await sweep.transients.run_once() == 0

    run_simulation(1, scenario)


def test_a_segment_that_a_writer_still_fills_stays() -> None:
    async def scenario(loop: SimLoop) -> None:
        sweep = Sweep(loop)
        await sweep.create(transient(1))
        await asyncio.sleep(SETTINGS.keep_seconds + 1)
        # It comes back at the last moment: behind the listing, before its segment is deleted.
        sweep.segments.since_the_listing = {transient(1): sweep.wall.now_ms()}
        assert await sweep.transients.run_once() == 0
        assert sweep.segments.names() == [transient(1)]

    run_simulation(1, scenario)


def test_h77_a_clock_that_jumped_deletes_nothing() -> None:
    async def scenario(loop: SimLoop) -> None:
        sweep = Sweep(loop)
        await sweep.create(transient(1))
        sweep.clock_watch.look()
        sweep.wall.step(round(10_000 * SETTINGS.keep_seconds))
        assert await sweep.transients.run_once() == 0

    run_simulation(1, scenario)


def test_they_go_while_the_controller_runs() -> None:
    async def scenario(loop: SimLoop) -> None:
        sweep = Sweep(loop)
        await sweep.create(transient(1))
        running = asyncio.create_task(sweep.transients.run())
        await asyncio.sleep(SETTINGS.keep_seconds)
        assert sweep.segments.names() == [transient(1)]
        await asyncio.sleep(2 * SETTINGS.interval_seconds)
        assert sweep.segments.names() == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_simulation(1, scenario)
