"""Records as rows of Spark, whole columns at a time: from batches, as they are stored or made of a file's blocks.

Invariants:

- A row depends on its record alone: neither on the form in which it was found nor on what is read with it.
- The checksum of every batch is compared before one of its records is given.
- A time that Spark's microseconds cannot hold is the highest or lowest that they can.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.codec.record_batch import BatchError, TimestampType, parse_header
from segmentstore.codec.record_columns import RecordColumns, columns_of_batches
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.spark.scan.arrow_batches import spark_micros
from segmentstore.spark.scan.event_parser import binary_column
from segmentstore.spark.topics.topic_columns import topic_arrow_schema

Numbers = npt.NDArray[np.int64]

_CONTENT_BYTES_MAX: Final = (1 << 31) - 1
"""What Arrow's offsets of 32 bits reach."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records that follow one another, the first `count` of some columns, and whose clock their times are of."""

    columns: RecordColumns
    count: int
    timestamp_type: TimestampType

    def first_not_older(self, time_ms: int) -> int | None:
        """The offset of the first record that is not older than that."""
        times = _numbers(self.columns.timestamps_ms, self.count)
        found = np.flatnonzero(times >= time_ms)
        return self.columns.offsets[int(found[0])] if len(found) else None


def runs_of_batches(
    content: bytes, *, start: int, end: int, lowest_time_ms: int | None, source: str
) -> tuple[list[RecordRun], int]:
    """The records of [start, end) of whole batches, and the offset behind the last batch.

    Batches wholly before the time are left out. Raises CorruptedDataError.
    """
    runs: list[RecordRun] = []
    try:
        kept, behind = _kept_batches(content, start, end, lowest_time_ms)
        for places, timestamp_type in kept:
            runs += _runs(content, places, start, end, timestamp_type)
    except BatchError as error:
        raise CorruptedDataError(f"records do not read {source}: {error}") from error
    return runs, max(start, behind)


def _kept_batches(
    content: bytes, start: int, end: int, lowest_time_ms: int | None
) -> tuple[list[tuple[list[slice], TimestampType]], int]:
    """Where the batches lie that are wanted, neighbours with the same clock together; the offset behind all."""
    kept: list[tuple[list[slice], TimestampType]] = []
    at, behind = 0, start
    while at < len(content):
        header = parse_header(content, at)
        behind = header.next_offset
        is_old = lowest_time_ms is not None and header.max_timestamp < lowest_time_ms
        is_outside = behind <= start or header.base_offset >= end
        if not (is_old or is_outside or header.is_control):
            if not kept or kept[-1][1] is not header.timestamp_type:
                kept.append(([], header.timestamp_type))
            kept[-1][0].append(slice(at, at + header.size))
        at += header.size
    return kept, behind


def _runs(
    content: bytes, places: Sequence[slice], start: int, end: int, timestamp_type: TimestampType
) -> list[RecordRun]:
    is_all = places[0].start == 0 and places[-1].stop == len(content) and _meet(places)
    batches = content if is_all else b"".join([content[place] for place in places])
    columns, _ = columns_of_batches(batches, start)
    if len(columns.content) > _CONTENT_BYTES_MAX and len(places) > 1:
        # Decompressed they are too large together.
        return [
            run for place in places for run in _runs(content, [place], start, end, timestamp_type)
        ]
    count = bisect_left(columns.offsets, end)
    return [RecordRun(columns, count, timestamp_type)] if count else []


def _meet(places: Sequence[slice]) -> bool:
    return all(one.stop == other.start for one, other in pairwise(places))


class RowBuilder:
    """Makes Arrow batches of the records of one partition."""

    def __init__(self, *, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = columns
        self._schema = topic_arrow_schema(columns)

    def batch(self, run: RecordRun) -> pa.RecordBatch:
        """One row for each record, in order."""
        arrays = [self._column(name, run) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, run: RecordRun) -> pa.Array:
        kind = self._schema.field(name).type
        columns, count = run.columns, run.count
        match name:
            case "key":
                return _bytes_column(columns, columns.key_positions, columns.key_lengths, count)
            case "value":
                return _bytes_column(columns, columns.value_positions, columns.value_lengths, count)
            case "topic":
                return pa.repeat(pa.scalar(self._topic, kind), count)
            case "partition":
                return pa.repeat(pa.scalar(self._partition, kind), count)
            case "offset":
                return pa.array(_numbers(columns.offsets, count))
            case "timestamp":
                return pa.array(spark_micros(_numbers(columns.timestamps_ms, count))).cast(kind)
            case "timestampType":
                return pa.repeat(pa.scalar(int(run.timestamp_type), kind), count)
            case _:
                return _headers_column(columns, count, kind)


def _numbers(column: memoryview, count: int) -> Numbers:
    return np.frombuffer(column, np.int64)[:count]


def _bytes_column(
    columns: RecordColumns, positions: memoryview, lengths: memoryview, count: int
) -> pa.Array:
    starts, sizes = _numbers(positions, count), _numbers(lengths, count)
    ends = starts + np.maximum(sizes, 0)
    # What was decompressed lies behind everything: places grow but where such a batch ends.
    edges = [0, *(np.flatnonzero(np.diff(starts) < 0) + 1).tolist(), count]
    parts = [
        binary_column(memoryview(columns.content), starts[first:last], ends[first:last])
        for first, last in pairwise(edges)
    ]
    found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    is_there = sizes >= 0
    if is_there.all():
        return found
    return pc.if_else(pa.array(is_there), found, pa.scalar(None, pa.binary()))


def _headers_column(columns: RecordColumns, count: int, kind: pa.DataType) -> pa.Array:
    """Null without headers, as Spark's Kafka source has it."""
    rows: list[list[dict[str, object]] | None] = [None] * count
    # One byte is the count of none.
    for row in np.flatnonzero(_numbers(columns.header_lengths, count) > 1).tolist():
        rows[row] = [{"key": name, "value": value} for name, value in columns.headers(row)]
    return pa.array(rows, kind)
