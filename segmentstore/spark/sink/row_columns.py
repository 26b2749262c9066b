"""The columns of what Spark writes: which there may be, of which types, and how they come out of a batch.

| column | types | |
|---|---|---|
| value | binary, string | the event, or the value of its record; never null |
| key, or the routing key column | binary, string | where the event goes; null: anywhere |
| key | binary, string | content `record`: key of the record; null is stored as no bytes |
| timestamp | timestamp | content `record`: time of the record; null or not there: now |
| headers | array of (name, value) | content `record`: headers of the record |

Columns that a read of a stream has besides (scope, stream, segment_id, offset, event_number) are left out, so that what
was read from one stream can be written to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.columns import EVENT_COLUMNS

_BYTES_TYPES = ("binary", "string")
_TYPES: Mapping[str, Sequence[str]] = {
    "key": _BYTES_TYPES,
    "value": _BYTES_TYPES,
    "timestamp": ("timestamp",),
    "headers": ("array<struct<name:string,value:binary>>",),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows, column by column; bytes are never null."""

    values: pa.BinaryArray
    keys: pa.BinaryArray
    routing_keys: pa.BinaryArray | None
    """None: nothing decides where the rows go."""
    has_routing_key: npt.NDArray[np.bool_]
    timestamps_ms: npt.NDArray[np.int64]
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.values)


def check_columns(types: Mapping[str, str], *, routing_key_column: str) -> None:
    """`types` are Spark's simple names of the columns' types. Raises InvalidRequestError."""
    if "value" not in types:
        raise InvalidRequestError("rows have no column value: it holds what is written")
    if routing_key_column != "key" and routing_key_column not in types:
        raise InvalidRequestError(f"rows have no column {routing_key_column}: routingKeyColumn")
    strangers = [each for each in types if each not in (*EVENT_COLUMNS, routing_key_column)]
    if strangers:
        raise InvalidRequestError(
            f"rows have columns that are not written: {', '.join(strangers)}; select key, value, "
            "timestamp and headers, of which value is needed"
        )
    for column, known in {**_TYPES, routing_key_column: _BYTES_TYPES}.items():
        if column in types and types[column] not in known:
            raise InvalidRequestError(
                f"column {column} is {' or '.join(known)} given={types[column]!r}"
            )


def rows_of(batch: pa.RecordBatch, *, routing_key_column: str, now_ms: int) -> Rows:
    """The rows of a batch whose columns were checked. Raises InvalidRequestError for a row without a value."""
    names = batch.schema.names
    values = batch.column("value")
    if values.null_count:
        raise InvalidRequestError(f"a row has no value count={values.null_count}")
    routing = _column(batch, routing_key_column)
    has_key = np.zeros(len(batch), np.bool_)
    if routing is not None:
        has_key = pc.is_valid(routing).to_numpy(zero_copy_only=False)
    keys = _column(batch, "key")
    headers = batch.column("headers") if "headers" in names else None
    return Rows(
        values=_bytes(values),
        keys=_bytes(keys) if keys is not None else pa.array([b""] * len(batch), pa.binary()),
        routing_keys=_bytes(routing) if routing is not None else None,
        has_routing_key=has_key,
        timestamps_ms=_milliseconds(_column(batch, "timestamp"), len(batch), now_ms),
        headers=headers if headers is not None and headers.null_count < len(batch) else None,
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _bytes(values: pa.Array) -> pa.BinaryArray:
    array = values.cast(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array


def _milliseconds(times: pa.Array | None, count: int, now_ms: int) -> npt.NDArray[np.int64]:
    if times is None:
        return np.full(count, now_ms, np.int64)
    # Rounded down, also before 1970.
    whole = pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", tz="UTC"))
    filled = pc.fill_null(whole.cast(pa.int64()), now_ms)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
