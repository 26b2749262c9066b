"""Nodes, controllers and ZooKeeper fail in every order: no container is at two nodes, and each planted bug shows.

A seed is a world of its own; `python -m tests.cluster.random_cluster --seed N --verbose` plays one again.
"""

import pytest

from tests.cluster.planted import BUGS, PlantedBug
from tests.cluster.random_cluster import World, live
from tests.sim.node import SimulationError

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS = 40
_BATCH = 20


@pytest.mark.parametrize("first", range(1, _SEEDS + 1, _BATCH))
def test_h85_whatever_fails_a_container_has_one_owner_and_finds_one_in_the_end(first: int) -> None:
    assert sum(live(seed) for seed in range(first, first + _BATCH)) > 10 * _BATCH


def test_h84_what_a_slow_leader_decided_lands_in_its_time_or_never() -> None:
    for seed in range(1, 11):
        live(seed, shape=World.slow_leaders)


def test_h83_a_node_that_hears_late_that_it_was_heard_is_not_sure_for_longer() -> None:
    for seed in range(1, 11):
        live(seed, shape=World.late_answers)


def test_h85_ways_to_tier2_that_break_and_heal_leave_each_container_one_owner() -> None:
    for seed in range(1, 13):
        live(seed, shape=World.broken_ways)


def _breaks(seed: int, bug: PlantedBug) -> bool:
    try:
        live(seed, shape=bug.shape)
    except (AssertionError, ExceptionGroup, SimulationError):
        return True
    return False


@pytest.mark.parametrize(("name", "bug"), BUGS.items(), ids=BUGS.keys())
def test_h81_a_bug_planted_in_the_cluster_is_found(
    name: str, bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.patch(monkeypatch)
    assert any(_breaks(seed, bug) for seed in range(1, _SEEDS + 1)), f"never found: {name}"
