"""The columns of a topic's records: those of Spark's own Kafka source, under the same names and of the same types."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

_SPARK_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)
_ARROW_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
TOPIC_COLUMNS: Final[Sequence[str]] = tuple(_SPARK_TYPES)
"""All of them, in order; `headers` only where they are asked for."""


def topic_spark_schema(columns: Sequence[str]) -> str:
    """The schema of these columns as Spark writes it."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in columns)


def topic_arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns as Arrow has it."""
    return pa.schema([pa.field(name, _ARROW_TYPES[name]) for name in columns])
