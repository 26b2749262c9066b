"""Rows as framed events, in blocks for the segments that they go to; whole columns at a time.

An event is 8 bytes (type 0, length of the content, both int32, big endian) and its content: the value, or one encoded
record (tier2/format/records.py) with the key, the value, the headers and the timestamp, its offset 0.

Invariants:

- Rows keep their order within a segment; rows with equal routing keys go to the same segment.
- Rows without a routing key are spread over the key space in stretches: neighbours stay neighbours.
- A block holds whole events, and no more bytes than asked for unless it is a single event.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.client.event_frames import EVENT_HEADER_BYTES
from segmentstore.client.key_space import SegmentRange
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.sink.key_positions import key_positions
from segmentstore.spark.sink.packed_columns import (
    Field,
    fixed_field,
    lengths_of,
    pack,
    packed_array,
    varint_field,
    zigzag,
)
from segmentstore.spark.sink.row_columns import Rows

_CONTENT_BYTES_MAX = (1 << 31) - 1
_NO_HEADERS = b"\x00"


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Whole events for one segment."""

    segment_id: int
    content: bytes
    events: int


def blocks_of(
    rows: Rows, ranges: Sequence[SegmentRange], *, as_records: bool, block_bytes: int
) -> Iterator[EventBlock]:
    """The rows as blocks; `ranges` are in ascending order. Raises InvalidRequestError for an event of 2 GiB."""
    if not len(rows):
        return
    columns = (
        _record_columns(rows) if as_records else [_headers(lengths_of(rows.values)), rows.values]
    )
    places = _places(rows, ranges)
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


def _places(rows: Rows, ranges: Sequence[SegmentRange]) -> npt.NDArray[np.int64]:
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


def _headers(lengths: npt.NDArray[np.int64]) -> pa.BinaryArray:
    return pack([_header_field(lengths)])


def _header_field(lengths: npt.NDArray[np.int64]) -> Field:
    if int(lengths.max(initial=0)) > _CONTENT_BYTES_MAX:
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
    tails = _encoded_headers(rows)
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
        pack([_header_field(lengths), offset, times, key_counts]),
        rows.keys,
        pack([value_counts]),
        rows.values,
        tails,
    ]


def _encoded_headers(rows: Rows) -> pa.BinaryArray:
    """Count, names and values; only rows that have headers are looked at one by one."""
    if rows.headers is None:
        ones = np.ones(len(rows), np.int64)
        return packed_array(np.zeros(len(rows), np.uint8), ones)
    tails = [_NO_HEADERS] * len(rows)
    counts = pc.fill_null(pc.list_value_length(rows.headers), 0).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(counts).tolist():
        tail = bytearray(_varint(int(counts[row])))
        for header in rows.headers[row].as_py():
            for part in ((header["name"] or "").encode(), header["value"] or b""):
                tail += _varint(len(part)) + part
        tails[row] = bytes(tail)
    return pa.array(tails, pa.binary())


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
