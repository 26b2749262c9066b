"""Files that are being written and have no key yet, and the removal of those whose writer is dead.

    <directory>/<token>.owner       held under an exclusive OS lock as long as the store that drew the token lives
    <directory>/<token>-<number>    one temporary file of that store

Invariants:

- A temporary file is removed by its own store, or by one that got the lock of its owner file: no age rule, so a slow
  writer is never robbed, and a killed one never leaves bytes behind for longer than the next start.
- The owner file exists and is locked before the first temporary file of its token exists. start() runs under the
  store's lock, so nobody sees an owner file between its creation and its lock.

Blocking; write() and remove() may be called from several threads.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File, FileSystem

_OWNER_SUFFIX = ".owner"


class TemporaryFiles:
    """The temporary files of one store object."""

    def __init__(self, *, directory: str, files: FileSystem, write_bytes_max: int) -> None:
        self._directory = directory
        self._files = files
        self._write_bytes_max = write_bytes_max
        self._numbers = itertools.count(1)
        self._token = ""
        self._owner: File | None = None

    def start(self, token: str) -> int:
        """Claim the token and remove what dead owners left; returns the files removed. Raises OSError.

        Does nothing if an earlier start went through after its caller had given up waiting for it.
        """
        if self._owner is not None:
            return 0
        removed = self._remove_leftovers()
        owner_path = self._path(token + _OWNER_SUFFIX)
        owner = self._files.open(owner_path, create=True, exclusive=True)
        try:
            if not owner.lock_exclusive():
                raise BlockingIOError(f"the new owner file is locked by another path={owner_path}")
        except OSError:
            owner.close()
            raise
        self._owner = owner
        self._token = token
        return removed

    def write(self, content: Sequence[BufferView]) -> str:
        """Write and sync a new file; returns its path. Nothing is left behind by a failure. Raises OSError."""
        assert self._owner is not None, "temporary files were not started"
        path = self._path(f"{self._token}-{next(self._numbers)}")
        file = self._files.open(path, create=True, exclusive=True)
        try:
            try:
                position = 0
                for group in _groups(content, self._write_bytes_max):
                    file.write_at(position, group)
                    position += sum(len(buffer) for buffer in group)
                file.sync_data()
            finally:
                file.close()
        except OSError:
            self.remove(path)
            raise
        return path

    def remove(self, path: str) -> None:
        """Remove a file if it is still there. What cannot be removed is left for the next start."""
        with suppress(OSError):
            self._files.remove(path)

    def close(self) -> None:
        """Give up the token."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.remove(self._path(self._token + _OWNER_SUFFIX))
            owner.close()

    def _remove_leftovers(self) -> int:
        names_of: dict[str, list[str]] = {}
        for name in self._files.list(self._directory):
            token = name.removesuffix(_OWNER_SUFFIX).partition("-")[0]
            names_of.setdefault(token, []).append(name)
        removed = 0
        for token, names in names_of.items():
            removed += self._remove_if_dead(token, names)
        return removed

    def _remove_if_dead(self, token: str, names: Sequence[str]) -> int:
        owner_name = token + _OWNER_SUFFIX
        try:
            owner = self._files.open(self._path(owner_name))
        except FileNotFoundError:
            owner = None
        try:
            if owner is not None and not owner.lock_exclusive():
                return 0
            for name in names:
                if name != owner_name:
                    self.remove(self._path(name))
            # Last, so that a crash in between leaves the others with an owner to find them by.
            self.remove(self._path(owner_name))
        finally:
            if owner is not None:
                owner.close()
        return len([name for name in names if name != owner_name])

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _groups(content: Sequence[BufferView], bytes_max: int) -> Iterator[list[BufferView]]:
    """Neighbouring buffers together, up to about bytes_max: a write that comes back short copies what is left of its
    group, so a group must not be the whole object."""
    group: list[BufferView] = []
    length = 0
    for buffer in content:
        for start in range(0, len(buffer), bytes_max):
            piece = (
                buffer
                if len(buffer) <= bytes_max
                else memoryview(buffer)[start : start + bytes_max]
            )
            if group and length + len(piece) > bytes_max:
                yield group
                group, length = [], 0
            group.append(piece)
            length += len(piece)
    if group:
        yield group
