"""Goal: other clients are served while a request that names very many partitions or topics is answered."""

from segmentstore.codec.kafka_protocol.administration import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    GrowingTopic,
    IncrementalAlterConfigsRequest,
)
from segmentstore.codec.kafka_protocol.cluster import MetadataRequest
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    LATEST,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.cluster_requests import ClusterRequests
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.fetch_sessions import FetchSessions
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.kafka.topic_requests import TopicRequests
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.shared_room import SharedRoom
from segmentstore.topics.brokers import OneBroker
from segmentstore.topics.producer_ids import ProducerIds
from tests.kafka.node import Node, fetch, running
from tests.kafka.test_long_group_requests import ITEMS, TURNS_MIN, turns_of


def fetching_of(node: Node) -> Fetching:
    return Fetching(
        topics=node.topics,
        settings=KafkaSettings(),
        counters=KafkaCounters(),
        quota=ByteQuota(0, clients_max=1),
    )


async def test_others_run_between_the_partitions_of_one_request() -> None:
    async with running() as node:
        await node.topics.create("many", ITEMS, {})
        fetching = fetching_of(node)
        session = FetchSessions(partitions_max=0).of_connection()
        request = fetch(*((index, 0) for index in range(ITEMS)), topic="many")

        async def fetched() -> FetchResponse:
            return await fetching.fetch(
                request, session, "test", AnswerRoom(SharedRoom(1)), version=11
            )

        await fetched()  # each is opened
        answer, turns = await turns_of(fetched())
        assert [each.partition_index for each in answer.topics[0].partitions] == [*range(ITEMS)]
        assert {each.high_watermark for each in answer.topics[0].partitions} == {0}
        assert turns >= 2 * TURNS_MIN, "they are looked at, and answered"

        partitions = [
            ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(ITEMS)
        ]
        listing = ListOffsetsRequest(
            topics=(ListOffsetsTopic(name="many", partitions=tuple(partitions)),)
        )
        told, turns = await turns_of(fetching.list_offsets(listing, version=5))
        assert [each.partition_index for each in told.topics[0].partitions] == [*range(ITEMS)]
        assert {each.offset for each in told.topics[0].partitions} == {0}
        assert turns >= TURNS_MIN


async def test_others_run_between_the_partitions_that_metadata_tells_of() -> None:
    async with running() as node:
        await node.topics.create("many", ITEMS, {})
        cluster = ClusterRequests(
            topics=node.topics,
            producer_ids=ProducerIds(tables=node.tables, wall_clock=SystemWallClock()),
            brokers=OneBroker(),
            cluster_id="test",
            settings=KafkaSettings(),
        )
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        found, turns = await turns_of(
            cluster.metadata(request, version=4, reached_at=("127.0.0.1", 1))
        )
        assert [(each.name, len(each.partitions)) for each in found.topics] == [
            ("many", ITEMS),
            ("t", 2),
        ]
        assert turns >= TURNS_MIN


async def test_others_run_between_the_topics_of_one_request() -> None:
    async with running() as node:
        requests = TopicRequests(topics=node.topics, brokers=OneBroker(), settings=KafkaSettings())
        new = CreatableTopic(
            name="new", num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        created, turns = await turns_of(
            requests.create(
                CreateTopicsRequest(topics=(new,) * ITEMS, timeout_ms=1, validate_only=True)
            )
        )
        assert [each.error_code for each in created.topics] == [ErrorCode.INVALID_REQUEST] * ITEMS
        assert turns >= TURNS_MIN
        growing = GrowingTopic(name="t", count=1, assignments=None)
        grown, turns = await turns_of(
            requests.add_partitions(
                CreatePartitionsRequest(topics=(growing,) * ITEMS, timeout_ms=1, validate_only=True)
            )
        )
        assert [each.error_code for each in grown.results] == [ErrorCode.INVALID_PARTITIONS] * ITEMS
        assert turns >= TURNS_MIN


async def test_others_run_between_the_configurations_of_one_request() -> None:
    async with running() as node:
        requests = TopicRequests(topics=node.topics, brokers=OneBroker(), settings=KafkaSettings())
        asked = [
            DescribeConfigsResource(
                resource_type=BROKER_RESOURCE, resource_name=f"{index}", configuration_keys=None
            )
            for index in range(ITEMS)
        ]
        described, turns = await turns_of(
            requests.describe_configs(DescribeConfigsRequest(resources=tuple(asked)))
        )
        assert len(described.results) == ITEMS
        assert turns >= TURNS_MIN
        unchanged = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configs=()
        )
        altered, turns = await turns_of(
            requests.alter_configs(
                IncrementalAlterConfigsRequest(resources=(unchanged,) * ITEMS, validate_only=True)
            )
        )
        assert [each.error_code for each in altered.responses] == [ErrorCode.NONE] * ITEMS
        assert turns >= TURNS_MIN
