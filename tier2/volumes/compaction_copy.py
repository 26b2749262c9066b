"""Copies what is still needed of a volume into another one, reads the copies back, and says what has to point to them.

    a record that counts, with its bytes if the blob table names this place     -> the same record, the same number
    a record that counts no more, whose bytes others name                       -> the bytes alone (RecordKind.BLOB)
    a tombstone that some other volume may still need                           -> the same record
    all else                                                                     stays behind

`PlainCopier` copies plain records (volume_format.py) by the hundred, where they stand in memory. `RecordCopier` copies
any other record, one by one. `CopyBatch` gathers the copies, to which nothing points yet, verifies them and makes the
changes that point to them.

Invariants:

- Numbers are kept, also those of hold and retention; a copy is its own write batch.
- A tombstone stays behind only if no other volume may need it any more.
- Bytes are checked before the copy's checksum is made: see each copier.
- Copies are read back from the disk, and not from the pages that were just written, before anything points to them.
- Each step, and each group of changes, is a millisecond of work at most, and a call of `PlainCopier` half of one, since
  it keeps the interpreter for as long: a caller that waits for an append waits for it too.

Blocking; made for an executor.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File
from tier2.volumes.index import (
    CURRENT,
    SEQUENCE_MAX,
    BlobRow,
    IndexChanges,
    ObjectRow,
    RowMove,
    encode_place,
    has_version_id,
    row_at_place,
)
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.mutations import Mutation, PlainRelocation, Relocation, VolumeWritten
from tier2.volumes.volume_files import (
    SLICE_BYTES,
    DamagedStretch,
    OpenVolume,
    ScannedRecord,
    VolumeScan,
    write_record,
)
from tier2.volumes.volume_format import (
    ALIGNMENT,
    INLINE_ONLY,
    MARK,
    RECORD_FRONT,
    RECORD_HEADER_BYTES,
    RECORD_LAYOUT,
    RECORD_OLDEST,
    RecordHeader,
    RecordKind,
    decode_record_header,
    encode_index_record,
    seed_of,
)

_BATCH_PLAIN_MAX, _BATCH_OTHERS_MAX = 4000, 1000
"""The index's rows of so many stand in memory."""
_SLICES_VERIFIED_AT_ONCE, _OTHERS_VERIFIED_AT_ONCE = 6, 48
_PLAIN_MOVED_AT_ONCE, _OTHERS_MOVED_AT_ONCE = 128, 64
"""At once."""

STRETCH_BYTES_MAX = 1 << 20
"""What is read at once."""
_STRETCH_RECORD_BYTES_MAX = 128 << 10
"""A longer one is left to the scan, which reads it piece by piece."""
_RECORDS_PER_CALL_MAX = 96
"""Looked at in one call."""
_OTHERS_PER_CALL_MAX = 24
"""Of those that are not plain: each costs as much as ten, but its system calls let others have the interpreter."""

_PLAIN_PUT_KIND = RecordKind.PUT.value
_TOMBSTONE_KIND = 1 << 8 | RecordKind.TOMBSTONE.value
"""`is_deleted` and `kind`, as RECORD_LAYOUT has them."""
_U32, _U16 = struct.Struct(">I"), struct.Struct(">H")
_HEADER_CRC_AT, _CRC_AT, _BATCH_LEFT_AT = 4, 8, 34
"""In a header: the checksum of what follows `_CRC_AT`, that of the body, how many of its batch follow."""


@dataclass(frozen=True, slots=True)
class Copied:
    """One record in its new place."""

    offset: int
    header: RecordHeader
    move: Relocation | None
    """None for a tombstone: nothing points to it."""
    tombstone_oldest: int = 0


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


_PlainRecord: TypeAlias = tuple[int, int, int, bytes, int]
"""Where it begins, its body ends and the next one begins in the stretch; the key of its row; its number."""


class PlainCopier:
    """Copies plain records from the beginning of one volume to its end, many in a call.

    A plain record is copied where it stands in memory: its checksums are replaced, since another volume has another
    secret, and nothing of it is taken apart. What is no plain record, and is needed, goes to the record copier.

        a stretch of the volume -> so many records of it, each checked -> their rows, in one look at the index
        -> the live ones, in one write -> later, from the disk: each of them checked again (`verify_slice`)

    Invariants:

    - The bytes were checked in the memory that they are written from.
    - What is no good record ends the block in front of it: the scan says what is wrong with it.
    - Memory: one stretch, and the rows of what was copied.
    """

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
        if not 0 < self._scan.next_length() <= _STRETCH_RECORD_BYTES_MAX:
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

    def _walk(self) -> tuple[list[_PlainRecord], list[int]]:
        """The next good records that are whole in the stretch: plain ones, and where others begin."""
        # Everything that is looked up per record is a local name here, as in rebuild.py.
        content, seed, position = self._content, self._seed, self._position
        header_of, front_of = RECORD_LAYOUT.unpack_from, RECORD_FRONT.unpack_from
        front_bytes, size = RECORD_FRONT.size, len(content)
        plain: list[_PlainRecord] = []
        others: list[int] = []
        for _ in range(_RECORDS_PER_CALL_MAX):
            if position + RECORD_HEADER_BYTES > size or len(others) >= _OTHERS_PER_CALL_MAX:
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
            if length >= front_bytes and kind == _PLAIN_PUT_KIND:
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
                or kind != _TOMBSTONE_KIND
                or self._keeps_tombstone(sequence, RECORD_OLDEST.unpack_from(content, front)[0])
            ):
                others.append(position)
            position = following
        self._position = position
        return plain, others

    def _copy_live(
        self, plain: list[_PlainRecord], copied: CopiedSlice, target: OpenVolume
    ) -> list[int]:
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
            copied.checksums.append(_seal_copy(content, position, end, following, seed))
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


def _seal_copy(content: memoryview, position: int, end: int, following: int, seed: int) -> int:
    """Make a record, where it stands, one of another volume, and its own group; the checksum of its body."""
    body = position + RECORD_HEADER_BYTES
    crc = crc32_of(content[body:end], seed)
    _U32.pack_into(content, position + _CRC_AT, crc)
    _U16.pack_into(content, position + _BATCH_LEFT_AT, 0)
    header_crc = crc32_of(content[position + _CRC_AT : body], seed)
    _U32.pack_into(content, position + _HEADER_CRC_AT, header_crc)
    content[end:following] = bytes(following - end)
    return crc


def has_live_record(index: IndexDatabase, number: int, scan: VolumeScan) -> bool:
    """Whether the index still names a record of the scan, in that volume. Blocking.

    Raises CorruptedDataError where something is damaged, OSError.
    """
    for one in scan:
        if isinstance(one, DamagedStretch):
            raise CorruptedDataError(
                f"no good record offset={one.offset} length={one.length}: {one.why}"
            )
        if _live_row(index, number, one) is not None or _live_blob(index, number, one) is not None:
            return True
    return False


def _live_row(index: IndexDatabase, number: int, one: ScannedRecord) -> ObjectRow | None:
    if one.header.kind is RecordKind.BLOB:
        return None
    found = IndexChanges(index).version(one.key, one.record.version_id)
    if found is None or (found[1].volume, found[1].record_offset) != (number, one.offset):
        return None
    return found[1]


def _live_blob(index: IndexDatabase, number: int, one: ScannedRecord) -> BlobRow | None:
    if not one.header.blob_length or one.record.inline:
        return None
    found = IndexChanges(index).blob(one.record.content_hash)
    if found is None or (found.volume, found.record_offset) != (number, one.offset):
        return None
    return found


class RecordCopier:
    """Copies records one by one, from one volume into one open volume.

    Invariants:

    - Bytes are checked against the old record's checksum before the new one's header is written: those of an inline
      object by the scan that brought them, all others when they are read for the copy.
    - Memory: one slice, whatever the size of an object.
    """

    def __init__(
        self,
        *,
        index: IndexDatabase,
        source: File,
        source_number: int,
        source_secret: int,
        target: OpenVolume,
        keeps_tombstone: Callable[[int, int], bool],
    ) -> None:
        """`keeps_tombstone` is asked with the number of a tombstone and the oldest number it is there for."""
        self._index = index
        self._source = source
        self._number = source_number
        self._secret = source_secret
        self._target = target
        self._keeps_tombstone = keeps_tombstone

    def copy(self, one: ScannedRecord) -> Copied | None:
        """None if it is needed no more. Raises CorruptedDataError, OSError."""
        if one.header.is_deleted:
            if not self._keeps_tombstone(one.header.sequence, one.record.oldest):
                return None
            offset, header = self._write(one, one.header.kind, with_blob=False)
            return Copied(offset, header, None, one.record.oldest)
        row = _live_row(self._index, self._number, one)
        blob = _live_blob(self._index, self._number, one)
        if row is None and blob is None:
            return None
        if row is None:
            offset, header = self._write(one, RecordKind.BLOB, with_blob=True)
        else:
            with_blob = blob is not None or one.record.inline
            offset, header = self._write(one, one.header.kind, with_blob=with_blob)
        move = Relocation(
            key=one.key,
            old=row,
            new=None if row is None else self._moved_row(row, offset),
            old_blob=blob,
            new_blob=None if blob is None else self._moved_blob(blob, offset, header),
            content_hash=one.record.content_hash,
        )
        return Copied(offset, header, move)

    def _moved_row(self, row: ObjectRow, offset: int) -> ObjectRow:
        return replace(row, volume=self._target.number, record_offset=offset)

    def _moved_blob(self, blob: BlobRow, offset: int, header: RecordHeader) -> BlobRow:
        return replace(
            blob,
            volume=self._target.number,
            record_offset=offset,
            blob_offset=offset + header.blob_offset,
        )

    def _write(
        self, one: ScannedRecord, kind: RecordKind, *, with_blob: bool
    ) -> tuple[int, RecordHeader]:
        key = b"" if kind is RecordKind.BLOB else one.key
        front = key + encode_index_record(one.record)
        new_crc = crc32_of(front, seed_of(self._target.secret))
        kept = one.inline
        if kept is None:
            new_crc, kept = self._checked(one, new_crc, with_blob=with_blob)
        elif with_blob:
            new_crc = crc32_of(kept, new_crc)
        header = replace(
            one.header,
            crc=new_crc,
            kind=kind,
            key_length=len(key),
            index_record_length=len(front) - len(key),
            blob_length=one.header.blob_length if with_blob else 0,
            batch_left=0,
        )
        offset = self._target.end
        blob: list[bytes] | Iterator[bytes] = []
        if with_blob and one.header.blob_length:
            blob = [kept] if kept is not None else self._slices(one)
        write_record(self._target, header, front, blob)
        return offset, header

    def _checked(
        self, one: ScannedRecord, new_crc: int, *, with_blob: bool
    ) -> tuple[int, bytes | None]:
        """The new checksum, over the blob as well if it goes along; and the blob if it is one slice.

        An inline object stands in memory since the scan compared its checksum; a blob was not kept, and may read back
        as something else now.
        """
        old_crc = crc32_of(
            self._source.read_at(
                one.offset + RECORD_HEADER_BYTES,
                one.header.key_length + one.header.index_record_length,
            ),
            seed_of(self._secret),
        )
        kept: bytes | None = None
        for piece in self._slices(one):
            old_crc = crc32_of(piece, old_crc)
            new_crc = crc32_of(piece, new_crc) if with_blob else new_crc
            kept = piece if len(piece) == one.header.blob_length else None
        if old_crc != one.header.crc:
            raise CorruptedDataError(
                f"a record fails its checksum volume={self._number} offset={one.offset}"
            )
        return new_crc, kept

    def _slices(self, one: ScannedRecord) -> Iterator[bytes]:
        position = one.offset + one.header.blob_offset
        end = position + one.header.blob_length
        while position < end:
            piece = self._source.read_at(position, min(SLICE_BYTES, end - position))
            if not piece:
                raise CorruptedDataError(f"a volume ends inside a record volume={self._number}")
            yield piece
            position += len(piece)


class CopyBatch:
    """Copies of one volume in another one, to which nothing points yet; and what has to be changed for them."""

    def __init__(self, *, source: int, target: OpenVolume) -> None:
        self._source = source
        self._target = target
        self._slices: list[CopiedSlice] = []
        self._others: list[Copied] = []
        self._plain_count = 0
        self.bytes = 0

    @property
    def count(self) -> int:
        """Records."""
        return self._plain_count + len(self._others)

    def is_full(self, bytes_max: int) -> bool:
        return (
            self.bytes >= bytes_max
            or self._plain_count >= _BATCH_PLAIN_MAX
            or len(self._others) >= _BATCH_OTHERS_MAX
        )

    def take(self, plain: PlainCopier, copier: RecordCopier) -> bool:
        """Copy the next few records; whether there are more. In the executor. Raises CorruptedDataError, OSError."""
        copied = plain.copy(self._target)
        if copied is None:
            return False
        if copied.moves:
            self._slices.append(copied)
            self._plain_count += len(copied.moves)
            self.bytes += copied.length
        for one in copied.others:
            other = copier.copy(one)
            if other is not None:
                self._others.append(other)
                self.bytes += other.header.total_length
        return True

    def verification(self) -> Iterator[Callable[[], None]]:
        """Steps for the executor, that raise CorruptedDataError, OSError.

        They read what the disk itself says, and not the pages that were just written.
        """
        yield self._sync_and_forget
        for first in range(0, len(self._slices), _SLICES_VERIFIED_AT_ONCE):
            yield partial(
                self._verify_slices, self._slices[first : first + _SLICES_VERIFIED_AT_ONCE]
            )
        for first in range(0, len(self._others), _OTHERS_VERIFIED_AT_ONCE):
            yield partial(
                self._verify_others, self._others[first : first + _OTHERS_VERIFIED_AT_ONCE]
            )

    def changes(self) -> Iterator[Sequence[Mutation]]:
        """Groups of changes that point to the copies, to be made in this order, by whom all of them were verified."""
        # What it says of numbers holds whichever moves follow.
        yield [self._written()]
        others: list[Relocation] = [one.move for one in self._others if one.move is not None]
        for first in range(0, len(others), _OTHERS_MOVED_AT_ONCE):
            yield others[first : first + _OTHERS_MOVED_AT_ONCE]
        plain = [move for copied in self._slices for move in copied.moves]
        for first in range(0, len(plain), _PLAIN_MOVED_AT_ONCE):
            some = plain[first : first + _PLAIN_MOVED_AT_ONCE]
            yield [PlainRelocation(self._source, self._target.number, some)]

    def _written(self) -> VolumeWritten:
        tombstones = [one for one in self._others if one.move is None]
        lowest = [one.sequence_lowest for one in self._slices]
        highest = [one.sequence_highest for one in self._slices]
        numbered = [one.header.sequence for one in self._others if one.move is None or one.move.new]
        return VolumeWritten(
            volume=self._target.number,
            end=self._target.end,
            sequence_lowest=min(numbered + lowest, default=SEQUENCE_MAX),
            sequence_highest=max(numbered + highest, default=0),
            tombstone_bytes=sum(one.header.blob_offset for one in tombstones),
            tombstone_oldest=min(
                (one.tombstone_oldest for one in tombstones), default=SEQUENCE_MAX
            ),
        )

    def _sync_and_forget(self) -> None:
        self._target.sync()
        self._target.file.drop_page_cache()

    def _verify_slices(self, slices: Sequence[CopiedSlice]) -> None:
        for one in slices:
            verify_slice(self._target.file, one, self._target.secret)

    def _verify_others(self, others: Sequence[Copied]) -> None:
        for one in others:
            verify_copy(self._target.file, one, self._target.secret)


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


def verify_copy(file: File, copied: Copied, secret: int) -> None:
    """Read a copy back. Raises CorruptedDataError, OSError."""
    length = RECORD_HEADER_BYTES + copied.header.body_length
    first = file.read_at(copied.offset, min(SLICE_BYTES, length))
    found = decode_record_header(first[:RECORD_HEADER_BYTES], secret)
    crc = crc32_of(memoryview(first)[RECORD_HEADER_BYTES:], seed_of(secret))
    position, end = copied.offset + len(first), copied.offset + length
    while position < end:
        piece = file.read_at(position, min(SLICE_BYTES, end - position))
        if not piece:
            break
        crc = crc32_of(piece, crc)
        position += len(piece)
    if found != copied.header or crc != found.crc:
        raise CorruptedDataError(f"a copy does not read back offset={copied.offset}")
