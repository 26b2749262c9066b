"""Rows as batches of records, for the partitions that they go to.

The columns, those of Spark's Kafka sink and one more:

| column | types | |
|---|---|---|
| value | binary, string | needed; null is a tombstone |
| key | binary, string | null: the record has none |
| topic | string | where the row goes, unless the option says it |
| partition | int | null: by the key, as Kafka's Java client does; without a key, one for some rows together |
| headers | array of (key, value) | |
| timestamp | timestamp | null, or no such column: now |

Other columns are left out, as Spark's Kafka sink does, so that what was read from a topic can be written to another.

Invariants:

- Rows of one task keep their order within a partition.
- A batch has about BATCH_BYTES, and never more than its topic takes. What waits to become a batch is bounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import Compression, Record, encode_batch
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.sink.event_encoder import whole_milliseconds

BATCH_BYTES: Final = 512 << 10
_WAITING_BYTES_MAX: Final = 32 << 20
_RECORD_BYTES: Final = 24
"""About what a record takes besides its fields."""
_BYTES_TYPES: Final = ("binary", "string")
_COLUMN_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "value": _BYTES_TYPES,
    "key": _BYTES_TYPES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    """What a writer knows of a topic."""

    partitions: int
    batch_bytes_max: int
    compression: Compression


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """One batch, without a producer and without a place."""

    topic: str
    partition: int
    content: bytes
    records: int


def check_topic_columns(types: Mapping[str, str], *, topic: str) -> None:
    """`types` are Spark's simple names of the columns' types. Raises InvalidRequestError."""
    if "value" not in types:
        raise InvalidRequestError("rows have no column value: it holds what is written")
    if not topic and "topic" not in types:
        raise InvalidRequestError("no topic: give the option topic, or rows a column topic")
    for column, known in _COLUMN_TYPES.items():
        if column in types and types[column] not in known:
            raise InvalidRequestError(
                f"column {column} is {' or '.join(known)} given={types[column]!r}"
            )


def topics_of(batch: pa.RecordBatch, *, topic: str) -> Sequence[str]:
    """The topics that rows go to. Raises InvalidRequestError for a row without one."""
    if topic:
        return [topic]
    column = batch.column("topic")
    if column.null_count:
        raise InvalidRequestError(f"a row has no topic count={column.null_count}")
    return sorted(pc.unique(column).to_pylist())


@dataclass(slots=True)
class _Waiting:
    records: list[Record] = field(default_factory=list)
    size: int = 0


class RecordEncoder:
    """Of one task: add() rows, and at the end finish()."""

    def __init__(self, *, topic: str, first_partition: int) -> None:
        """`first_partition`: where rows without a key and a partition begin to be spread."""
        self._topic = topic
        self._spread = first_partition
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._waiting_bytes = 0
        self._targets: Mapping[str, TopicTarget] = {}

    def add(
        self, batch: pa.RecordBatch, targets: Mapping[str, TopicTarget], *, now_ms: int
    ) -> Iterator[TargetBatch]:
        """Takes the rows, and gives the batches that are full. Raises InvalidRequestError."""
        self._targets = targets
        self._spread += 1
        names = batch.schema.names
        count = len(batch)
        nothing: list[None] = [None] * count
        values = batch.column("value").cast(pa.binary()).to_pylist()
        keys = batch.column("key").cast(pa.binary()).to_pylist() if "key" in names else nothing
        places = batch.column("partition").to_pylist() if "partition" in names else nothing
        headers = batch.column("headers").to_pylist() if "headers" in names else nothing
        times = _times_of(batch, now_ms)
        topics = [self._topic] * count if self._topic else batch.column("topic").to_pylist()
        for key, value, topic, place, given, time_ms in zip(
            keys, values, topics, places, headers, times, strict=True
        ):
            target = targets[topic]
            partition = self._partition(topic, target, place, key)
            record = Record(0, time_ms, key, value, _headers_of(given))
            size = _RECORD_BYTES + len(key or b"") + len(value or b"")
            size += sum(len(name) + len(each or b"") + 4 for name, each in record.headers)
            waiting = self._waiting.setdefault((topic, partition), _Waiting())
            limit = min(BATCH_BYTES, target.batch_bytes_max // 2)
            if waiting.records and waiting.size + size > limit:
                yield self._taken(topic, partition)
            waiting = self._waiting.setdefault((topic, partition), _Waiting())
            waiting.records.append(record)
            waiting.size += size
            self._waiting_bytes += size
            if self._waiting_bytes > _WAITING_BYTES_MAX:
                largest = max(self._waiting, key=lambda each: self._waiting[each].size)
                yield self._taken(*largest)

    def finish(self) -> Iterator[TargetBatch]:
        """What is left."""
        for topic, partition in list(self._waiting):
            yield self._taken(topic, partition)

    def _taken(self, topic: str, partition: int) -> TargetBatch:
        waiting = self._waiting.pop((topic, partition))
        self._waiting_bytes -= waiting.size
        target = self._targets[topic]
        content = encode_batch(waiting.records, compression=target.compression)
        if len(content) > target.batch_bytes_max:
            raise InvalidRequestError(
                f"a record is too large for its topic topic={topic!r} bytes={len(content)}"
                f" max.message.bytes={target.batch_bytes_max}"
            )
        return TargetBatch(topic, partition, content, len(waiting.records))

    def _partition(
        self, topic: str, target: TopicTarget, given: int | None, key: bytes | None
    ) -> int:
        if given is not None:
            if not 0 <= given < target.partitions:
                raise InvalidRequestError(
                    f"there is no such partition topic={topic!r} partition={given}"
                    f" partitions={target.partitions}"
                )
            return given
        if key is not None:
            return partition_of(key, partition_count=target.partitions)
        return self._spread % target.partitions


def _times_of(batch: pa.RecordBatch, now_ms: int) -> Sequence[int]:
    if "timestamp" not in batch.schema.names:
        return [now_ms] * len(batch)
    numbers = whole_milliseconds(batch.column("timestamp"))
    times: Sequence[int] = pc.fill_null(numbers, now_ms).to_pylist()
    return times


def _headers_of(
    given: Sequence[Mapping[str, object]] | None,
) -> tuple[tuple[str, bytes | None], ...]:
    found: list[tuple[str, bytes | None]] = []
    for each in given or ():
        name, value = each["key"], each["value"]
        if not isinstance(name, str):
            raise InvalidRequestError("a header has no key")
        found.append((name, value if isinstance(value, bytes) else None))
    return tuple(found)
