"""A refusal tells what was wrong; however long that is, it is told, and so is what became of everything beside it."""

from segmentstore.codec.kafka_protocol.administration import (
    BROKER_RESOURCE,
    SET,
    TOPIC_RESOURCE,
    AlterableConfig,
    AlterConfigsResource,
    CreatableConfig,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import STRING_BYTES_MAX
from tests.kafka.node import running

LONG = "\x01" * STRING_BYTES_MAX
"""The longest text of the protocol; what shows it to people is four times as long."""


async def test_topics_are_created_beside_some_that_are_refused_for_something_long() -> None:
    async with running() as node:
        client = await node.client()
        topics = (
            CreatableTopic(name="new", num_partitions=1, replication_factor=1),
            CreatableTopic(name=LONG, num_partitions=1, replication_factor=1),
            CreatableTopic(
                name="other",
                num_partitions=1,
                replication_factor=1,
                configs=(CreatableConfig(name="retention.ms", value=LONG),),
            ),
        )
        request = CreateTopicsRequest(topics=topics, timeout_ms=1000)
        answer = await client.ask(request, CreateTopicsResponse)
        assert [each.error_code for each in answer.topics] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_CONFIG,
        ]
        assert [each.name for each in answer.topics] == ["new", LONG, "other"]
        assert "letters, digits" in (answer.topics[1].error_message or "")
        assert node.topics.names() == ["new", "t"]


async def test_configurations_are_refused_by_long_names() -> None:
    async with running() as node:
        client = await node.client()
        asked = DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=BROKER_RESOURCE, resource_name=LONG, configuration_keys=None
                ),
            )
        )
        described = await client.ask(asked, DescribeConfigsResponse)
        assert [each.error_code for each in described.results] == [ErrorCode.INVALID_REQUEST]
        changed = IncrementalAlterConfigsRequest(
            resources=(
                AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name="t",
                    configs=(AlterableConfig(name=LONG, config_operation=SET, value="1"),),
                ),
            ),
            validate_only=False,
        )
        altered = await client.ask(changed, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in altered.responses] == [ErrorCode.INVALID_CONFIG]
