"""The power fails between any two changes of the disk.

One workload runs through several owners, some closed and some killed. At every boundary of the disk the test takes
images of what could be left by a power cut there. Each image is then recovered: nothing acknowledged may be missing;
recovered again after a second power cut, it must hold the same.
"""

import asyncio
from dataclasses import dataclass
from random import Random

import pytest

from segmentstore.contracts.durable_data_log import DurableDataLog
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.power_cuts import Persistence, power_cut_image, power_cut_images
from tests.tier1.file_log.history import Entries, History, work
from tests.tier1.file_log.worlds import SMALL, TINY, SimulatedLogWorld
from tier1.file_log.settings import FileLogSettings


@dataclass(frozen=True, slots=True)
class Cut:
    """One way in which the power could have failed."""

    boundary: Boundary
    persistence: Persistence
    image: SimulatedDisk
    history: History

    def __str__(self) -> str:
        return f"boundary {self.boundary} keeping {self.persistence.value}"


async def recorded_cuts(
    world: SimulatedLogWorld, seed: int, *, owners: int, rounds: int, subsets: int
) -> list[Cut]:
    """Run the workload and collect a cut of each kind at every boundary."""
    history, random, cut_random = History(), Random(seed), Random(seed + 1000)
    cuts: list[Cut] = []

    def take(boundary: Boundary) -> None:
        known = history.snapshot()
        for persistence, image in power_cut_images(world.disk, cut_random, subsets=subsets):
            cuts.append(Cut(boundary, persistence, image, known))

    world.disk.on_boundary = take
    for owner in range(owners):
        log: DurableDataLog = world.log()
        await log.initialize()
        history.served = await entries(log)
        history.judge(history.served)
        await work(log, history, random, rounds=rounds)
        if owner % 2:
            await world.kill(log)
        else:
            await log.close()
    world.disk.on_boundary = None
    return cuts


async def recover(world: SimulatedLogWorld) -> Entries:
    log = world.log()
    await log.initialize()
    found = await entries(log)
    await world.kill(log)
    return found


async def check_cut(cut: Cut, settings: FileLogSettings, random: Random) -> None:
    world = SimulatedLogWorld(settings, disk=cut.image)
    first = await recover(world)
    cut.history.judge(first)
    for persistence in (Persistence.NOTHING, Persistence.SUBSET):
        again = SimulatedLogWorld(settings, disk=power_cut_image(cut.image, persistence, random))
        assert await recover(again) == first, f"recovering twice gave something else at {cut}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "settings", "rounds"), [(1, TINY, 24), (2, TINY, 24), (3, SMALL, 16)]
)
async def test_h40_h43_no_power_cut_loses_what_was_acknowledged(
    seed: int, settings: FileLogSettings, rounds: int
) -> None:
    world = SimulatedLogWorld(settings, seed=seed)
    cuts = await recorded_cuts(world, seed, owners=4, rounds=rounds, subsets=2)
    random = Random(seed)
    for cut in cuts:
        try:
            await check_cut(cut, settings, random)
        except BaseException as error:
            error.add_note(f"at {cut}")
            raise
    assert len(cuts) >= 1200, f"only {len(cuts)} cuts"
