"""Rows become events that every reader of the stream takes apart again."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.client.event import EventParser
from segmentstore.client.stream_segments import KeySpace, SegmentRange
from segmentstore.codec.record_fields import Record
from segmentstore.codec.routing_hash import event_position
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.schema import arrow_schema
from segmentstore.spark.sink.event_encoder import (
    EventBlock,
    Rows,
    blocks_of,
    check_columns,
    rows_of,
)
from tier2.format.records import decode_records, encode_records

NOW_MS = 1_700_000_000_123
RANGES = [SegmentRange(7, 0.0, 0.25), SegmentRange(5, 0.25, 0.5), SegmentRange(9, 0.5, 1.0)]
ONE = [SegmentRange(0, 0.0, 1.0)]

bodies = st.binary(max_size=300)
keys = st.one_of(st.none(), st.text(max_size=20).map(lambda text: text.encode(errors="ignore")))
headers = st.one_of(
    st.none(),
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=200)
        ),
        max_size=3,
    ),
)
moments = st.one_of(st.none(), st.integers(min_value=-(10**12), max_value=4 * 10**12))


def rows(values: Sequence[bytes], row_keys: Sequence[bytes | None] = (), **more: pa.Array) -> Rows:
    columns = {"value": pa.array(values, pa.binary())}
    if row_keys:
        columns["key"] = pa.array(row_keys, pa.binary())
    batch = pa.record_batch({**columns, **more})
    return rows_of(batch, routing_key_column="key", now_ms=NOW_MS)


def events_of(blocks: Sequence[EventBlock]) -> dict[int, list[bytes]]:
    events: dict[int, list[bytes]] = {}
    for segment_id, some in groupby(blocks, key=lambda block: block.segment_id):
        assert segment_id not in events, "the blocks of a segment stand together"
        parser = EventParser("s", 0)
        for block in some:
            found = parser.events(block.content)
            assert len(found) == block.events
            events.setdefault(segment_id, []).extend(event for event, _ in found)
    return events


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(bodies, keys), max_size=40), st.integers(1, 700))
def test_events_of_a_key_stand_in_order_in_the_segment_of_the_key(
    given_rows: list[tuple[bytes, bytes | None]], block_bytes: int
) -> None:
    some = rows([value for value, _ in given_rows], [key for _, key in given_rows])
    blocks = list(blocks_of(some, RANGES, as_records=False, block_bytes=block_bytes))
    found = events_of(blocks)
    space = KeySpace(RANGES)
    expected: dict[int, list[bytes]] = {}
    for value, key in given_rows:
        if key is not None:
            place = space.segment_of(event_position(key.decode()))
            expected.setdefault(place, []).append(value)
    for segment_id, values in expected.items():
        rest = iter(found[segment_id])
        assert all(value in rest for value in values), "an event is missing or out of order"
    written = [value for values in found.values() for value in values]
    assert sorted(written) == sorted(value for value, _ in given_rows)
    for block in blocks:
        assert len(block.content) <= block_bytes or block.events == 1


def test_rows_without_a_key_are_spread_in_stretches() -> None:
    values = [b"%d" % number for number in range(100)]
    found = events_of(list(blocks_of(rows(values), RANGES, as_records=False, block_bytes=1 << 20)))
    assert {each: len(events) for each, events in found.items()} == {7: 25, 5: 25, 9: 50}
    assert found[7] + found[5] + found[9] == values


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(bodies, keys, headers, moments), min_size=1, max_size=20))
def test_a_record_has_the_bytes_that_the_codec_writes(
    given_rows: list[tuple[bytes, bytes | None, list[tuple[str, bytes]] | None, int | None]],
) -> None:
    types = arrow_schema(("headers", "timestamp"))
    some = rows(
        [value for value, *_ in given_rows],
        [key for _, key, *_ in given_rows],
        headers=pa.array(
            [
                None if found is None else [{"name": name, "value": value} for name, value in found]
                for _, _, found, _ in given_rows
            ],
            types.field("headers").type,
        ),
        timestamp=pa.array(
            [None if moment is None else moment * 1000 + 999 for *_, moment in given_rows],
            pa.int64(),
        ).cast(types.field("timestamp").type),
    )
    (found,) = events_of(list(blocks_of(some, ONE, as_records=True, block_bytes=1 << 20))).values()
    for event, (value, key, row_headers, moment) in zip(found, given_rows, strict=True):
        record = Record(
            offset=0,
            timestamp_ms=NOW_MS if moment is None else moment,
            key=key or b"",
            value=value,
            headers=tuple((name, each) for name, each in row_headers or ()),
        )
        assert event == encode_records([record])
        assert list(decode_records(event)) == [record]


def test_text_columns_are_written_as_utf_8() -> None:
    batch = pa.record_batch({"key": ["ä", None], "value": ["ö", ""]})
    some = rows_of(batch, routing_key_column="key", now_ms=NOW_MS)
    (found,) = events_of(list(blocks_of(some, ONE, as_records=False, block_bytes=99))).values()
    assert found == ["ö".encode(), b""]


def test_another_column_may_decide_where_a_row_goes() -> None:
    batch = pa.record_batch({"sensor": ["a", "b"], "key": ["x", "y"], "value": [b"1", b"2"]})
    some = rows_of(batch, routing_key_column="sensor", now_ms=NOW_MS)
    found = events_of(list(blocks_of(some, RANGES, as_records=False, block_bytes=99)))
    space = KeySpace(RANGES)
    assert b"1" in found[space.segment_of(event_position("a"))]
    assert b"2" in found[space.segment_of(event_position("b"))]


def test_no_rows_are_no_blocks() -> None:
    assert list(blocks_of(rows([]), RANGES, as_records=True, block_bytes=99)) == []


def test_a_row_without_a_value_is_refused() -> None:
    batch = pa.record_batch({"value": pa.array([b"1", None], pa.binary())})
    with pytest.raises(InvalidRequestError, match="no value"):
        rows_of(batch, routing_key_column="key", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"key": "binary"}, "no column value"),
        ({"value": "int"}, "column value is binary or string"),
        ({"value": "binary", "extra": "int"}, "not written: extra"),
        ({"value": "binary", "key": "int"}, "column key is"),
        ({"value": "binary", "timestamp": "string"}, "column timestamp is"),
    ],
)
def test_columns_that_cannot_be_written_are_named(types: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        check_columns(types, routing_key_column="key")


def test_what_a_read_gives_can_be_written() -> None:
    check_columns(
        {
            "key": "binary",
            "value": "binary",
            "scope": "string",
            "stream": "string",
            "segment_id": "bigint",
            "offset": "bigint",
            "event_number": "bigint",
            "timestamp": "timestamp",
            "headers": "array<struct<name:string,value:binary>>",
        },
        routing_key_column="key",
    )


def test_a_missing_routing_key_column_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="no column sensor"):
        check_columns({"value": "binary"}, routing_key_column="sensor")


def test_a_time_is_rounded_down_to_milliseconds() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)
    some = rows([b""], timestamp=pa.array([moment], pa.timestamp("us", tz="UTC")))
    assert some.timestamps_ms.tolist() == [-1]


def test_times_of_an_hour_that_comes_twice_in_the_zone_of_the_session_are_those_that_were_given() -> (
    None
):
    moments = [datetime(2026, 10, 25, hour, 30, 0, 123_456, UTC) for hour in (0, 1)]
    some = rows([b"", b""], timestamp=pa.array(moments, pa.timestamp("us", tz="Europe/Berlin")))
    assert some.timestamps_ms.tolist() == [1_792_888_200_123, 1_792_891_800_123]
