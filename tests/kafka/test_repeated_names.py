"""Requests that name one thing many times: the answer does not grow with it."""

from segmentstore.codec.kafka_protocol.administration import (
    TOPIC_ID_CONFIG,
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    LATEST,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from segmentstore.codec.kafka_protocol.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.codec.record_batch import decode_batch
from tests.kafka.node import batch, fetch, fetched, produce, running

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


async def test_committed_offsets_are_told_once() -> None:
    async with running() as node:
        client = await node.client()
        topic = OffsetFetchTopic(name="t", partition_indexes=(1, 0) * TIMES)
        request = OffsetFetchRequest(group_id="g", topics=(topic,) * 2)
        answer = await client.ask(request, OffsetFetchResponse, 7)
        assert [
            (topic.name, each.partition_index)
            for topic in answer.topics
            for each in topic.partitions
        ] == [("t", 1), ("t", 0)]


async def test_a_group_tells_its_offsets_once_with_all_that_is_asked_for() -> None:
    async with running() as node:
        client = await node.client()
        first, second = (
            OffsetFetchGroup(
                group_id="g", topics=(OffsetFetchTopic(name="t", partition_indexes=(index,)),)
            )
            for index in (1, 0)
        )
        every = OffsetFetchGroup(group_id="other", topics=None)
        request = OffsetFetchRequest(groups=(first, every, second) * TIMES)
        answer = await client.ask(request, OffsetFetchResponse)
        assert [(each.group_id, each.error_code) for each in answer.groups] == [
            ("g", ErrorCode.NONE),
            ("other", ErrorCode.NONE),
        ]
        (topic,) = answer.groups[0].topics
        assert [each.partition_index for each in topic.partitions] == [1, 0]


async def test_a_partition_is_fetched_once_from_where_it_was_named_last() -> None:
    async with running() as node:
        client = await node.client()
        for value in (b"first", b"second"):
            await client.ask(produce((0, batch(value))), ProduceResponse)
        request = fetch(*[(0, 0)] * TIMES, (0, 1))
        answer = await client.ask(request, FetchResponse)
        (topic,) = answer.topics
        assert len(topic.partitions) == 1
        records = decode_batch(fetched(answer).records or b"")
        assert [each.value for each in records] == [b"second"]


async def test_a_partition_that_is_looked_into_twice_is_refused_and_hides_no_other() -> None:
    async with running() as node:
        client = await node.client()
        times = [(0, 7)] * TIMES + [(1, 7), (1, EARLIEST), (1, LATEST)]
        named = [ListOffsetsPartition(partition_index=i, timestamp=time) for i, time in times]
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="t", partitions=tuple(named)),))
        answer = await client.ask(request, ListOffsetsResponse)
        codes = [each.error_code for topic in answer.topics for each in topic.partitions]
        assert codes == [ErrorCode.INVALID_REQUEST] * TIMES + [ErrorCode.NONE] * 3
