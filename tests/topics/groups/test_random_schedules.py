"""Goal: the invariants of random_schedule.py hold whatever happens in whatever order; and a bug in them is found.

Method: seeds of the simulation; then the same with one bug planted each, until a seed finds it.
"""

from asyncio import Future
from collections.abc import Callable, Mapping

import pytest

from segmentstore.topics.groups.committed_offsets import CommittedOffset, CommittedOffsets
from segmentstore.topics.groups.errors import GroupProblem
from segmentstore.topics.groups.group import (
    Answer,
    Answers,
    Group,
    GroupState,
    Joined,
    JoinRequest,
    _Member,
)
from tests.sim.loop import SimLoop
from tests.sim.node import SimulationError
from tests.sim.simulation import run_simulation
from tests.topics.groups.random_schedule import one_schedule

pytestmark = pytest.mark.simulation

_SEEDS_FOR_A_BUG = 40
_STEPS_MAX = 100_000
"""The longest of the first forty takes sixteen thousand."""


def run(seed: int) -> Mapping[str, int]:
    async def main(loop: SimLoop) -> Mapping[str, int]:
        loop.steps_max = _STEPS_MAX
        return await one_schedule(loop, seed)

    return run_simulation(seed, main).result


@pytest.mark.parametrize("seed", range(1, 31))
def test_whatever_happens_the_groups_agree(seed: int) -> None:
    seen = run(seed)
    assert seen["joined"] > 10
    assert seen["committed"] > 10


def test_the_seeds_see_what_they_are_for() -> None:
    seen: dict[str, int] = {}
    for seed in range(1, 11):
        for what, count in run(seed).items():
            seen[what] = seen.get(what, 0) + count
    for what in (
        "died",
        "left",
        "silent",
        "zombie",
        "killed",
        "connection lost",
        "assigned",
        "started again",
        "came back without a rebalance",
        "assignment skipped",
    ):
        assert seen[what] >= 3, seen
    for problem in (
        GroupProblem.UNKNOWN_MEMBER_ID,
        GroupProblem.ILLEGAL_GENERATION,
        GroupProblem.REBALANCE_IN_PROGRESS,
        GroupProblem.MEMBER_ID_REQUIRED,
        GroupProblem.FENCED_INSTANCE_ID,
    ):
        assert seen[problem.name] >= 3, seen


def _any_generation_will_do(patch: pytest.MonkeyPatch) -> None:
    def known(self: Group, member_id: str, generation: int, instance_id: str | None) -> _Member:
        return self._member(member_id, instance_id)

    patch.setattr(Group, "_known", known)


def _a_fenced_client_speaks_for_the_one_that_has_replaced_it(patch: pytest.MonkeyPatch) -> None:
    original = Group._member

    def member(self: Group, member_id: str, instance_id: str | None) -> _Member:
        if instance_id in self._static_members:
            return self._members[self._static_members[instance_id]]
        return original(self, member_id, instance_id)

    patch.setattr(Group, "_member", member)


def _a_member_that_comes_back_has_lost_its_part(patch: pytest.MonkeyPatch) -> None:
    original = Group._replace

    def replace(
        self: Group, call: int, request: JoinRequest, *, new_id: str, now: float
    ) -> Answers:
        answers = original(self, call, request, new_id=new_id, now=now)
        self._generation.assignments.pop(new_id, None)
        return answers

    patch.setattr(Group, "_replace", replace)


def _a_leader_that_comes_back_is_told_that_it_leads(patch: pytest.MonkeyPatch) -> None:
    original = Group._replace

    def replace(
        self: Group, call: int, request: JoinRequest, *, new_id: str, now: float
    ) -> Answers:
        return [
            Answer(call, self._joined(self._members[new_id]))
            if each.call == call and isinstance(each.outcome, Joined)
            else each
            for each in original(self, call, request, new_id=new_id, now=now)
        ]

    patch.setattr(Group, "_replace", replace)


def _commits_are_permitted_once(patch: pytest.MonkeyPatch) -> None:
    original = CommittedOffsets.commit

    async def commit(
        self: CommittedOffsets,
        group_id: str,
        offsets: Mapping[object, CommittedOffset],
        *,
        permit: Callable[[], None],
    ) -> None:
        permit()
        await original(self, group_id, offsets, permit=lambda: None)  # type: ignore[arg-type]

    patch.setattr(CommittedOffsets, "commit", commit)


def _commits_are_acknowledged_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    async def all_of(submitted: "list[Future[object]]") -> None:
        return

    patch.setattr("segmentstore.topics.groups.committed_offsets._all_of", all_of)


def _generations_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    original = Group._complete

    def complete(self: Group, now: float) -> Answers:
        self._generation.number = max(0, self._generation.number - 1)
        return original(self, now)

    patch.setattr(Group, "_complete", complete)


def _members_that_did_not_join_are_kept_on(patch: pytest.MonkeyPatch) -> None:
    original = Group._complete_if_joined

    def complete(self: Group, now: float) -> Answers:
        for each in self._members.values():
            if each.joining is None:
                each.joining = -1
        return [each for each in original(self, now) if each.call != -1]

    patch.setattr(Group, "_complete_if_joined", complete)


def _old_assignments_are_kept(patch: pytest.MonkeyPatch) -> None:
    original = Group.sync

    def sync(self: Group, call: int, *, member_id: str, **rest: object) -> Answers:
        kept = self.__dict__.setdefault("kept", {})
        answers = original(self, call, member_id=member_id, **rest)  # type: ignore[arg-type]
        if self.state is GroupState.STABLE:
            for each, part in self._generation.assignments.items():
                self._generation.assignments[each] = kept.setdefault(each, part)
        return answers

    patch.setattr(Group, "sync", sync)


def _a_withdrawn_call_is_taken_for_a_member_that_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "withdraw", lambda self, call, *, now: None)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _any_generation_will_do,
    _a_fenced_client_speaks_for_the_one_that_has_replaced_it,
    _a_member_that_comes_back_has_lost_its_part,
    _a_leader_that_comes_back_is_told_that_it_leads,
    _commits_are_permitted_once,
    _commits_are_acknowledged_before_they_are_durable,
    _generations_do_not_grow,
    _members_that_did_not_join_are_kept_on,
    _old_assignments_are_kept,
    _a_withdrawn_call_is_taken_for_a_member_that_waits,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = (AssertionError, SimulationError, KeyError, ExceptionGroup)
    for seed in range(1, _SEEDS_FOR_A_BUG + 1):
        try:
            run(seed)
        except found:
            return
    pytest.fail("no seed found it")
