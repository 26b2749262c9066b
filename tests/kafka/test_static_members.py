"""What a client with an instance id is answered, message by message; the rules are in tests/topics/groups."""

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.groups import (
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
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.kafka.node import Client, Node, running

NONE, FENCED, STRANGER = (
    ErrorCode.NONE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
)


async def join(client: Client, instance_id: str | None, *, version: int = 5) -> JoinGroupResponse:
    return await client.ask(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=(JoinGroupProtocol(name="range", metadata=b"m"),),
        ),
        JoinGroupResponse,
        version,
    )


async def sync(client: Client, joined: JoinGroupResponse, assignment: bytes) -> SyncGroupResponse:
    mine = SyncGroupAssignment(member_id=joined.member_id, assignment=assignment)
    return await client.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id="i",
            protocol_type="consumer",
            protocol_name="range",
            assignments=(mine,) if joined.leader == joined.member_id else (),
        ),
        SyncGroupResponse,
    )


async def heartbeat(client: Client, joined: JoinGroupResponse) -> int:
    request = HeartbeatRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id="i",
    )
    return (await client.ask(request, HeartbeatResponse)).error_code


async def commit(client: Client, joined: JoinGroupResponse) -> int:
    place = OffsetCommitPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id="i",
        topics=(OffsetCommitTopic(name="t", partitions=(place,)),),
    )
    answer = await client.ask(request, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


async def leave(client: Client, *members: tuple[str, str | None]) -> tuple[int, list[int]]:
    leaving = tuple(
        LeavingMember(member_id=each, group_instance_id=instance_id)
        for each, instance_id in members
    )
    answer = await client.ask(LeaveGroupRequest(group_id="g", members=leaving), LeaveGroupResponse)
    told = [(each.member_id, each.group_instance_id) for each in answer.members]
    assert told == [*members][: len(told)]
    return answer.error_code, [each.error_code for each in answer.members]


async def members_of(client: Client) -> list[tuple[str, str | None, bytes]]:
    answer = await client.ask(DescribeGroupsRequest(groups=("g",)), DescribeGroupsResponse)
    return [
        (each.member_id, each.group_instance_id, each.member_assignment)
        for each in answer.groups[0].members
    ]


async def test_a_client_that_comes_back_has_its_part_and_the_former_one_is_fenced() -> None:
    async with running() as node:
        former, client = await node.client(), await node.client()
        first = await join(former, "i")
        assert (first.error_code, first.generation_id) == (NONE, 1)
        assert first.leader == first.member_id
        assert first.member_id.startswith("i-")
        assert [(each.member_id, each.group_instance_id) for each in first.members] == [
            (first.member_id, "i")
        ]
        assert (await sync(former, first, b"all")).assignment == b"all"
        assert await heartbeat(former, first) == NONE

        second = await join(client, "i")

        assert (second.error_code, second.generation_id, second.members) == (NONE, 1, ())
        assert second.member_id != first.member_id
        assert second.leader == first.member_id, "told so, it makes no assignment"
        assert (await sync(client, second, b"other")).assignment == b"all"
        assert await heartbeat(client, second) == await commit(client, second) == NONE
        assert await heartbeat(former, first) == await commit(former, first) == FENCED
        assert (await sync(former, first, b"x")).error_code == FENCED
        assert await members_of(client) == [(second.member_id, "i", b"all")]


async def test_a_leader_that_comes_back_by_version_9_leads_on() -> None:
    async with running() as node:
        client = await node.client()
        first = await join(client, "i", version=9)
        assert (first.protocol_type, first.skip_assignment) == ("consumer", False)
        await sync(client, first, b"all")

        second = await join(client, "i", version=9)

        assert (second.generation_id, second.leader) == (1, second.member_id)
        assert second.skip_assignment
        assert [each.member_id for each in second.members] == [second.member_id]
        assert (await sync(client, second, b"ignored")).assignment == b"all"


async def test_each_of_the_members_that_leave_has_its_own_answer() -> None:
    async with running() as node:
        client = await node.client()
        joined = await join(client, "i")

        assert await leave(client, (joined.member_id, "x"), ("old", "i"), ("old", None)) == (
            NONE,
            [STRANGER, FENCED, STRANGER],
        )
        assert len(await members_of(client)) == 1
        assert await leave(client, ("", "i"), ("", "i"), ("", None)) == (
            NONE,
            [NONE, STRANGER, STRANGER],
        )
        assert await members_of(client) == []
        assert await leave(client) == (NONE, [])


async def test_a_coordinator_that_is_elsewhere_is_told_for_the_whole_request() -> None:
    async with running() as node:
        client = await node.client()
        await join(client, "i")
        node.groups.lose()

        answer = await leave(client, ("", "i"))

        assert answer == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
        await again(node)


async def again(node: Node) -> None:
    await node.groups.close()
    await node.groups.start()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_older_clients_leave_one_by_one(version: int) -> None:
    async with running() as node:
        client = await node.client()
        joined = await join(client, "i")

        for expected in (NONE, STRANGER):
            request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
            answer = await client.ask(request, LeaveGroupResponse, version)
            assert answer == LeaveGroupResponse(error_code=expected)


async def test_before_version_5_a_client_has_no_instance_id() -> None:
    async with running() as node:
        client = await node.client()
        refused = await join(client, "i", version=4)
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert refused.member_id.startswith("test-")
        assert await leave(client, (refused.member_id, None)) == (NONE, [NONE])
