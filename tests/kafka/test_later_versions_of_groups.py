"""What versions of the APIs of groups say that those before them did not: by which protocol a member asks for its part,
how far several groups are, that a group is not there."""

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from segmentstore.kafka import group_requests
from tests.kafka.node import Client, running


async def join(client: Client) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=(JoinGroupProtocol(name="range", metadata=b"m"),),
    )
    return await client.ask(request, JoinGroupResponse)


async def sync(
    client: Client, joined: JoinGroupResponse, kind: str | None, name: str | None, *, version: int
) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=kind,
        protocol_name=name,
        assignments=(SyncGroupAssignment(member_id=joined.member_id, assignment=b"all"),),
    )
    return await client.ask(request, SyncGroupResponse, version)


async def commit(
    client: Client, group_id: str, *, generation: int = -1, member_id: str = ""
) -> int:
    place = OffsetCommitPartition(partition_index=0, committed_offset=7, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        topics=(OffsetCommitTopic(name="t", partitions=(place,)),),
    )
    answer = await client.ask(request, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


@pytest.mark.parametrize(
    ("kind", "name"),
    [("consumer", "other"), ("connect", "range"), (None, "range"), ("consumer", None)],
)
async def test_a_member_that_means_another_protocol_has_no_part(
    kind: str | None, name: str | None
) -> None:
    async with running() as node:
        client = await node.client()
        joined = await join(client)

        refused = await sync(client, joined, kind, name, version=5)

        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (refused.protocol_type, refused.protocol_name) == (None, None)
        synced = await sync(client, joined, "consumer", "range", version=5)
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


async def test_before_version_5_a_member_does_not_say_by_which_protocol_it_asks() -> None:
    async with running() as node:
        client = await node.client()
        synced = await sync(client, await join(client), None, None, version=4)
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")


async def test_groups_behind_those_with_many_offsets_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes ask for all that a group has: of a thousand groups that would be a million offsets in one answer."""
    monkeypatch.setattr(group_requests, "GROUP_REQUEST_ITEMS_MAX", 3)
    async with running() as node:
        client = await node.client()
        left = ["a", "b", "c", "d", "e"]
        for group_id in left:
            assert await commit(client, group_id) == ErrorCode.NONE
        told: list[list[str]] = []
        while left:
            groups = tuple(OffsetFetchGroup(group_id=each, topics=None) for each in left)
            answer = await client.ask(OffsetFetchRequest(groups=groups), OffsetFetchResponse)
            assert [each.group_id for each in answer.groups] == left
            told.append([each.group_id for each in answer.groups if not each.error_code])
            again = [each for each in answer.groups if each.error_code]
            assert {each.error_code for each in again} <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            left = [each.group_id for each in again]
    assert told == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_member_beats_commits_and_leaves_with_a_reason() -> None:
    async with running() as node:
        client = await node.client()
        joined = await join(client)
        await sync(client, joined, "consumer", "range", version=5)
        beat = HeartbeatRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
        )
        assert (await client.ask(beat, HeartbeatResponse)).error_code == ErrorCode.NONE
        code = await commit(
            client, "g", generation=joined.generation_id, member_id=joined.member_id
        )
        assert code == ErrorCode.NONE
        leaving = LeavingMember(
            member_id=joined.member_id, group_instance_id=None, reason="it is evening"
        )
        left = await client.ask(
            LeaveGroupRequest(group_id="g", members=(leaving,)), LeaveGroupResponse
        )
        assert left.error_code == left.members[0].error_code == ErrorCode.NONE


async def test_a_member_of_a_group_that_is_gone_is_a_stranger_when_it_commits() -> None:
    """Kafka says from version 9 on that there is no such group. Java's consumers end with that, and here a group
    without offsets is forgotten at a restart; strangers join again."""
    async with running() as node:
        client = await node.client()
        code = await commit(client, "gone", generation=3, member_id="m")
        assert code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [8, 9])
async def test_several_groups_tell_how_far_they_are(version: int) -> None:
    async with running() as node:
        client = await node.client()
        for group_id in ("a", "b"):
            assert await commit(client, group_id) == ErrorCode.NONE
        both = (OffsetFetchTopic(name="t", partition_indexes=(1, 0)),)
        request = OffsetFetchRequest(
            groups=(
                OffsetFetchGroup(group_id="a", member_id="m", member_epoch=5, topics=both),
                OffsetFetchGroup(group_id="none", topics=both),
                OffsetFetchGroup(group_id="b", topics=None),
                OffsetFetchGroup(group_id="c", topics=None),
            )
        )

        answer = await client.ask(request, OffsetFetchResponse, version)

        assert {each.error_code for each in answer.groups} == {ErrorCode.NONE}
        told = {
            each.group_id: [
                (topic.name, place.partition_index, place.committed_offset)
                for topic in each.topics
                for place in topic.partitions
            ]
            for each in answer.groups
        }
        assert told == {
            "a": [("t", 1, -1), ("t", 0, 7)],
            "none": [("t", 1, -1), ("t", 0, -1)],
            "b": [("t", 0, 7)],
            "c": [],
        }
        nothing = await client.ask(OffsetFetchRequest(), OffsetFetchResponse, version)
        assert nothing.groups == ()


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_a_group_that_is_not_there_is_an_error_from_version_6_on(version: int) -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, "g")
        request = DescribeGroupsRequest(groups=("g", "none"))
        answer = await client.ask(request, DescribeGroupsResponse, version)
        there, missing = answer.groups
        assert (there.error_code, there.group_state) == (ErrorCode.NONE, "Empty")
        assert there.error_message is None
        assert missing.group_state == "Dead"
        if version < 6:
            assert missing.error_code == ErrorCode.NONE
        else:
            assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert missing.error_message == "there is no such group"


async def test_groups_are_deleted_by_version_2() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, "g")
        answer = await client.ask(DeleteGroupsRequest(group_ids=("g", "g")), DeleteGroupsResponse)
        assert [each.error_code for each in answer.results] == [
            ErrorCode.NONE,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
