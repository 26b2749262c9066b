"""The metadata tables and their columns, in Spark's words and in Arrow's.

`streams`: one row a stream.

| column | type | |
|---|---|---|
| scope, stream | string | |
| state | string | ACTIVE, SEALED, SCALING, ... as the controller recorded it |
| tags | array of string | |
| created | timestamp | |
| segment_count | bigint | that take events now, or that ended last in a sealed stream |
| segment_count_total | bigint | from the head on |
| bytes | bigint | that can be read |
| head, tail | string | JSON positions, as `startingOffsets` takes them |
| scaling | string | FIXED, KILOBYTES_PER_SECOND, EVENTS_PER_SECOND |
| scaling_target | bigint | of one segment; null for FIXED |
| segment_count_min | bigint | |
| retention | string | NONE, TIME, SIZE |
| retention_limit | bigint | milliseconds or bytes; null for NONE |

`segments`: one row a segment that can be read, also one that belongs to no stream.

| column | type | |
|---|---|---|
| scope, stream, segment_id, epoch, key_low, key_high | | null for a segment of no stream |
| segment | string | qualified name |
| start_offset, end_offset | bigint | what can be read: [start, end) |
| published_end | bigint | what of it is in Tier 2 |
| is_sealed | boolean | |
| container_id | int | whose manifest leads to it; null if only the service was asked |
| modified | timestamp | last change that Tier 2 knows of; null if it knows none |
| successors, predecessors | array of bigint | ids of segments |

`chunks`: one row an image that holds bytes of a segment.

| column | type | |
|---|---|---|
| scope, stream, segment_id, segment, container_id | | as above |
| start_offset, end_offset | bigint | the segment's bytes that the image holds |
| object_key | string | below the place of Tier 2 |
| position | bigint | of the image in the object |
| stored_bytes | bigint | of its blocks, with their checksums |
| block_count | bigint | |
| compression | string | none, lz4, zstd; joined by + where blocks differ |
| events_known | boolean | whether all its blocks say where events begin |
| first_event_number | bigint | of the first event that begins in it; null if none does |
| last_block_event_number | bigint | of the first event that begins in its last block; null if none does |
| lowest_time, highest_time | timestamp | bounds of append times; null if unknown |

`transactions`: one row a transaction that the controller remembers.

| column | type | |
|---|---|---|
| scope, stream | string | |
| transaction_id | string | 32 hex digits |
| epoch | bigint | of the stream, that it writes to |
| state | string | OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED |
| created, completed | timestamp | completed is null before |
| lease_ms | bigint | |
| commit_number | bigint | order of commits in the stream; null before |
| writer | string | null if none said its name |
| writer_timestamp | bigint | as the writer noted it; null if it did not |
| stages | array of string | transactions that it takes in with itself |
| joins | string | the transaction that takes this one in; null if none does |

`readerGroups`: one row a group and stream.

| column | type | |
|---|---|---|
| scope, reader_group | string | |
| state | string | CREATING, ACTIVE, DELETING |
| group_id | string | |
| generation | bigint | |
| retention | string | NONE; MANUAL or AUTOMATIC if its position holds back the stream's retention |
| stream_scope, stream | string | |
| starting_offsets, ending_offsets | string | JSON positions; null if it starts at the head, or does not end |
| consumed_offsets | string | what it said last; null if it said nothing |

Invariants:

- An Arrow batch of `arrow_schema_of(table)` is what Spark expects of `metadata_schema(table)`.
- Times are UTC; positions are JSON that a read takes back as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from segmentstore.contracts.errors import InvalidRequestError

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "array<bigint>": pa.list_(pa.field("element", pa.int64())),
}

_SEGMENT: Final = (
    ("scope", "string"),
    ("stream", "string"),
    ("segment_id", "bigint"),
    ("segment", "string"),
    ("container_id", "int"),
)

TABLES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "streams": (
        ("scope", "string"),
        ("stream", "string"),
        ("state", "string"),
        ("tags", "array<string>"),
        ("created", "timestamp"),
        ("segment_count", "bigint"),
        ("segment_count_total", "bigint"),
        ("bytes", "bigint"),
        ("head", "string"),
        ("tail", "string"),
        ("scaling", "string"),
        ("scaling_target", "bigint"),
        ("segment_count_min", "bigint"),
        ("retention", "string"),
        ("retention_limit", "bigint"),
    ),
    "segments": (
        *_SEGMENT,
        ("epoch", "bigint"),
        ("key_low", "double"),
        ("key_high", "double"),
        ("start_offset", "bigint"),
        ("end_offset", "bigint"),
        ("published_end", "bigint"),
        ("is_sealed", "boolean"),
        ("modified", "timestamp"),
        ("successors", "array<bigint>"),
        ("predecessors", "array<bigint>"),
    ),
    "chunks": (
        *_SEGMENT,
        ("start_offset", "bigint"),
        ("end_offset", "bigint"),
        ("object_key", "string"),
        ("position", "bigint"),
        ("stored_bytes", "bigint"),
        ("block_count", "bigint"),
        ("compression", "string"),
        ("events_known", "boolean"),
        ("first_event_number", "bigint"),
        ("last_block_event_number", "bigint"),
        ("lowest_time", "timestamp"),
        ("highest_time", "timestamp"),
    ),
    "transactions": (
        ("scope", "string"),
        ("stream", "string"),
        ("transaction_id", "string"),
        ("epoch", "bigint"),
        ("state", "string"),
        ("created", "timestamp"),
        ("completed", "timestamp"),
        ("lease_ms", "bigint"),
        ("commit_number", "bigint"),
        ("writer", "string"),
        ("writer_timestamp", "bigint"),
        ("stages", "array<string>"),
        ("joins", "string"),
    ),
    "readerGroups": (
        ("scope", "string"),
        ("reader_group", "string"),
        ("state", "string"),
        ("group_id", "string"),
        ("generation", "bigint"),
        ("retention", "string"),
        ("stream_scope", "string"),
        ("stream", "string"),
        ("starting_offsets", "string"),
        ("ending_offsets", "string"),
        ("consumed_offsets", "string"),
    ),
}
"""Name and Spark type of every column, by table."""


def table_named(word: str) -> str:
    """The table that a user's word means, in any case. Raises InvalidRequestError."""
    for table in TABLES:
        if table.lower() == word.lower():
            return table
    raise InvalidRequestError(f"metadata is one of {', '.join(TABLES)} given={word!r}")


def metadata_schema(table: str) -> str:
    """The schema of a table as Spark writes it. Raises InvalidRequestError."""
    return ", ".join(f"{name} {kind}" for name, kind in TABLES[table_named(table)])


def arrow_schema_of(table: str) -> pa.Schema:
    """The schema of a table as Arrow has it. Raises InvalidRequestError."""
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in TABLES[table_named(table)]])
