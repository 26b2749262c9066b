import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.spark.scan.arrow_batches import EventBatchBuilder
from segmentstore.spark.scan.event_parser import find_records
from segmentstore.spark.schema import EVENT_COLUMNS
from tests.spark.segment_blocks import cut_segment, part_of
from tier2.format.records import encode_records

RECORDS = st.builds(
    Record,
    offset=st.sampled_from([0, 1, 300]),
    timestamp_ms=st.integers(-(1 << 40), 1 << 42),
    key=st.binary(max_size=200),
    value=st.binary(max_size=400),
    headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
)


@given(st.lists(RECORDS, min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_records_come_back_as_the_codec_wrote_them(records: list[Record]) -> None:
    segment = cut_segment([encode_records([record]) for record in records], [])
    batches = EventBatchBuilder(part_of(0, segment.length, "record"), EVENT_COLUMNS)
    (batch,) = batches.add(segment.blocks)
    rows = batch.to_pylist()
    assert [row["key"] for row in rows] == [record.key for record in records]
    assert [row["value"] for row in rows] == [record.value for record in records]
    assert batch.column("timestamp").cast("int64").to_pylist() == [
        record.timestamp_ms * 1000 for record in records
    ]
    expected = [
        [{"name": name, "value": value} for name, value in record.headers] or None
        for record in records
    ]
    assert [row["headers"] for row in rows] == expected


def test_a_time_that_spark_does_not_have_is_the_last_that_it_has_or_the_first() -> None:
    """It wrapped around: a time far in the future was one of long ago."""
    times = [(1 << 63) - 1, -(1 << 63), 1]
    segment = cut_segment([encode_records([Record(0, each, b"", b"")]) for each in times], [])
    batches = EventBatchBuilder(part_of(0, segment.length, "record"), EVENT_COLUMNS)
    (batch,) = batches.add(segment.blocks)
    last = ((1 << 63) - 1) // 1000 * 1000
    assert batch.column("timestamp").cast("int64").to_pylist() == [last, -last, 1000]


@given(st.binary(max_size=60))
def test_an_event_that_is_no_record_raises_and_never_reads_into_its_neighbour(noise: bytes) -> None:
    good = encode_records([Record(0, 1, b"k", b"v" * 300)])
    content = good + noise + good
    starts = np.array([0, len(good), len(good) + len(noise)], dtype=np.int64)
    ends = np.array([len(good), len(good) + len(noise), len(content)], dtype=np.int64)
    try:
        places = find_records(content, starts, ends, segment="s/t/0", offset=0)
    except CorruptedDataError as error:
        assert f"offset={len(good)}" in str(error)  # noqa: PT017  # sometimes noise is a record
        return
    assert len(good) <= places.value_starts[1] <= places.value_ends[1] <= ends[1]
    assert places.value_ends[0] <= ends[0]


def test_a_record_that_is_cut_off_names_its_event() -> None:
    record = encode_records([Record(0, 1, b"key", b"value")])
    segment = cut_segment([record, record[:-3]], [])
    batches = EventBatchBuilder(part_of(0, segment.length, "record"), EVENT_COLUMNS)
    with pytest.raises(CorruptedDataError, match="does not hold a record"):
        batches.add(segment.blocks)
