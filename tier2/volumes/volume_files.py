"""The volume files of one engine: made, written by their maker, read by anybody, removed.

Invariants:

- A volume that is written was made by this object: header written and synced, then its directory, before any record.
- Reads open the file anew: a volume that compaction removes meanwhile is either read whole or not found, and whoever
  does not find it asks the index again (H8).

Blocking; made for an executor.
"""

from collections.abc import Sequence
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


class OpenVolume:
    """A volume that takes records at its end."""

    def __init__(self, *, number: int, secret: int, file: File) -> None:
        self.number = number
        self.secret = secret
        self.end = VOLUME_HEADER_BYTES
        self._file = file

    def write(self, buffers: Sequence[BufferView], length: int) -> None:
        """Append and sync; `end` moves only when that has succeeded. Raises OSError: never write it again then."""
        self._file.write_at(self.end, buffers)
        self._file.sync_data()
        self.end += length

    def write_unsynced(self, buffers: Sequence[BufferView], length: int) -> None:
        """Append; `sync` comes before anybody relies on it."""
        self._file.write_at(self.end, buffers)
        self.end += length

    def sync(self) -> None:
        self._file.sync_data()

    def close(self) -> None:
        self._file.close()


class VolumeFiles:
    """The directory of volumes."""

    def __init__(
        self, directory: str, *, files: FileSystem, random: Random, engine_id: bytes
    ) -> None:
        self._directory = directory
        self._files = files
        self._random = random
        self._engine_id = engine_id
        self._next_number = 1

    def numbers(self) -> list[int]:
        """Of the volumes that exist, in order; new ones are numbered above the highest."""
        found = sorted(
            int(name[len(_PREFIX) : -len(_SUFFIX)])
            for name in self._files.list(self._directory)
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )
        if found:
            self._next_number = max(self._next_number, found[-1] + 1)
        return found

    def create(self, *, now_ms: int, sequence_first: int) -> OpenVolume:
        """A new volume with a number that was never used by this object or any volume that exists."""
        number, self._next_number = self._next_number, self._next_number + 1
        secret = self._random.getrandbits(64)
        file = self._files.open(self.path(number), create=True, exclusive=True)
        try:
            header = VolumeHeader(number, secret, now_ms, self._engine_id, sequence_first)
            file.write_at(0, [encode_volume_header(header)])
            file.sync_data()
            self._files.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        return OpenVolume(number=number, secret=secret, file=file)

    def header(self, number: int) -> VolumeHeader | None:
        """None for a file that ends before its header: a creation that was cut off, without any record.

        Raises CorruptedDataError for a damaged one, or one of another engine.
        """
        content = self.read(number, 0, VOLUME_HEADER_BYTES)
        if len(content) < VOLUME_HEADER_BYTES or content == bytes(VOLUME_HEADER_BYTES):
            return None
        header = decode_volume_header(content)
        if header.number != number:
            raise CorruptedDataError(
                f"volume has another number name={number} header={header.number}"
            )
        if header.engine_id != self._engine_id:
            raise CorruptedDataError(
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

    def size(self, number: int) -> int:
        return self._files.size(self.path(number))

    def remove(self, number: int) -> None:
        self._files.remove(self.path(number))
        self._files.sync_directory(self._directory)

    def path(self, number: int) -> str:
        return f"{self._directory}/{_PREFIX}{number:06d}{_SUFFIX}"
