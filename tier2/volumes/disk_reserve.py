"""A file of zeros that is given up when the disk is full (H52): one for the tombstones of deletes, another for the
copies of compaction, so that deletes cannot take the room that it takes to make room.

Invariant: it is made anew only when there is room for it twice over, so that service returns for longer than a moment.

Blocking; made for an executor.
"""

from segmentstore.runtime.files import FileSystem

_STEP = bytes(1 << 20)


class DiskReserve:
    """One per engine."""

    def __init__(self, path: str, *, files: FileSystem, size: int) -> None:
        self._path = path
        self._directory = path.rsplit("/", 1)[0]
        self._files = files
        self._size = size
        self.held = False
        self._lent = False

    @property
    def size(self) -> int:
        return self._size

    def lend(self) -> None:
        """Give it up until `take_back`: until then it is not held again. Raises OSError."""
        self._lent = True
        self.give_up()

    def take_back(self) -> None:
        """It may be held again, when there is room."""
        self._lent = False

    def hold(self) -> bool:
        """Make the file unless it is there; whether it is there now."""
        if self.held or self._lent:
            return self.held
        try:
            present = self._files.size(self._path) if self._files.exists(self._path) else 0
            if present < self._size:
                if self._files.free_bytes(self._directory) < 2 * self._size:
                    return False
                self._write()
            self.held = True
        except OSError:
            # No room, or a disk that fails: the next write will say which.
            self.give_up()
        return self.held

    def give_up(self) -> None:
        """Its bytes are free. Raises OSError."""
        self.held = False
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_directory(self._directory)

    def _write(self) -> None:
        file = self._files.open(self._path, create=True)
        try:
            for offset in range(0, self._size, len(_STEP)):
                file.write_at(offset, [_STEP[: self._size - offset]])
            file.sync_data()
        finally:
            file.close()
