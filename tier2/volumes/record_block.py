"""Many records at once, from a stretch of a volume that stands in memory: what makes a rebuild of small objects fast.

A plain record is the put of an inline object without a version id. Its row is the record's own bytes behind four
numbers, which are written over what stands there before them in memory: nothing of it is taken apart, or copied.
All others are read by the scan, one by one.

Invariants:

- Whole groups only, from the start of one: what is taken cannot turn out to be torn later.
- Every record that is taken has a good header and a good body, as in a scan. The first one that has not, or that the
  stretch cuts off, ends the block in front of its group: the scan says what is wrong with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
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
"""What is read at once."""
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


def take_block(
    scan: VolumeScan, *, volume: int, secret: int, memory_for: Callable[[int], memoryview]
) -> RecordBlock | None:
    """The whole groups that stand next, and the scan goes on behind them; None if the scan has to take the next one.

    To be called where a group begins. Rows are made in what `memory_for` gives. Raises OSError.
    """
    start = scan.offset
    if scan.next_length() > _RECORD_BYTES_MAX:
        return None
    content = scan.stretch_into(memory_for(min(STRETCH_BYTES_MAX, scan.bytes_left)))
    block = RecordBlock(start, start)
    _walk(scan, content, start, volume=volume, seed=seed_of(secret), block=block)
    scan.pass_to(block.end)
    return block if block.groups else None


def _walk(
    scan: VolumeScan, content: memoryview, start: int, *, volume: int, seed: int, block: RecordBlock
) -> None:
    # Everything that is looked up per record is a local name here: at 500,000 records a second each look counts.
    header_of, front_of, write_row = (
        RECORD_LAYOUT.unpack_from,
        RECORD_FRONT.unpack_from,
        OBJECT_LAYOUT.pack_into,
    )
    front_bytes, before_row = RECORD_FRONT.size, OBJECT_LAYOUT.size
    rows, others = block.plain, block.others
    position = row_bytes = rows_kept = others_kept = 0
    lowest, highest = SEQUENCE_MAX, 0
    size = len(content)
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
        else:
            try:
                others.append(scan.record_at(start + position))
            except CorruptedDataError:
                break
        position = following
        if not left:
            block.groups += 1
            block.end = start + position
            rows_kept, others_kept = len(rows), len(others)
            block.plain_bytes = row_bytes
            block.sequence_lowest, block.sequence_highest = lowest, highest
    del rows[rows_kept:], others[others_kept:]
