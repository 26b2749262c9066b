"""Goal: topics over gRPC give back what was put in, answer streams in order, and tell an unknown outcome from none.

Over segments and tables in memory, with a client that is generated from the same file, over a real socket.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest

from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import Compression, Record, decode_batch, encode_batch
from segmentstore.codec.topics_api import topics_pb2 as api
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerStoppedError,
    InvalidRequestError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.topics import consume
from segmentstore.topics.api.grpc_server import SERVICE, TopicServer, TopicServerSettings
from segmentstore.topics.errors import CatalogueConflictError, PartitionUnavailableError
from segmentstore.topics.partition import Partition
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.served_partition import ServedPartition
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.reference.loop_turns import turns_of_loop, work_of_turns
from tests.reference.memory_tables import MemoryTables
from tests.topics.batches import NOW, Clock

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]
ANSWERS: dict[str, Any] = {
    "CreateTopic": api.Topic,
    "DescribeTopic": api.Topic,
    "ListTopics": api.TopicList,
    "DeleteTopic": api.DeleteTopicResponse,
    "OpenProducer": api.Producer,
    "Produce": api.ProduceResponse,
    "Fetch": api.FetchResponse,
    "FindOffset": api.FindOffsetResponse,
}


class Served:
    """A server, and a client of it."""

    def __init__(
        self, server: TopicServer, segments: MemorySegments, topics: list[Topics | None]
    ) -> None:
        self.topics = topics
        self.server = server
        self.segments = segments
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")

    async def call(self, name: str, request: Any) -> Any:
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=ANSWERS[name].FromString,
        )
        return await method(request)

    def produce_stream(self) -> Any:
        """write() and read(), then done_writing()."""
        method: Any = self.channel.stream_stream(
            f"/{SERVICE}/ProduceStream",
            request_serializer=api.ProduceRequest.SerializeToString,
            response_deserializer=api.ProduceResponse.FromString,
        )
        return method()

    async def send_all(self, requests: Iterable[api.ProduceRequest]) -> Any:
        """A stream whose requests are on their way."""
        call = self.produce_stream()
        for request in requests:
            await call.write(request)
        await call.done_writing()
        return call

    def follow(self, request: api.FetchRequest) -> Any:
        method = self.channel.unary_stream(
            f"/{SERVICE}/Follow",
            request_serializer=api.FetchRequest.SerializeToString,
            response_deserializer=api.FetchResponse.FromString,
        )
        return method(request)


@asynccontextmanager
async def serving(settings: TopicServerSettings) -> AsyncIterator[Served]:
    segments, tables, clock, random = MemorySegments(), MemoryTables(), Clock(), Random(3)
    topics = Topics(
        segments=segments,
        tables=tables,
        wall_clock=clock,
        random=random,
        settings=TopicSettings(),
    )
    producer_ids = ProducerIds(tables=tables, wall_clock=clock)
    await topics.start()
    await producer_ids.start()
    holder: list[Topics | None] = [topics]
    server = TopicServer(
        topics=lambda: holder[0],
        producer_ids=producer_ids,
        wall_clock=clock,
        random=random,
        settings=settings,
    )
    await server.start()
    client = Served(server, segments, holder)
    try:
        await client.call("CreateTopic", api.CreateTopicRequest(name="t", partitions=3))
        yield client
    finally:
        await client.channel.close(None)
        await server.close()
        await topics.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(TopicServerSettings(port=0)) as client:
        yield client


def to_partition(partition: int, *values: bytes, **more: Any) -> api.ProduceRequest:
    records = api.Records(records=[api.Record(value=value) for value in values])
    return api.ProduceRequest(topic="t", partition=partition, records=records, **more)


async def values_of(served: Served, partition: int) -> list[tuple[int, bytes]]:
    answer = await served.call("Fetch", api.FetchRequest(topic="t", partition=partition))
    return [(record.offset, record.value) for record in answer.records.records]


async def test_a_record_comes_back_as_it_was(served: Served) -> None:
    record = api.Record(
        key=b"k",
        timestamp_ms=NOW - 5,
        headers=[api.Header(name="h", value=b""), api.Header(name="h")],
    )
    request = api.ProduceRequest(topic="t", records=api.Records(records=[record, api.Record()]))
    answer = await served.call("Produce", request)
    place = partition_of(b"k", partition_count=3)
    assert {each.partition: each.record_count for each in answer.partitions}[place] in {1, 2}
    answer = await served.call("Fetch", api.FetchRequest(topic="t", partition=place))
    found = answer.records.records[0]
    assert not found.HasField("value")
    assert (found.key, found.timestamp_ms) == (b"k", NOW - 5)
    assert [(h.name, h.HasField("value"), h.value) for h in found.headers] == [
        ("h", True, b""),
        ("h", False, b""),
    ]


async def test_a_stream_is_answered_in_the_order_of_its_requests(served: Served) -> None:
    requests = [to_partition(n % 2, f"{n}".encode()) for n in range(200)]
    call = await served.send_all(requests)
    offsets = [(await call.read()).partitions[0].base_offset for _ in requests]
    assert await call.read() is END
    assert offsets == [n // 2 for n in range(200)]
    for partition in range(2):
        assert await values_of(served, partition) == [
            (n, f"{2 * n + partition}".encode()) for n in range(100)
        ]


async def test_a_client_may_wait_for_each_answer_of_a_stream(served: Served) -> None:
    call = served.produce_stream()
    for n in range(20):
        await call.write(to_partition(0, b"%d" % n))
        assert (await call.read()).partitions[0].base_offset == n
    await call.done_writing()
    assert await call.read() is END


async def test_a_stream_ends_at_its_first_refusal_behind_the_answers_before_it(
    served: Served,
) -> None:
    requests = [to_partition(0, b"a"), to_partition(0)]
    call = served.produce_stream()
    for request in requests:
        await call.write(request)
    assert (await call.read()).partitions[0].base_offset == 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await values_of(served, 0) == [(0, b"a")]


async def test_requests_that_the_log_has_not_settled_are_bounded_over_all_streams() -> None:
    settings = TopicServerSettings(port=0, message_bytes_max=60_000, request_bytes_max=200_000)
    async with serving(settings) as served:
        requests = served.server._requests
        served.segments.hold()
        calls = [served.produce_stream() for _ in range(4)]

        async def send(call: Any) -> None:
            for n in range(10):
                await call.write(to_partition(0, b"%d" % n, bytes(50_000)))
            await call.done_writing()

        sending = [asyncio.ensure_future(send(call)) for call in calls]
        while requests.waiting_count < len(calls):
            await asyncio.sleep(0.001)
        # Of small ones, and of calls of other kinds, there is no more room either.
        asked = asyncio.ensure_future(values_of(served, 1))
        while requests.waiting_count < len(calls) + 1:
            await asyncio.sleep(0.001)
        assert 150_000 < requests.held_bytes <= 200_000
        served.segments.let_go()
        offsets: list[int] = []
        for call in calls:
            of_call = [(await call.read()).partitions[0].base_offset for _ in range(10)]
            assert await call.read() is END
            assert of_call == sorted(of_call)
            offsets += of_call
        assert sorted(offsets) == [2 * n for n in range(40)]
        assert await asked == []
        await asyncio.gather(*sending)
        assert requests.held_bytes == requests.waiting_count == 0


async def test_a_stream_too_many_is_refused_and_the_others_go_on() -> None:
    async with serving(TopicServerSettings(port=0, produce_streams_max=2)) as served:
        calls = [served.produce_stream() for _ in range(2)]
        for call in calls:
            await call.write(to_partition(0, b"a"))
            await call.read()
        refused = served.produce_stream()
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            await call.write(to_partition(0, b"b"))
            await call.read()
        await calls[0].done_writing()
        assert await calls[0].read() is END
        again = await served.send_all([to_partition(0, b"c")])
        assert (await again.read()).partitions[0].base_offset == 4


@pytest.mark.slow
async def test_a_connection_whose_client_has_gone_without_a_word_ends() -> None:
    """Each would keep the place of one that streams requests."""
    settings = TopicServerSettings(port=0, silence_seconds=0.2, answer_seconds=0.2)
    async with serving(settings) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        try:
            # HTTP/2: it greets, takes the server's settings, and answers nothing more, no PING either.
            settings_frame, taken = b"\x00\x00\x00\x04\x00", b"\x00\x00\x00\x04\x01"
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame + bytes(4))
            writer.write(taken + bytes(4))
            async with asyncio.timeout(20):
                while await reader.read(1 << 16):
                    continue
        finally:
            writer.close()
        assert await values_of(served, 0) == []


async def test_a_request_that_is_too_long_is_refused() -> None:
    async with serving(TopicServerSettings(port=0, message_bytes_max=1000)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.call("Produce", to_partition(0, bytes(1000)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await served.call("Produce", to_partition(0, b"short"))
        assert served.server._requests.held_bytes == 0


async def test_a_batch_sent_twice_by_one_producer_is_stored_once(served: Served) -> None:
    producer = await served.call("OpenProducer", api.OpenProducerRequest())
    request = to_partition(1, b"a", b"b", producer=producer, base_sequence=0)
    for duplicate in (False, True):
        (appended,) = (await served.call("Produce", request)).partitions
        assert (appended.base_offset, appended.was_duplicate) == (0, duplicate)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.call("Produce", to_partition(1, b"x", producer=producer, base_sequence=7))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await values_of(served, 1) == [(0, b"a"), (1, b"b")]


async def test_batches_pass_untouched_but_for_their_place(served: Served) -> None:
    batch = encode_batch([Record(0, NOW, b"k", b"v" * 99)], compression=Compression.ZSTD)
    request = api.ProduceRequest(topic="t", partition=2, batch=batch)
    await served.call("Produce", to_partition(2, b"first"))
    await served.call("Produce", request)
    answer = await served.call(
        "Fetch", api.FetchRequest(topic="t", partition=2, offset=1, as_batches=True)
    )
    assert answer.batches[16:] == batch[16:]
    assert (decode_batch(answer.batches)[0].offset, answer.next_offset) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("follows", [False, True], ids=["fetch", "follow"])
async def test_a_reader_of_many_records_holds_up_no_other_call(
    served: Served, follows: bool
) -> None:
    """Their batch has few bytes, and says nothing of how many they come to."""
    many = [Record(0, NOW, None, b"v")] * 50_000
    batch = encode_batch(many, compression=Compression.ZSTD)
    await served.call("Produce", api.ProduceRequest(topic="t", partition=1, batch=batch))
    began = time.thread_time()
    decode_batch(batch)
    decoding_seconds = time.thread_time() - began
    request = api.FetchRequest(topic="t", partition=1)
    async with turns_of_loop() as turns:
        if follows:
            answer = await served.follow(request).read()
        else:
            answer = await served.call("Fetch", request)
    assert answer.next_offset == len(answer.records.records) == len(many)
    assert max(turns) < decoding_seconds / 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["partition", "key", "stream"])
async def test_a_producer_of_many_records_holds_up_no_other_call(served: Served, way: str) -> None:
    records = [api.Record(value=b"v")] * 50_000
    request = api.ProduceRequest(topic="t", records=api.Records(records=records))
    if way != "key":
        request.partition = 1
    many = [Record(0, NOW, None, b"v")] * len(records)
    began = time.thread_time()
    encode_batch(many, compression=Compression.LZ4)
    encoding_seconds = time.thread_time() - began
    async with turns_of_loop() as turns:
        if way == "stream":
            (answer,) = [each async for each in await served.send_all([request])]
        else:
            answer = await served.call("Produce", request)
    assert [each.record_count for each in answer.partitions] == [len(many)]
    assert max(turns) < encoding_seconds / 2


@pytest.mark.slow
async def test_a_producer_to_many_partitions_holds_up_no_other_call(served: Served) -> None:
    partitions, many = 1_000, 30_000
    await served.call("CreateTopic", api.CreateTopicRequest(name="wide", partitions=partitions))
    records = [api.Record(key=b"%d" % number) for number in range(many)]
    request = api.ProduceRequest(topic="wide", records=api.Records(records=records))
    async with turns_of_loop() as turns:
        answer = await served.call("Produce", request)
    expected = Counter(partition_of(each.key, partition_count=partitions) for each in records)
    assert {each.partition: each.record_count for each in answer.partitions} == expected
    assert max(turns) < 0.1, sorted(turns)[-3:]


async def test_others_are_served_while_very_many_partitions_are_shown(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 500
    made = await served.call("CreateTopic", api.CreateTopicRequest(name="many", partitions=count))
    assert len(made.partitions) == count
    confirm = Partition.confirm_ends
    async with work_of_turns() as shown:

        async def counted(partition: Partition) -> None:
            shown.note()
            await confirm(partition)

        monkeypatch.setattr(Partition, "confirm_ends", counted)
        told = await served.call("DescribeTopic", api.TopicName(name="many"))
    assert told == made
    assert shown.total == count
    assert max(shown.each_turn) < count / 10


def with_many_records() -> api.Records:
    return api.Records.FromString(b"\x0a\x00" * 600_000)


def with_many_headers() -> api.Records:
    return api.Records(records=[api.Record.FromString(b"\x22\x00" * 600_000)])


@pytest.mark.parametrize("make", [with_many_records, with_many_headers])
@pytest.mark.parametrize("way", ["partition", "key", "stream"])
async def test_what_a_request_takes_in_memory_is_bounded_however_few_bytes_its_records_have(
    served: Served, make: Callable[[], api.Records], way: str
) -> None:
    """An empty record, or header, has two bytes in a request, and takes 90 as an object."""
    request = api.ProduceRequest(topic="t", records=make())
    if way != "key":
        request.partition = 1
    call = served.produce_stream() if way == "stream" else None
    if call is not None:
        await call.write(request)
    answer = served.call("Produce", request) if call is None else call.read()
    with pytest.raises(grpc.aio.AioRpcError, match="records and headers") as caught:
        await answer
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [await values_of(served, partition) for partition in range(3)] == [[], [], []]


async def test_a_long_request_of_usual_records_is_taken(served: Served) -> None:
    record = api.Record(key=b"key", value=b"v" * 30, headers=[api.Header(name="h", value=b"w")])
    request = api.ProduceRequest(topic="t", partition=1, records=api.Records(records=[record]))
    request.records.records.extend([record] * 29_999)
    assert request.ByteSize() > 1 << 20
    answer = await served.call("Produce", request)
    assert [each.record_count for each in answer.partitions] == [30_000]


@pytest.mark.slow
async def test_a_topic_with_very_many_settings_is_refused_at_once(served: Served) -> None:
    config = {f"no.such.{number}": "" for number in range(200_000)}
    request = api.CreateTopicRequest(name="n", config=config)
    async with turns_of_loop() as turns:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.call("CreateTopic", request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert max(turns) < 0.1, sorted(turns)[-3:]


async def test_what_one_answer_tells_is_bounded_however_few_bytes_it_was_compressed_to(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "TOLD_BYTES_MAX", 1 << 20)
    batch = encode_batch([Record(0, NOW, None, bytes(1 << 19))] * 3, compression=Compression.ZSTD)
    for _ in range(3):
        await served.call("Produce", api.ProduceRequest(topic="t", partition=1, batch=batch))
    offset = answers = 0
    while offset < 9:
        request = api.FetchRequest(topic="t", partition=1, offset=offset)
        answer = await served.call("Fetch", request)
        offsets = [each.offset for each in answer.records.records]
        assert offsets == list(range(offset, answer.next_offset))
        assert 1 <= len(offsets) <= 2
        offset = answer.next_offset
        answers += 1
    assert answers == 5


async def test_a_follower_gets_what_comes_until_it_leaves(served: Served) -> None:
    await served.call("Produce", to_partition(0, b"a"))
    following = served.follow(api.FetchRequest(topic="t", partition=0))
    seen = [record.value for record in (await following.read()).records.records]
    await served.call("Produce", to_partition(0, b"b", b"c"))
    seen += [record.value for record in (await following.read()).records.records]
    assert seen == [b"a", b"b", b"c"]
    following.cancel()


async def test_buffered_records_are_stored_though_nothing_waits_for_them(served: Served) -> None:
    served.segments.hold()
    answer = await served.call("Produce", to_partition(0, b"a", durability=api.BUFFERED))
    assert answer.partitions[0].base_offset == -1
    assert await values_of(served, 0) == []
    served.segments.let_go()
    waited = await served.call(
        "Fetch", api.FetchRequest(topic="t", partition=0, max_wait_ms=60_000)
    )
    assert [record.value for record in waited.records.records] == [b"a"]


async def test_a_time_is_found(served: Served) -> None:
    await served.call("Produce", to_partition(0, b"a"))
    found = await served.call(
        "FindOffset", api.FindOffsetRequest(topic="t", partition=0, timestamp_ms=NOW)
    )
    assert (found.offset, found.timestamp_ms) == (0, NOW)
    later = await served.call(
        "FindOffset", api.FindOffsetRequest(topic="t", partition=0, timestamp_ms=NOW + 1)
    )
    assert not later.HasField("offset")


@pytest.mark.parametrize(
    ("name", "make", "code"),
    [
        ("CreateTopic", lambda: api.CreateTopicRequest(name="t"), "ALREADY_EXISTS"),
        ("CreateTopic", lambda: api.CreateTopicRequest(name="a/b"), "INVALID_ARGUMENT"),
        (
            "CreateTopic",
            lambda: api.CreateTopicRequest(name="n", config={"no.such": "1"}),
            "INVALID_ARGUMENT",
        ),
        ("DescribeTopic", lambda: api.TopicName(name="no"), "NOT_FOUND"),
        ("DescribeTopic", lambda: api.TopicName(name="ä" * 20_000), "NOT_FOUND"),
        ("DeleteTopic", lambda: api.TopicName(name="no"), "NOT_FOUND"),
        ("Fetch", lambda: api.FetchRequest(topic="t", partition=9), "NOT_FOUND"),
        ("Fetch", lambda: api.FetchRequest(topic="t", offset=5), "OUT_OF_RANGE"),
        ("Produce", lambda: to_partition(0), "INVALID_ARGUMENT"),
        (
            "Produce",
            lambda: api.ProduceRequest(topic="t", partition=0, batch=b"x"),
            "INVALID_ARGUMENT",
        ),
        ("Produce", lambda: api.ProduceRequest(topic="t", batch=b"x"), "INVALID_ARGUMENT"),
    ],
)
async def test_a_refusal_has_the_status_that_says_what_to_do(
    served: Served, name: str, make: Callable[[], Any], code: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.call(name, make())
    assert caught.value.code().name == code, caught.value.details()
    assert await values_of(served, 0) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContainerStoppedError(ContainerId(0)), grpc.StatusCode.ABORTED),
        (BadOffsetError("t", expected=1, given=0), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_an_outcome_that_is_unknown_is_aborted_and_not_unavailable(
    served: Served, error: SegmentStoreError, code: grpc.StatusCode
) -> None:
    await served.call("Produce", to_partition(0, b"a"))
    served.segments.hold()
    before = served.segments.append_count
    producing = asyncio.create_task(served.call("Produce", to_partition(0, b"b")))
    async with asyncio.timeout(60):
        while served.segments.append_count == before:
            await asyncio.sleep(0.001)
    served.segments.fail(error)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await producing
    assert caught.value.code() is code


async def test_a_topic_is_told_of_while_a_partition_has_no_leader(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topics,) = served.topics
    assert topics is not None
    present = topics.partition

    async def away(name: str, index: int) -> ServedPartition:
        if index == 1:
            raise PartitionUnavailableError(f"no process leads it name={name!r} partition={index}")
        return await present(name, index)

    monkeypatch.setattr(topics, "partition", away)
    made = await served.call("CreateTopic", api.CreateTopicRequest(name="new", partitions=3))
    told = await served.call("DescribeTopic", api.TopicName(name="new"))
    assert made == told, "what is made is made, whatever cannot be told"
    ends = [
        (each.partition, each.log_start_offset, each.high_watermark) for each in told.partitions
    ]
    assert ends == [(0, 0, 0), (1, -1, -1), (2, 0, 0)]
    assert [bool(each.unavailable) for each in told.partitions] == [False, True, False]
    assert "no process leads it" in told.partitions[1].unavailable


async def test_a_topic_that_other_processes_keep_changing_is_an_unknown_outcome(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conflict(name: str) -> None:
        raise CatalogueConflictError(f"another process changed the topic name={name!r}")

    (topics,) = served.topics
    monkeypatch.setattr(topics, "delete", conflict)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.call("DeleteTopic", api.TopicName(name="t"))
    assert refused.value.code() is grpc.StatusCode.ABORTED


async def test_topics_that_recover_are_unavailable(served: Served) -> None:
    served.topics[0] = None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.call("ListTopics", api.ListTopicsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_is_said(served: Served) -> None:
    other = TopicServer(
        topics=lambda: None,
        producer_ids=ProducerIds(tables=MemoryTables(), wall_clock=Clock()),
        wall_clock=Clock(),
        random=Random(1),
        settings=TopicServerSettings(port=served.server.port),
    )
    with pytest.raises(InvalidRequestError, match=f"port={served.server.port}"):
        await other.start()
