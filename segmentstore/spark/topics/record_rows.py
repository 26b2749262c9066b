"""Records as rows of Spark: from batches as producers sent them, and from blocks of record files.

Invariants:

- A row depends on its record alone: neither on the form in which it was found nor on what is read with it.
- Every checksum is compared before a record is given: that of the batch here, that of a block by who fetched it.
- A time that Spark's microseconds cannot hold is the highest or lowest that they can.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from segmentstore.codec.record_batch import (
    BatchError,
    Record,
    TimestampType,
    decode_batch,
    parse_header,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.spark.topics.topic_columns import topic_arrow_schema
from tier2.format.records import RecordForm, decode_records

_MS_MAX: Final = ((1 << 63) - 1) // 1000


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records that follow one another, and whose clock their times are of."""

    records: Sequence[Record]
    timestamp_type: TimestampType


def runs_of_batches(
    content: bytes, *, start: int, end: int, lowest_time_ms: int | None, source: str
) -> tuple[list[RecordRun], int]:
    """The records of [start, end) of whole batches, and the offset behind the last batch.

    Batches wholly before the time are left out. Raises CorruptedDataError.
    """
    runs: list[RecordRun] = []
    at, behind = 0, start
    try:
        with memoryview(content) as view:
            while at < len(view):
                header = parse_header(view, at)
                behind = header.next_offset
                is_old = lowest_time_ms is not None and header.max_timestamp < lowest_time_ms
                is_outside = behind <= start or header.base_offset >= end
                if not (is_old or is_outside or header.is_control):
                    with view[at : at + header.size] as batch:
                        records = decode_batch(batch)
                    if header.base_offset < start or behind > end:
                        records = [each for each in records if start <= each.offset < end]
                    runs.append(RecordRun(records, header.timestamp_type))
                at += header.size
    except BatchError as error:
        raise CorruptedDataError(f"records do not read {source}: {error}") from error
    return runs, behind


def run_of_block(
    content: BufferView, *, start: int, end: int, timestamp_type: TimestampType, source: str
) -> RecordRun:
    """The records of [start, end) of a block of a record file. Raises CorruptedDataError."""
    records = [
        each
        for each in decode_records(content, RecordForm.NULLABLE, source=source)
        if start <= each.offset < end
    ]
    return RecordRun(records, timestamp_type)


class RowBuilder:
    """Makes Arrow batches of the records of one partition."""

    def __init__(self, *, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = columns
        self._schema = topic_arrow_schema(columns)

    def batch(self, runs: Iterable[RecordRun]) -> pa.RecordBatch:
        """One row for each record, in order."""
        runs = list(runs)
        records = [record for run in runs for record in run.records]
        arrays = [self._column(name, runs, records) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, runs: Sequence[RecordRun], records: Sequence[Record]) -> pa.Array:
        kind = self._schema.field(name).type
        match name:
            case "key":
                return pa.array([each.key for each in records], kind)
            case "value":
                return pa.array([each.value for each in records], kind)
            case "topic":
                return pa.repeat(pa.scalar(self._topic, kind), len(records))
            case "partition":
                return pa.repeat(pa.scalar(self._partition, kind), len(records))
            case "offset":
                return pa.array([each.offset for each in records], kind)
            case "timestamp":
                times = [max(-_MS_MAX, min(each.timestamp_ms, _MS_MAX)) * 1000 for each in records]
                return pa.array(times, pa.int64()).cast(kind)
            case "timestampType":
                types = [int(run.timestamp_type) for run in runs for _ in run.records]
                return pa.array(types, kind)
            case _:
                return pa.array([_headers_of(each) for each in records], kind)


def _headers_of(record: Record) -> list[dict[str, object]] | None:
    """None without headers, as Spark's Kafka source has it."""
    if not record.headers:
        return None
    return [{"key": name, "value": value} for name, value in record.headers]
