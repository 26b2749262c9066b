"""The client of topics against a real server of Kafka's protocol over a container in memory."""

import asyncio

import pytest

from segmentstore.client.errors import ConnectionLostError, OutcomeUnknownError
from segmentstore.client.sync_topics import connect_topics
from segmentstore.client.topics import (
    GroupOffset,
    NewRecord,
    PartitionOffsets,
    TopicRequestError,
    connected_topics,
)
from segmentstore.codec.kafka_protocol.administration import TOPIC_ID_CONFIG
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.record_batch import (
    Compression,
    Record,
    encode_batch,
    place_batch,
    stamp_producer,
)
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError
from segmentstore.topics.groups.committed_offsets import TopicPartition
from segmentstore.topics.groups.groups import OffsetToCommit
from tests.containers.node import MemoryTiers
from tests.held_ports import bound_sockets, ports_of
from tests.topics.batches import batch_of, batch_that_does_not_decompress
from tests.topics.kafka_service import kafka_service


async def test_a_topic_is_made_shown_and_deleted() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=2, config={"retention.ms": "60000"})
        await topics.create("archive", partitions=1)
        assert await topics.partition_counts() == {"archive": 1, "logs": 2}
        assert (await topics.config("logs"))["retention.ms"] == "60000"
        assert await topics.offsets("logs") == [
            PartitionOffsets(0, 0, 0),
            PartitionOffsets(1, 0, 0),
        ]
        with pytest.raises(TopicRequestError) as refused:
            await topics.create("logs", partitions=2)
        assert refused.value.kind is ErrorKind.CONFLICT
        with pytest.raises(TopicRequestError) as refused:
            await topics.create("other", partitions=1, config={"retention.years": "1"})
        assert refused.value.kind is ErrorKind.INVALID
        await topics.delete("archive")
        for gone in (
            topics.delete("archive"),
            topics.offsets("archive"),
            topics.config("archive"),
            topics.partition_count("archive"),
        ):
            with pytest.raises(TopicRequestError) as refused:
                await gone
            assert refused.value.kind is ErrorKind.NOT_FOUND
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("compression", list(Compression))
async def test_records_come_back_as_they_were_written(compression: Compression) -> None:
    written = [
        NewRecord(value=b"one", key=b"k", headers=(("h", None), ("h", b"x")), timestamp_ms=1_000),
        NewRecord(value=None, key=b"k"),
        NewRecord(value=b""),
    ]
    tiers = MemoryTiers()
    async with kafka_service(tiers) as service, connected_topics(service.address) as topics:
        await topics.create("logs", partitions=1, config={"message.timestamp.type": "CreateTime"})
        assert await topics.produce("logs", 0, written[:1], compression=compression) == 0
        assert await topics.produce("logs", 0, written[1:], compression=compression) == 1
    async with kafka_service(tiers) as service, connected_topics(service.address) as topics:
        page = await topics.fetch("logs", 0, offset=0)
        assert [(each.offset, each.key, each.value) for each in page.records] == [
            (0, b"k", b"one"),
            (1, b"k", None),
            (2, None, b""),
        ]
        assert page.records[0].headers == (("h", None), ("h", b"x"))
        assert page.records[0].timestamp_ms == 1_000
        assert (page.next_offset, page.end) == (3, 3)
        inside = await topics.fetch("logs", 0, offset=2)
        assert [each.offset for each in inside.records] == [2]
        assert (await topics.fetch("logs", 0, offset=3)).records == []
        with pytest.raises(TopicRequestError) as refused:
            await topics.fetch("logs", 0, offset=4)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(TopicRequestError) as refused:
            await topics.produce("logs", 1, written)
        assert refused.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    "records",
    [
        [],
        [NewRecord(value=b"x", timestamp_ms=1 << 63)],
        [NewRecord(value=b"x", headers=(("\ud800", None),))],
    ],
)
async def test_records_that_no_batch_can_hold_are_refused(records: list[NewRecord]) -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=1)
        with pytest.raises(InvalidRequestError):
            await topics.produce("logs", 0, records)
        assert await topics.produce("logs", 0, [NewRecord(value=b"x")]) == 0


async def test_a_fetch_waits_for_the_next_record() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as reading,
        connected_topics(service.address) as writing,
    ):
        await writing.create("logs", partitions=1)
        waiting = asyncio.ensure_future(reading.fetch("logs", 0, offset=0, wait_ms=60_000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await writing.produce("logs", 0, [NewRecord(value=b"now")])
        assert [each.value for each in (await waiting).records] == [b"now"]


async def test_groups_are_listed_shown_and_deleted() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=2)
        offsets = {
            TopicPartition("logs", 1): OffsetToCommit(offset=5, metadata="m"),
            TopicPartition("logs", 0): OffsetToCommit(offset=0),
        }
        await service.groups.commit("readers", member_id="", generation=-1, offsets=offsets)
        assert await topics.groups() == ["readers"]
        assert (await topics.group("readers")).state == "Empty"
        found = await topics.group_offsets("readers")
        assert [(each.topic, each.partition, each.offset) for each in found] == [
            ("logs", 0, 0),
            ("logs", 1, 5),
        ]
        assert found[1] == GroupOffset("logs", 1, 5, "m")
        await topics.delete_group("readers")
        assert await topics.groups() == []
        assert await topics.group_offsets("readers") == []
        for gone in (topics.delete_group("readers"), topics.group("readers")):
            with pytest.raises(TopicRequestError) as refused:
                await gone
            assert refused.value.kind is ErrorKind.NOT_FOUND


async def test_a_server_that_is_not_there_is_told() -> None:
    (holder,) = bound_sockets(1)
    with holder, pytest.raises(ConnectionLostError):
        async with connected_topics(f"127.0.0.1:{ports_of([holder])[0]}"):
            pytest.fail("it connected")
    for wrong in ("9092", "host:", "host:port"):
        with pytest.raises(InvalidRequestError):
            async with connected_topics(wrong):
                pytest.fail("it connected")


async def test_a_server_that_ends_before_its_answer_leaves_the_outcome_unknown() -> None:
    async with kafka_service(MemoryTiers()) as service, connected_topics(service.address) as topics:
        await topics.create("logs", partitions=1)
        waiting = asyncio.ensure_future(topics.fetch("logs", 0, offset=0, wait_ms=60_000))
        async with asyncio.timeout(60):
            while not service.server.statistics().fetches:
                await asyncio.sleep(0.001)
        await service.server.close()
        with pytest.raises(OutcomeUnknownError):
            await waiting
        with pytest.raises(ConnectionLostError):
            await topics.groups()


async def test_a_caller_that_leaves_mixes_up_no_answers() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=1)
        waiting = asyncio.ensure_future(topics.fetch("logs", 0, offset=0, wait_ms=60_000))
        async with asyncio.timeout(60):
            while not service.server.statistics().fetches:
                await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # The server answers in order: what is asked next is answered behind the fetch, which ends with the next record.
        partition = await service.topics.own_partition("logs", 0)
        await partition.produce(batch_of(b"now"))
        assert await topics.partition_counts() == {"logs": 1}


@pytest.mark.parametrize("compression", list(Compression))
async def test_columns_say_what_records_do(compression: Compression) -> None:
    written = [
        NewRecord(value=b"%d" % n, key=None if n % 2 else b"k", headers=(("h", None),))
        for n in range(20)
    ]
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=1)
        await topics.produce("logs", 0, written, compression=compression)
        page = await topics.fetch("logs", 0, offset=3)
        found = await topics.fetch_columns("logs", 0, offset=3)
        assert [found.columns.record(row) for row in range(len(found.columns))] == page.records
        assert (found.next_offset, found.end) == (page.next_offset, page.end) == (20, 20)
        nothing = await topics.fetch_columns("logs", 0, offset=20)
        assert (len(nothing.columns), nothing.next_offset) == (0, 20)


async def test_code_without_a_loop_has_the_same_calls() -> None:
    def use(address: str) -> None:
        with connect_topics(address) as topics:
            topics.create("logs", partitions=2)
            assert topics.produce("logs", 1, [NewRecord(value=b"one"), NewRecord(value=None)]) == 0
            assert [each.value for each in topics.fetch("logs", 1, offset=0).records] == [
                b"one",
                None,
            ]
            assert list(topics.fetch_columns("logs", 1, offset=1).columns.offsets) == [1]
            assert topics.offsets("logs")[1] == PartitionOffsets(1, 0, 2)
            assert topics.run(lambda each: each.partition_counts()) == {"logs": 2}
            topics.delete("logs")
            with pytest.raises(TopicRequestError):
                topics.offsets("logs")
        with pytest.raises(InvalidRequestError), connect_topics("nowhere"):
            pass

    async with kafka_service(MemoryTiers()) as service:
        await asyncio.to_thread(use, service.address)


async def test_a_topic_tells_its_id_where_it_is_asked_for_by_name_alone() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        ids: list[str] = []
        for _ in range(2):
            await topics.create("logs", partitions=1)
            described = service.topics.describe("logs")
            assert described is not None
            ids.append(await topics.topic_id("logs"))
            assert ids[-1] == described.topic_id.hex
            assert TOPIC_ID_CONFIG not in await topics.config("logs")
            await topics.delete("logs")
        assert ids[0] != ids[1]
        with pytest.raises(TopicRequestError) as refused:
            await topics.topic_id("logs")
        assert refused.value.kind is ErrorKind.NOT_FOUND


async def test_offsets_at_times_before_1970_are_found_beside_a_batch_that_cannot_be_read() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=2, config={"retention.ms": "-1"})
        for batch in (
            batch_of(b"a", time=-9),
            batch_that_does_not_decompress(time=-8),
            batch_of(b"b", b"c", time=-7),
            batch_of(b"d", time=9),
        ):
            await topics.produce_batch("logs", 1, batch)
        for time_ms, offset in ((-10, 0), (-9, 0), (-8, 2), (-7, 2), (-6, 3), (-5, 4), (9, 4)):
            assert await topics.offsets_at_time("logs", time_ms) == {1: offset}
        for time_ms in (10, 1_000):
            assert await topics.offsets_at_time("logs", time_ms) == {}


async def test_batches_go_in_and_out_as_they_are_and_a_repeated_one_is_stored_once() -> None:
    async with (
        kafka_service(MemoryTiers()) as service,
        connected_topics(service.address) as topics,
    ):
        await topics.create("logs", partitions=2)
        records = [Record(0, 1_000 * number, b"k", b"%d" % number) for number in range(3)]
        batches = [
            encode_batch(records, producer_id=7, producer_epoch=1, base_sequence=3 * number)
            for number in range(7)
        ]
        offsets = [await topics.produce_batch("logs", 0, each) for each in batches]
        assert offsets == [0, 3, 6, 9, 12, 15, 18]
        assert await topics.produce_batch("logs", 0, batches[4]) == 12
        for number, epoch, code in (
            (0, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (0, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            again = bytearray(batches[number])
            stamp_producer(again, producer_id=7, producer_epoch=epoch, base_sequence=0)
            with pytest.raises(TopicRequestError) as refused:
                await topics.produce_batch("logs", 0, bytes(again))
            assert (refused.value.code, refused.value.kind) == (code, ErrorKind.CONFLICT)
        fetched = await topics.fetch_batches("logs", 0, offset=4)
        placed = bytearray(batches[1])
        place_batch(placed, 3)
        assert fetched.content.startswith(bytes(placed))
        assert fetched.end == 21
        assert await topics.offsets_at_time("logs", 1_500) == {0: 2}
        assert await topics.offsets_at_time("logs", 2_001) == {}
