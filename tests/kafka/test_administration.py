"""What consoles of Kafka ask for, message by message: topics that are made, and deleted by name and by id, groups by
state and type, settings with documentation, and the ACLs that there are none of."""

from uuid import UUID

import pytest

from segmentstore.codec.kafka_protocol.administration import (
    DEFAULT_SOURCE,
    SET,
    TOPIC_RESOURCE,
    TOPIC_SOURCE,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    CreatableConfig,
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopic,
    DeletedTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    GrowingTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ReplacedConfigsResource,
    ReplacingConfig,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import NO_UUID
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


async def created(
    client: Client, *topics: CreatableTopic, version: int = 7, only_check: bool = False
) -> list[CreatedTopic]:
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=only_check)
    return list((await client.ask(request, CreateTopicsResponse, version)).topics)


def new(name: str, *, partitions: int = 3, **config: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=tuple(
            CreatableConfig(name=word.replace("_", "."), value=value)
            for word, value in config.items()
        ),
    )


@pytest.mark.parametrize("only_check", [False, True])
@pytest.mark.parametrize("version", [4, 5, 6, 7])
async def test_a_client_that_makes_a_topic_is_told_what_it_has(
    version: int, only_check: bool
) -> None:
    async with running() as node:
        client = await node.client()
        topic, refused = await created(
            client,
            new("new", retention_ms="1000"),
            new("t"),
            version=version,
            only_check=only_check,
        )
        found = node.topics.describe("new")
        assert (topic.name, topic.error_code) == ("new", ErrorCode.NONE)
        assert (found is None) == only_check
        has_id = found is not None and version >= 7
        assert topic.topic_id == (found.topic_id if has_id and found else NO_UUID)
        if version < 5:
            assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, ())
        else:
            assert (topic.num_partitions, topic.replication_factor) == (3, 1)
            told = {each.name: (each.value, each.config_source) for each in topic.configs}
            assert told["retention.ms"] == ("1000", TOPIC_SOURCE)
            assert told["cleanup.policy"] == ("delete", DEFAULT_SOURCE)
            if found is not None:
                assert {each.name: each.value for each in topic.configs} == found.config
        assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (refused.topic_id, refused.num_partitions, refused.configs) == (NO_UUID, -1, ())


async def test_what_topics_have_is_told_of_so_many_that_the_answer_has_a_bound() -> None:
    async with running() as node:
        client = await node.client()
        topics = [new(f"new-{number}", partitions=1) for number in range(1_002)]
        answered = await created(client, *topics, only_check=True)
        assert {each.error_code for each in answered} == {ErrorCode.NONE}
        assert [each.num_partitions for each in answered] == [1] * 1_000 + [-1] * 2
        assert [bool(each.configs) for each in answered] == [True] * 1_000 + [False] * 2


async def deleted(client: Client, *topics: DeletableTopic) -> list[DeletedTopic]:
    request = DeleteTopicsRequest(topics=topics, timeout_ms=1000)
    return list((await client.ask(request, DeleteTopicsResponse)).responses)


async def test_topics_are_deleted_by_name_and_by_id() -> None:
    async with running() as node:
        client = await node.client()
        first, second = await created(client, new("first"), new("second"))
        gone = UUID(int=7)

        answer = await deleted(
            client,
            DeletableTopic(topic_id=first.topic_id),
            DeletableTopic(name="second"),
            DeletableTopic(topic_id=first.topic_id),
            DeletableTopic(name="second"),
            DeletableTopic(topic_id=gone),
            DeletableTopic(name="t", topic_id=gone),
            DeletableTopic(),
        )

        assert [(each.name, each.topic_id, each.error_code) for each in answer] == [
            ("first", first.topic_id, ErrorCode.NONE),
            ("second", second.topic_id, ErrorCode.NONE),
            (None, first.topic_id, ErrorCode.UNKNOWN_TOPIC_ID),
            ("second", NO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (None, gone, ErrorCode.UNKNOWN_TOPIC_ID),
            ("t", gone, ErrorCode.INVALID_REQUEST),
            (None, NO_UUID, ErrorCode.INVALID_REQUEST),
        ]
        assert [each.error_message is None for each in answer] == [True] * 2 + [False] * 5
        assert node.topics.names() == ["t"]


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_before_version_6_topics_are_deleted_by_name_alone(version: int) -> None:
    async with running() as node:
        client = await node.client()
        request = DeleteTopicsRequest(topic_names=("t", "none"), timeout_ms=1000)
        answer = await client.ask(request, DeleteTopicsResponse, version)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("t", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        refused = answer.responses[1].error_message
        assert refused is None if version < 5 else refused is not None and "none" in refused


@pytest.mark.parametrize("is_flexible", [False, True])
async def test_what_is_changed_is_changed_in_flexible_versions_too(is_flexible: bool) -> None:
    async with running() as node:
        client = await node.client()
        set_one = AlterableConfig(name="retention.ms", config_operation=SET, value="1000")
        altered = await client.ask(
            IncrementalAlterConfigsRequest(
                resources=(
                    AlterConfigsResource(
                        resource_type=TOPIC_RESOURCE, resource_name="t", configs=(set_one,)
                    ),
                ),
                validate_only=False,
            ),
            IncrementalAlterConfigsResponse,
            1 if is_flexible else 0,
        )
        assert [each.error_code for each in altered.responses] == [ErrorCode.NONE]
        replaced = await client.ask(
            AlterConfigsRequest(
                resources=(
                    ReplacedConfigsResource(
                        resource_type=TOPIC_RESOURCE,
                        resource_name="t",
                        configs=(ReplacingConfig(name="retention.bytes", value="7"),),
                    ),
                ),
                validate_only=False,
            ),
            AlterConfigsResponse,
            2 if is_flexible else 1,
        )
        assert [each.error_code for each in replaced.responses] == [ErrorCode.NONE]
        for count, version in ((3, 2), (4, 3)) if is_flexible else ((3, 0), (4, 1)):
            grown = await client.ask(
                CreatePartitionsRequest(
                    topics=(GrowingTopic(name="t", count=count, assignments=None),),
                    timeout_ms=1000,
                    validate_only=False,
                ),
                CreatePartitionsResponse,
                version,
            )
            assert [each.error_code for each in grown.results] == [ErrorCode.NONE]
        found = node.topics.describe("t")
        assert found is not None
        assert (found.given, found.partitions) == ({"retention.bytes": "7"}, 4)
        dropped = await client.ask(
            DeleteRecordsRequest(
                topics=(
                    DeleteRecordsTopic(
                        name="t", partitions=(DeleteRecordsPartition(partition_index=0, offset=-1),)
                    ),
                ),
                timeout_ms=1000,
            ),
            DeleteRecordsResponse,
            2 if is_flexible else 1,
        )
        (partition,) = dropped.topics[0].partitions
        assert (partition.low_watermark, partition.error_code) == (0, ErrorCode.NONE)


async def test_settings_are_told_to_those_who_ask_for_documentation_too() -> None:
    async with running() as node:
        client = await node.client()
        asked = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configuration_keys=("retention.ms",)
        )
        for version in (1, 2, 3, 4):
            request = DescribeConfigsRequest(
                resources=(asked,), include_synonyms=True, include_documentation=version >= 3
            )
            answer = await client.ask(request, DescribeConfigsResponse, version)
            (config,) = answer.results[0].configs
            assert (config.name, config.value) == ("retention.ms", "604800000")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
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
