"""The columns of what Spark reads, in Spark's words and in Arrow's: both say the same, type by type.

| column | type | content `raw` | content `record` |
|---|---|---|---|
| key | binary | null | key of the record |
| value | binary | the event's bytes | value of the record |
| scope, stream | string | | |
| segment_id | bigint | id of the segment in its stream; null for a segment that is no stream's | |
| offset | bigint | of the event's first byte (its header) in the segment | |
| event_number | bigint | counted from the segment's start, truncated events too; null where not counted | |
| timestamp | timestamp, UTC | lower bound of the append time, see below | its own |
| headers | array of (name, value) | null | headers of the record |

The time of an event is that of the block in which it begins, or else of the last block before it that has one.
For an event that only the service has, that is the last block in Tier 2. The time of a block in Tier 2 does not change.

Content `bytes` (one segment without events) has blocks instead of events: see BYTES_COLUMNS.

Invariants:

- An Arrow batch of `arrow_schema(columns)` is what Spark expects of `spark_schema(columns)`: it compares types exactly.
- Columns stand in the order in which they were asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from segmentstore.contracts.errors import InvalidRequestError

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")

EVENT_COLUMNS: Final[Sequence[str]] = (
    "key",
    "value",
    "scope",
    "stream",
    "segment_id",
    "offset",
    "event_number",
    "timestamp",
    "headers",
)
"""Of events, in order."""

BYTES_COLUMNS: Final[Sequence[str]] = ("segment", "offset", "bytes", "timestamp")
"""Of a byte segment: its qualified name, where the block begins, its bytes, the lower bound of their append time."""

_SPARK_TYPES: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "bigint",
    "offset": "bigint",
    "event_number": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<name:string,value:binary>>",
    "segment": "string",
    "bytes": "binary",
}
_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "scope": pa.string(),
    "stream": pa.string(),
    "segment_id": pa.int64(),
    "offset": pa.int64(),
    "event_number": pa.int64(),
    "timestamp": _TIMESTAMP,
    "headers": _HEADERS,
    "segment": pa.string(),
    "bytes": pa.binary(),
}


def parse_columns(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The columns of a comma-separated list. Raises InvalidRequestError for an unknown or repeated one, or for none."""
    columns = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in columns if name not in known]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise InvalidRequestError(
            f"columns are some of {', '.join(known)}, each at most once given={text!r}"
        )
    return columns


def spark_schema(columns: Sequence[str]) -> str:
    """The schema of these columns as Spark writes it."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns as Arrow has it."""
    return pa.schema([pa.field(name, _ARROW_TYPES[name]) for name in columns])


def arrow_type(column: str) -> pa.DataType:
    """The type of one column."""
    return _ARROW_TYPES[column]
