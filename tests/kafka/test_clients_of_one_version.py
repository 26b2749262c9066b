"""Goal: clients that ask no server for its versions are served: they send those of the Kafka that their user names.

Sarama 1.43 is one: 2.1 if its user names none. All newer versions of Kafka serve such clients.
"""

import pytest

from segmentstore.codec.kafka_protocol.administration import (
    TOPIC_RESOURCE,
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    ReplacedConfigsResource,
    ReplacingConfig,
)
from segmentstore.codec.kafka_protocol.api_table import APIS
from segmentstore.codec.kafka_protocol.cluster import MetadataResponse
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import NO_UUID
from segmentstore.codec.kafka_protocol.frames import decode_response
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
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
    OffsetFetchedPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.kafka.node import Client, Node, running

OF_KAFKA_2_1 = {
    "PRODUCE": 7,
    "FETCH": 10,
    "LIST_OFFSETS": 4,
    "METADATA": 7,
    "OFFSET_COMMIT": 6,
    "OFFSET_FETCH": 5,
    "FIND_COORDINATOR": 2,
    "JOIN_GROUP": 3,
    "HEARTBEAT": 2,
    "LEAVE_GROUP": 2,
    "SYNC_GROUP": 2,
    "DESCRIBE_GROUPS": 2,
    "LIST_GROUPS": 2,
    "API_VERSIONS": 2,
    "CREATE_TOPICS": 3,
    "DELETE_TOPICS": 3,
    "DELETE_RECORDS": 1,
    "INIT_PRODUCER_ID": 1,
    "DESCRIBE_CONFIGS": 2,
    "ALTER_CONFIGS": 1,
    "CREATE_PARTITIONS": 1,
    "DELETE_GROUPS": 1,
}
"""The newest version of each call that is spoken here in any."""
OF_SARAMA = {
    **OF_KAFKA_2_1,
    "FETCH": 11,
    "METADATA": 10,
    "OFFSET_COMMIT": 7,
    "OFFSET_FETCH": 7,
    "JOIN_GROUP": 5,
    "HEARTBEAT": 3,
    "LEAVE_GROUP": 3,
    "SYNC_GROUP": 3,
    "DESCRIBE_GROUPS": 4,
    "LIST_GROUPS": 4,
    "INIT_PRODUCER_ID": 4,
    "INCREMENTAL_ALTER_CONFIGS": 0,
    "OFFSET_DELETE": 0,
}
"""The same of Sarama 1.43 where its user names any version of Kafka 3."""


@pytest.mark.parametrize("versions", [OF_KAFKA_2_1, OF_SARAMA], ids=["2.1", "3"])
def test_what_clients_send_without_asking_is_spoken(versions: dict[str, int]) -> None:
    spoken = {api.key.name: api for api in APIS.values()}
    silent = [name for name, version in versions.items() if not spoken[name].speaks(version)]
    assert silent == []


async def test_librdkafka_is_told_all_topics_although_bytes_follow_its_request() -> None:
    """2.16 leaves four bytes where the compact form of "all" has one. Kafka reads no further than it has to."""
    async with running() as node:
        client = await node.client()
        body = bytes.fromhex("0003 000a 00000004 0007 72646b61666b61 00 00000000 01 00 00 00")
        client.send_bytes(len(body).to_bytes(4, "big") + body)
        answer = decode_response(MetadataResponse, await client.frame(), 10, correlation_id=4)
        assert [each.name for each in answer.topics] == ["t"]


@pytest.mark.parametrize("version", [5, 6, 7, 9, 10])
async def test_the_first_request_of_sarama_is_answered(version: int) -> None:
    async with running() as node:
        client = await node.client()
        # All topics; none are to be made.
        asked = "ffffffff 00" if version < 9 else "00 00 00 00 00 00"
        body = bytes.fromhex(f"0003 {version:04x} 00000005 0006 736172616d61 {asked}")
        client.send_bytes(len(body).to_bytes(4, "big") + body)
        answer = decode_response(MetadataResponse, await client.frame(), version, correlation_id=5)
        assert [(each.name, len(each.partitions)) for each in answer.topics] == [("t", 2)]
        found = node.topics.describe("t")
        assert found is not None
        assert answer.topics[0].topic_id == (found.topic_id if version == 10 else NO_UUID)
        told = answer.topics[0].partitions[1]
        assert (told.partition_index, told.leader_id) == (1, answer.brokers[0].node_id)
        assert (told.leader_epoch, told.offline_replicas) == (-1, ())


async def test_the_oldest_description_of_configurations_says_what_is_a_default() -> None:
    async with running() as node:
        client = await node.client()
        await node.topics.alter("t", {"retention.ms": "5"})
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name="t",
            configuration_keys=("retention.ms", "flush.ms"),
        )
        request = DescribeConfigsRequest(resources=(resource,))
        (found,) = (await client.ask(request, DescribeConfigsResponse, 0)).results
        assert {each.name: each.is_default for each in found.configs} == {
            "flush.ms": True,
            "retention.ms": False,
        }


async def replaced(
    client: Client, *configs: tuple[str, str | None], only_check: bool = False
) -> int:
    resource = ReplacedConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name="t",
        configs=tuple(ReplacingConfig(name=name, value=value) for name, value in configs),
    )
    request = AlterConfigsRequest(resources=(resource,), validate_only=only_check)
    (altered,) = (await client.ask(request, AlterConfigsResponse)).responses
    return altered.error_code


def given_of(node: Node) -> dict[str, str]:
    found = node.topics.describe("t")
    assert found is not None
    return dict(found.given)


async def test_configurations_take_the_place_of_those_that_are_set() -> None:
    async with running() as node:
        client = await node.client()
        await node.topics.alter("t", {"retention.ms": "5", "flush.ms": "7"})
        assert await replaced(client, ("retention.ms", "x")) == ErrorCode.INVALID_CONFIG
        assert await replaced(client, ("no", "1")) == ErrorCode.INVALID_CONFIG
        twice = ("retention.ms", "1"), ("retention.ms", "2")
        assert await replaced(client, *twice) == ErrorCode.INVALID_REQUEST
        assert await replaced(client, ("retention.ms", "6"), only_check=True) == ErrorCode.NONE
        assert given_of(node) == {"retention.ms": "5", "flush.ms": "7"}

        chosen = ("retention.ms", "6"), ("segment.bytes", None)
        assert await replaced(client, *chosen) == ErrorCode.INVALID_CONFIG
        assert await replaced(client, ("retention.ms", "6")) == ErrorCode.NONE
        assert given_of(node) == {"retention.ms": "6"}
        assert await replaced(client) == ErrorCode.NONE
        assert given_of(node) == {}


async def commit(client: Client, *partitions: int) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        topics=(
            OffsetCommitTopic(
                name="t",
                partitions=tuple(
                    OffsetCommitPartition(
                        partition_index=index,
                        committed_offset=40 + index,
                        committed_leader_epoch=index - 1,
                        committed_metadata="m",
                    )
                    for index in partitions
                ),
            ),
        ),
    )
    answer = await client.ask(request, OffsetCommitResponse)
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}


async def committed(client: Client) -> list[OffsetFetchedPartition]:
    answer = await client.ask(OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, 7)
    return [each for topic in answer.topics for each in topic.partitions]


async def test_the_epoch_of_a_committed_offset_is_told_as_it_was_given() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, 0, 1)
        found = await committed(client)
        assert [(each.committed_offset, each.committed_leader_epoch) for each in found] == [
            (40, -1),
            (41, 0),
        ]


def deletion(*partitions: int, topic: str = "t", group: str = "g") -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=(
            OffsetDeleteTopic(
                name=topic,
                partitions=tuple(
                    OffsetDeletePartition(partition_index=index) for index in partitions
                ),
            ),
        ),
    )


async def test_groups_are_listed_with_their_states_and_by_them() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, 0)
        for states, names in (((), ["g"]), (("empty", "Stable"), ["g"]), (("Stable",), [])):
            request = ListGroupsRequest(states_filter=states)
            answer = await client.ask(request, ListGroupsResponse)
            assert [each.group_id for each in answer.groups] == names
            assert {each.group_state for each in answer.groups} <= {"Empty"}


async def test_a_group_forgets_some_of_its_offsets() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, 0, 1)
        answer = await client.ask(deletion(1, 7, 1), OffsetDeleteResponse)
        assert answer.error_code == ErrorCode.NONE
        assert [
            (each.partition_index, each.error_code) for each in answer.topics[0].partitions
        ] == [(1, ErrorCode.NONE), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert [each.partition_index for each in await committed(client)] == [0]

        answer = await client.ask(deletion(0, topic="none"), OffsetDeleteResponse)
        (refused,) = answer.topics[0].partitions
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await client.ask(deletion(0, group="none"), OffsetDeleteResponse)
        assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())
        assert [each.partition_index for each in await committed(client)] == [0]


async def test_a_group_with_members_forgets_no_offsets() -> None:
    async with running() as node:
        client = await node.client()
        await commit(client, 0)
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupProtocol(name="range", metadata=b""),),
        )
        joined = await client.ask(joining, JoinGroupResponse, 3)
        assert joined.error_code == ErrorCode.NONE
        answer = await client.ask(deletion(0), OffsetDeleteResponse)
        assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
        assert [each.partition_index for each in await committed(client)] == [0]
