"""Every bug that is planted in the controller is found within the seeds of the test."""

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_life.__main__ import run_life
from tests.controller.random_life.planted_bugs import BUGS, Patch
from tests.sim.attempts import ModelBreachError
from tests.sim.node import SimulationError

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS_MAX = 40


def _breaks(seed: int) -> bool:
    try:
        run_life(seed)
    except (ModelBreachError, SimulationError, SegmentStoreError, AssertionError, ExceptionGroup):
        return True
    return False


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_a_bug_planted_in_the_controller_is_found(
    bug: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(_breaks(seed) for seed in range(1, _SEEDS_MAX + 1)), "never found"
