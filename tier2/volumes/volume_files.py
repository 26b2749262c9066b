"""The volumes of one engine on the disk: its identity, and files that are made, written, read, scanned, cut, removed.

The identity of an engine is in its directory, and every volume carries the id in its header:

    DIR/identity    b"S4ENGINE", u8 version 1, 7 zero bytes, 16 bytes engine id, u32 CRC32; written once

Invariants:

- The identity is durable before the first volume; a directory with volumes and without an identity is refused, never
  given a new one.
- A volume that is written was made by this `VolumeFiles`: header written and synced, then its directory, before any
  record.
- A volume being written is in `written_now` until its writer releases it, and is not compacted or removed before.
- Reads open the file anew: a volume that compaction removes meanwhile is either read whole or not found, and a reader
  that does not find it asks the index again.
- Of what an open volume has synced the system need not keep more than `cached_bytes_max` in memory: a stream of writes
  then goes on through the same pages, and does not push out the pages of others.

Blocking; made for an executor, by several of its threads at once.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from segmentstore.codec.crc32 import crc32_of
from segmentstore.codec.crc_algebra import CRC32, flipped_bit, joined_crc, with_bit_flipped
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import NO_SPACE_ERRNOS, File, FileSystem
from tier2.volumes.objects import IndexRecord
from tier2.volumes.volume_format import (
    ALIGNMENT,
    MARK,
    RECORD_HEADER_BYTES,
    VOLUME_HEADER_BYTES,
    RecordHeader,
    VolumeHeader,
    decode_index_record,
    decode_record_header,
    decode_volume_header,
    encode_record_header,
    encode_volume_header,
    record_header_without_flip,
    seed_of,
)

_LOGGER = logging.getLogger(__name__)

"""What the system says when a disk, or what we may have of it, is full."""
SLICE_BYTES = 4 << 20
CACHED_BYTES_MAX = 256 << 20
"""As much as the store's own cache has by default: a reader of what was just flushed finds it in one of the two."""
PAST_CACHE_BYTES_MIN = 1 << 20
"""So many bytes of chunks go past the system's cache: the store's own has the newest of them anyway."""
EARLY_BYTES_MIN = 1 << 20
"""Longer batches are written in pieces, and each begins to go to the disk at once."""
_EARLY_PIECE_BYTES_MIN = 512 << 10
_EARLY_PIECES_MAX = 8
_FORGOTTEN_BYTES_MIN = 8 << 20
"""What is asked of the system at once."""

_VOLUME_NAME_PREFIX, _VOLUME_NAME_SUFFIX = "volume_", ".dat"
_VOLUME_NAME_PATTERN = re.compile(r"volume_([0-9]{6,9})\.dat")
_NUMBER_ATTEMPTS_MAX = 100

_IDENTITY_MAGIC = b"S4ENGINE\x01" + bytes(7)
_IDENTITY_BYTES = 36

_SCAN_STEP_BYTES = 4 << 20
_SECTOR_BYTES = 512
"""What a disk writes whole or not at all; it divides the pages of every system."""


class ForeignVolumeError(CorruptedDataError):
    """A good volume, of another store: nothing here is touched before a person has looked."""


class DamagedHeaderError(CorruptedDataError):
    """A volume that cannot be read from end to end: what the index knows of it still can."""


def storage_error_of(error: BaseException, what: str) -> SegmentStoreError:
    """What callers of the engine are told of an error of the disk: `what` has failed, or there was no room for it."""
    full = isinstance(error, OSError) and error.errno in NO_SPACE_ERRNOS
    failure = (StorageFullError if full else StorageError)(f"{what}: {error}")
    failure.__cause__ = error
    return failure


def is_engine_directory(directory: str, files: FileSystem) -> bool:
    """Whether volumes were opened here before."""
    return files.exists(f"{directory}/identity") and files.is_directory(f"{directory}/volumes")


def engine_identity(directory: str, files: FileSystem, random: Random) -> bytes:
    """The engine's id; made and made durable if there is none yet. Raises CorruptedDataError."""
    path = f"{directory}/identity"
    if not files.exists(path):
        if files.list(f"{directory}/volumes"):
            raise CorruptedDataError(f"volumes without an identity directory={directory}")
        _write_identity(directory, path, files, random)
    file = files.open(path)
    try:
        content = file.read_at(0, _IDENTITY_BYTES + 1)
    finally:
        file.close()
    body = content[:-4]
    if (
        len(content) != _IDENTITY_BYTES
        or not body.startswith(_IDENTITY_MAGIC)
        or crc32_of(body) != int.from_bytes(content[-4:], "big")
    ):
        raise CorruptedDataError(f"the identity of the volumes is damaged path={path}")
    return body[len(_IDENTITY_MAGIC) :]


def _write_identity(directory: str, path: str, files: FileSystem, random: Random) -> None:
    temporary = f"{directory}/identity.new"
    body = _IDENTITY_MAGIC + random.randbytes(16)
    file = files.open(temporary, create=True)
    try:
        file.write_at(0, [body + crc32_of(body).to_bytes(4, "big")])
        file.sync_data()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(directory)


class OpenVolume:
    """A volume that takes records at its end."""

    def __init__(
        self, *, number: int, secret: int, file: File, cached_bytes_max: int = CACHED_BYTES_MAX
    ) -> None:
        self.number = number
        self.secret = secret
        self.end = VOLUME_HEADER_BYTES
        self.file = file
        self._cached_bytes_max = cached_bytes_max
        self._forgotten_end = 0
        """The system was told that what lies before it is not needed in memory."""

    @property
    def is_empty(self) -> bool:
        return self.end == VOLUME_HEADER_BYTES

    def write(
        self, buffers: Sequence[BufferView], length: int, *, past_cache: bool = False
    ) -> None:
        """Append and sync; `end` moves only when that has succeeded. Raises OSError: never write it again then."""
        if past_cache:
            self.file.write_direct(self.end, buffers)
            self.file.sync_data()
        elif length < EARLY_BYTES_MIN:
            self.file.write_synced(self.end, buffers)
        else:
            self._write_early(buffers, max(_EARLY_PIECE_BYTES_MIN, -(-length // _EARLY_PIECES_MAX)))
            self.file.sync_data()
        self.end += length
        self._forget_until(self.end - self._cached_bytes_max)

    def _write_early(self, buffers: Sequence[BufferView], piece_bytes: int) -> None:
        """The disk is busy with the first pieces while the next ones are copied."""
        offset = self.end
        for piece, length in _buffers_by_piece(buffers, piece_bytes):
            self.file.write_at(offset, piece)
            # Advice: the sync behind it is what counts.
            with suppress(OSError):
                self.file.start_writeback(offset, length)
            offset += length

    def write_unsynced(self, buffers: Sequence[BufferView], length: int) -> None:
        """Append; `sync` comes before a caller relies on it."""
        self.file.write_at(self.end, buffers)
        self.end += length

    def sync(self) -> None:
        self.file.sync_data()

    def _forget_until(self, end: int) -> None:
        start = self._forgotten_end
        if end - start < _FORGOTTEN_BYTES_MIN:
            return
        self._forgotten_end = end
        # Advice: what is written and synced stays so, whatever becomes of it.
        with suppress(OSError):
            self.file.drop_page_cache(start, end - start)

    def close(self) -> None:
        self._forget_until(self.end)
        self.file.close()


def _buffers_by_piece(
    buffers: Sequence[BufferView], piece_bytes: int
) -> Iterator[tuple[list[BufferView], int]]:
    """The same bytes in lists of buffers of `piece_bytes` together, each with its length; the last may be shorter."""
    piece: list[BufferView] = []
    length = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= piece_bytes - length:
            room = piece_bytes - length
            piece.append(view[:room])
            yield piece, piece_bytes
            piece, length, view = [], 0, view[room:]
        if view:
            piece.append(view)
            length += len(view)
    if piece:
        yield piece, length


def write_record(
    target: OpenVolume, header: RecordHeader, front: bytes, blob: list[bytes] | Iterator[bytes]
) -> None:
    """Append a record whose checksum is known already, unsynced; small ones in one write. Raises OSError."""
    buffers: list[BufferView] = [encode_record_header(header, target.secret) + front]
    waiting = len(buffers[0])
    for piece in blob:
        buffers.append(piece)
        waiting += len(piece)
        if waiting >= SLICE_BYTES:
            target.write_unsynced(buffers, waiting)
            buffers, waiting = [], 0
    padding = header.total_length - RECORD_HEADER_BYTES - header.body_length
    buffers.append(bytes(padding))
    target.write_unsynced(buffers, waiting + padding)


class VolumeFiles:
    """The directory of volumes."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem,
        random: Random,
        engine_id: bytes,
        cached_bytes_max: int = CACHED_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.written_now: set[int] = set()
        self._files = files
        self._random = random
        self._engine_id = engine_id
        self._cached_bytes_max = cached_bytes_max
        self._number_highest = 0
        self._passed_over: set[str] = set()

    def numbers(self) -> list[int]:
        """Of the volumes that exist, in order; new ones are numbered above the highest.

        A file that is called otherwise is none of ours: it stays as it is, and is named in the log once.
        """
        names = self._files.list(self.directory)
        found = sorted(number for number in map(_number_of, names) if number is not None)
        for name in names:
            if _number_of(name) is None and name not in self._passed_over:
                self._passed_over.add(name)
                _LOGGER.warning("no volume, passed over path=%s/%s", self.directory, name)
        if found:
            self._number_highest = max(self._number_highest, found[-1])
        return found

    def number_above(self, number: int) -> None:
        """New ones get higher numbers than this, too: an index may still say something of a volume that is gone."""
        self._number_highest = max(self._number_highest, number)

    def create(self, *, now_ms: int, sequence_first: int) -> OpenVolume:
        """A new volume with a number that was never used by this object or any volume that exists.

        `sequence_first`: every record in it is newer, or counted when that number was given.
        """
        number, file = self._new_file()
        self.written_now.add(number)
        try:
            secret = self._random.getrandbits(64)
            header = VolumeHeader(number, secret, now_ms, self._engine_id, sequence_first)
            file.write_at(0, [encode_volume_header(header)])
            file.sync_data()
            self._files.sync_directory(self.directory)
        except BaseException:
            file.close()
            self.written_now.discard(number)
            self._files.remove(self.path(number))
            raise
        return OpenVolume(
            number=number, secret=secret, file=file, cached_bytes_max=self._cached_bytes_max
        )

    def _new_file(self) -> tuple[int, File]:
        for _ in range(_NUMBER_ATTEMPTS_MAX):
            # Two threads may come to the same number: the file system decides whose it is.
            self._number_highest = number = self._number_highest + 1
            try:
                return number, self._files.open(self.path(number), create=True, exclusive=True)
            except FileExistsError:
                continue
        raise CorruptedDataError(f"no free volume number up to {self._number_highest}")

    def release(self, volume: OpenVolume) -> None:
        """It is written no more. One without records leaves no file behind."""
        volume.close()
        if volume.is_empty:
            self.remove(volume.number)
        self.written_now.discard(volume.number)

    def discard(self, volume: OpenVolume) -> None:
        """It is written no more, and no index was told of its records: it leaves no file behind."""
        volume.close()
        try:
            self.remove(volume.number)
        finally:
            # Compaction removes one that is left.
            self.written_now.discard(volume.number)

    def header(self, number: int) -> VolumeHeader | None:
        """None for a file that ends with its header or before it: a creation that was cut off, without any record.

        Raises DamagedHeaderError for a damaged one, ForeignVolumeError for one of another engine.
        """
        file = self.open(number)
        try:
            return self.header_in(file, number)
        finally:
            file.close()

    def header_in(self, file: File, number: int) -> VolumeHeader | None:
        """As `header`, of a volume that is open."""
        content = file.read_at(0, VOLUME_HEADER_BYTES + 1)
        # Zeros with something behind them are damage: the header was synced before the first record.
        if len(content) < VOLUME_HEADER_BYTES or content == bytes(VOLUME_HEADER_BYTES):
            return None
        try:
            header = decode_volume_header(content)
        except CorruptedDataError as error:
            raise DamagedHeaderError(f"volume {number}: {error}") from error
        if header.number != number:
            raise ForeignVolumeError(
                f"volume has another number name={number} header={header.number}"
            )
        if header.engine_id != self._engine_id:
            raise ForeignVolumeError(
                f"volume belongs to another store volume={number} engine={header.engine_id.hex()}"
            )
        return header

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Raises FileNotFoundError if the volume is gone."""
        file = self._files.open(self.path(number))
        try:
            return file.read_at(offset, length)
        finally:
            file.close()

    def open(self, number: int) -> File:
        """For a scan; the caller closes it."""
        return self._files.open(self.path(number))

    def open_certain(self, number: int, *, start: int = 0) -> File:
        """For the scan of a start: what it reads from `start` on is on the disk, whichever process left it there.

        The caller closes it. Raises OSError.
        """
        file = self.open(number)
        try:
            file.sync_data()
            # Pages that a failed sync gave up count as clean: they read back, and no sync writes them any more.
            file.drop_page_cache(start)
        except BaseException:
            file.close()
            raise
        return file

    def size(self, number: int) -> int:
        return self._files.size(self.path(number))

    def free_bytes(self) -> int:
        return self._files.free_bytes(self.directory)

    def cut(self, number: int, end: int) -> None:
        """Everything from `end` on is gone, durably."""
        file = self._files.open(self.path(number))
        try:
            if file.size() > end:
                file.truncate(end)
                file.sync_data()
        finally:
            file.close()

    def remove(self, number: int) -> None:
        self._files.remove(self.path(number))
        self._files.sync_directory(self.directory)

    def path(self, number: int) -> str:
        return f"{self.directory}/{_volume_name(number)}"


def _volume_name(number: int) -> str:
    return f"{_VOLUME_NAME_PREFIX}{number:06d}{_VOLUME_NAME_SUFFIX}"


def _number_of(name: str) -> int | None:
    """None for the name of another file."""
    found = _VOLUME_NAME_PATTERN.fullmatch(name)
    if found is None or _volume_name(int(found[1])) != name:
        return None
    return int(found[1])


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
    sound: bool = True
    """False: what it says is certain, but its blob is bad, in part or as a whole."""


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes that are no good record."""

    offset: int
    length: int
    why: str
    header: RecordHeader | None = field(default=None, compare=False, repr=False)
    """Of a record whose body alone is bad, or whose header has one bit that is."""
    record: ScannedRecord | None = field(default=None, compare=False, repr=False)
    """What the record says all the same, where that is proved: it counts as if nothing were bad, and reads of its bytes
    find what is."""
    unwritten: bool = field(default=True, compare=False, repr=False)
    """Something of it was never written. False: all of it was, so what is wrong came later, and it may have been
    answered."""


def _record_of(start: int, header: RecordHeader, front: bytes, inline: bytes) -> ScannedRecord:
    """Raises CorruptedDataError."""
    record = decode_index_record(memoryview(front)[header.key_length :])
    if record.sequence > header.sequence:
        raise CorruptedDataError(
            f"record contradicts its header sequence={record.sequence} header={header.sequence}"
        )
    if record.inline and len(inline) != header.blob_length:
        raise CorruptedDataError(f"an inline object is too long bytes={header.blob_length}")
    key = front[: header.key_length]
    return ScannedRecord(start, header, key, record, inline if record.inline else None)


class VolumeScan:
    """One pass over a volume of `size` bytes from `offset`, record by record and past whatever is damaged.

    Volumes only grow, so a write that a kill or a power cut tore leaves a short file, or whole sectors of zeros between
    the end of what was there and the end of the file. Bytes without either were written whole, and became bad later.

    Invariants:

    - Every record that is yielded has a good header and a good body; the blob is checked piece by piece, never held
      whole.
    - A good header with a bad body is skipped by its length and reported; a bad header is reported once, and the search
      for the next good one goes on at multiples of 8.
    - What cannot be read is reported with its extent; nothing is passed over in silence.
    - What a damaged record says is told only where a checksum proves it: that of the body, with the checksums of the
      pieces in place of a bad blob, or with one bit flipped back that makes all of it agree.
    """

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
                yield self._behind_bad_header(start, str(error))
                continue
            if start + header.total_length > self._size:
                # The header is good, so nothing was written behind this record: the end was cut off.
                self._offset = self._size
                yield DamagedStretch(start, self._size - start, "record is cut off")
                continue
            self._offset = start + header.total_length
            try:
                yield self._body(start, header)
            except CorruptedDataError as error:
                yield DamagedStretch(
                    start,
                    header.total_length,
                    str(error),
                    header,
                    self._proved(start, header),
                    self._is_unwritten(start, self._offset),
                )

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
            # No more than that: the caller may go on with a stretch.
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
        front, crc, inline = self._read_body(start, header)
        if crc != header.crc:
            raise CorruptedDataError("record fails its checksum")
        return _record_of(start, header, front, inline)

    def _read_body(self, start: int, header: RecordHeader) -> tuple[bytes, int, bytes]:
        """Key with index record, the checksum of the body, and the last piece of the blob."""
        front_length = header.key_length + header.index_record_length
        front = self._read(start + RECORD_HEADER_BYTES, front_length)
        crc = crc32_of(front, self._seed)
        inline = b""
        position, end = start + header.blob_offset, start + RECORD_HEADER_BYTES + header.body_length
        while position < end:
            piece = self._read(position, min(_SCAN_STEP_BYTES, end - position))
            if not piece:
                raise CorruptedDataError("the volume became shorter while it was read")
            crc = crc32_of(piece, crc)
            position += len(piece)
            inline = piece
        return front, crc, inline

    # --- damage ----------------------------------------------------------------------------------

    def _behind_bad_header(self, start: int, why: str) -> DamagedStretch:
        """What stands where no header is, up to the next good one; a record of which one bit of its header is bad."""
        header = record_header_without_flip(self._read(start, RECORD_HEADER_BYTES), self._secret)
        if header is not None and start + header.total_length <= self._size:
            with suppress(CorruptedDataError):
                record = self._body(start, header)
                self._offset = start + header.total_length
                return DamagedStretch(start, header.total_length, why, header, record, False)
        self._offset = self._next_header(start + ALIGNMENT)
        length = self._offset - start
        is_unwritten = length < RECORD_HEADER_BYTES or self._is_unwritten(start, self._offset)
        return DamagedStretch(start, length, why, unwritten=is_unwritten)

    def _proved(self, start: int, header: RecordHeader) -> ScannedRecord | None:
        """What a record with a good header and a bad body says, if that is certain."""
        try:
            front, crc, inline = self._read_body(start, header)
        except CorruptedDataError:
            return None
        with suppress(CorruptedDataError):
            found = _record_of(start, header, front, inline)
            if self._proves_front(header, front, found.record):
                return replace(found, sound=False)
        # Not the blob, so it is the front: where one bit makes the whole body agree, that is the one.
        bit = flipped_bit(CRC32, crc ^ header.crc, len(front), behind=header.blob_length)
        if bit is None:
            return None
        with suppress(CorruptedDataError):
            return _record_of(start, header, with_bit_flipped(front, bit), inline)
        return None

    def _proves_front(self, header: RecordHeader, front: bytes, record: IndexRecord) -> bool:
        """Whether the body would agree with its checksum if the blob were what the pieces say."""
        size, step = header.blob_length, record.piece_bytes
        if not size or step <= 0 or len(record.pieces) != -(-size // step):
            return False
        lengths = [min(step, size - offset) for offset in range(0, size, step)]
        pieces = [
            (crc32_of(front, self._seed), len(front)),
            *zip(record.pieces, lengths, strict=True),
        ]
        return joined_crc(CRC32, pieces) == header.crc

    def _is_unwritten(self, start: int, end: int) -> bool:
        """Whether all of what stands in some sector from `start` to `end` is zeros."""
        position = start
        while position < end:
            step = min(_SCAN_STEP_BYTES - position % _SECTOR_BYTES, end - position)
            content = self._read(position, step)
            if not content:
                return True
            first = -position % _SECTOR_BYTES
            bounds = [0, *range(first or _SECTOR_BYTES, len(content), _SECTOR_BYTES), len(content)]
            if any(not any(content[low:high]) for low, high in pairwise(bounds)):
                return True
            position += len(content)
        return False

    def _next_header(self, offset: int) -> int:
        """Where the next good header begins, or the end."""
        while offset < self._size:
            window = self._read(offset, _SCAN_STEP_BYTES)
            if not window:
                break
            found = window.find(MARK)
            while found >= 0:
                candidate = offset + found
                if candidate % ALIGNMENT == 0 and self._is_header(candidate):
                    return candidate
                found = window.find(MARK, found + 1)
            if len(window) < _SCAN_STEP_BYTES:
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
                offset, min(max(length, _SCAN_STEP_BYTES), self._size - offset)
            )
            self._buffer_offset, start = offset, 0
        return bytes(self._buffer[start : start + length])
