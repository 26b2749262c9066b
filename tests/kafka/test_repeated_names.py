"""Requests that name one thing many times: the answer does not grow with it."""

from segmentstore.codec.kafka_protocol.administration import (
    TOPIC_ID_CONFIG,
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from segmentstore.codec.kafka_protocol.groups import DescribeGroupsRequest, DescribeGroupsResponse
from tests.kafka.node import running

TIMES = 1_000


def resource(name: str, *keys: str, every: bool = False) -> DescribeConfigsResource:
    return DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None if every else keys
    )


async def test_a_group_is_described_once() -> None:
    async with running() as node:
        client = await node.client()
        request = DescribeGroupsRequest(groups=("b", "a") * TIMES)
        answer = await client.ask(request, DescribeGroupsResponse)
        assert [each.group_id for each in answer.groups] == ["b", "a"]


async def test_a_topic_is_described_once_with_all_that_is_asked_for() -> None:
    async with running() as node:
        client = await node.client()
        asked = (resource("t", "retention.ms"), resource("t", TOPIC_ID_CONFIG), resource("none"))
        request = DescribeConfigsRequest(resources=asked * TIMES)
        answer = await client.ask(request, DescribeConfigsResponse)
        told = [
            (each.resource_name, sorted(config.name for config in each.configs))
            for each in answer.results
        ]
        assert told == [("t", ["retention.ms", TOPIC_ID_CONFIG]), ("none", [])]


async def test_a_topic_that_is_asked_for_with_and_without_keys_tells_everything() -> None:
    async with running() as node:
        client = await node.client()
        asked = (resource("t", "retention.ms"), resource("t", every=True), resource("t", "none"))
        answer = await client.ask(DescribeConfigsRequest(resources=asked), DescribeConfigsResponse)
        alone = await client.ask(
            DescribeConfigsRequest(resources=asked[1:2]), DescribeConfigsResponse
        )
        assert answer.results == alone.results
        assert len(answer.results[0].configs) > 1
