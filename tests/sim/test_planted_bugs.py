"""Every planted bug is found within the seeds of the test: the checkers are worth what they find (H81).

Two stores are broken one promise at a time: the simplest correct one, and the real node. Without a bug the same seeds
find nothing (test_seeds.py).
"""

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.node import SimulationError
from tests.sim.planted_bugs import BUGS, PlantedBug
from tests.sim.reference_bugs import BUGS as REFERENCE_BUGS
from tests.sim.reference_machine import ReferenceMachine
from tests.sim.scenario import MakeMachine, play
from tests.sim.settings import Swarm
from tests.sim.simulation import run_simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS_MAX = 300


def _breaks(seed: int, make_machine: MakeMachine) -> bool:
    try:
        run_simulation(seed, lambda loop: play(loop, make_machine))
    except (ModelBreachError, SimulationError, SegmentStoreError, AssertionError, ExceptionGroup):
        return True
    return False


@pytest.mark.parametrize("bug", REFERENCE_BUGS)
def test_a_bug_planted_in_the_reference_store_is_found(bug: str) -> None:
    def make(loop: SimLoop, swarm: Swarm) -> ReferenceMachine:
        return ReferenceMachine(loop, swarm, bug)

    assert any(_breaks(seed, make) for seed in range(1, _SEEDS_MAX + 1)), f"never found: {bug}"


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_h81_a_bug_planted_in_the_node_is_found(
    bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(loop: SimLoop, swarm: Swarm) -> NodeMachine:
        return NodeMachine(loop, swarm, rules=bug.rules)

    if bug.patch is not None:
        bug.patch(monkeypatch)
    assert any(_breaks(seed, make) for seed in range(1, _SEEDS_MAX + 1)), "never found"
