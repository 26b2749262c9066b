"""Goal: the invariants of random_processes.py hold whatever moves when; and a bug in what they rest on is found."""

from collections import Counter
from collections.abc import Callable

import pytest

from segmentstore.topics.catalogue import Catalogue
from segmentstore.topics.partition_files import PartitionFiles
from tests.sim.simulation import run_simulation
from tests.topics.planted_bugs import require_found
from tests.topics.random_processes import one_schedule

pytestmark = pytest.mark.simulation

_SEEDS_FOR_A_BUG = 150


def run(seed: int) -> Counter[str]:
    return run_simulation(seed, lambda loop: one_schedule(loop, seed)).result


@pytest.mark.parametrize("seed", range(1, 31))
def test_whatever_moves_each_record_is_stored_once_and_in_order(seed: int) -> None:
    assert run(seed)["appended"] > 10


def test_the_seeds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 13):
        seen += run(seed)
    for what in (
        "appended",
        "duplicate",
        "created",
        "deleted",
        "files",
        "files beside",
        "looked",
        "moved",
        "moved under way",
        "not leader",
        "restarted",
        "stored=False",
        "stored=None",
    ):
        assert seen[what] >= 2, seen


def _objects_that_come_too_late_stay(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: PartitionFiles, file: object) -> None:
        del self, file

    patch.setattr(PartitionFiles, "_delete_if_retired", nothing)


def _removed_topics_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    original = Catalogue._catch_up

    async def hasty(self: Catalogue) -> None:
        async with self._tables.open_table("_system/_topics/catalogue") as table:
            if self._position is not None:
                await self._read_changes(table, self._position)
                return
        await original(self)

    patch.setattr(Catalogue, "_catch_up", hasty)


@pytest.mark.parametrize(
    "plant",
    [_objects_that_come_too_late_stay, _removed_topics_are_not_noticed],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    require_found(run, _SEEDS_FOR_A_BUG)
