"""What Tier 2 alone shows of tables and streams: the formats of other rooms, read a second way."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pytest

from containers.tables.table_index import encode_moved, encode_place, index_key
from containers.tables.table_record import encode_copy, encode_removal, encode_update
from segmentstore.codec.controller_records.stream_records import EpochRecord, StreamSegment
from segmentstore.codec.stream_names import segment_id_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SequenceNumber
from segmentstore.contracts.storage import DataPiece, SegmentPublication
from segmentstore.spark.streams.tier2_catalog import Tier2Table, order_of
from tests.spark.event_segment import EventSegment, event_segment, publication
from tests.spark.stream_history import MovingStore

TABLE = "_system/_tables/s/0"


class WrittenTable:
    """Records and index as the tables' room writes them."""

    def __init__(self, segment: EventSegment) -> None:
        self._segment = segment
        self._content = b""
        self._attributes: dict[AttributeKey, AttributeValue | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        record = encode_update(key, value)
        self._attributes[index_key(key)] = encode_place(len(self._content), len(record))
        self._content += record

    def move(self, key: bytes, value: bytes, version: int) -> None:
        record = encode_copy(key, value, version)
        place = encode_moved(len(self._content), len(record), version)
        self._attributes[index_key(key)] = place
        self._content += record

    def remove(self, key: bytes) -> None:
        self._attributes[index_key(key)] = None
        self._content += encode_removal(key)

    def point(self, key: bytes, value: bytes) -> None:
        self._attributes[index_key(key)] = value

    async def publish(self) -> Tier2Table:
        segment = self._segment
        segment.record = replace(
            segment.record, length=len(self._content), sequence_number=SequenceNumber(1)
        )
        await segment.owner.publish(
            publication(
                SequenceNumber(1),
                SegmentPublication(
                    segment.record,
                    [DataPiece(0, [self._content])],
                    attributes=self._attributes,
                ),
            )
        )
        container = await (await segment.view()).container(0)
        assert container is not None
        return Tier2Table(container=container, name=TABLE)


@pytest.fixture
async def table() -> WrittenTable:
    return WrittenTable(await event_segment(name=TABLE))


async def test_a_published_table_reads_as_it_was_written(table: WrittenTable) -> None:
    table.put(b"stream/a/state", b"1")
    table.put(b"stream/b/state", b"2" * 100_000)
    table.put(b"stream/a/state", b"3")
    table.put(b"stream/gone", b"4")
    table.remove(b"stream/gone")
    table.move(b"scope", b"moved", 7)
    found = await table.publish()
    keys = ["stream/a/state", "stream/b/state", "stream/gone", "scope", "missing"]
    assert await found.get(keys) == [b"3", b"2" * 100_000, None, b"moved", None]
    async with aclosing(found.scan("stream/")) as entries:
        listed = [key async for key, _ in entries]
    assert listed == ["stream/a/state", "stream/b/state"]


async def test_a_table_that_is_removed_while_it_is_read_has_no_entries() -> None:
    store = MovingStore()
    segment = await event_segment(name=TABLE, store=store)
    table = WrittenTable(segment)
    table.put(b"stream/a/state", b"1")
    table.put(b"stream/b/state", b"2")
    found = await table.publish()
    store.before_read = segment.remove
    assert await found.get(["stream/a/state", "stream/b/state"]) == [None, None]
    async with aclosing(found.scan("stream/")) as entries:
        assert [key async for key, _ in entries] == []


async def test_an_index_that_points_at_another_record_is_never_believed(
    table: WrittenTable,
) -> None:
    table.put(b"right", b"value")
    table.point(b"wrong", encode_place(0, len(encode_update(b"right", b"value"))))
    found = await table.publish()
    with pytest.raises(CorruptedDataError, match="points at another record"):
        await found.get(["wrong"])


def born(number: int, epoch: int, low: float, high: float) -> StreamSegment:
    return StreamSegment(segment_id_of(number=number, creation_epoch=epoch), low, high, 0)


A, B = born(0, 0, 0.0, 0.5), born(1, 0, 0.5, 1.0)
C, D = born(2, 1, 0.0, 0.25), born(3, 1, 0.25, 0.5)
E = born(4, 2, 0.25, 1.0)
EPOCHS = [
    EpochRecord(0, 0, 0, (A, B)),
    EpochRecord(1, 1, 0, (C, D, B)),
    EpochRecord(2, 2, 0, (C, E)),
]


def edges(head: Mapping[int, int]) -> dict[int, tuple[list[int], list[int]]]:
    return {
        node.segment.segment_id: (sorted(node.successors), sorted(node.predecessors))
        for node in order_of(EPOCHS, head)
    }


def test_h78_the_order_of_segments_follows_from_the_epochs() -> None:
    a, b, c, d, e = (each.segment_id for each in (A, B, C, D, E))
    assert edges({a: 0, b: 0}) == {
        a: ([c, d], []),
        b: ([e], []),
        c: ([], [a]),
        d: ([e], [a]),
        e: ([], [b, d]),
    }


def test_h78_what_lies_before_the_head_is_not_there() -> None:
    b, c, d, e = (each.segment_id for each in (B, C, D, E))
    assert edges({b: 5, c: 0, d: 0}) == {
        b: ([e], []),
        c: ([], []),
        d: ([e], []),
        e: ([], [b, d]),
    }
    assert edges({c: 9, e: 1}) == {c: ([], []), e: ([], [])}
