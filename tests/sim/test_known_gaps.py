"""Known gaps are found by their seeds, so that the day on which one closes is noticed."""

from collections.abc import Coroutine
from typing import Any

import pytest

from tests.sim import scenario, workload
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import ModelBreachError
from tests.sim.known_gaps import GAPS, KnownGap
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.scenario import Story, play
from tests.sim.settings import draw_swarm
from tests.sim.simulation import run_simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS = range(1, 21)


def _play(seed: int, gap: KnownGap) -> None:
    def main(loop: SimLoop) -> Coroutine[Any, Any, Story]:
        return play(loop, NodeMachine, gap.world(draw_swarm(loop.random)))

    run_simulation(seed, main)


def _finds(seed: int, gap: KnownGap) -> bool:
    """Raises what is wrong beside the gap."""
    try:
        _play(seed, gap)
    except ModelBreachError as error:
        if gap.breach not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_a_known_gap_is_found_until_it_is_closed(
    gap: KnownGap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cast(stage: Stage) -> list[Actor]:
        return [*workload.cast(stage), gap.finder(stage)]

    monkeypatch.setattr(scenario, "cast", cast)
    assert any(_finds(seed, gap) for seed in _SEEDS), "closed: let its actor live in every world"


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_without_its_finder_the_world_of_a_gap_finds_nothing(gap: KnownGap) -> None:
    for seed in range(1, 4):
        _play(seed, gap)
