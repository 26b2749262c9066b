"""Goal: requests about groups that name very many things are answered, and other clients are served meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from segmentstore.codec.kafka_protocol.cluster import FindCoordinatorRequest
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    GROUP_REQUEST_ITEMS_MAX,
    LEAVING_MEMBERS_MAX,
    api_of,
    decode_request,
    encode_request,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.kafka.group_requests import GroupRequests
from segmentstore.topics.groups.errors import GroupProblem
from tests.kafka.node import running

_Result = TypeVar("_Result")

ITEMS = 5_000
TURNS_MIN = 8
"""While so many items are answered: some hundred microseconds for each turn."""


def commit_of(topics: dict[str, int]) -> OffsetCommitRequest:
    """Of so many partitions each."""
    return OffsetCommitRequest(
        group_id="g",
        generation_id=-1,
        member_id="",
        topics=tuple(
            OffsetCommitTopic(
                name=name,
                partitions=tuple(
                    OffsetCommitPartition(
                        partition_index=index, committed_offset=index, committed_metadata=""
                    )
                    for index in range(count)
                ),
            )
            for name, count in topics.items()
        ),
    )


def fetch_of(topics: dict[str, int]) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id="g",
        topics=tuple(
            OffsetFetchTopic(name=name, partition_indexes=tuple(range(count)))
            for name, count in topics.items()
        ),
    )


def fetch_of_groups(groups: int, topics: dict[str, int]) -> OffsetFetchRequest:
    """The same of each of so many groups."""
    asked = fetch_of(topics).topics
    return OffsetFetchRequest(
        groups=tuple(
            OffsetFetchGroup(group_id=each, member_id=None, topics=asked) for each in names(groups)
        )
    )


def names(count: int) -> tuple[str, ...]:
    return tuple(f"group-{number}" for number in range(count))


def leave_of(count: int) -> LeaveGroupRequest:
    members = [LeavingMember(member_id=each, group_instance_id=None) for each in names(count)]
    return LeaveGroupRequest(group_id="g", members=tuple(members))


async def turns_of(work: Coroutine[None, None, _Result]) -> tuple[_Result, int]:
    """How often others ran meanwhile."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return await task, turns


async def test_others_run_between_the_groups_of_one_request() -> None:
    async with running() as node:
        requests = GroupRequests(groups=node.groups, topics=node.topics)
        described, turns = await turns_of(
            requests.describe(DescribeGroupsRequest(groups=names(ITEMS)), version=5)
        )
        assert [each.group_id for each in described.groups] == list(names(ITEMS))
        assert turns >= TURNS_MIN
        deleted, turns = await turns_of(requests.delete(names(ITEMS)))
        assert {each.error_code for each in deleted.results} == {GroupProblem.GROUP_ID_NOT_FOUND}
        assert len(deleted.results) == ITEMS
        assert turns >= TURNS_MIN


async def test_others_run_between_the_members_that_leave() -> None:
    async with running() as node:
        requests = GroupRequests(groups=node.groups, topics=node.topics)
        left, turns = await turns_of(requests.leave(leave_of(ITEMS), version=3))
        assert [each.member_id for each in left.members] == list(names(ITEMS))
        assert {each.error_code for each in left.members} == {GroupProblem.UNKNOWN_MEMBER_ID}
        assert turns >= TURNS_MIN


@pytest.mark.parametrize("topic", ["many", "none"])
async def test_others_run_between_the_offsets_of_one_request(topic: str) -> None:
    async with running() as node:
        await node.topics.create("many", ITEMS, {})
        requests = GroupRequests(groups=node.groups, topics=node.topics)
        committed, turns = await turns_of(requests.commit(commit_of({topic: ITEMS})))
        code = ErrorCode.NONE if topic == "many" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (each.partition_index, each.error_code) for each in committed.topics[0].partitions
        ] == [(index, code) for index in range(ITEMS)]
        assert turns >= 2 * TURNS_MIN, "they are looked at, and answered"
        told, turns = await turns_of(requests.committed(fetch_of({topic: ITEMS}), version=7))
        assert [each.committed_offset for each in told.topics[0].partitions] == [
            index if topic == "many" else -1 for index in range(ITEMS)
        ]
        assert turns >= 2 * TURNS_MIN, "they are looked up, and answered"


@pytest.mark.parametrize("each", [1, 200])
async def test_others_run_between_the_groups_of_which_offsets_are_asked_for(each: int) -> None:
    async with running() as node:
        requests = GroupRequests(groups=node.groups, topics=node.topics)
        asked = fetch_of_groups(ITEMS // each, {"t": each})
        told, turns = await turns_of(requests.committed(asked, version=8))
        assert [group.group_id for group in told.groups] == list(names(ITEMS // each))
        assert {len(group.topics[0].partitions) for group in told.groups} == {each}
        assert turns >= 2 * TURNS_MIN, "they are looked up, and answered"


async def test_others_run_between_topics_without_partitions() -> None:
    topics = {f"topic-{number}": 0 for number in range(ITEMS)}
    async with running() as node:
        requests = GroupRequests(groups=node.groups, topics=node.topics)
        committed, turns = await turns_of(requests.commit(commit_of(topics)))
        assert len(committed.topics) == ITEMS
        assert turns >= TURNS_MIN


@pytest.mark.slow
async def test_a_group_of_twenty_thousand_partitions_commits_them_together() -> None:
    topics = {"one": 10_000, "two": 10_000}
    async with running() as node:
        for name, count in topics.items():
            await node.topics.create(name, count, {})
        client = await node.client()
        committed = await client.ask(commit_of(topics), OffsetCommitResponse)
        codes = [each.error_code for topic in committed.topics for each in topic.partitions]
        assert codes == [ErrorCode.NONE] * 20_000
        told = await client.ask(fetch_of(topics), OffsetFetchResponse, 7)
        assert [[each.committed_offset for each in topic.partitions] for topic in told.topics] == [
            list(range(10_000))
        ] * 2


def decoded(request: Structure) -> Structure:
    version = api_of(request).newest
    if isinstance(request, OffsetFetchRequest) and not request.groups:
        version = 7
    parts = encode_request(request, version, correlation_id=1, client_id="c")
    frame = b"".join(parts)[4:]
    return decode_request(read_request_header(frame), frame)


def test_a_request_may_name_twenty_thousand_topics_with_a_partition_each() -> None:
    topics = {f"topic-{number}": 1 for number in range(20_000)}
    for request in (commit_of(topics), fetch_of(topics), fetch_of_groups(1, topics)):
        assert decoded(request) == request


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_about_groups_has_a_lower_bound(more: int) -> None:
    items = GROUP_REQUEST_ITEMS_MAX + more
    for request in (
        commit_of({"t": items - 1}),
        fetch_of({"t": items - 1}),
        fetch_of_groups(1, {"t": items - 2}),
        fetch_of_groups(items // 500, {"t": 498 + more}),
        DescribeGroupsRequest(groups=names(items)),
        DeleteGroupsRequest(group_ids=names(items)),
        FindCoordinatorRequest(coordinator_keys=names(items)),
        leave_of(LEAVING_MEMBERS_MAX + more),
    ):
        if not more:
            assert decoded(request) == request
            continue
        with pytest.raises(KafkaProtocolError, match="too many items"):
            decoded(request)
