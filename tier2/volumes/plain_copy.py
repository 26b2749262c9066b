"""Copies small objects of a volume by the hundred: the fast lane of compaction.

A plain record is the put of an inline object without a version id (as in record_block). It is copied where it stands in
memory: its checksums are replaced, since another volume has another secret, and nothing of it is taken apart. What is
no plain record, and is needed, goes to the record copier, one by one.

    a stretch of the volume -> so many records of it, each checked -> their rows, in one look at the index
    -> the live ones, in one write -> later, from the disk: each of them checked again (`verify_slice`)

Invariants:

- Numbers are kept (H69), a copy is its own group, and the bytes were checked in the memory that they are written from.
- A tombstone stays behind here only if nobody needs it any more (H70).
- What is no good record ends the block in front of it: the scan says what is wrong with it.
- A call is half a millisecond of work or so, since it keeps the interpreter for as long: whoever waits for an append
  waits for it too. Its memory is one stretch, and the rows of what was copied.

Blocking; made for an executor.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File
from tier2.volumes.blob_record import (
    ALIGNMENT,
    MARK,
    RECORD_HEADER_BYTES,
    RECORD_LAYOUT,
    RecordKind,
    seed_of,
)
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_record import INLINE_ONLY, RECORD_FRONT, RECORD_OLDEST
from tier2.volumes.index_rows import (
    CURRENT,
    SEQUENCE_MAX,
    RowMove,
    encode_place,
    has_version_id,
    row_at_place,
)
from tier2.volumes.volume_files import OpenVolume
from tier2.volumes.volume_scan import DamagedStretch, ScannedRecord, VolumeScan

STRETCH_BYTES_MAX = 1 << 20
"""What is read at once."""
_RECORD_BYTES_MAX = 128 << 10
"""A longer one is left to the scan, which reads it piece by piece."""
_RECORDS_MAX = 96
"""Looked at in one call."""
_OTHERS_MAX = 24
"""Of those that are not plain: each costs as much as ten, but its system calls let others have the interpreter."""
_PLAIN_PUT = RecordKind.PUT.value
_TOMBSTONE = 1 << 8 | RecordKind.TOMBSTONE.value
"""`is_deleted` and `kind`, as RECORD_LAYOUT has them."""
_NUMBER, _SHORT = struct.Struct(">I"), struct.Struct(">H")
_HEADER_CRC_AT, _CRC_AT, _GROUP_LEFT_AT = 4, 8, 34
"""In a header: the checksum of what follows `_CRC_AT`, that of the body, how many of its group follow."""

_Plain: TypeAlias = tuple[int, int, int, bytes, int]
"""Where it begins, its body ends and the next one begins in the stretch; the key of its row; its number."""


@dataclass(slots=True)
class CopiedSlice:
    """Neighbours in their new volume."""

    offset: int
    length: int = 0
    checksums: list[int] = field(default_factory=list)
    """Of their bodies, one behind the other."""
    moves: list[RowMove] = field(default_factory=list)
    sequence_lowest: int = SEQUENCE_MAX
    sequence_highest: int = 0
    others: list[ScannedRecord] = field(default_factory=list)
    """Records that were passed and not looked up: the record copier's."""


class PlainCopier:
    """From the beginning of one volume to its end."""

    def __init__(
        self,
        *,
        index: IndexDatabase,
        scan: VolumeScan,
        number: int,
        secret: int,
        keeps_tombstone: Callable[[int, int], bool],
    ) -> None:
        """`scan` stands at the first record. `keeps_tombstone` as in RecordCopier."""
        self._index = index
        self._scan = scan
        self._items = iter(scan)
        self._number = number
        self._seed = seed_of(secret)
        self._keeps_tombstone = keeps_tombstone
        self._memory = memoryview(bytearray(min(STRETCH_BYTES_MAX, scan.bytes_left)))
        self._content = self._memory[:0]
        self._start = scan.offset
        """Where the stretch begins in the volume."""
        self._position = 0
        """In the stretch: everything before it was passed."""

    @property
    def offset(self) -> int:
        """Everything before it was passed."""
        return self._start + self._position

    def copy(self, target: OpenVolume) -> CopiedSlice | None:
        """The next records, the live plain ones copied and not yet synced; None at the end of the volume.

        Raises CorruptedDataError where something is damaged, OSError.
        """
        before = self.offset
        plain, others = self._walk()
        if self.offset == before and self._read_on():
            plain, others = self._walk()
        copied = CopiedSlice(target.end)
        if self.offset == before:
            found = self._take_from_scan()
            if found is None:
                return None
            copied.others.append(found)
            return copied
        others += self._copy_live(plain, copied, target)
        copied.others += [self._scan.record_at(self._start + position) for position in others]
        return copied

    def _read_on(self) -> bool:
        """Whether there is another stretch, with a whole record at its front unless that is damaged."""
        self._scan.pass_to(self.offset)
        self._start, self._position, self._content = self.offset, 0, self._memory[:0]
        if not 0 < self._scan.next_length() <= _RECORD_BYTES_MAX:
            return False
        self._content = self._scan.stretch_into(self._memory[: self._scan.bytes_left])
        return True

    def _take_from_scan(self) -> ScannedRecord | None:
        """A record that is too long for a stretch, or no good one."""
        self._scan.pass_to(self.offset)
        one = next(self._items, None)
        self._start, self._position, self._content = self._scan.offset, 0, self._memory[:0]
        if isinstance(one, DamagedStretch):
            raise CorruptedDataError(
                f"no good record offset={one.offset} length={one.length}: {one.why}"
            )
        return one

    def _walk(self) -> tuple[list[_Plain], list[int]]:
        """The next good records that are whole in the stretch: plain ones, and where others begin."""
        # Everything that is looked up per record is a local name here, as in record_block.
        content, seed, position = self._content, self._seed, self._position
        header_of, front_of = RECORD_LAYOUT.unpack_from, RECORD_FRONT.unpack_from
        front_bytes, size = RECORD_FRONT.size, len(content)
        plain: list[_Plain] = []
        others: list[int] = []
        for _ in range(_RECORDS_MAX):
            if position + RECORD_HEADER_BYTES > size or len(others) >= _OTHERS_MAX:
                break
            mark, header_crc, crc, key_length, blob_length, kind, _, length, sequence = header_of(
                content, position
            )
            body = position + RECORD_HEADER_BYTES
            if mark != MARK or header_crc != crc32_of(content[position + _CRC_AT : body], seed):
                break
            front = body + key_length
            end = front + length + blob_length
            following = end + -end % ALIGNMENT
            if following > size or crc != crc32_of(content[body:end], seed):
                break
            is_plain = False
            if length >= front_bytes and kind == _PLAIN_PUT:
                flags, object_bytes, its_sequence, id_length = front_of(content, front)
                is_plain = (
                    flags == INLINE_ONLY
                    and not id_length
                    and object_bytes == blob_length
                    and its_sequence == sequence
                )
            if is_plain:
                key = CURRENT + content[body:front]
                plain.append((position, end, following, key, sequence))
            elif (
                length < front_bytes
                or kind != _TOMBSTONE
                or self._keeps_tombstone(sequence, RECORD_OLDEST.unpack_from(content, front)[0])
            ):
                others.append(position)
            position = following
        self._position = position
        return plain, others

    def _copy_live(self, plain: list[_Plain], copied: CopiedSlice, target: OpenVolume) -> list[int]:
        """Write what the index names; where those begin of which its row of the current version cannot tell."""
        content, seed = self._content, seed_of(target.secret)
        offset, unsure = target.end, list[int]()
        buffers: list[BufferView] = []
        run_start = run_end = 0
        rows = self._index.get_many([one[3] for one in plain])
        for (position, end, following, key, sequence), row in zip(plain, rows, strict=True):
            if row is None:
                continue
            place = encode_place(self._number, self._start + position)
            if not row.startswith(place):
                if has_version_id(row):
                    unsure.append(position)
                continue
            copied.checksums.append(_seal(content, position, end, following, seed))
            copied.moves.append((key, place, row_at_place(row, target.number, offset)))
            copied.sequence_lowest = min(copied.sequence_lowest, sequence)
            copied.sequence_highest = max(copied.sequence_highest, sequence)
            offset += following - position
            if position != run_end:
                if run_end:
                    buffers.append(content[run_start:run_end])
                run_start = position
            run_end = following
        copied.length = offset - target.end
        if copied.length:
            buffers.append(content[run_start:run_end])
            target.write_unsynced(buffers, copied.length)
        return unsure


def _seal(content: memoryview, position: int, end: int, following: int, seed: int) -> int:
    """Make a record, where it stands, one of another volume, and its own group; the checksum of its body."""
    body = position + RECORD_HEADER_BYTES
    crc = crc32_of(content[body:end], seed)
    _NUMBER.pack_into(content, position + _CRC_AT, crc)
    _SHORT.pack_into(content, position + _GROUP_LEFT_AT, 0)
    header_crc = crc32_of(content[position + _CRC_AT : body], seed)
    _NUMBER.pack_into(content, position + _HEADER_CRC_AT, header_crc)
    content[end:following] = bytes(following - end)
    return crc


def verify_slice(file: File, copied: CopiedSlice, secret: int) -> None:
    """Read copies back. Raises CorruptedDataError, OSError."""
    content, seed = memoryview(file.read_at(copied.offset, copied.length)), seed_of(secret)
    position = 0
    for expected in copied.checksums:
        body = position + RECORD_HEADER_BYTES
        if len(content) < body:
            break
        mark, header_crc, crc, key_length, blob_length, _, left, length, _ = (
            RECORD_LAYOUT.unpack_from(content, position)
        )
        end = body + key_length + length + blob_length
        if (
            mark != MARK
            or header_crc != crc32_of(content[position + _CRC_AT : body], seed)
            or left
            or not crc == expected == crc32_of(content[body:end], seed)
        ):
            break
        position = end + -end % ALIGNMENT
    if position != copied.length:
        raise CorruptedDataError(f"a copy does not read back offset={copied.offset + position}")
