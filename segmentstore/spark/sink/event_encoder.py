"""Rows of a batch as framed events, in blocks for the segments that they go to; whole columns at a time.

    batch -> `rows_of` takes its columns -> `key_positions` hashes the routing keys -> `blocks_of` frames the events

The columns of a batch:

| column | types | |
|---|---|---|
| value | binary, string | the event, or the value of its record; never null |
| key, or the routing key column | binary, string | where the event goes; null: anywhere |
| key | binary, string | content `record`: key of the record; null is stored as no bytes |
| timestamp | timestamp | content `record`: time of the record; null or not there: now |
| headers | array of (name, value) | content `record`: headers of the record |

Columns that a read of a stream has besides (scope, stream, segment_id, offset, event_number) are left out, so that what
was read from one stream can be written to another.

An event is 8 bytes (type 0, length of the content, both int32, big-endian) and its content: the value, or one encoded
record (tier2/format/records.py) with the key, the value, the headers and the timestamp, its offset 0.

Routing keys of a whole column are hashed at once: codec/routing_hash.py by arrays. A key is text; the bytes of a binary
column are taken for UTF-8, and bytes that are none count as lone surrogates, so that every key has a position. ASCII
keys, grouped by their length, are hashed together; others one by one.

Short fields of many rows (fixed bytes and varints) are put together by the array as well: a `Field` is a matrix of
bytes with a row for each row of the batch, and how many bytes of each row count. `pack` writes the counted bytes of all
fields behind one another, row by row.

Invariants:

- Rows keep their order within a segment; rows with equal routing keys go to the same segment.
- A key's position is that of `event_position(text of the key)`: writers of other languages send the same key to the
  same segment.
- Rows without a routing key are spread over the key space in stretches: neighbours stay neighbours.
- A block holds whole events, and no more bytes than asked for unless it is a single event.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.client.stream_segments import SegmentRange
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.codec.routing_hash import EVENT_SEED, event_position
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.schema import EVENT_COLUMNS

Positions = npt.NDArray[np.float64]
Lanes = npt.NDArray[np.uint64]

_BYTES_TYPES = ("binary", "string")
_COLUMN_TYPES: Mapping[str, Sequence[str]] = {
    "key": _BYTES_TYPES,
    "value": _BYTES_TYPES,
    "timestamp": ("timestamp",),
    "headers": ("array<struct<name:string,value:binary>>",),
}

_EVENT_CONTENT_BYTES_MAX = (1 << 31) - 1
_NO_RECORD_HEADERS = b"\x00"
_VARINT_BYTES_MAX = 10
_MURMUR_C1: Final = np.uint64(0x87C37B91114253D5)
_MURMUR_C2: Final = np.uint64(0x4CF5AD432745937F)
_MURMUR_BLOCK_BYTES = 16
_POSITION_FRACTION_BITS = 52


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


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Whole events for one segment."""

    segment_id: int
    content: bytes
    events: int


@dataclass(frozen=True, slots=True)
class Field:
    """One field of every row."""

    content: npt.NDArray[np.uint8]
    """Rows by the most bytes that the field may have."""
    lengths: npt.NDArray[np.int64]


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
    for column, known in {**_COLUMN_TYPES, routing_key_column: _BYTES_TYPES}.items():
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
        values=_as_binary(values),
        keys=_as_binary(keys) if keys is not None else pa.array([b""] * len(batch), pa.binary()),
        routing_keys=_as_binary(routing) if routing is not None else None,
        has_routing_key=has_key,
        timestamps_ms=_timestamps_ms(_column(batch, "timestamp"), len(batch), now_ms),
        headers=headers if headers is not None and headers.null_count < len(batch) else None,
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _as_binary(values: pa.Array) -> pa.BinaryArray:
    array = values.cast(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array


def _timestamps_ms(times: pa.Array | None, count: int, now_ms: int) -> npt.NDArray[np.int64]:
    if times is None:
        return np.full(count, now_ms, np.int64)
    filled = pc.fill_null(whole_milliseconds(times), now_ms)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def whole_milliseconds(times: pa.Array) -> pa.Array:
    """Times as Unix milliseconds, rounded down, also before 1970; null stays null."""
    # By UTC: Arrow rounds what a clock of the column's zone shows, that of Spark's session, and refuses a time of the
    # hour that such a clock shows twice.
    instants = times.cast(pa.timestamp("us", tz="UTC"))
    whole = pc.floor_temporal(instants, unit="millisecond")
    return whole.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def blocks_of(
    rows: Rows, ranges: Sequence[SegmentRange], *, as_records: bool, block_bytes: int
) -> Iterator[EventBlock]:
    """The rows as blocks; `ranges` are in ascending order. Raises InvalidRequestError for an event of 2 GiB."""
    if not len(rows):
        return
    columns = (
        _record_columns(rows)
        if as_records
        else [_event_headers(lengths_of(rows.values)), rows.values]
    )
    places = _range_indexes(rows, ranges)
    if len(ranges) > 1:
        order = pa.array(np.argsort(places, kind="stable"))
        columns = [column.take(order) for column in columns]
    events = pc.binary_join_element_wise(*columns, b"")
    offsets = np.frombuffer(events.buffers()[1], np.int32)[: len(events) + 1].astype(np.int64)
    content = memoryview(events.buffers()[2])
    counts = np.bincount(places, minlength=len(ranges))
    end = 0
    for each, count in zip(ranges, counts.tolist(), strict=True):
        start, end = end, end + count
        while start < end:
            stop = _block_end(offsets, start, end, block_bytes)
            block = bytes(content[offsets[start] : offsets[stop]])
            yield EventBlock(each.segment_id, block, stop - start)
            start = stop


def _block_end(offsets: npt.NDArray[np.int64], start: int, end: int, block_bytes: int) -> int:
    limit = offsets[start] + block_bytes
    fitting = int(np.searchsorted(offsets[start : end + 1], limit, side="right")) - 1
    return start + max(1, fitting)


def _range_indexes(rows: Rows, ranges: Sequence[SegmentRange]) -> npt.NDArray[np.int64]:
    """For each row which of the ranges it goes to."""
    if len(ranges) == 1:
        return np.zeros(len(rows), np.int64)
    positions = (np.arange(len(rows)) + 0.5) / len(rows)
    if rows.routing_keys is not None and rows.has_routing_key.any():
        keyed = key_positions(rows.routing_keys)
        positions = np.where(rows.has_routing_key, keyed, positions)
    bounds = np.array([each.high for each in ranges])
    places = np.searchsorted(bounds, positions, side="right")
    return np.minimum(places, len(ranges) - 1)


def key_positions(keys: pa.BinaryArray) -> Positions:
    """In [0, 1) for each key; of a null the position of an empty key."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content = keys.buffers()[2]
    characters = np.frombuffer(content if content is not None else b"", np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    positions = np.empty(len(keys), np.float64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        texts = characters[starts[rows][:, None] + np.arange(length)]
        ascii_rows = (texts < 0x80).all(axis=1)
        positions[rows[ascii_rows]] = _ascii_positions(texts[ascii_rows])
        for place in np.flatnonzero(~ascii_rows).tolist():
            text = texts[place].tobytes().decode("utf-8", "surrogateescape")
            positions[rows[place]] = event_position(text)
    return positions


def _ascii_positions(texts: npt.NDArray[np.uint8]) -> Positions:
    """Of texts of one length, a row each: MurmurHash3 x64 128 over two bytes for each character."""
    count, length = texts.shape[0], texts.shape[1] * 2
    blocks = length // _MURMUR_BLOCK_BYTES
    padded = np.zeros((count, (blocks + 1) * _MURMUR_BLOCK_BYTES), np.uint8)
    padded[:, 0:length:2] = texts
    lanes = padded.view("<u8").astype(np.uint64, copy=False)
    # The seed is a positive 32-bit number: sign extension leaves it as it is.
    h1 = np.full(count, EVENT_SEED, np.uint64)
    h2 = h1.copy()
    for block in range(blocks):
        h1 ^= _murmur_scrambled(lanes[:, 2 * block], _MURMUR_C1, 31, _MURMUR_C2)
        h1 = (_murmur_rotated(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 ^= _murmur_scrambled(lanes[:, 2 * block + 1], _MURMUR_C2, 33, _MURMUR_C1)
        h2 = (_murmur_rotated(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    # Lanes without a byte of the tail are zero, and change nothing.
    h2 ^= _murmur_scrambled(lanes[:, 2 * blocks + 1], _MURMUR_C2, 33, _MURMUR_C1)
    h1 ^= _murmur_scrambled(lanes[:, 2 * blocks], _MURMUR_C1, 31, _MURMUR_C2)
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = _murmur_finished(h1) + _murmur_finished(h2)
    return (h1 >> np.uint64(64 - _POSITION_FRACTION_BITS)).astype(np.float64) / (
        1 << _POSITION_FRACTION_BITS
    )


def _murmur_scrambled(lane: Lanes, first: np.uint64, bits: int, second: np.uint64) -> Lanes:
    return _murmur_rotated(lane * first, bits) * second


def _murmur_rotated(value: Lanes, bits: int) -> Lanes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def _murmur_finished(value: Lanes) -> Lanes:
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


def _event_headers(lengths: npt.NDArray[np.int64]) -> pa.BinaryArray:
    return pack([_event_header_field(lengths)])


def _event_header_field(lengths: npt.NDArray[np.int64]) -> Field:
    if int(lengths.max(initial=0)) > _EVENT_CONTENT_BYTES_MAX:
        raise InvalidRequestError(f"an event is too long length={int(lengths.max())}")
    content = np.zeros((len(lengths), EVENT_HEADER_BYTES), np.uint8)
    content[:, 4:] = lengths.astype(">i4").view(np.uint8).reshape(-1, 4)
    return fixed_field(content)


def _record_columns(rows: Rows) -> list[pa.BinaryArray]:
    key_lengths, value_lengths = lengths_of(rows.keys), lengths_of(rows.values)
    offset = fixed_field(np.zeros((len(rows), 1), np.uint8))
    times = varint_field(zigzag(rows.timestamps_ms))
    key_counts = varint_field(key_lengths.astype(np.uint64))
    value_counts = varint_field(value_lengths.astype(np.uint64))
    tails = _encoded_record_headers(rows)
    lengths = (
        offset.lengths
        + times.lengths
        + key_counts.lengths
        + key_lengths
        + value_counts.lengths
        + value_lengths
        + lengths_of(tails)
    )
    return [
        pack([_event_header_field(lengths), offset, times, key_counts]),
        rows.keys,
        pack([value_counts]),
        rows.values,
        tails,
    ]


def _encoded_record_headers(rows: Rows) -> pa.BinaryArray:
    """Count, names and values; only rows that have headers are looked at one by one."""
    if rows.headers is None:
        ones = np.ones(len(rows), np.int64)
        return packed_array(np.zeros(len(rows), np.uint8), ones)
    tails = [_NO_RECORD_HEADERS] * len(rows)
    counts = pc.fill_null(pc.list_value_length(rows.headers), 0).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(counts).tolist():
        tail = bytearray(_encoded_varint(int(counts[row])))
        for header in rows.headers[row].as_py():
            for part in ((header["name"] or "").encode(), header["value"] or b""):
                tail += _encoded_varint(len(part)) + part
        tails[row] = bytes(tail)
    return pa.array(tails, pa.binary())


def _encoded_varint(value: int) -> bytes:
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def fixed_field(content: npt.NDArray[np.uint8]) -> Field:
    """All bytes of each row."""
    return Field(content, np.full(len(content), content.shape[1], np.int64))


def varint_field(values: npt.NDArray[np.uint64]) -> Field:
    """LEB128: 7 bits a byte, the lowest first, the high bit on all but the last."""
    highest = int(values.max(initial=0))
    width = min(_VARINT_BYTES_MAX, max(1, -(-highest.bit_length() // 7)))
    shifted = values[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    is_last = shifted < 0x80
    lengths = np.argmax(is_last, axis=1) + 1
    content = (shifted & np.uint64(0x7F)).astype(np.uint8)
    content[~is_last] |= 0x80
    return Field(content, lengths)


def zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def pack(fields: Sequence[Field]) -> pa.BinaryArray:
    """The fields of each row behind one another, a value for each row."""
    content = np.concatenate([field.content for field in fields], axis=1)
    counted = np.concatenate(
        [np.arange(field.content.shape[1]) < field.lengths[:, None] for field in fields], axis=1
    )
    lengths = np.sum([field.lengths for field in fields], axis=0)
    return packed_array(content[counted], lengths)


def packed_array(content: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Values of these lengths that stand behind one another."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def lengths_of(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Bytes of each value."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return np.diff(offsets[values.offset : values.offset + len(values) + 1]).astype(np.int64)
