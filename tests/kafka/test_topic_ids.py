"""Goal: what a client asks of a topic by its id is about that topic, never about another that has its name by now; and
the newest versions of the calls that every client sends are answered as Kafka answers them."""

from dataclasses import replace
from uuid import UUID

import pytest

from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.cluster import (
    GROUP_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    TOPIC_IDS_SINCE,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
)
from segmentstore.codec.kafka_protocol.fields import NO_UUID
from segmentstore.codec.kafka_protocol.produce import ProduceRequest, ProduceResponse
from tests.kafka.node import Client, Node, batch, fetch, produce, running
from tests.topics.batches import records_in

PRODUCE = APIS[ApiKey.PRODUCE].newest
FETCH = APIS[ApiKey.FETCH].newest
METADATA = APIS[ApiKey.METADATA].newest
SHARE_COORDINATOR = 2


def id_of(node: Node, topic: str = "t") -> UUID:
    found = node.topics.describe(topic)
    assert found is not None
    return found.topic_id


def produce_by_id(topic_id: UUID, *batches: tuple[int, bytes | None]) -> ProduceRequest:
    named = produce(*batches)
    return replace(named, topics=(replace(named.topics[0], name="", topic_id=topic_id),))


def fetch_by_id(topic_id: UUID, *places: tuple[int, int]) -> FetchRequest:
    named = fetch(*places)
    return replace(named, topics=(replace(named.topics[0], topic="", topic_id=topic_id),))


async def fetched(client: Client, request: FetchRequest, version: int = FETCH) -> FetchedPartition:
    answer = await client.ask(request, FetchResponse, version)
    assert answer.error_code == ErrorCode.NONE
    assert [each.topic_id for each in answer.topics] == [each.topic_id for each in request.topics]
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(TOPIC_IDS_SINCE, FETCH + 1))
async def test_records_are_stored_and_read_by_the_id_of_their_topic(version: int) -> None:
    async with running() as node:
        client = await node.client()
        topic_id = id_of(node)
        answer = await client.ask(
            produce_by_id(topic_id, (1, batch(b"a", b"b"))), ProduceResponse, PRODUCE
        )
        assert [each.topic_id for each in answer.topics] == [topic_id]
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

        found = await fetched(client, fetch_by_id(topic_id, (1, 0)), version)
    assert found.high_watermark == 2
    assert [each.value for each in records_in(bytes(found.records or b""))] == [b"a", b"b"]


async def test_a_topic_that_was_made_again_is_not_taken_for_the_one_before_it() -> None:
    """A consumer would read on in the middle of other records, a producer would be one of another topic."""
    async with running() as node:
        client = await node.client()
        old = id_of(node)
        await client.ask(produce((0, batch(b"old"))), ProduceResponse)
        assert (await fetched(client, fetch_by_id(old, (0, 0)))).high_watermark == 1
        await node.topics.delete("t")
        await node.topics.create("t", 2, {})
        new = id_of(node)
        await client.ask(produce((0, batch(b"new", b"newer"))), ProduceResponse)

        gone = await fetched(client, fetch_by_id(old, (0, 1)))
        refused = await client.ask(
            produce_by_id(old, (0, batch(b"late"))), ProduceResponse, PRODUCE
        )
        none = await fetched(client, fetch_by_id(NO_UUID, (0, 0)))
        there = await fetched(client, fetch_by_id(new, (0, 0)))
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert not gone.records
    assert none.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert refused.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert [each.value for each in records_in(bytes(there.records or b""))] == [b"new", b"newer"]


async def test_a_session_goes_on_as_it_began_by_ids_or_by_names() -> None:
    async with running() as node:
        client = await node.client()
        topic_id = id_of(node)
        request = replace(fetch_by_id(topic_id, (0, 0), (1, 0)), session_epoch=0)
        begun = await client.ask(request, FetchResponse, FETCH)
        assert begun.session_id
        await client.ask(produce((0, batch(b"a")), (1, batch(b"b"))), ProduceResponse)

        later = replace(request, session_id=begun.session_id, session_epoch=1, topics=())
        forgotten = ForgottenTopic(topic_id=topic_id, partitions=(1,))
        answer = await client.ask(
            replace(later, forgotten_topics=(forgotten,)), FetchResponse, FETCH
        )
        by_name = await client.ask(replace(later, session_epoch=2), FetchResponse, 12)
        again = await client.ask(replace(later, session_epoch=2), FetchResponse, FETCH)
    assert [each.topic_id for each in answer.topics] == [topic_id]
    assert [each.partition_index for each in answer.topics[0].partitions] == [0]
    assert by_name.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert again.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_topics_are_told_of_by_their_ids() -> None:
    async with running() as node:
        client = await node.client()
        topic_id, unknown = id_of(node), UUID(int=7)
        asked = (
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name=None, topic_id=unknown),
            MetadataRequestTopic(name="none"),
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name="t", topic_id=UUID(int=8)),
            MetadataRequestTopic(name=None),
        )
        answer = await client.ask(MetadataRequest(topics=asked), MetadataResponse, METADATA)
    told = [(each.name, each.topic_id, each.error_code) for each in answer.topics]
    assert told == [
        ("t", topic_id, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ("none", NO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, UUID(int=8), ErrorCode.UNKNOWN_TOPIC_ID),
        (None, NO_UUID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert len(answer.topics[0].partitions) == 2


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_several_groups_are_told_their_coordinator_at_once(version: int) -> None:
    async with running() as node:
        client = await node.client()
        request = FindCoordinatorRequest(
            key_type=GROUP_COORDINATOR, coordinator_keys=("a", "", "a", "b")
        )
        answer = await client.ask(request, FindCoordinatorResponse, version)
        of_shares = await client.ask(
            replace(request, key_type=SHARE_COORDINATOR), FindCoordinatorResponse, version
        )
        address = node.server.address
    assert [each.key for each in answer.coordinators] == ["a", "", "b"]
    assert {(each.host, each.port) for each in answer.coordinators} == {address}
    assert {each.error_code for each in answer.coordinators} == {ErrorCode.NONE}
    assert {each.error_code for each in of_shares.coordinators} == {ErrorCode.INVALID_REQUEST}


async def test_a_refused_batch_is_told_its_reason_but_not_without_a_bound() -> None:
    async with running() as node:
        client = await node.client()
        damaged = bytearray(batch(b"a"))
        damaged[-1] ^= 1
        request = produce(*((0, bytes(damaged)) for _ in range(150)))
        answer = await client.ask(request, ProduceResponse, 12)
    partitions = answer.topics[0].partitions
    assert {each.error_code for each in partitions} == {ErrorCode.CORRUPT_MESSAGE}
    assert sum(each.error_message is not None for each in partitions) == 100
    assert "checksum" in str(partitions[0].error_message)
