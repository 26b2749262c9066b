"""Every planted bug is found within the seeds of the test: the checkers are worth what they find (H81).

Two stores are broken one promise at a time: the simplest correct one, and the real node. Without a bug the same seeds
find nothing (test_seeds.py).

What a seed does changes with the code, so that any of them may be the one. A seed that found a bug is looked at before
the others: some are found by one life in two hundred.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.sim import scenario, workload
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.node import SimulationError
from tests.sim.old_locations import owners_that_are_replaced_while_they_idle
from tests.sim.planted_bugs import (
    BUGS,
    PlantedBug,
    power_cuts_behind_recoveries,
    writers_of_cold_attributes,
)
from tests.sim.reference_bugs import BUGS as REFERENCE_BUGS
from tests.sim.reference_machine import ReferenceMachine
from tests.sim.scenario import MakeMachine, Story, play
from tests.sim.settings import Swarm, draw_swarm
from tests.sim.simulation import run_simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS_MAX = 300
_FOUND_BY = {
    "ack before sync": 24,
    "refusal judged on pending state": 17,
    "merge forgotten": 6,
    "acknowledged before it is synced": 12,
    "a stale frame of a recycled file is replayed": 3,
    "a removed key stays in its table": 6,
    "an object in the volumes is answered for before it is synced": 46,
    "an owner that was replaced refuses by what it remembers": 5,
    "tail served before it is synced": 77,
    "attribute without bytes": 57,
    "lost wake-up": 285,
    "truncation goes back": 22,
    "seal forgotten": 66,
    "a recovered tail is served before it is synced": 4,
    "storage length runs ahead of Tier 2": 9,
    "compaction of a table gives new versions": 15,
    "requests of a segment leave the admission queue out of order": 3,
    "a rebuild of the index keeps older rows": 186,
    "records behind the index of the volumes are skipped": 107,
}
"""The seed that found a bug last, where the first few find nothing."""
_FOUND_IN: dict[Callable[[Swarm], Swarm], tuple[int, int, int]] = {
    power_cuts_behind_recoveries: (11, 13, 27),
    writers_of_cold_attributes: (1, 2, 6),
    owners_that_are_replaced_while_they_idle: (1, 2, 3),
}
"""Seeds of the worlds that were made for a bug: with the bug each of them found it."""


def _seeds(bug: str) -> Iterator[int]:
    yield _FOUND_BY.get(bug, 1)
    yield from range(1, _SEEDS_MAX + 1)


def _add_actor(bug: PlantedBug, patch: pytest.MonkeyPatch) -> None:
    """The client that shows the bug lives in every world from now on."""
    actor = bug.actor
    if actor is None:
        return

    def cast(stage: Stage) -> list[Actor]:
        return [*workload.cast(stage), actor(stage)]

    patch.setattr(scenario, "cast", cast)


def _play(
    seed: int, make_machine: MakeMachine, world: Callable[[Swarm], Swarm] | None = None
) -> None:
    def main(loop: SimLoop) -> Coroutine[Any, Any, Story]:
        swarm = draw_swarm(loop.random)
        return play(loop, make_machine, world(swarm) if world else swarm)

    run_simulation(seed, main)


def _breaks(
    seed: int, make_machine: MakeMachine, world: Callable[[Swarm], Swarm] | None = None
) -> bool:
    try:
        _play(seed, make_machine, world)
    except (ModelBreachError, SimulationError, SegmentStoreError, AssertionError, ExceptionGroup):
        return True
    return False


@pytest.mark.parametrize("bug", REFERENCE_BUGS)
def test_a_bug_planted_in_the_reference_store_is_found(bug: str) -> None:
    def make(loop: SimLoop, swarm: Swarm) -> ReferenceMachine:
        return ReferenceMachine(loop, swarm, bug)

    assert any(_breaks(seed, make) for seed in _seeds(bug)), f"never found: {bug}"


@pytest.mark.parametrize(("name", "bug"), BUGS.items(), ids=BUGS.keys())
def test_h81_a_bug_planted_in_the_node_is_found(
    name: str, bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(loop: SimLoop, swarm: Swarm) -> NodeMachine:
        return NodeMachine(loop, swarm, rules=bug.rules)

    _add_actor(bug, monkeypatch)
    if bug.patch is not None:
        bug.patch(monkeypatch)
    assert any(_breaks(seed, make, bug.world) for seed in _seeds(name)), "never found"


_WITH_WORLDS = {bug.world: bug for bug in BUGS.values() if bug.world}


@pytest.mark.parametrize("bug", _WITH_WORLDS.values())
def test_without_its_bug_a_world_of_its_own_finds_nothing(
    bug: PlantedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bug.world is not None, "a bug with a world"
    _add_actor(bug, monkeypatch)
    for seed in _FOUND_IN[bug.world]:
        _play(seed, NodeMachine, bug.world)
