"""Events that hold one encoded record each (tier2/format/records.py), taken apart by the array.

Varints of all events are decoded together, byte by byte: some forty operations on arrays for a batch, whatever its
number of rows. Only records with headers, which are few, go through the codec one by one.

Invariant: every field is checked to lie within its event; CorruptedDataError names the event otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.records import decode_records

Places = npt.NDArray[np.int64]
_VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Where the fields of each record lie in the buffer, and what is a number in them."""

    timestamps_ms: Places
    key_starts: Places
    key_ends: Places
    value_starts: Places
    value_ends: Places
    header_counts: Places


def find_records(
    content: BufferView, starts: Places, ends: Places, *, segment: str, offset: int
) -> RecordPlaces:
    """One record in each stretch [start, end) of the buffer, whose first byte is at `offset` of the segment.

    Raises CorruptedDataError.
    """
    cursor = _Cursor(content, starts, ends, segment, offset)
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
    return RecordPlaces(timestamps, key_starts, key_ends, value_starts, value_ends, counts)


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
        rows[row] = [(name.decode(errors="replace"), value) for name, value in records[0].headers]
    return rows


class _Cursor:
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
