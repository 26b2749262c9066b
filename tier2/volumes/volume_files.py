"""The volume files of one engine: made, written by their maker, read by anybody, removed.

Invariants:

- A volume that is written was made by this object: header written and synced, then its directory, before any record.
- A volume that is being written is in `written_now` until its writer releases it: nobody compacts or removes it.
- Reads open the file anew: a volume that compaction removes meanwhile is either read whole or not found, and whoever
  does not find it asks the index again (H8).
- Of what an open volume has synced the system need not keep more than `cached_bytes_max` in memory: a stream of writes
  then goes on through the same pages, and pushes nobody else's out.

Blocking; made for an executor, by several of its threads at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File, FileSystem
from tier2.volumes.volume_header import (
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    decode_volume_header,
    encode_volume_header,
)

_PREFIX, _SUFFIX = "volume_", ".dat"
_NUMBER_ATTEMPTS_MAX = 100
CACHED_BYTES_MAX = 256 << 20
"""As much as the store's own cache has by default: who reads what was just flushed finds it in one of the two."""
PAST_CACHE_BYTES_MIN = 1 << 20
"""So many bytes of chunks go past the system's cache: the store's own has the newest of them anyway."""
EARLY_BYTES_MIN = 1 << 20
"""Longer groups are written in pieces, and each begins to go to the disk at once."""
_PIECE_BYTES_MIN = 512 << 10
_PIECES_MAX = 8
_FORGOTTEN_BYTES_MIN = 8 << 20
"""What is asked of the system at once."""


class ForeignVolumeError(CorruptedDataError):
    """A good volume, of another store: nothing here is touched before a person has looked."""


class DamagedHeaderError(CorruptedDataError):
    """A volume that cannot be read from end to end: what the index knows of it still can."""


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
            self.file.write_past_cache(self.end, buffers)
            self.file.sync_data()
        elif length < EARLY_BYTES_MIN:
            self.file.write_synced(self.end, buffers)
        else:
            self._write_early(buffers, max(_PIECE_BYTES_MIN, -(-length // _PIECES_MAX)))
            self.file.sync_data()
        self.end += length
        self._forget_until(self.end - self._cached_bytes_max)

    def _write_early(self, buffers: Sequence[BufferView], piece_bytes: int) -> None:
        """The disk is busy with the first pieces while the next ones are copied."""
        offset = self.end
        for piece, length in _pieces(buffers, piece_bytes):
            self.file.write_at(offset, piece)
            # Advice: the sync behind it is what counts.
            with suppress(OSError):
                self.file.start_writing(offset, length)
            offset += length

    def write_unsynced(self, buffers: Sequence[BufferView], length: int) -> None:
        """Append; `sync` comes before anybody relies on it."""
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
            self.file.forget_cached(start, end - start)

    def close(self) -> None:
        self._forget_until(self.end)
        self.file.close()


def _pieces(
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

    def numbers(self) -> list[int]:
        """Of the volumes that exist, in order; new ones are numbered above the highest."""
        found = sorted(
            int(name[len(_PREFIX) : -len(_SUFFIX)])
            for name in self._files.list(self.directory)
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )
        if found:
            self._number_highest = max(self._number_highest, found[-1])
        return found

    def number_above(self, number: int) -> None:
        """New ones get higher numbers than this, too: an index may still say something of a volume that is gone."""
        self._number_highest = max(self._number_highest, number)

    def create(self, *, now_ms: int, sequence_first: int) -> OpenVolume:
        """A new volume with a number that was never used by this object or any volume that exists.

        `sequence_first`: every record in it is newer, or counted when that number was given (H70).
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
        """For the scan of a start: what it reads from `start` on is on the disk, whoever left it there (H39, H48).

        The caller closes it. Raises OSError.
        """
        file = self.open(number)
        try:
            file.sync_data()
            # Pages that a failed sync gave up count as clean: they read back, and no sync writes them any more.
            file.forget_cached(start)
        except BaseException:
            file.close()
            raise
        return file

    def exists(self, number: int) -> bool:
        return self._files.exists(self.path(number))

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
        return f"{self.directory}/{_PREFIX}{number:06d}{_SUFFIX}"
