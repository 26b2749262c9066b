"""Goal: rows become batches that say what the rows said, in their order, each where it belongs."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import Compression, Record, decode_batch
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.spark.topics.record_encoder import (
    BATCH_BYTES,
    RecordEncoder,
    TargetBatch,
    TopicTarget,
    check_topic_columns,
)
from segmentstore.spark.topics.record_relay import (
    PRODUCER_EPOCHS,
    decode_staged,
    encode_staged,
    producer_of,
    staging_slot,
)

NOW = 1_700_000_000_000
PARTITIONS = 3
Row = tuple[bytes | None, bytes | None, int | None]


def encoded(
    batches: Sequence[Sequence[Row]], *, batch_bytes_max: int = 1 << 20
) -> list[TargetBatch]:
    encoder = RecordEncoder(topic="logs", first_partition=0)
    targets = {
        "logs": TopicTarget(
            partitions=PARTITIONS,
            batch_bytes_max=batch_bytes_max,
            compression=Compression.NONE,
        )
    }
    found: list[TargetBatch] = []
    for rows in batches:
        batch = pa.record_batch(
            {
                "key": pa.array([row[0] for row in rows], pa.binary()),
                "value": pa.array([row[1] for row in rows], pa.binary()),
                "partition": pa.array([row[2] for row in rows], pa.int32()),
            }
        )
        found += encoder.add(batch, targets, now_ms=NOW)
    return [*found, *encoder.finish()]


FIELDS = st.none() | st.binary(max_size=40)
ROWS = st.lists(st.tuples(FIELDS, FIELDS, st.none() | st.integers(0, PARTITIONS - 1)), max_size=60)


@given(st.lists(ROWS, max_size=4), st.sampled_from([300, 5_000]))
def test_every_row_is_in_one_batch_of_its_partition_in_the_order_of_the_rows(
    batches: Sequence[Sequence[Row]], batch_bytes_max: int
) -> None:
    found: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
    for each in encoded(batches, batch_bytes_max=batch_bytes_max):
        assert len(each.content) <= batch_bytes_max
        records = decode_batch(each.content)
        assert len(records) == each.records
        found[each.partition] += records
    rows = [row for some in batches for row in some]
    assert sum(map(len, found.values())) == len(rows)
    for partition, records in found.items():
        assert all(each.timestamp_ms == NOW for each in records)
        # Rows without a key and a partition may be anywhere; the others are where they belong, in their order.
        told = [(each.key, each.value) for each in records]
        placed = [
            (key, value) for key, value, place in rows if _place((key, value, place)) == partition
        ]
        assert _is_within(placed, told)
        assert len(told) - len(placed) <= sum(_place(row) is None for row in rows)


def _is_within(some: Sequence[object], order: Sequence[object]) -> bool:
    """Whether they are there, in their order, maybe with others between."""
    rest = iter(order)
    return all(each in rest for each in some)


def _place(row: Row) -> int | None:
    key, _, partition = row
    if partition is not None:
        return partition
    return None if key is None else partition_of(key, partition_count=PARTITIONS)


def test_batches_are_cut_before_they_are_too_large() -> None:
    rows: list[Row] = [(b"k", bytes(100_000), 0)] * 20
    sizes = [len(each.content) for each in encoded([rows], batch_bytes_max=1 << 20)]
    assert len(sizes) == 4
    assert max(sizes) <= BATCH_BYTES
    with pytest.raises(InvalidRequestError, match="too large for its topic"):
        encoded([[(None, bytes(2000), 0)]], batch_bytes_max=1000)
    with pytest.raises(InvalidRequestError, match="no such partition"):
        encoded([[(None, b"", PARTITIONS)]])


def test_times_of_an_hour_that_comes_twice_in_the_zone_of_the_session_are_those_that_were_given() -> (
    None
):
    moments = [datetime(2026, 10, 25, hour, 30, 0, 123_456, UTC) for hour in (0, 1)]
    moments.append(datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC))
    times = pa.array([*moments, None], pa.timestamp("us", tz="Europe/Berlin"))
    batch = pa.record_batch({"value": pa.array([b""] * 4, pa.binary()), "timestamp": times})
    encoder = RecordEncoder(topic="logs", first_partition=0)
    target = TopicTarget(partitions=1, batch_bytes_max=1 << 20, compression=Compression.NONE)
    found = [*encoder.add(batch, {"logs": target}, now_ms=NOW), *encoder.finish()]
    records = [record for each in found for record in decode_batch(each.content)]
    given_ms = [each.timestamp_ms for each in records]
    assert given_ms == [1_792_888_200_123, 1_792_891_800_123, -1, NOW]


@given(
    st.integers(0, 2**63), st.text(min_size=1, max_size=249), st.integers(0, 2**32 - 1), st.binary()
)
def test_a_staged_batch_comes_back(
    version: int, topic: str, partition: int, content: bytes
) -> None:
    event = encode_staged(TargetBatch(topic, partition, content, 1), version)
    staged = decode_staged(event[EVENT_HEADER_BYTES:])
    assert (staged.version, staged.topic) == (version, topic)
    assert (staged.partition, staged.content) == (partition, content)


def test_bytes_that_are_no_staged_batch_are_refused() -> None:
    event = encode_staged(TargetBatch("logs", 1, b"", 1), 5)[EVENT_HEADER_BYTES:]
    for length in range(len(event)):
        with pytest.raises(CorruptedDataError):
            decode_staged(event[:length])


def test_producers_of_applications_and_versions_differ() -> None:
    found = {
        producer_of(name, version)
        for name in ("query:a", "query:b", "app:a")
        for version in (0, 1, PRODUCER_EPOCHS - 1, PRODUCER_EPOCHS, 5 * PRODUCER_EPOCHS + 3)
    }
    assert len(found) == 15
    assert all(1 << 62 <= number < 1 << 63 and 0 <= epoch < 1 << 15 for number, epoch in found)
    # A later version of an application never has an earlier epoch of the same producer.
    assert producer_of("a", 7)[0] == producer_of("a", 8)[0]
    assert {staging_slot("logs", number, slots=4) for number in range(4)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ({"key": "binary"}, "no column value"),
        ({"value": "int"}, "column value is binary or string"),
        ({"value": "binary", "partition": "bigint"}, "column partition is int"),
        ({"value": "binary", "headers": "array<struct<name:string,value:binary>>"}, "headers is"),
    ],
)
def test_columns_of_other_types_are_refused(types: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        check_topic_columns(types, topic="logs")
