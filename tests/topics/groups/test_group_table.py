"""Goal: what a request comes to, for every state of a group and every request.

Method: the four states, of generation 3 with the members `leader` and `follower`, and each request in each of them; the
expected outcomes stand in tables beside one another.
"""

from collections.abc import Callable

import pytest

from segmentstore.topics.groups.errors import GroupProblem
from segmentstore.topics.groups.group import GroupState, Joined, Synced
from tests.topics.groups.driven_group import (
    OTHER,
    SESSION,
    DrivenGroup,
    a_request,
    with_members,
)

EMPTY, PREPARING, COMPLETING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING,
    GroupState.COMPLETING,
    GroupState.STABLE,
)
STATES = (EMPTY, PREPARING, COMPLETING, STABLE)
Expected = tuple[object, GroupState]
"""The outcome of the call, and the state behind it."""
WAITS = None
FINE = None
STRANGER = GroupProblem.UNKNOWN_MEMBER_ID
OLD = GroupProblem.ILLEGAL_GENERATION
AGAIN = GroupProblem.REBALANCE_IN_PROGRESS


def test_the_states_are_what_their_names_say() -> None:
    for state in STATES:
        group = with_members(state)
        assert group.state is state
        assert group.group.generation == (0 if state is EMPTY else 3)


JOINS: dict[str, tuple[Callable[[DrivenGroup], int], dict[GroupState, Expected]]] = {
    "a new member": (
        lambda group: group.join("new", new_id="new"),
        {
            EMPTY: (Joined, COMPLETING),
            PREPARING: (WAITS, PREPARING),
            COMPLETING: (WAITS, PREPARING),
            STABLE: (WAITS, PREPARING),
        },
    ),
    "a stranger": (
        lambda group: group.join("stranger"),
        {state: (STRANGER, state) for state in STATES},
    ),
    "the leader": (
        lambda group: group.join("leader"),
        {
            EMPTY: (STRANGER, EMPTY),
            PREPARING: (Joined, COMPLETING),
            COMPLETING: (WAITS, PREPARING),
            STABLE: (WAITS, PREPARING),
        },
    ),
    "a follower as it was": (
        lambda group: group.join("follower"),
        {
            EMPTY: (STRANGER, EMPTY),
            PREPARING: (WAITS, PREPARING),
            COMPLETING: (WAITS, PREPARING),
            STABLE: (Joined, STABLE),
        },
    ),
    "a follower with other metadata": (
        lambda group: group.join("follower", request=a_request("follower", protocols=OTHER)),
        {
            EMPTY: (STRANGER, EMPTY),
            PREPARING: (WAITS, PREPARING),
            COMPLETING: (WAITS, PREPARING),
            STABLE: (WAITS, PREPARING),
        },
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", JOINS)
def test_a_join(who: str, state: GroupState) -> None:
    join, expected = JOINS[who]
    group = with_members(state)
    outcome = group.outcomes[join(group)]
    came, after = expected[state]
    assert (type(outcome) if isinstance(outcome, Joined) else outcome) == came
    assert group.state is after


SYNCS: dict[str, tuple[tuple[str, int], dict[GroupState, Expected]]] = {
    "the leader": (
        ("leader", 3),
        {
            EMPTY: (STRANGER, EMPTY),
            PREPARING: (AGAIN, PREPARING),
            COMPLETING: (b"new", STABLE),
            STABLE: (b"of leader", STABLE),
        },
    ),
    "a follower": (
        ("follower", 3),
        {
            EMPTY: (STRANGER, EMPTY),
            PREPARING: (AGAIN, PREPARING),
            COMPLETING: (WAITS, COMPLETING),
            STABLE: (b"of follower", STABLE),
        },
    ),
    "the leader of an old generation": (
        ("leader", 2),
        {state: (STRANGER if state is EMPTY else OLD, state) for state in STATES},
    ),
    "the leader of a later generation": (
        ("leader", 4),
        {state: (STRANGER if state is EMPTY else OLD, state) for state in STATES},
    ),
    "a stranger": (("stranger", 3), {state: (STRANGER, state) for state in STATES}),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", SYNCS)
def test_a_sync(who: str, state: GroupState) -> None:
    (member_id, generation), expected = SYNCS[who]
    group = with_members(state)
    outcome = group.outcomes[
        group.sync(member_id, generation, {"leader": b"new", "follower": b"new too"})
    ]
    came, after = expected[state]
    assert (outcome.assignment if isinstance(outcome, Synced) else outcome) == came
    assert group.state is after


HEARTBEATS = {
    ("leader", 3): (STRANGER, AGAIN, FINE, FINE),
    ("follower", 3): (STRANGER, AGAIN, FINE, FINE),
    ("follower", 2): (STRANGER, OLD, OLD, OLD),
    ("follower", 4): (STRANGER, OLD, OLD, OLD),
    ("follower", -1): (STRANGER, OLD, OLD, OLD),
    ("stranger", 3): (STRANGER, STRANGER, STRANGER, STRANGER),
    ("", -1): (STRANGER, STRANGER, STRANGER, STRANGER),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", HEARTBEATS)
def test_a_heartbeat(who: tuple[str, int], state: GroupState) -> None:
    group = with_members(state)
    assert group.heartbeat(*who) == HEARTBEATS[who][STATES.index(state)]
    assert group.state is state


COMMITS = {
    ("leader", 3): (STRANGER, FINE, AGAIN, FINE),
    ("follower", 3): (STRANGER, FINE, AGAIN, FINE),
    ("follower", 2): (STRANGER, OLD, OLD, OLD),
    ("follower", 4): (STRANGER, OLD, OLD, OLD),
    ("follower", -1): (STRANGER, OLD, OLD, OLD),
    ("stranger", 3): (STRANGER, STRANGER, STRANGER, STRANGER),
    ("stranger", -1): (STRANGER, STRANGER, STRANGER, STRANGER),
    ("", 3): (STRANGER, STRANGER, STRANGER, STRANGER),
    ("", -1): (FINE, STRANGER, STRANGER, STRANGER),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", COMMITS)
def test_a_commit(who: tuple[str, int], state: GroupState) -> None:
    group = with_members(state)
    assert group.commit(*who) == COMMITS[who][STATES.index(state)]
    assert group.state is state


LEAVES = {
    "leader": (EMPTY, COMPLETING, PREPARING, PREPARING),
    "follower": (EMPTY, PREPARING, PREPARING, PREPARING),
    "stranger": STATES,
}
"""Preparing, the leader is the one that has not joined yet: without it the others go on."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", LEAVES)
def test_a_member_leaves(who: str, state: GroupState) -> None:
    group = with_members(state)
    refused = who == "stranger" or state is EMPTY
    assert group.leave(who) == (STRANGER if refused else None)
    assert group.state is LEAVES[who][STATES.index(state)]


@pytest.mark.parametrize(
    ("state", "after"), [(PREPARING, COMPLETING), (COMPLETING, PREPARING), (STABLE, PREPARING)]
)
def test_a_silent_member_is_removed(state: GroupState, after: GroupState) -> None:
    group = with_members(state)
    silent = "leader" if state is PREPARING else "follower"
    group.pass_time(SESSION / 2)
    group.heartbeat("follower" if silent == "leader" else "leader", 3)
    group.pass_time(SESSION / 2)
    assert [
        each.member_id for each in group.group.describe().members if each.member_id == silent
    ] == []
    assert group.state is after


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_a_member_that_is_heard_of_stays(state: GroupState) -> None:
    group = with_members(state)
    for _ in range(4):
        group.pass_time(SESSION - 1)
        group.heartbeat("leader", 3)
        group.heartbeat("follower", 3)
    assert group.state is state
    assert len(group.group.describe().members) == 2


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_a_group_without_members_is_empty_and_keeps_its_generation(state: GroupState) -> None:
    group = with_members(state)
    assert group.leave("leader") is None
    assert group.leave("follower") is None
    assert group.state is EMPTY
    again = group.joined(group.join("new", new_id="new"))
    assert again.generation > 3
