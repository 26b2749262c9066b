"""Owners, bookies and ZooKeeper fail in every order, and the log keeps what it promised; each planted bug breaks it.

A seed is a world of its own; `python -m tests.tier1.bookkeeper.random_life --seed N --verbose` plays one again.
"""

from collections.abc import Iterator

import pytest

from segmentstore.contracts.errors import DurableDataLogError
from tests.sim.node import SimulationError
from tests.tier1.bookkeeper.planted import BUGS, PlantedBug
from tests.tier1.bookkeeper.random_life import live

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_BATCH = 50
_SEEDS = 150
_REGRESSIONS = (64, 69, 82, 202, 307, 467, 798)
"""Seeds that found something in the log, or in its test."""
_FOUND_BY: dict[str, int] = {}
"""The seed that found a bug last, where the first few find nothing."""


@pytest.mark.parametrize("first", range(1, _SEEDS + 1, _BATCH))
def test_h51_what_is_acknowledged_or_read_stays_whatever_fails(first: int) -> None:
    assert sum(live(seed).result for seed in range(first, first + _BATCH)) > 1000


def test_seeds_that_once_found_something_find_nothing_now() -> None:
    for seed in _REGRESSIONS:
        live(seed)


def _seeds(bug: str) -> Iterator[int]:
    yield _FOUND_BY.get(bug, 1)
    yield from range(1, _SEEDS + 1)


def _breaks(seed: int, bug: PlantedBug) -> bool:
    try:
        live(seed, rules=bug.rules)
    except (AssertionError, DurableDataLogError, SimulationError):
        return True
    return False


@pytest.mark.parametrize(("name", "bug"), BUGS.items(), ids=BUGS.keys())
def test_h81_a_planted_bug_is_found(
    name: str, bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug.patch is not None:
        bug.patch(monkeypatch)
    assert any(_breaks(seed, bug) for seed in _seeds(name)), "never found"
