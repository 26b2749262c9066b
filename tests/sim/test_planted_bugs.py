"""Every bug planted in the reference store is found within a few seeds; without one, none of them fails.

Goal: the checkers are worth what they find. Method: the same seeds, the same store, one promise broken.
"""

import pytest

from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimulationError
from tests.sim.reference_machine import ReferenceMachine
from tests.sim.reference_store import BUGS
from tests.sim.scenario import play
from tests.sim.simulation import run_simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS_MAX = 300


def _breaks(seed: int, bug: str) -> bool:
    try:
        run_simulation(
            seed,
            lambda loop: play(loop, lambda loop, swarm: ReferenceMachine(loop, swarm, bug)),
        )
    except (ModelBreachError, SimulationError):
        return True
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert any(_breaks(seed, bug) for seed in range(1, _SEEDS_MAX + 1)), f"never found: {bug}"
