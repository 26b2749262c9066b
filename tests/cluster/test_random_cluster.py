"""Nodes, controllers and ZooKeeper fail in every order: no container is at two nodes, and each planted bug shows.

A seed is a world of its own; `python -m tests.cluster.random_cluster --seed N --verbose` plays one again.
"""

import pytest

from tests.cluster.planted import BUGS, PlantedBug
from tests.cluster.random_cluster import live
from tests.sim.node import SimulationError

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS = 40
_BATCH = 20
_FOUND_BY = {"count a lease from the answer": 25}
"""The seed that found a bug last, where the first few find nothing."""


@pytest.mark.parametrize("first", range(1, _SEEDS + 1, _BATCH))
def test_h85_whatever_fails_a_container_has_one_owner_and_finds_one_in_the_end(first: int) -> None:
    assert sum(live(seed) for seed in range(first, first + _BATCH)) > 10 * _BATCH


def test_h84_what_a_slow_leader_decided_lands_in_its_time_or_never() -> None:
    for seed in range(1, 11):
        live(seed, has_slow_leaders=True)


def _breaks(seed: int) -> bool:
    try:
        live(seed)
    except (AssertionError, ExceptionGroup, SimulationError):
        return True
    return False


@pytest.mark.parametrize(("name", "bug"), BUGS.items(), ids=BUGS.keys())
def test_h81_a_bug_planted_in_the_cluster_is_found(
    name: str, bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.patch(monkeypatch)
    seeds = [_FOUND_BY.get(name, 1), *range(1, _SEEDS + 1)]
    assert any(_breaks(seed) for seed in seeds), "never found"
