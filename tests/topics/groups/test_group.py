"""What the table of states does not say: ends of rebalances, leaders, protocols, ids, calls that are asked again."""

from math import inf

import pytest

from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import GroupState, Joined, JoinedMember, JoinRequest, Protocol
from tests.topics.groups.driven_group import (
    OTHER,
    RANGE,
    REBALANCE,
    SESSION,
    DrivenGroup,
    a_request,
    with_members,
)

STRANGER = GroupProblem.UNKNOWN_MEMBER_ID
AGAIN = GroupProblem.REBALANCE_IN_PROGRESS


def test_the_first_generation_is_one_and_its_member_leads() -> None:
    group = DrivenGroup()
    joined = group.joined(group.join("a", new_id="a"))
    assert joined == Joined(
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader="a",
        member_id="a",
        members=[JoinedMember("a", b"metadata")],
    )


def test_only_the_leader_is_told_the_members() -> None:
    group = DrivenGroup()
    group.join("a", new_id="a")
    b = group.join("b", new_id="b")
    a = group.join("a")
    assert [each.member_id for each in group.joined(a).members] == ["a", "b"]
    assert group.joined(b).members == []
    assert group.joined(a).leader == group.joined(b).leader == "a"


def test_assignments_reach_every_member_that_waits_and_each_once() -> None:
    group = with_members(GroupState.COMPLETING)
    follower = group.sync("follower", 3)
    assert group.outcomes[follower] is None
    leader = group.sync("leader", 3, {"leader": b"1", "follower": b"2", "stranger": b"3"})
    assert (group.assignment(leader), group.assignment(follower)) == (b"1", b"2")


def test_a_member_that_the_leader_forgot_has_nothing_to_read() -> None:
    group = with_members(GroupState.COMPLETING)
    group.sync("leader", 3, {"leader": b"1"})
    assert group.assignment(group.sync("follower", 3)) == b""


def test_a_followers_assignments_count_for_nothing() -> None:
    group = with_members(GroupState.COMPLETING)
    group.sync("follower", 3, {"follower": b"all of it"})
    assert group.state is GroupState.COMPLETING
    group.sync("leader", 3, {"follower": b"mine"})
    assert group.assignment(group.sync("follower", 3)) == b"mine"


def test_a_join_while_others_wait_for_assignments_tells_them_first() -> None:
    group = with_members(GroupState.COMPLETING)
    waiting = group.sync("follower", 3)
    group.join("new", new_id="new")
    assert group.outcomes[waiting] is AGAIN


def test_a_rebalance_ends_without_those_that_did_not_join_in_time() -> None:
    group = with_members(GroupState.STABLE)
    new = group.join("new", new_id="new")
    group.join("leader")
    for _ in range(int(REBALANCE / SESSION) * 2):
        group.heartbeat("follower", 3)
        group.pass_time(SESSION / 2)
    assert group.joined(new).generation == 4
    assert [each.member_id for each in group.group.describe().members] == ["leader", "new"]
    assert group.heartbeat("follower", 3) is STRANGER


def test_a_rebalance_that_no_member_joins_leaves_an_empty_group() -> None:
    group = with_members(GroupState.STABLE)
    group.leave("leader")
    for _ in range(int(REBALANCE / SESSION) * 2):
        group.heartbeat("follower", 3)
        group.pass_time(SESSION / 2)
    assert group.state is GroupState.EMPTY
    assert group.group.next_deadline() == inf


def test_a_leader_that_never_decides_is_removed_though_it_sends_heartbeats() -> None:
    group = with_members(GroupState.COMPLETING)
    waiting = group.sync("follower", 3)
    for _ in range(int(REBALANCE / SESSION) * 2):
        group.heartbeat("leader", 3)
        group.pass_time(SESSION / 2)
    assert group.outcomes[waiting] is AGAIN
    assert group.heartbeat("leader", 3) is STRANGER
    assert group.joined(group.join("follower")).leader == "follower"


def test_a_member_that_waits_is_not_silent() -> None:
    group = with_members(GroupState.STABLE)
    waiting = group.join("new", new_id="new")
    group.join("leader")
    for _ in range(4):
        group.pass_time(SESSION - 1)
        group.heartbeat("follower", 3)
    group.join("follower")
    assert group.joined(waiting).generation == 4
    assert len(group.group.describe().members) == 3


def test_a_session_begins_anew_with_the_answer() -> None:
    group = with_members(GroupState.STABLE)
    group.join("leader")
    group.pass_time(SESSION - 1)
    group.join("follower")
    group.pass_time(SESSION - 1)
    assert group.heartbeat("leader", 4) is None
    group.pass_time(SESSION)
    assert group.heartbeat("leader", 4) is STRANGER


def test_a_join_whose_connection_is_gone_holds_up_the_others_for_a_session() -> None:
    group = with_members(GroupState.STABLE)
    gone = group.join("new", new_id="new")
    group.withdraw(gone)
    group.join("follower")
    leader = group.join("leader")
    group.pass_time(SESSION - 1)
    assert group.outcomes[leader] is None
    group.pass_time(1)
    assert [each.member_id for each in group.joined(leader).members] == ["leader", "follower"]
    assert group.outcomes[gone] is None


def test_a_call_that_is_asked_again_takes_the_place_of_the_one_before() -> None:
    group = with_members(GroupState.STABLE)
    first = group.join("leader")
    second = group.join("leader")
    assert (group.outcomes[first], group.outcomes[second]) == (AGAIN, None)
    group.join("follower")
    assert group.joined(second).generation == 4
    third = group.sync("follower", 4)
    fourth = group.sync("follower", 4)
    group.sync("leader", 4, {"follower": b"x"})
    assert (group.outcomes[third], group.assignment(fourth)) == (AGAIN, b"x")


def test_a_new_member_is_given_an_id_and_is_no_member_yet() -> None:
    group = DrivenGroup()
    request = a_request("", requires_known_id=True)
    with pytest.raises(GroupError) as refused:
        group.group.join(1, request, new_id="id", now=0.0)
    assert refused.value.problem is GroupProblem.MEMBER_ID_REQUIRED
    assert refused.value.member_id == "id"
    assert group.state is GroupState.EMPTY
    assert group.commit("", -1) is None
    joined = group.joined(group.join("id", request=a_request("id", requires_known_id=True)))
    assert joined.member_id == "id"


def test_an_id_that_was_given_out_is_forgotten_after_its_session() -> None:
    group = DrivenGroup()
    with pytest.raises(GroupError):
        group.group.join(1, a_request("", requires_known_id=True), new_id="id", now=0.0)
    assert group.group.has_members()
    group.pass_time(SESSION)
    assert not group.group.has_members()
    assert group.outcomes[group.join("id")] is STRANGER


def test_an_id_that_was_given_out_holds_up_no_rebalance() -> None:
    group = with_members(GroupState.STABLE)
    with pytest.raises(GroupError):
        group.group.join(1, a_request("", requires_known_id=True), new_id="id", now=0.0)
    group.join("leader")
    assert group.joined(group.join("follower")).generation == 4


def test_ids_that_are_not_used_are_bounded() -> None:
    group = DrivenGroup(members_max=2)
    for number in range(3):
        with pytest.raises(GroupError):
            group.group.join(
                number, a_request("", requires_known_id=True), new_id=str(number), now=0.0
            )
    assert group.outcomes[group.join("0")] is STRANGER
    assert group.joined(group.join("1")).member_id == "1"


def test_a_group_takes_so_many_members() -> None:
    group = DrivenGroup(members_max=2)
    group.join("a", new_id="a")
    group.join("b", new_id="b")
    assert group.outcomes[group.join("c", new_id="c")] is GroupProblem.GROUP_MAX_SIZE_REACHED
    group.join("a")
    assert len(group.group.describe().members) == 2


def test_the_first_protocol_of_the_leader_that_all_know_is_chosen() -> None:
    group = DrivenGroup()
    sticky, by_range, robin = (Protocol(name, name.encode()) for name in ("s", "r", "o"))
    group.join("a", new_id="a", request=a_request("", protocols=(sticky, by_range, robin)))
    b = group.join("b", new_id="b", request=a_request("", protocols=(robin, by_range)))
    a = group.join("a", request=a_request("a", protocols=(sticky, by_range, robin)))
    assert group.joined(a).protocol == group.joined(b).protocol == "r"
    assert [each.metadata for each in group.joined(a).members] == [b"r", b"r"]


def test_a_member_without_a_protocol_in_common_is_refused() -> None:
    group = with_members(GroupState.STABLE)
    other = (Protocol("sticky", b""),)
    call = group.join("new", new_id="new", request=a_request("", protocols=other))
    assert group.outcomes[call] is GroupProblem.INCONSISTENT_GROUP_PROTOCOL
    call = group.join("new", new_id="new", request=a_request("", protocol_type="connect"))
    assert group.outcomes[call] is GroupProblem.INCONSISTENT_GROUP_PROTOCOL
    call = group.join("leader", request=a_request("leader", protocols=other))
    assert group.outcomes[call] is GroupProblem.INCONSISTENT_GROUP_PROTOCOL
    assert group.state is GroupState.STABLE


@pytest.mark.parametrize("joining", [a_request("", protocols=()), a_request("", protocol_type="")])
def test_a_member_without_any_protocol_is_refused(joining: JoinRequest) -> None:
    group = DrivenGroup()
    call = group.join("new", new_id="new", request=joining)
    assert group.outcomes[call] is GroupProblem.INCONSISTENT_GROUP_PROTOCOL
    assert group.state is GroupState.EMPTY


def test_a_member_knows_a_bounded_number_of_protocols_however_short_they_are() -> None:
    group = DrivenGroup()
    # All of them are 100 kB, and each would be looked for among those of every other member.
    many = [Protocol(f"{number:05}", b"") for number in range(20_000)]
    call = group.join("a", new_id="a", request=a_request("", protocols=many))
    assert group.outcomes[call] is GroupProblem.POLICY_VIOLATION
    assert group.state is GroupState.EMPTY
    some = many[: group.settings.protocols_max]
    group.join("a", new_id="a", request=a_request("", protocols=some))
    b = group.join("b", new_id="b", request=a_request("", protocols=some[::-1]))
    call = group.join("a", request=a_request("a", protocols=many))
    assert group.outcomes[call] is GroupProblem.POLICY_VIOLATION
    group.join("a", request=a_request("a", protocols=some))
    assert group.joined(b).protocol == "00000"


def test_the_only_member_may_come_back_with_another_protocol() -> None:
    group = DrivenGroup()
    group.join("a", new_id="a")
    request = a_request("a", protocols=(Protocol("sticky", b""),), protocol_type="connect")
    joined = group.joined(group.join("a", request=request))
    assert (joined.protocol, joined.protocol_type) == ("sticky", "connect")


@pytest.mark.parametrize("session", [5.999, 1800.001, 0.0])
def test_a_session_timeout_out_of_bounds_is_refused(session: float) -> None:
    group = DrivenGroup()
    call = group.join("new", new_id="new", request=a_request("", session=session))
    assert group.outcomes[call] is GroupProblem.INVALID_SESSION_TIMEOUT


def test_metadata_and_assignments_are_bounded() -> None:
    group = DrivenGroup()
    large = (Protocol("range", bytes(group.settings.member_bytes_max)),)
    call = group.join("new", new_id="new", request=a_request("", protocols=large))
    assert group.outcomes[call] is GroupProblem.POLICY_VIOLATION
    group = with_members(GroupState.COMPLETING)
    call = group.sync("leader", 3, {"leader": bytes(group.settings.assignment_bytes_max + 1)})
    assert group.outcomes[call] is GroupProblem.POLICY_VIOLATION
    assert group.state is GroupState.COMPLETING


def test_without_a_rebalance_timeout_the_session_timeout_counts() -> None:
    group = DrivenGroup()
    old = a_request("", rebalance=-0.001)
    group.join("a", new_id="a", request=old)
    group.join("b", new_id="b", request=old)
    for _ in range(2):
        group.heartbeat("a", 1)
        group.pass_time(SESSION / 2)
    assert group.heartbeat("a", 1) is STRANGER


def test_the_first_generation_waits_for_others_that_start_at_the_same_time() -> None:
    group = DrivenGroup(delay=2.0)
    a = group.join("a", new_id="a")
    group.pass_time(1.5)
    b = group.join("b", new_id="b")
    group.pass_time(1.5)
    assert group.outcomes[a] is None
    group.pass_time(0.5)
    assert group.joined(a).generation == group.joined(b).generation == 1
    group.sync("a", 1)
    c = group.join("c", new_id="c")
    group.join("a")
    group.join("b")
    assert group.joined(c).generation == 2, "a group that has members does not wait"


def test_new_members_cannot_put_off_the_first_generation_for_ever() -> None:
    group = DrivenGroup(delay=2.0)
    first = group.join("0", new_id="0")
    for number in range(1, 40):
        group.pass_time(1.5)
        group.join(str(number), new_id=str(number))
    assert group.now <= REBALANCE
    group.pass_time(REBALANCE - group.now)
    assert group.joined(first).generation == 1


def test_a_description_shows_metadata_and_assignments_of_a_stable_group_alone() -> None:
    shown = with_members(GroupState.STABLE).group.describe()
    assert (shown.state, shown.protocol_type, shown.protocol) == (
        GroupState.STABLE,
        "consumer",
        "range",
    )
    assert [(each.member_id, each.metadata, each.assignment) for each in shown.members] == [
        ("leader", b"metadata", b"of leader"),
        ("follower", b"metadata", b"of follower"),
    ]
    for state in (GroupState.PREPARING, GroupState.COMPLETING):
        shown = with_members(state).group.describe()
        assert (shown.state, shown.protocol) == (state, "")
        assert {(each.metadata, each.assignment) for each in shown.members} == {(b"", b"")}


def test_other_metadata_reaches_the_leader() -> None:
    group = with_members(GroupState.STABLE)
    group.join("follower", request=a_request("follower", protocols=OTHER))
    leader = group.joined(group.join("leader"))
    assert [each.metadata for each in leader.members] == [RANGE[0].metadata, OTHER[0].metadata]
