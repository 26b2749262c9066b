"""Goal: a static member that starts again takes its own place, and only the newest client of an instance id is heard.

Method: as in test_group_table.py, with members of the instance ids `L` and `F`; what is expected is what Kafka's
coordinator does, below version 9 of JoinGroup unless a test says so.
"""

from dataclasses import replace

import pytest

from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import GroupState, Joined, JoinedMember, Protocol
from tests.topics.groups.driven_group import (
    OTHER,
    RANGE,
    REBALANCE,
    SESSION,
    DrivenGroup,
    a_request,
)

EMPTY, PREPARING, COMPLETING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING,
    GroupState.COMPLETING,
    GroupState.STABLE,
)
STRANGER = GroupProblem.UNKNOWN_MEMBER_ID
FENCED = GroupProblem.FENCED_INSTANCE_ID
OLD = GroupProblem.ILLEGAL_GENERATION
AGAIN = GroupProblem.REBALANCE_IN_PROGRESS
BOTH_PROTOCOLS = (Protocol("range", b"r"), Protocol("sticky", b"s"))
TURNED_ROUND = BOTH_PROTOCOLS[::-1]


def join(
    group: DrivenGroup,
    instance_id: str,
    *,
    member_id: str = "",
    new_id: str = "",
    protocols: tuple[Protocol, ...] = RANGE,
) -> int:
    request = a_request(member_id, instance_id=instance_id, protocols=protocols)
    return group.join(member_id, new_id=new_id, request=request)


def with_static_members(
    state: GroupState, *, protocols: tuple[Protocol, ...] = RANGE
) -> DrivenGroup:
    """Generation 2 of both, in that state; in PREPARING the leader has not joined again."""
    driven = DrivenGroup()
    join(driven, "L", new_id="leader", protocols=protocols)
    join(driven, "F", new_id="follower", protocols=protocols)
    join(driven, "L", member_id="leader", protocols=protocols)
    if state is COMPLETING:
        return driven
    driven.sync("leader", 2, {"leader": b"of leader", "follower": b"of follower"})
    driven.sync("follower", 2)
    if state is PREPARING:
        join(driven, "F", member_id="follower", protocols=OTHER)
    return driven


def members(group: DrivenGroup) -> list[tuple[str, str | None]]:
    return [(each.member_id, each.instance_id) for each in group.group.describe().members]


def test_a_static_member_is_taken_at_its_first_request() -> None:
    """Others come back with the id that they are given: this one can be found again without."""
    group = DrivenGroup()
    request = replace(a_request("", instance_id="L"), requires_known_id=True)

    joined = group.joined(group.join("", new_id="a", request=request))

    assert joined.members == [JoinedMember("a", b"metadata", "L")]


@pytest.mark.parametrize("protocols", [RANGE, OTHER], ids=["as before", "with other metadata"])
def test_a_follower_that_starts_again_has_its_part_and_the_others_hear_nothing(
    protocols: tuple[Protocol, ...],
) -> None:
    """Kafka's clients write into their metadata what they last had, which a client that starts does not know."""
    group = with_static_members(STABLE)

    joined = group.joined(join(group, "F", new_id="new", protocols=protocols))

    assert joined == Joined(
        generation=2,
        protocol_type="consumer",
        protocol="range",
        leader="leader",
        member_id="new",
        members=[],
    )
    assert group.assignment(group.sync("new", 2, instance_id="F")) == b"of follower"
    assert group.heartbeat("leader", 2, instance_id="L") is None
    assert group.state is STABLE
    assert members(group) == [("leader", "L"), ("new", "F")]


def test_a_leader_that_starts_again_follows_its_former_self() -> None:
    group = with_static_members(STABLE)

    joined = group.joined(join(group, "L", new_id="new"))

    assert (joined.generation, joined.leader, joined.members) == (2, "leader", [])
    assert (
        group.assignment(group.sync("new", 2, {"follower": b"x"}, instance_id="L")) == b"of leader"
    )
    assert group.assignment(group.sync("follower", 2, instance_id="F")) == b"of follower"
    assert members(group) == [("new", "L"), ("follower", "F")]


def test_a_leader_that_knows_how_to_leads_on_and_assigns_nothing() -> None:
    """JoinGroup 9: it watches for new partitions, as the leader has to."""
    group = with_static_members(STABLE)
    request = a_request("", instance_id="L", can_skip_assignment=True)

    joined = group.joined(group.join("", new_id="new", request=request))

    assert (joined.generation, joined.leader, joined.skip_assignment) == (2, "new", True)
    assert joined.members == [
        JoinedMember("new", b"metadata", "L"),
        JoinedMember("follower", b"metadata", "F"),
    ]
    assert group.assignment(group.sync("new", 2, instance_id="L")) == b"of leader"
    assert group.state is STABLE


def test_only_a_leader_that_comes_back_while_all_is_well_skips_its_assignment() -> None:
    group = with_static_members(STABLE)
    request = a_request("", instance_id="F", can_skip_assignment=True)
    follower = group.joined(group.join("", new_id="new", request=request))
    assert (follower.leader, follower.members, follower.skip_assignment) == ("leader", [], False)

    group = with_static_members(COMPLETING)
    request = a_request("", instance_id="L", can_skip_assignment=True)
    call = group.join("", new_id="new", request=request)
    join(group, "F", member_id="follower")
    leader = group.joined(call)
    assert (leader.generation, leader.leader, leader.skip_assignment) == (3, "new", False)
    assert len(leader.members) == 2


def test_a_leader_that_has_started_again_leads_the_next_generation() -> None:
    group = with_static_members(STABLE)
    join(group, "L", new_id="new")

    again = join(group, "L", member_id="new")
    join(group, "F", member_id="follower")

    joined = group.joined(again)
    assert (joined.generation, joined.leader) == (3, "new")
    assert joined.members == [
        JoinedMember("new", b"metadata", "L"),
        JoinedMember("follower", b"metadata", "F"),
    ]


def test_another_protocol_than_the_present_one_is_a_rebalance() -> None:
    group = with_static_members(STABLE, protocols=BOTH_PROTOCOLS)

    again = join(group, "L", new_id="new", protocols=TURNED_ROUND)

    assert group.state is PREPARING
    join(group, "F", member_id="follower", protocols=BOTH_PROTOCOLS)
    joined = group.joined(again)
    assert (joined.protocol, joined.generation, joined.leader) == ("sticky", 3, "new")


def test_a_protocol_that_the_others_do_not_know_is_refused_and_changes_nothing() -> None:
    group = with_static_members(STABLE)

    call = join(group, "F", new_id="new", protocols=(Protocol("sticky", b""),))

    assert group.outcomes[call] is GroupProblem.INCONSISTENT_GROUP_PROTOCOL
    assert members(group) == [("leader", "L"), ("follower", "F")]
    assert group.heartbeat("follower", 2, instance_id="F") is None


@pytest.mark.parametrize(
    ("who", "state", "after"),
    [
        ("L", COMPLETING, PREPARING),
        ("F", COMPLETING, PREPARING),
        # It is the last that was waited for.
        ("L", PREPARING, COMPLETING),
        ("F", PREPARING, PREPARING),
    ],
)
def test_in_a_rebalance_it_waits_with_the_others(
    who: str, state: GroupState, after: GroupState
) -> None:
    group = with_static_members(state)

    call = join(group, who, new_id="new")

    assert group.state is after
    for instance_id, member_id in (("L", "leader"), ("F", "follower")):
        if instance_id != who:
            join(group, instance_id, member_id=member_id)
    joined = group.joined(call)
    assert (joined.generation, joined.member_id) == (3, "new")
    assert joined.leader == ("new" if who == "L" else "leader")


def test_a_call_that_the_former_client_waits_with_is_fenced() -> None:
    group = with_static_members(PREPARING)
    joining = next(call for call, outcome in group.outcomes.items() if outcome is None)
    join(group, "F", new_id="new")
    assert group.outcomes[joining] is FENCED

    group = with_static_members(COMPLETING)
    syncing = group.sync("follower", 2, instance_id="F")
    join(group, "F", new_id="new")
    assert group.outcomes[syncing] is FENCED


def test_the_former_client_is_fenced_in_every_request() -> None:
    group = with_static_members(STABLE)
    join(group, "F", new_id="new")

    for generation in (1, 2, 3):
        assert group.heartbeat("follower", generation, instance_id="F") is FENCED
        assert group.commit("follower", generation, instance_id="F") is FENCED
        assert group.outcomes[group.sync("follower", generation, instance_id="F")] is FENCED
    assert group.outcomes[join(group, "F", member_id="follower")] is FENCED
    assert group.leave("follower", instance_id="F") is FENCED
    assert group.commit("", -1, instance_id="F") is FENCED
    assert members(group) == [("leader", "L"), ("new", "F")]


def test_without_its_instance_id_a_former_client_is_a_stranger() -> None:
    """Of a client that speaks older versions, in which only JoinGroup has the instance id."""
    group = with_static_members(STABLE)
    join(group, "F", new_id="new")

    assert group.heartbeat("follower", 2) is STRANGER
    assert group.commit("follower", 2) is STRANGER
    assert group.heartbeat("new", 2) is None
    assert group.commit("new", 2) is None


def test_an_instance_id_of_no_member_is_a_stranger() -> None:
    group = with_static_members(STABLE)

    assert group.heartbeat("follower", 2, instance_id="X") is STRANGER
    assert group.commit("follower", 2, instance_id="X") is STRANGER
    assert group.outcomes[group.sync("follower", 2, instance_id="X")] is STRANGER
    assert group.outcomes[join(group, "X", member_id="follower")] is STRANGER
    assert group.leave("follower", instance_id="X") is STRANGER
    assert group.leave("", instance_id="X") is STRANGER
    assert group.heartbeat("follower", 1, instance_id="F") is OLD


def test_it_is_removed_when_its_session_is_over_and_no_sooner() -> None:
    group = with_static_members(STABLE)
    group.pass_time(SESSION - 1)
    group.heartbeat("leader", 2, instance_id="L")
    assert group.state is STABLE

    group.pass_time(1)

    assert members(group) == [("leader", "L")]
    assert group.state is PREPARING
    joined = join(group, "F", new_id="new")
    join(group, "L", member_id="leader")
    assert group.joined(joined).generation == 3, "it is a new member now"


def test_a_start_gives_it_a_session_anew() -> None:
    group = with_static_members(STABLE)
    group.pass_time(SESSION - 1)
    group.heartbeat("leader", 2, instance_id="L")
    join(group, "F", new_id="new")

    group.pass_time(SESSION - 1)

    assert members(group) == [("leader", "L"), ("new", "F")]


def test_an_operator_removes_it_by_its_instance_id() -> None:
    group = with_static_members(STABLE)

    assert group.leave("", instance_id="F") is None

    assert members(group) == [("leader", "L")]
    assert group.state is PREPARING


def test_it_may_leave_by_both_ids() -> None:
    group = with_static_members(STABLE)

    assert group.leave("leader", instance_id="L") is None
    assert group.leave("follower") is None

    assert group.state is EMPTY


def test_a_commit_from_outside_may_name_an_instance_id() -> None:
    """Java's consumers with partitions of their own choice do so."""
    assert DrivenGroup().commit("", -1, instance_id="L") is None
    assert with_static_members(STABLE).commit("", -1, instance_id="X") is STRANGER


def a_group_that_rebalances_without(late: str) -> tuple[DrivenGroup, int]:
    """Static members L and F with long sessions, a third one comes, and `late` does not join: it is starting, say."""
    group = DrivenGroup()
    sessions = {"L": 10 * REBALANCE, "F": 10 * REBALANCE}
    for instance_id, member_id in (("L", "leader"), ("F", "follower")):
        request = a_request("", instance_id=instance_id, session=sessions[instance_id])
        group.join("", new_id=member_id, request=request)
    request = a_request("leader", instance_id="L", session=sessions["L"])
    group.join("leader", request=request)
    group.sync("leader", 2, {"leader": b"of leader", "follower": b"of follower"})
    third = group.join("third", new_id="third")
    for instance_id, member_id in (("L", "leader"), ("F", "follower")):
        if member_id != late:
            group.join(
                member_id,
                request=a_request(member_id, instance_id=instance_id, session=10 * REBALANCE),
            )
    return group, third


def test_the_end_of_a_rebalance_leaves_it_a_member() -> None:
    group, third = a_group_that_rebalances_without("follower")
    group.pass_time(REBALANCE - 1)
    assert group.outcomes[third] is None
    group.pass_time(1)

    joined = group.joined(third)
    assert (joined.generation, joined.leader) == (3, "leader")
    assert ("follower", "F") in members(group)
    group.sync("leader", 3, {"leader": b"1", "follower": b"2", "third": b"3"})
    assert group.state is STABLE
    back = group.joined(join(group, "F", new_id="new"))
    assert back.generation == 3
    assert group.assignment(group.sync("new", 3, instance_id="F")) == b"2"


def test_a_member_that_has_joined_leads_in_place_of_one_that_has_not() -> None:
    group, third = a_group_that_rebalances_without("leader")

    group.pass_time(REBALANCE)

    joined = group.joined(third)
    assert (joined.generation, joined.leader) == (3, "follower")
    assert members(group) == [("leader", "L"), ("follower", "F"), ("third", None)]


def test_a_rebalance_that_nothing_joins_waits_for_static_members_until_their_sessions_end() -> None:
    group = DrivenGroup()
    for instance_id, member_id in (("L", "leader"), ("F", "follower")):
        request = a_request("", instance_id=instance_id, session=3.5 * REBALANCE)
        group.join("", new_id=member_id, request=request)
    # The leader has not joined the second generation, and the follower's call is withdrawn.
    group.withdraw(2)

    group.pass_time(2 * REBALANCE)
    assert group.state is PREPARING
    assert members(group) == [("leader", "L"), ("follower", "F")]

    group.pass_time(2 * REBALANCE)
    assert group.state is EMPTY


def test_a_group_that_is_full_takes_a_member_that_comes_back() -> None:
    group = DrivenGroup(members_max=1)
    join(group, "L", new_id="a")
    group.sync("a", 1, {"a": b"all"}, instance_id="L")

    assert group.joined(join(group, "L", new_id="b")).member_id == "b"
    assert group.outcomes[join(group, "F", new_id="c")] is GroupProblem.GROUP_MAX_SIZE_REACHED


def test_a_long_instance_id_counts_as_a_part_of_its_member() -> None:
    group = DrivenGroup()
    request = a_request("", instance_id="x" * group.settings.member_bytes_max)

    with pytest.raises(GroupError) as refused:
        group.group.join(1, request, new_id="a", now=0.0)

    assert refused.value.problem is GroupProblem.POLICY_VIOLATION
