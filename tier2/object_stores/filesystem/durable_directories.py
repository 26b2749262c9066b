"""Directories whose names are known to survive a power cut (H11).

Invariant: a directory in the known set, and every one above it up to the store's root, had its name synced by this
process. Existing is not enough: whoever made it may have died, or been refused, before the sync. Blocking; any thread.
"""

from contextlib import suppress

from segmentstore.runtime.files import FileSystem
from tier2.object_stores.filesystem.file_names import parent_of_path

_KNOWN_MAX = 16_384
"""When that many are known, all are forgotten: the price is one sync for each that is used again."""


class DurableDirectories:
    """Makes the directories below one root, durably."""

    def __init__(self, *, root: str, files: FileSystem) -> None:
        self._root = root
        self._files = files
        self._known: set[str] = set()

    def ensure(self, path: str) -> None:
        """Return when `path`, which is the root or below it, exists durably. Raises OSError."""
        if path in self._known:
            return
        if path != self._root:
            self.ensure(parent_of_path(path))
        if self._files.is_directory(path):
            self._sync_name(path)
        else:
            self._make(path)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(path)

    def forget(self, path: str) -> None:
        """Somebody removed the directory: look again next time, all the way up."""
        while path in self._known and path != self._root:
            self._known.discard(path)
            path = parent_of_path(path)

    def _make(self, path: str) -> None:
        try:
            self._files.make_directories(path)
        except FileExistsError as error:
            raise NotADirectoryError(path) from error
        except OSError:
            # After a failed sync the next one may say OK without having stored the name (H48), so the name must not
            # stay: made anew, it is written anew. A directory that is in use already does not go away.
            with suppress(OSError):
                self._files.remove_directory(path)
            raise

    def _sync_name(self, path: str) -> None:
        try:
            self._files.sync_directory(parent_of_path(path))
        except PermissionError:
            # Only above the root: that directory was made by whoever may write there.
            if path != self._root:
                raise
