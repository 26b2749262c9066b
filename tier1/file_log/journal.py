"""One journal file: made of zeros ahead of use, filled with frames, freed whole.

Invariants:
- A journal that this process writes was created by it under its epoch, wholly overwritten with zeros, synced, and its
  name synced, before the first frame goes in (H49); each later life of it is a new generation (H43).
- `position` only grows within a generation, and is a multiple of the page size.
- Entries leave MARK_PAGES pages free at the end, so that a truncation can always be recorded (H52).
"""

from contextlib import suppress
from dataclasses import dataclass

from segmentstore.runtime.files import File, FileSystem
from tier1.file_log.frames import PAGE_BYTES

MARK_PAGES = 2
"""Pages that entries never use: one for the mark of idleness, the last for the mark of a truncation."""

_ZEROS = bytes(256 << 10)
"""One write of the filler. A log of another container that is synced meanwhile waits for one of them, not for all."""


@dataclass(slots=True)
class Journal:
    """A journal file in use. `file` is None for one of an earlier epoch: it is read, then unlinked, never written."""

    path: str
    size_bytes: int
    file: File | None = None
    generation: int = 0
    position: int = 0
    first_number: int = 0
    """Frame number of the first frame that is needed."""
    last_address: int = 0
    """Highest address in it; the file may go when that is truncated."""
    unsynced: bool = False
    """A frame was written behind the last sync."""

    def begin(self, *, generation: int, first_number: int) -> None:
        """Start a new life at offset 0."""
        assert generation > self.generation, (
            f"generations only grow: {generation} after {self.generation} path={self.path!r}"
        )
        self.generation = generation
        self.first_number = first_number
        self.position = 0
        self.unsynced = False

    def close(self) -> None:
        """Idempotent."""
        if self.file is not None:
            file, self.file = self.file, None
            file.close()

    def entry_capacity(self) -> int:
        """Bytes for frames with entries in the whole file."""
        return self.size_bytes - MARK_PAGES * PAGE_BYTES

    def entry_room(self) -> int:
        """Bytes left for frames with entries."""
        return max(0, self.entry_capacity() - self.position)

    def mark_room(self, *, truncation: bool) -> bool:
        """Whether one more mark fits; the last page is for truncations alone."""
        pages = 1 if truncation else 2
        return self.position + pages * PAGE_BYTES <= self.size_bytes

    def advance(self, length: int, *, last_address: int, synced: bool) -> None:
        """A frame was written at `position`."""
        self.position += length
        assert self.position <= self.size_bytes, (
            f"frame ends behind its file position={self.position} size_bytes={self.size_bytes} path={self.path!r}"
        )
        self.last_address = last_address
        self.unsynced = not synced


class JournalFiller:
    """Makes one journal, a step at a time, so that each executor job is short. Its methods block.

    Zeros go past the system's cache: a sync that brings megabytes from there to the disk holds up the syncs of every
    log on it, and each page of the cache costs more than the write.
    """

    def __init__(self, path: str, size_bytes: int, *, step_bytes: int, files: FileSystem) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._step_bytes = step_bytes
        self._files = files
        self._file: File | None = None
        self._filled = 0

    def step(self) -> Journal | None:
        """Fill a little more; the journal once it is complete and durable, name included."""
        if self._file is None:
            self._file = self._files.open(self._path, create=True, exclusive=True)
        target = min(self._size_bytes, self._filled + self._step_bytes)
        while self._filled < target:
            length = min(len(_ZEROS), target - self._filled)
            self._file.write_past_cache(self._filled, [memoryview(_ZEROS)[:length]])
            self._filled += length
        self._file.sync_data()
        if self._filled < self._size_bytes:
            return None
        directory, _, _ = self._path.rpartition("/")
        self._files.sync_directory(directory)
        # Opened anew: what a file needs to write past the cache it keeps until it is closed.
        file = self._files.open(self._path)
        self._file.close()
        self._file = None
        return Journal(path=self._path, size_bytes=self._size_bytes, file=file)

    def close(self) -> None:
        """Leave the unfinished file where it is: the next owner removes it."""
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        """Give back what a failed step took. Idempotent."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            with suppress(FileNotFoundError):  # A new owner of the log may have been here.
                self._files.remove(self._path)
