"""What consoles of Kafka ask for, message by message: groups by state and type, settings with documentation, and the
ACLs that there are none of."""

import pytest

from segmentstore.codec.kafka_protocol.administration import (
    TOPIC_RESOURCE,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.groups import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from tests.kafka.node import Client, running


async def commit(client: Client, group_id: str, *partitions: int) -> None:
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id=-1,
        member_id="",
        topics=(
            OffsetCommitTopic(
                name="t",
                partitions=tuple(
                    OffsetCommitPartition(
                        partition_index=each, committed_offset=7, committed_metadata=None
                    )
                    for each in partitions
                ),
            ),
        ),
    )
    answer = await client.ask(request, OffsetCommitResponse)
    assert {each.error_code for topic in answer.topics for each in topic.partitions} == {0}


async def join(client: Client, group_id: str) -> None:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="connect",
        protocols=(JoinGroupProtocol(name="range", metadata=b"m"),),
    )
    assert (await client.ask(request, JoinGroupResponse, 3)).error_code == ErrorCode.NONE


async def test_settings_are_told_to_those_who_ask_for_documentation_too() -> None:
    async with running() as node:
        client = await node.client()
        asked = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configuration_keys=("retention.ms",)
        )
        for version in (1, 2, 3):
            request = DescribeConfigsRequest(
                resources=(asked,), include_synonyms=True, include_documentation=version == 3
            )
            answer = await client.ask(request, DescribeConfigsResponse, version)
            (config,) = answer.results[0].configs
            assert (config.name, config.value) == ("retention.ms", "604800000")


@pytest.mark.parametrize("version", [0, 1])
async def test_it_is_told_that_there_are_no_acls(version: int) -> None:
    """By the code by which programs know that there is nothing to carry, not that they failed."""
    async with running() as node:
        client = await node.client()
        every = DescribeAclsRequest(
            resource_type=1,
            resource_name=None,
            principal=None,
            host=None,
            operation=1,
            permission_type=1,
        )
        answer = await client.ask(every, DescribeAclsResponse, version)
        assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, ())
        assert answer.error_message is not None
        assert "no ACLs" in answer.error_message


async def test_groups_are_listed_by_state_and_type() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, "left", 0)
        await join(client, "joined")

        async def listed(
            *, states: tuple[str, ...] = (), types: tuple[str, ...] = (), version: int = 5
        ) -> list[tuple[str, str, str, str]]:
            asked = ListGroupsRequest(states_filter=states, types_filter=types)
            answer = await client.ask(asked, ListGroupsResponse, version)
            assert answer.error_code == ErrorCode.NONE
            return sorted(
                (each.group_id, each.protocol_type, each.group_state, each.group_type)
                for each in answer.groups
            )

        joined = ("joined", "connect", "CompletingRebalance", "Classic")
        left = ("left", "", "Empty", "Classic")
        assert await listed() == [joined, left]
        assert await listed(states=("empty",)) == [left]
        assert await listed(states=("Stable",)) == []
        assert await listed(states=("CompletingRebalance", "Empty")) == [joined, left]
        assert await listed(types=("classic",)) == [joined, left]
        assert await listed(types=("Consumer", "Share")) == []
        assert await listed(states=("Empty",), version=4) == [(*left[:3], "")]
        assert await listed(version=0) == [("joined", "connect", "", ""), ("left", "", "", "")]
