"""The power fails between any two changes of the disk.

One workload runs through several owners; each is killed at some boundary, perhaps between a write and its sync, or
closed. At every boundary the test takes two images of what a power cut could leave there, of other kinds each time.
Each image is then recovered: nothing that was acknowledged, or served by an earlier recovery, may be missing. Recovered
again after a second power cut, in the middle of the recovery or after it, it must hold the same.
"""

from dataclasses import dataclass
from random import Random

import pytest

from segmentstore.contracts.errors import DurableDataLogError, SegmentStoreError
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_image, power_cut_images_by_turns
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.history import History, work
from tests.tier1.file_log.planted import (
    AcknowledgesBeforeSync,
    ReplaysFormerLives,
    ServesTheUnsyncedTail,
)
from tests.tier1.file_log.recovered import recovered
from tests.tier1.file_log.worlds import SMALL, TINY, SimulatedLogWorld
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import DurabilityRules, FileLogSettings


@dataclass(frozen=True, slots=True)
class Cut:
    """One way in which the power could have failed."""

    boundary: Boundary
    persistence: Persistence
    image: SimulatedDisk
    history: History

    def __str__(self) -> str:
        return f"{self.boundary} keeping {self.persistence.value}"


class Recorder:
    """Runs the workload and collects cuts."""

    def __init__(self, world: SimulatedLogWorld, seed: int) -> None:
        self._world = world
        self._random = Random(seed)
        self._cut_random = Random(seed + 1000)
        self._owner: FileDurableDataLog | None = None
        self._dies_at = 0
        self._dies_anywhere = False
        self.history = History()
        self.cuts: list[Cut] = []

    async def run(self, *, owners: int, rounds: int) -> None:
        disk = self._world.disk
        disk.on_boundary = self._take
        for _ in range(owners):
            self._owner = self._world.log()
            self._dies_at = disk.boundaries + self._random.randrange(10, 8 * rounds)
            self._dies_anywhere = self._random.random() < 0.5
            try:
                await self._own(self._owner, rounds)
            except DurableDataLogError:
                assert not self._world.mount_of(self._owner).alive, (
                    "it failed, but not of its death"
                )
            await self._world.kill(self._owner)
        disk.on_boundary = None

    async def _own(self, log: FileDurableDataLog, rounds: int) -> None:
        await log.initialize()
        served = await entries(log)
        self.history.judge(served)
        self.history.served = served
        await work(log, self.history, self._random, rounds=rounds)
        log.check()
        await log.close()

    def _take(self, boundary: Boundary) -> None:
        known = self.history.snapshot()
        images = power_cut_images_by_turns(self._world.disk, self._cut_random, turn=boundary.number)
        for persistence, image in images:
            self.cuts.append(Cut(boundary, persistence, image, known))
        if self._dies_at and boundary.number >= self._dies_at and self._is_deadly(boundary):
            self._dies_at = 0
            assert self._owner is not None, "boundaries are made by owners"
            self._dies_at = 0
            self._world.mount_of(self._owner).kill(late_writes=0)

    def _is_deadly(self, boundary: Boundary) -> bool:
        """Half of the owners die between the write of a frame and its sync, the rest anywhere."""
        writer = self._owner._writer if self._owner is not None else None
        if self._dies_anywhere or writer is None:
            return self._dies_anywhere
        return boundary.kind == "write" and boundary.path == writer.journals[-1].path


async def check_cut(
    cut: Cut, settings: FileLogSettings, random: Random, rules: DurabilityRules | None = None
) -> None:
    world = SimulatedLogWorld(settings, disk=cut.image, rules=rules, seed=random.getrandbits(32))
    halfway: list[SimulatedDisk] = []
    stop_at = random.randrange(1, 12)

    def take_halfway(boundary: Boundary) -> None:
        if boundary.number == stop_at:
            halfway.append(power_cut_image(cut.image, Persistence.SUBSET, random))

    cut.image.on_boundary = take_halfway
    first = await recovered(world)
    cut.image.on_boundary = None
    cut.history.judge(first)
    again = [*halfway, power_cut_image(cut.image, random.choice(list(Persistence)), random)]
    for image in again:
        second = SimulatedLogWorld(settings, disk=image, rules=rules, seed=random.getrandbits(32))
        assert await recovered(second) == first, "recovering twice gave something else"


async def run_all_cuts(
    seed: int,
    settings: FileLogSettings,
    *,
    owners: int,
    rounds: int,
    rules: DurabilityRules | None = None,
    stop_at_first: bool = False,
) -> tuple[int, list[BaseException]]:
    """How many cuts were tried, and what was wrong with which."""
    recorder = Recorder(SimulatedLogWorld(settings, seed=seed, rules=rules), seed)
    wrong: list[BaseException] = []
    try:
        await recorder.run(owners=owners, rounds=rounds)
    except (AssertionError, SegmentStoreError) as error:
        wrong.append(error)
    random = Random(seed)
    for cut in recorder.cuts:
        if wrong and stop_at_first:
            break
        try:
            await check_cut(cut, settings, random, rules)
        except (AssertionError, SegmentStoreError) as error:
            error.add_note(f"at {cut}")
            wrong.append(error)
    return len(recorder.cuts), wrong


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_h40_h43_h46_h49_no_power_cut_loses_what_was_acknowledged(
    seed: int,
) -> None:
    settings = TINY if seed % 3 else SMALL

    async def main(loop: SimLoop) -> int:
        cuts, wrong = await run_all_cuts(seed, settings, owners=9, rounds=10)
        if wrong:
            raise wrong[0]
        return cuts

    assert run_simulation(seed, main).result >= 480


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize(
    "rules", [AcknowledgesBeforeSync(), ReplaysFormerLives(), ServesTheUnsyncedTail()]
)
def test_h81_a_planted_bug_is_found(rules: DurabilityRules) -> None:
    async def main(loop: SimLoop) -> bool:
        _, wrong = await run_all_cuts(
            loop.seed, TINY, owners=6, rounds=10, rules=rules, stop_at_first=True
        )
        return bool(wrong)

    assert any(run_simulation(seed, main).result for seed in range(4))
