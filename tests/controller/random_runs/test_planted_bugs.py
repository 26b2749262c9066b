"""Every bug that is planted in the controller is found within the seeds of the test.

A seed that found a bug is played before the others, and the others are if it finds nothing any more: what a seed does
changes with the code. Some bugs need a minute and more each: LIFE_BUGS=all looks for them too.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_runs.__main__ import run_seed
from tests.controller.random_runs.planted_bugs import BUGS, OF_CONTAINERS, OF_POLICIES, OF_THEMES
from tests.controller.random_runs.random_run import RunStory, run_random
from tests.controller.random_runs.settings import draw_settings
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.node import SimulationError
from tests.sim.simulation import run_simulation

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_SEEDS_MAX = 80
_FOUND_BY = {
    "forgets what an application committed": 7,
    "commits some of the stages": 9,
    "says too early that nothing follows": 7,
    "seals before it is told what follows": 7,
    "truncates ahead of a cut": 9,
    "answers commits before they are durable": 9,
    "loses a name between two pages": 7,
    "lives on without its containers": 11,
}
"""The seed that found a bug last, where the first few find nothing."""
_THEMED_SEEDS = range(10, 31)
_JOB_SECONDS_MAX = 0.001
"""Worlds that are slower take their time to come to anything."""


_FOUND = (ModelBreachError, SimulationError, SegmentStoreError, AssertionError, ExceptionGroup)


def _seeds(bug: str) -> Iterator[int]:
    yield _FOUND_BY.get(bug, 1)
    yield from range(1, _SEEDS_MAX + 1)


def _fails(life: Callable[[], object]) -> bool:
    try:
        life()
    except _FOUND:
        return True
    return False


def _breaks(seed: int, *, retains: bool, hand_over: float) -> bool:
    drawn = draw_settings(Random(seed))
    if drawn.swarm.trouble.job_seconds_mean > _JOB_SECONDS_MAX:
        return False

    async def play(loop: SimLoop) -> RunStory:
        settings = replace(
            draw_settings(loop.random), jobs_per_stream=1, retains=retains, hand_over=hand_over
        )
        return await run_random(loop, settings)

    return _fails(lambda: run_simulation(seed, play))


_SLOW = {
    *OF_POLICIES,
    "deletes what a cut runs around",
    "forgets what a commit has merged when it is truncated",
}
_NAMES = [name for name in BUGS if name not in _SLOW or os.environ.get("LIFE_BUGS") == "all"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_bug_planted_in_the_controller_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS[name](monkeypatch)
    retains = name in OF_POLICIES
    hand_over = 1.0 if name in OF_CONTAINERS else 0.0
    found = (_breaks(seed, retains=retains, hand_over=hand_over) for seed in _seeds(name))
    assert any(found), "never found"


_THEMED = [name for name in OF_THEMES if name not in _SLOW or os.environ.get("LIFE_BUGS") == "all"]


@pytest.mark.parametrize("name", _THEMED)
def test_a_bug_that_few_worlds_come_to_is_found_in_one_about_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theme, bug = OF_THEMES[name]
    bug(monkeypatch)
    found = (_fails(partial(run_seed, seed, theme=theme)) for seed in _THEMED_SEEDS)
    assert any(found), "never found"
