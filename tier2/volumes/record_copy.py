"""Copies what is still needed of a volume, record by record, into another one; and reads the copies back.

    a record that counts, with its bytes if the blob table names this place     -> the same record, the same number
    a record that counts no more, whose bytes others name                       -> the bytes alone (RecordKind.BLOB)
    a tombstone that some other volume may still need                           -> the same record
    all else                                                                     stays behind

Invariants:

- Numbers are kept (H69), also those of hold and retention; a copy is its own group.
- Bytes are checked against the old record's checksum before the new one's header is written: those of an inline object
  by the scan that brought them, all others when they are read for the copy.
- Memory: one slice, whatever the size of an object.

Blocking; made for an executor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File
from tier2.volumes.blob_record import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    RecordKind,
    decode_record_header,
    encode_record_header,
    seed_of,
)
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_record import encode_index_record
from tier2.volumes.index_rows import BlobRow, ObjectRow
from tier2.volumes.mutations import Relocation
from tier2.volumes.volume_files import OpenVolume
from tier2.volumes.volume_scan import ScannedRecord

_SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """One record in its new place."""

    offset: int
    header: RecordHeader
    move: Relocation | None
    """None for a tombstone: nothing points to it."""
    tombstone_oldest: int = 0


class RecordCopier:
    """From one volume into one open volume."""

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
        row = self._live_row(one)
        blob = self._live_blob(one)
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

    def _live_row(self, one: ScannedRecord) -> ObjectRow | None:
        if one.header.kind is RecordKind.BLOB:
            return None
        found = IndexChanges(self._index).version(one.key, one.record.version_id)
        if found is None or (found[1].volume, found[1].record_offset) != (self._number, one.offset):
            return None
        return found[1]

    def _live_blob(self, one: ScannedRecord) -> BlobRow | None:
        if not one.header.blob_length or one.record.inline:
            return None
        found = IndexChanges(self._index).blob(one.record.content_hash)
        if found is None or (found.volume, found.record_offset) != (self._number, one.offset):
            return None
        return found

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
            group_left=0,
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
            piece = self._source.read_at(position, min(_SLICE_BYTES, end - position))
            if not piece:
                raise CorruptedDataError(f"a volume ends inside a record volume={self._number}")
            yield piece
            position += len(piece)


def write_record(
    target: OpenVolume, header: RecordHeader, front: bytes, blob: list[bytes] | Iterator[bytes]
) -> None:
    """Append a record whose checksum is known already, unsynced; small ones in one write. Raises OSError."""
    buffers: list[BufferView] = [encode_record_header(header, target.secret) + front]
    waiting = len(buffers[0])
    for piece in blob:
        buffers.append(piece)
        waiting += len(piece)
        if waiting >= _SLICE_BYTES:
            target.write_unsynced(buffers, waiting)
            buffers, waiting = [], 0
    padding = header.total_length - RECORD_HEADER_BYTES - header.body_length
    buffers.append(bytes(padding))
    target.write_unsynced(buffers, waiting + padding)


def verify_copy(file: File, copied: Copied, secret: int) -> None:
    """Read a copy back. Raises CorruptedDataError, OSError."""
    length = RECORD_HEADER_BYTES + copied.header.body_length
    first = file.read_at(copied.offset, min(_SLICE_BYTES, length))
    found = decode_record_header(first[:RECORD_HEADER_BYTES], secret)
    crc = crc32_of(memoryview(first)[RECORD_HEADER_BYTES:], seed_of(secret))
    position, end = copied.offset + len(first), copied.offset + length
    while position < end:
        piece = file.read_at(position, min(_SLICE_BYTES, end - position))
        if not piece:
            break
        crc = crc32_of(piece, crc)
        position += len(piece)
    if found != copied.header or crc != found.crc:
        raise CorruptedDataError(f"a copy does not read back offset={copied.offset}")
