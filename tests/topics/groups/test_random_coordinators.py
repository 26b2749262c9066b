"""Goal: the invariants of random_coordinators.py hold wherever the offsets move; and a bug in them is found."""

from asyncio import Future
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.runtime.cancellation import retrieve_exception
from segmentstore.topics.groups.committed_offsets import CommittedOffsets
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.groups import Groups
from tests.sim.node import SimulationError
from tests.sim.simulation import run_simulation
from tests.topics.groups.random_coordinators import one_schedule
from tests.topics.planted_bugs import require_found

pytestmark = pytest.mark.simulation

_SEEDS_FOR_A_BUG = 40


def run(seed: int) -> Counter[str]:
    return run_simulation(seed, lambda loop: one_schedule(loop, seed)).result


@pytest.mark.parametrize("seed", range(1, 21))
def test_wherever_the_offsets_move_none_is_lost(seed: int) -> None:
    seen = run(seed)
    assert seen["committed"] > 10
    assert seen["assigned"] > 3


def test_the_seeds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 11):
        seen += run(seed)
    for what in (
        "moved",
        "moved under way",
        "refused by the log",
        "restarted",
        "silent",
        "told",
        "not told NOT_COORDINATOR",
        "NOT_COORDINATOR",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
    ):
        assert seen[what] >= 3, seen


def _what_a_fenced_coordinator_reads_is_told(patch: pytest.MonkeyPatch) -> None:
    def loaded(self: Groups) -> None:
        if not self._is_loaded:
            raise GroupError(GroupProblem.COORDINATOR_LOAD_IN_PROGRESS)

    patch.setattr(Groups, "_require_loaded", loaded)


def _commits_are_acknowledged_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    async def all_of(submitted: "list[Future[object]]") -> None:
        for each in submitted:
            each.add_done_callback(retrieve_exception)

    patch.setattr("segmentstore.topics.groups.committed_offsets._all_of", all_of)


def _a_refusal_by_the_log_is_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    original = CommittedOffsets.commit

    async def commit(self: CommittedOffsets, *arguments: object, **rest: object) -> None:
        with suppress(ContainerStoppedError):
            await original(self, *arguments, **rest)  # type: ignore[arg-type]

    patch.setattr(CommittedOffsets, "commit", commit)


def _a_loss_is_not_noticed_at_once(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator knew before it lost the offsets, it believes when they are back."""
    patch.setattr(Groups, "lose", lambda self: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _what_a_fenced_coordinator_reads_is_told,
        _commits_are_acknowledged_before_they_are_durable,
        _a_refusal_by_the_log_is_taken_for_success,
        _a_loss_is_not_noticed_at_once,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    require_found(
        run, _SEEDS_FOR_A_BUG, (AssertionError, SimulationError, KeyError, ExceptionGroup)
    )
