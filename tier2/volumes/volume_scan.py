"""Reads a volume record by record, from front to back, past whatever is damaged.

Invariants:

- Every record that is yielded has a good header and a good body; the blob is checked piece by piece, never held whole.
- A good header with a bad body is skipped by its length and reported; a bad header is reported once, and the search for
  the next good one goes on at multiples of 8 (H71).
- What cannot be read is reported with its extent; nothing is passed over in silence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import File
from tier2.volumes.blob_record import (
    ALIGNMENT,
    MARK,
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_record_header,
    seed_of,
)
from tier2.volumes.index_record import IndexRecord, decode_index_record
from tier2.volumes.volume_header import VOLUME_HEADER_BYTES

_STEP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """A record that reads back whole."""

    offset: int
    """Of its first byte in the volume."""
    header: RecordHeader
    key: bytes
    record: IndexRecord
    inline: bytes | None = None
    """The bytes of an object that is small enough to stand in the index."""


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes that are no good record."""

    offset: int
    length: int
    why: str
    header: RecordHeader | None = field(default=None, compare=False, repr=False)
    """Of a record whose body alone is bad."""


class VolumeScan:
    """One pass over a volume of `size` bytes from `offset`; blocking, made for an executor."""

    def __init__(self, file: File, *, secret: int, size: int, offset: int) -> None:
        self._file = file
        self._secret = secret
        self._seed = seed_of(secret)
        self._size = size
        self._offset = max(offset, VOLUME_HEADER_BYTES)
        self._buffer: bytes | memoryview = b""
        self._buffer_offset = 0

    @property
    def offset(self) -> int:
        """Everything before it has been looked at."""
        return self._offset

    def __iter__(self) -> Iterator[ScannedRecord | DamagedStretch]:
        while self._offset < self._size:
            start = self._offset
            try:
                header = decode_record_header(self._read(start, RECORD_HEADER_BYTES), self._secret)
            except CorruptedDataError as error:
                self._offset = self._next_header(start + ALIGNMENT)
                yield DamagedStretch(start, self._offset - start, str(error))
                continue
            if start + header.total_length > self._size:
                # The header is good, so nobody wrote behind this record: the end was cut off.
                self._offset = self._size
                yield DamagedStretch(start, self._size - start, "record is cut off")
                continue
            self._offset = start + header.total_length
            try:
                yield self._body(start, header)
            except CorruptedDataError as error:
                yield DamagedStretch(start, header.total_length, str(error), header)

    @property
    def bytes_left(self) -> int:
        """Of the volume, from here on."""
        return self._size - self._offset

    def next_length(self) -> int:
        """Bytes of the record that begins here, as its header says, and 0 if there is no good header."""
        start = self._offset - self._buffer_offset
        if 0 <= start <= len(self._buffer) - RECORD_HEADER_BYTES:
            content = self._buffer[start : start + RECORD_HEADER_BYTES]
        else:
            # No more than that: who asks may go on with a stretch.
            content = self._file.read_at(self._offset, min(RECORD_HEADER_BYTES, self.bytes_left))
        try:
            return decode_record_header(content, self._secret).total_length
        except CorruptedDataError:
            return 0

    def stretch_into(self, target: memoryview) -> memoryview:
        """The next bytes, in memory of the caller: what is filled of it. The scan reads there until `pass_to`."""
        filled = target[: self._file.read_into(self._offset, target)]
        self._buffer, self._buffer_offset = filled, self._offset
        return filled

    def pass_to(self, offset: int) -> None:
        """Everything before `offset` was looked at by the caller, and a stretch is its own again."""
        assert self._offset <= offset <= self._size, f"{self._offset=} {offset=} {self._size=}"
        self._offset = offset
        self._buffer = b""

    def record_at(self, start: int) -> ScannedRecord:
        """The record that begins there, whole inside the volume. Raises CorruptedDataError."""
        header = decode_record_header(self._read(start, RECORD_HEADER_BYTES), self._secret)
        return self._body(start, header)

    def _body(self, start: int, header: RecordHeader) -> ScannedRecord:
        front_length = header.key_length + header.index_record_length
        front = self._read(start + RECORD_HEADER_BYTES, front_length)
        crc = crc32_of(front, self._seed)
        inline = b""
        position, end = start + header.blob_offset, start + RECORD_HEADER_BYTES + header.body_length
        while position < end:
            piece = self._read(position, min(_STEP_BYTES, end - position))
            if not piece:
                raise CorruptedDataError("the volume became shorter while it was read")
            crc = crc32_of(piece, crc)
            position += len(piece)
            inline = piece
        if crc != header.crc:
            raise CorruptedDataError("record fails its checksum")
        record = decode_index_record(memoryview(front)[header.key_length :])
        if record.sequence > header.sequence:
            raise CorruptedDataError(
                f"record contradicts its header sequence={record.sequence} header={header.sequence}"
            )
        if record.inline and len(inline) != header.blob_length:
            raise CorruptedDataError(f"an inline object is too long bytes={header.blob_length}")
        key = front[: header.key_length]
        return ScannedRecord(start, header, key, record, inline if record.inline else None)

    def _next_header(self, offset: int) -> int:
        """Where the next good header begins, or the end."""
        while offset < self._size:
            window = self._read(offset, _STEP_BYTES)
            if not window:
                break
            found = window.find(MARK)
            while found >= 0:
                candidate = offset + found
                if candidate % ALIGNMENT == 0 and self._is_header(candidate):
                    return candidate
                found = window.find(MARK, found + 1)
            if len(window) < _STEP_BYTES:
                break
            offset += len(window) - len(MARK) + 1
        return self._size

    def _is_header(self, offset: int) -> bool:
        try:
            decode_record_header(self._read(offset, RECORD_HEADER_BYTES), self._secret)
        except CorruptedDataError:
            return False
        return True

    def _read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes, read ahead in steps."""
        length = min(length, self._size - offset)
        start = offset - self._buffer_offset
        if start < 0 or start + length > len(self._buffer):
            self._buffer = self._file.read_at(
                offset, min(max(length, _STEP_BYTES), self._size - offset)
            )
            self._buffer_offset, start = offset, 0
        return bytes(self._buffer[start : start + length])
