"""Nodes, controllers and ZooKeeper fail in every order: no container is at two nodes, and each planted bug shows.

A seed is a world of its own; `python -m tests.cluster.random_cluster --seed N --verbose` plays one again.
"""

import pytest

from tests.cluster.planted import BUGS
from tests.cluster.random_cluster import live
from tests.sim.node import SimulationError

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS = 40
_BATCH = 20
_FOUND_BY: dict[str, int] = {}
"""The seed that found a bug last, where the first few find nothing."""


@pytest.mark.parametrize("first", range(1, _SEEDS + 1, _BATCH))
def test_h24_whatever_fails_a_container_has_one_owner_and_finds_one_in_the_end(first: int) -> None:
    assert sum(live(seed) for seed in range(first, first + _BATCH)) > 10 * _BATCH


def _breaks(seed: int) -> bool:
    try:
        live(seed)
    except (AssertionError, ExceptionGroup, SimulationError):
        return True
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_h81_a_bug_planted_in_the_cluster_is_found(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS[bug](monkeypatch)
    assert any(map(_breaks, [_FOUND_BY.get(bug, 1), *range(1, _SEEDS + 1)])), "never found"
