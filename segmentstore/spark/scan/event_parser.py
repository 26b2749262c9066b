"""Finds events, the records in them, and columns of their bytes in a buffer: by the array wherever that is possible.

    event    int32 type, 0 | int32 length of the content | content      (big-endian)
    record   the content of an event of a stream of records: tier2/format/records.py

- `find_events`: neighbours of one length are found by the array, others in one Python step each.
- `find_records`: varints of all events are decoded together, byte by byte: some forty operations on arrays for a batch,
  whatever its number of rows. Only records with headers, which are few, go through the codec one by one (`headers_of`).
- `binary_column`: an Arrow column of byte strings that lie scattered in one buffer, without a Python object for each.
  Between two strings lies what is left out (headers, lengths), so the buffer as it is makes a column of twice as many
  strings, every other one of which is taken: one copy, in C++.

Invariants:

- Type and length are read as one unsigned number: with any type but 0, or a negative length, it exceeds every buffer
  and ends the walk there, so one check behind the walk covers all of its steps.
- Whole events only are returned; where the first incomplete one begins, and how long it is, is told.
- Nothing is guessed: a header says where the next one is, so equal headers at equal distances are those of neighbours.
- Every field of a record is checked to lie within its event; CorruptedDataError names the event otherwise.
- The strings of a column are in order and do not overlap.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.outside_access import decode_records

_EVENT_HEADER = struct.Struct(">Q")
_EVENT_LENGTH_END: Final = 1 << 31
_EVENTS_WALKED: Final = 256
"""Events walked over one by one, where lengths differ, before the array is tried again."""
_HEADERS_COMPARED: Final = 256
"""Headers compared at once."""
_VARINT_BYTES_MAX = 10
Places = npt.NDArray[np.int64]


class EventPositions(NamedTuple):
    """Events in a buffer, by positions in it."""

    starts: Places
    """Of the headers."""
    ends: Places
    """Behind the contents."""
    rest: int
    """Where the first incomplete event begins; the length of the buffer if the last one is complete."""
    rest_bytes: int
    """How many bytes that one has with its header, or at least has; 0 without one."""


@dataclass(frozen=True, slots=True)
class RecordPositions:
    """Where the fields of each record lie in the buffer, and what is a number in them."""

    timestamps_ms: Places
    key_starts: Places
    key_ends: Places
    value_starts: Places
    value_ends: Places
    header_counts: Places


def find_events(content: BufferView, *, segment: str, offset: int) -> EventPositions:
    """The events of a buffer that begins with one, at `offset` of the segment. Raises CorruptedDataError."""
    end = len(content)
    last = end - EVENT_HEADER_BYTES
    found: list[Places] = []
    unpack = _EVENT_HEADER.unpack_from
    at = 0
    while at <= last:
        step = unpack(content, at)[0] + EVENT_HEADER_BYTES
        alike = _count_alike(content, at, step)
        if alike > 1:
            found.append(np.arange(at, at + alike * step, step, dtype=np.int64))
            at += alike * step
        starts: list[int] = []
        add = starts.append
        for _ in range(_EVENTS_WALKED):
            if at > last:
                break
            add(at)
            at += unpack(content, at)[0] + EVENT_HEADER_BYTES
        found.append(np.array(starts, dtype=np.int64))
    if at <= end:
        found.append(np.array([at], dtype=np.int64))
    places = np.concatenate(found)
    rest = int(places[-1])
    rest_bytes = at - rest if at > end else 0 if at == end else EVENT_HEADER_BYTES
    if rest_bytes - EVENT_HEADER_BYTES >= _EVENT_LENGTH_END:
        kind, length = struct.unpack_from(">ii", content, rest)
        raise CorruptedDataError(
            f"no event begins here segment={segment!r} offset={offset + rest} type={kind} length={length}"
        )
    return EventPositions(places[:-1], places[1:], rest, rest_bytes)


def _count_alike(content: BufferView, start: int, step: int) -> int:
    """How many events from `start` on take `step` bytes, as the first one does; the last may be cut off."""
    count = (len(content) - EVENT_HEADER_BYTES - start) // step + 1
    if count == 1:
        return 1
    headers = np.ndarray((count,), dtype=">u8", buffer=content, offset=start, strides=(step,))
    for first in range(0, count, _HEADERS_COMPARED):
        differs = headers[first : first + _HEADERS_COMPARED] != step - EVENT_HEADER_BYTES
        if differs.any():
            return first + int(differs.argmax())
    return count


def find_records(
    content: BufferView, starts: Places, ends: Places, *, segment: str, offset: int
) -> RecordPositions:
    """One record in each stretch [start, end) of the buffer, whose first byte is at `offset` of the segment.

    Raises CorruptedDataError.
    """
    cursor = _RecordCursor(content, starts, ends, segment, offset)
    cursor.varints()  # its offset, which the segment knows better
    zigzag = cursor.varints()
    # The sign is the lowest bit; shifting the unsigned number first keeps all 64 bits.
    timestamps = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(
        np.int64
    )
    key_starts, key_ends = cursor.stretches()
    value_starts, value_ends = cursor.stretches()
    counts = cursor.varints().astype(np.int64)
    cursor.check((counts != 0) | (cursor.at == ends))
    return RecordPositions(timestamps, key_starts, key_ends, value_starts, value_ends, counts)


def headers_of(
    content: BufferView, starts: Places, ends: Places, counts: Places, *, segment: str
) -> Sequence[Sequence[tuple[str, bytes]] | None]:
    """Names and values of each record's headers; None for a record without. Raises CorruptedDataError."""
    rows: list[list[tuple[str, bytes]] | None] = [None] * len(starts)
    view = memoryview(content)
    for row in np.flatnonzero(counts).tolist():
        stretch = view[int(starts[row]) : int(ends[row])]
        records = list(decode_records(stretch, source=segment))
        if len(records) != 1:
            raise CorruptedDataError(f"event holds {len(records)} records segment={segment!r}")
        # An event's record has no nulls: the form of its bytes has no word for one.
        rows[row] = [(name, value or b"") for name, value in records[0].headers]
    return rows


class _RecordCursor:
    """A place in each of many stretches of a buffer; all of them move together."""

    def __init__(
        self, content: BufferView, starts: Places, ends: Places, segment: str, offset: int
    ) -> None:
        self._bytes = np.frombuffer(content, dtype=np.uint8)
        self._starts = starts
        self._ends = ends
        self._segment = segment
        self._offset = offset
        self.at = starts.copy()

    def varints(self) -> npt.NDArray[np.uint64]:
        values = np.zeros(len(self.at), dtype=np.uint64)
        # Rows whose number goes on; few are left after the first byte or two.
        rows = np.arange(len(self.at))
        for place in range(_VARINT_BYTES_MAX):
            at = self.at[rows]
            self.check(at < self._ends[rows], rows)
            found = self._bytes[at]
            values[rows] |= (found & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            self.at[rows] = at + 1
            rows = rows[found >= 0x80]
            if not len(rows):
                return values
        self.check(np.zeros(len(rows), dtype=np.bool_), rows)
        return values

    def stretches(self) -> tuple[Places, Places]:
        """Counted bytes."""
        lengths = self.varints()
        starts = self.at
        room = (self._ends - starts).astype(np.uint64)
        self.check(lengths <= room)
        self.at = starts + lengths.astype(np.int64)
        return starts.copy(), self.at.copy()

    def check(self, good: npt.NDArray[np.bool_], rows: npt.NDArray[np.int64] | None = None) -> None:
        """Raises CorruptedDataError for the first row that is not good."""
        if good.all():
            return
        bad = int(np.flatnonzero(~good)[0])
        row = bad if rows is None else int(rows[bad])
        raise CorruptedDataError(
            f"event does not hold a record segment={self._segment!r}"
            f" offset={self._offset + int(self._starts[row])}"
        )


def binary_column(content: BufferView, starts: Places, ends: Places) -> pa.Array:
    """The strings [start, end) of the buffer, which has less than 2 GiB. O(rows + bytes)."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.zeros(2 * count + 1, dtype=np.int32)
    bounds[1::2] = starts
    bounds[2::2] = ends
    stretches = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    is_taken = np.zeros(2 * count, dtype=np.bool_)
    is_taken[1::2] = True
    return stretches.filter(pa.array(is_taken))
