"""Batches in and out: codes, bounds, long polls, offsets by time."""

import asyncio

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from segmentstore.codec.kafka_protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from segmentstore.codec.record_batch import (
    BatchProblem,
    Record,
    decode_batch,
    encode_batch,
    parse_header,
)
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.kafka.refusals import code_of, fetch_code_of
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.topics import errors
from tests.kafka.node import Client, Node, batch, fetch, fetched, produce, produced, running


async def stored(node: Node, *values: bytes, partition: int = 0) -> None:
    client = await node.client()
    for value in values:
        answer = await client.ask(produce((partition, batch(value))), ProduceResponse)
        assert produced(answer).error_code == ErrorCode.NONE


def values_of(records: object) -> list[bytes | None]:
    assert isinstance(records, bytes | memoryview)
    content, found = bytes(records), []
    while content:
        size = parse_header(content).size
        found += [each.value for each in decode_batch(content[:size])]
        content = content[size:]
    return found


async def test_a_batch_is_told_its_offset_and_read_back() -> None:
    async with running() as node:
        client = await node.client()
        first = await client.ask(
            produce((0, batch(b"a", None, b"")), (1, batch(b"b"))), ProduceResponse
        )
        second = await client.ask(produce((0, batch(b"c"))), ProduceResponse)
        answer = await client.ask(fetch((0, 0), (1, 0)), FetchResponse)

    assert [produced(first, at).base_offset for at in (0, 1)] == [0, 0]
    assert produced(first).log_append_time_ms == -1
    assert produced(second).base_offset == 3
    assert values_of(fetched(answer).records) == [b"a", None, b"", b"c"]
    assert values_of(fetched(answer, 1).records) == [b"b"]
    assert fetched(answer).high_watermark == fetched(answer).last_stable_offset == 4
    assert fetched(answer).preferred_read_replica == -1


async def test_each_partition_is_answered_by_itself() -> None:
    damaged = bytearray(batch(b"damaged"))
    damaged[-1] ^= 1
    async with running() as node:
        client = await node.client()
        answer = await client.ask(
            produce((7, batch(b"a")), (0, bytes(damaged)), (1, batch(b"b"))), ProduceResponse
        )
        nothing = await client.ask(produce((0, None)), ProduceResponse)
        unknown = await client.ask(produce((0, batch(b"a")), topic="u"), ProduceResponse)

    assert [each.error_code for each in answer.topics[0].partitions] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
    ]
    assert produced(nothing).error_code == ErrorCode.NONE
    assert produced(unknown).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_other_acks_and_transactions_are_refused() -> None:
    async with running() as node:
        client = await node.client()
        acks = await client.ask(produce((0, batch(b"a")), acks=2), ProduceResponse)
        of_transaction = await client.ask(
            ProduceRequest(
                transactional_id="x",
                acks=-1,
                timeout_ms=1,
                topics=produce((0, batch(b"a"))).topics,
            ),
            ProduceResponse,
        )
        no_id = await client.ask(
            InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1),
            InitProducerIdResponse,
        )
        empty = await client.ask(fetch((0, 0)), FetchResponse)

    assert produced(acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert produced(of_transaction).error_code == no_id.error_code == refused
    assert fetched(empty).high_watermark == 0


async def test_producer_ids_are_given_out_once() -> None:
    async with running() as node:
        client = await node.client()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        found = [(await client.ask(request, InitProducerIdResponse)).producer_id for _ in range(9)]

    assert len(set(found)) == 9
    assert min(found) >= 0


async def test_a_batch_above_the_bound_is_refused() -> None:
    async with running(KafkaSettings(batch_bytes_max=2000)) as node:
        client = await node.client()
        answer = await client.ask(produce((0, batch(b"x" * 3000))), ProduceResponse)

    assert produced(answer).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_batch_that_may_be_stored_is_told_with_another_code_than_one_that_is_not() -> None:
    async with running() as node:
        client = await node.client()
        node.segments.hold()
        before = node.segments.append_count
        number = client.send(produce((0, batch(b"a"))))
        await node.until(lambda each: each.segments.append_count == before + 1)
        node.segments.fail(ContainerStoppedError("it stops"))
        answer = await client.answer(number, ProduceResponse)

    assert produced(answer).error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("error", "code", "fetch_code"),
    [
        (errors.PartitionUnavailableError("x", stored=False), 56, 56),
        (errors.PartitionUnavailableError("x", stored=None), 7, 56),
        (errors.TopicsUnavailableError("x"), 7, 56),
        (errors.TopicNotFoundError("x"), 3, 3),
        (errors.UnknownPartitionError("x", 1), 3, 3),
        (errors.OffsetOutOfRangeError(1, log_start=2, next_offset=3), 1, 1),
        (errors.OutOfOrderSequenceError(producer_id=1, expected=2, given=4), 45, 45),
        (errors.ProducerFencedError(producer_id=1, current=2, given=1), 47, 47),
        (errors.RecordBatchTooLargeError(size=2, size_max=1), 10, 10),
        (errors.InvalidTimestampError("x"), 32, 32),
        (errors.InvalidRecordError(BatchProblem.INVALID, "x"), 87, 87),
        (errors.InvalidRecordError(BatchProblem.OLD_FORMAT, "x"), 43, 43),
        (errors.InvalidRecordError(BatchProblem.UNKNOWN_COMPRESSION, "x"), 76, 76),
    ],
)
def test_an_error_has_the_code_that_clients_act_on(
    error: errors.TopicError, code: int, fetch_code: int
) -> None:
    assert (code_of(error), fetch_code_of(error)) == (code, fetch_code)


def test_every_error_of_topics_has_a_code() -> None:
    def leaves(kind: type[errors.TopicError]) -> list[type[errors.TopicError]]:
        return [kind, *(leaf for each in kind.__subclasses__() for leaf in leaves(each))]

    for kind in leaves(errors.TopicError)[1:]:
        error = kind.__new__(kind)
        if isinstance(error, errors.InvalidRecordError):
            error.problem = BatchProblem.CORRUPT
        if isinstance(error, errors.PartitionUnavailableError):
            error.stored = False
        assert code_of(error) not in (0, 46), kind


async def test_a_fetch_waits_for_bytes_and_is_woken_by_them() -> None:
    async with running() as node:
        reader = await node.client()
        number = reader.send(fetch((0, 0), (1, 0), wait_ms=60_000))
        waiting = asyncio.ensure_future(reader.answer(number, FetchResponse))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await stored(node, b"a", partition=1)
        answer = await waiting

    assert values_of(fetched(answer, 1).records) == [b"a"]
    assert values_of(fetched(answer, 0).records) == []


async def test_a_fetch_waits_for_as_many_bytes_as_it_wants() -> None:
    async with running() as node:
        reader = await node.client()
        await stored(node, b"x" * 100)
        number = reader.send(fetch((0, 0), wait_ms=60_000, bytes_min=1000))
        waiting = asyncio.ensure_future(reader.answer(number, FetchResponse))
        await stored(node, b"y" * 100)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await stored(node, b"z" * 1000)
        answer = await waiting

    assert values_of(fetched(answer).records) == [b"x" * 100, b"y" * 100, b"z" * 1000]


async def test_a_fetch_without_bytes_is_answered_when_its_time_is_up() -> None:
    async with running() as node:
        reader = await node.client()
        answer = await reader.ask(fetch((0, 0), wait_ms=20), FetchResponse)

    assert fetched(answer).error_code == ErrorCode.NONE
    assert fetched(answer).records == b""
    assert fetched(answer).high_watermark == 0


async def test_a_fetch_with_an_error_does_not_wait() -> None:
    async with running() as node:
        reader = await node.client()
        await stored(node, b"a")
        unknown = await reader.ask(fetch((0, 1), (9, 0), wait_ms=60_000), FetchResponse)
        behind = await reader.ask(fetch((0, 5), wait_ms=60_000), FetchResponse)
        none = await reader.ask(
            FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=()), FetchResponse
        )

    assert fetched(unknown, 0).error_code == ErrorCode.NONE
    assert fetched(unknown, 1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(behind).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(behind).log_start_offset == 0
    assert none.topics == ()


@pytest.mark.parametrize("slow", [0, 1])
async def test_a_partition_that_takes_too_long_hides_no_other(
    slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose records are in a Tier 2 that is silent, beside others whose records are in memory."""

    async def silent(offset: int, max_bytes: int) -> bytes:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never

    async with running(KafkaSettings(read_seconds=0.05)) as node:
        client = await node.client()
        await client.ask(produce((0, batch(b"a")), (1, batch(b"b"))), ProduceResponse)
        monkeypatch.setattr(await node.topics.own_partition("t", slow), "fetch", silent)
        answer = await client.ask(fetch((0, 0), (1, 0), wait_ms=30_000), FetchResponse)

    assert [fetched(answer, at).error_code for at in range(2)] == [ErrorCode.NONE] * 2
    assert [bool(fetched(answer, at).records) for at in range(2)] == [slow != 0, slow != 1]


async def test_a_fetch_of_a_topic_that_is_deleted_ends() -> None:
    async with running() as node:
        reader = await node.client()
        number = reader.send(fetch((0, 0), wait_ms=60_000))
        waiting = asyncio.ensure_future(reader.answer(number, FetchResponse))
        await asyncio.sleep(0.05)
        await node.topics.delete("t")
        answer = await waiting

    assert fetched(answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_fetch_has_one_batch_whatever_its_bounds_and_no_more_than_they_say() -> None:
    async with running() as node:
        reader = await node.client()
        await stored(node, b"x" * 1000, b"y" * 1000)
        await stored(node, b"z" * 1000, partition=1)
        tiny = await reader.ask(
            fetch((0, 0), (1, 0), bytes_max=1, partition_bytes_max=1), FetchResponse
        )
        by_partition = await reader.ask(
            fetch((0, 0), (1, 0), partition_bytes_max=1500), FetchResponse
        )
        by_total = await reader.ask(fetch((0, 0), (1, 0), bytes_max=2500), FetchResponse)
        other_order = await reader.ask(fetch((1, 0), (0, 0), bytes_max=1500), FetchResponse)

    assert [len(values_of(each.records)) for each in tiny.topics[0].partitions] == [1, 0]
    assert [len(values_of(each.records)) for each in by_partition.topics[0].partitions] == [1, 1]
    assert [len(values_of(each.records)) for each in by_total.topics[0].partitions] == [2, 0]
    assert [len(values_of(each.records)) for each in other_order.topics[0].partitions] == [1, 0]


async def test_a_fetch_inside_a_batch_gets_the_batch() -> None:
    async with running() as node:
        client = await node.client()
        await client.ask(produce((0, batch(b"a", b"b", b"c"))), ProduceResponse)
        answer = await client.ask(fetch((0, 2)), FetchResponse)

    assert values_of(fetched(answer).records) == [b"a", b"b", b"c"]


async def test_a_session_that_there_never_was_is_refused() -> None:
    async with running() as node:
        client = await node.client()
        answer = await client.ask(
            FetchRequest(max_wait_ms=1, min_bytes=1, session_id=5, session_epoch=1, topics=()),
            FetchResponse,
        )

    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_what_a_fetch_watched_is_let_go_of() -> None:
    async with running() as node:
        client = await node.client()
        await client.ask(fetch((0, 0), wait_ms=10), FetchResponse)
        gone = await node.client()
        gone.send(fetch((0, 0), wait_ms=60_000))
        partition = await node.topics.own_partition("t", 0)
        while len(partition._log._watchers) != 1:
            await asyncio.sleep(0.001)
        gone.close()
        while node.server.statistics().connections > 1:
            await asyncio.sleep(0.001)
        while partition._log._watchers:
            await asyncio.sleep(0.001)


async def listed(
    client: Client, *timestamps: int, partition: int = 0, version: int | None = None
) -> list[tuple[int, int, int]]:
    """Error code, offset and time of each."""
    partitions = tuple(
        ListOffsetsPartition(partition_index=partition, timestamp=each) for each in timestamps
    )
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="t", partitions=partitions),))
    answer = await client.ask(request, ListOffsetsResponse, version)
    assert {each.leader_epoch for each in answer.topics[0].partitions} == {-1}
    return [(each.error_code, each.offset, each.timestamp) for each in answer.topics[0].partitions]


def times(*given: int) -> bytes:
    """A batch of records with these times."""
    return encode_batch([Record(at, time, None, b"v") for at, time in enumerate(given)])


@pytest.mark.parametrize("version", range(1, 8))
async def test_offsets_by_time(version: int) -> None:
    async with running() as node:
        client = await node.client()
        await client.ask(produce((0, times(70, 90, 80))), ProduceResponse)
        partition = await node.topics.own_partition("t", 0)
        await partition.delete_records(1)

        for timestamp, expected in (
            (LATEST, (0, 3, -1)),
            (EARLIEST, (0, 1, -1)),
            (0, (0, 1, 90)),
            (90, (0, 1, 90)),
            (91, (0, -1, -1)),
            (1 << 62, (0, -1, -1)),
        ):
            assert await listed(client, timestamp, version=version) == [expected]
        assert await listed(client, LATEST, partition=9, version=version) == [
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        ]


async def test_the_record_with_the_highest_time_is_told_from_the_version_on_that_has_it() -> None:
    async with running() as node:
        client = await node.client()
        assert await listed(client, MAX_TIMESTAMP) == [(0, -1, -1)], "there is no record"
        await client.ask(produce((0, times(70, 90, 80))), ProduceResponse)
        await client.ask(produce((0, times(60, 90, 90))), ProduceResponse)
        assert await listed(client, MAX_TIMESTAMP) == [(0, 1, 90)]
        partition = await node.topics.own_partition("t", 0)
        await partition.delete_records(2)
        assert await listed(client, MAX_TIMESTAMP) == [(0, 4, 90)]
        await partition.delete_records(6)
        assert await listed(client, MAX_TIMESTAMP) == [(0, -1, -1)]
        assert await listed(client, MAX_TIMESTAMP, partition=9) == [
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        ]
        for version in range(1, 7):
            assert await listed(client, MAX_TIMESTAMP, version=version) == [
                (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            ]


@pytest.mark.parametrize("timestamp", [-4, -5, -6, -7, -(1 << 63)])
async def test_times_that_have_a_meaning_in_no_spoken_version_are_refused(timestamp: int) -> None:
    async with running() as node:
        client = await node.client()
        await stored(node, b"a")
        for version in range(1, 8):
            assert await listed(client, timestamp, version=version) == [
                (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            ]
        assert await listed(client, LATEST) == [(0, 1, -1)], "the connection is as it was"
