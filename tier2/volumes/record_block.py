"""Many records at once, from a stretch of a volume that stands in memory: what makes a rebuild of small objects fast.

A plain record is the put of an inline object without a version id. Its row is the record's own bytes behind four
numbers, which are written over what stands there before them in memory: nothing of it is taken apart, or copied.
All others are read by the scan, one by one. The walk over them is native where that was built (`native/record_walk.c`),
and does the same.

Invariants:

- Whole groups only, from the start of one: what is taken cannot turn out to be torn later.
- Every record that is taken has a good header and a good body, as in a scan. The first one that has not, or that the
  stretch cuts off, ends the block in front of its group: the scan says what is wrong with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.native import native_module
from tier2.volumes.blob_record import (
    ALIGNMENT,
    MARK,
    RECORD_HEADER_BYTES,
    RECORD_LAYOUT,
    RecordKind,
    seed_of,
)
from tier2.volumes.index_database import NewRow
from tier2.volumes.index_record import INLINE_ONLY, RECORD_FRONT
from tier2.volumes.index_rows import CURRENT, OBJECT_LAYOUT, SEQUENCE_MAX
from tier2.volumes.volume_scan import ScannedRecord, VolumeScan

STRETCH_BYTES_MAX = 8 << 20
"""What is read at once, at most."""
_STRETCH_BYTES_MIN = 2 << 20
"""And at first: so much stays near the processor until its rows are stored."""
_CUT_OFF_SHARE = 4
"""Where more than one in so many bytes is the front of a group that is cut off, a stretch is too short."""
_RECORD_BYTES_MAX = 1 << 20
"""A longer one is left to the scan, which reads it piece by piece."""
_HEADER_CRC_FROM = 8
_PLAIN_PUT = RecordKind.PUT.value


@dataclass(slots=True)
class RecordBlock:
    """What whole groups at the front of a scan hold."""

    start: int
    end: int
    """Where the first of them begins in the volume, and the last one ends."""
    groups: int = 0
    plain: list[NewRow] = field(default_factory=list)
    """Rows of the current version, as the index has them: views of that memory."""
    plain_bytes: int = 0
    """Length of their records."""
    others: list[ScannedRecord] = field(default_factory=list)
    sequence_lowest: int = SEQUENCE_MAX
    """Of the plain ones."""
    sequence_highest: int = 0


Walked: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Whole groups, where the last of them ends in the volume; and of what is in them: rows, others, bytes of the records
of the rows, and the lowest and the highest number of these."""
Walk: TypeAlias = Callable[[memoryview, int, int, int, list[NewRow], Callable[[int], bool]], Walked]
"""Of a stretch, where that begins in the volume, the number and the seed of the volume: rows of plain records are put
into the list, and the places of others in the volume are called with; where that returns False it ends."""


class RecordBlocks:
    """Takes them from the front of a scan."""

    def __init__(
        self,
        scan: VolumeScan,
        *,
        volume: int,
        secret: int,
        memory_for: Callable[[int], memoryview],
    ) -> None:
        """Rows are made in what `memory_for` gives."""
        self._scan = scan
        self._volume = volume
        self._seed = seed_of(secret)
        self._memory_for = memory_for
        self._walk = FASTEST_WALK
        self._stretch = _STRETCH_BYTES_MIN

    def take(self) -> RecordBlock | None:
        """The whole groups that stand next, and the scan goes on behind them; None if it has to take the next one.

        To be called where a group begins. Raises OSError.
        """
        if self._scan.next_length() > _RECORD_BYTES_MAX:
            return None
        while True:
            block = self._next()
            is_all = self._stretch >= min(STRETCH_BYTES_MAX, self._scan.bytes_left)
            cut_off = self._stretch - (block.end - block.start)
            if not is_all and cut_off * _CUT_OFF_SHARE > self._stretch:
                self._stretch *= 2
            if block.groups or is_all:
                self._scan.pass_to(block.end)
                return block if block.groups else None

    def _next(self) -> RecordBlock:
        scan, start = self._scan, self._scan.offset
        content = scan.stretch_into(self._memory_for(min(self._stretch, scan.bytes_left)))
        rows: list[NewRow] = []
        others: list[ScannedRecord] = []

        def take_other(offset: int) -> bool:
            try:
                others.append(scan.record_at(offset))
            except CorruptedDataError:
                return False
            return True

        groups, end, rows_kept, others_kept, plain_bytes, lowest, highest = self._walk(
            content, start, self._volume, self._seed, rows, take_other
        )
        del rows[rows_kept:], others[others_kept:]
        return RecordBlock(start, end, groups, rows, plain_bytes, others, lowest, highest)


def walk_in_python(
    content: memoryview,
    start: int,
    volume: int,
    seed: int,
    rows: list[NewRow],
    take_other: Callable[[int], bool],
) -> Walked:
    """See Walk."""
    # Everything that is looked up per record is a local name here: at 500,000 records a second each look counts.
    header_of, front_of, write_row = (
        RECORD_LAYOUT.unpack_from,
        RECORD_FRONT.unpack_from,
        OBJECT_LAYOUT.pack_into,
    )
    front_bytes, before_row = RECORD_FRONT.size, OBJECT_LAYOUT.size
    position = row_bytes = others = groups = 0
    lowest, highest = SEQUENCE_MAX, 0
    size = len(content)
    kept: Walked = 0, start, 0, 0, 0, lowest, highest
    while position + RECORD_HEADER_BYTES <= size:
        mark, header_crc, crc, key_length, blob_length, kind, left, length, sequence = header_of(
            content, position
        )
        body = position + RECORD_HEADER_BYTES
        if mark != MARK or header_crc != crc32_of(
            content[position + _HEADER_CRC_FROM : body], seed
        ):
            break
        front = body + key_length
        end = front + length + blob_length
        following = end + (position - end) % ALIGNMENT
        if following > size:
            break
        plain = False
        if kind == _PLAIN_PUT and length >= front_bytes:
            flags, object_bytes, its_sequence, id_length = front_of(content, front)
            plain = (
                flags == INLINE_ONLY
                and not id_length
                and object_bytes == blob_length
                and its_sequence == sequence
            )
        if plain:
            if crc != crc32_of(content[body:end], seed):
                break
            key = CURRENT + content[body:front]
            row = front - before_row
            write_row(content, row, volume, start + position, end - position, length)
            rows.append((key, content[row:end]))
            row_bytes += end - position
            if sequence < lowest:
                lowest = sequence
            if sequence > highest:
                highest = sequence
        elif take_other(start + position):
            others += 1
        else:
            break
        position = following
        if not left:
            groups += 1
            kept = groups, start + position, len(rows), others, row_bytes, lowest, highest
    return kept


def native_walk() -> Walk | None:
    """The same natively, where it was built and is not switched off."""
    module = native_module("tier2.volumes.native.record_walk")
    found: Walk | None = None if module is None else module.walk
    return found


FASTEST_WALK = native_walk() or walk_in_python
