"""The blocking half of the filesystem store: every verb as one call that runs to its end in an executor thread.

    <root>/lock               the store's lock: held while a name is conditionally replaced or removed
    <root>/temporary/         see temporary_files.py
    <root>/objects/<key>      one file for each object, holding exactly its bytes; names as in file_names.py

Invariants (H11):

- A file gets its name only when its bytes are synced, whole: nobody sees half an object, also not after a power cut.
- A verb returns only when the name, and every directory it lies in, is synced.
- Names are created by link(), which fails if the name exists, or replaced by rename() under the store's lock with the
  tag compared under the same lock; so one of several racing writers wins, in one process or in many.
- A sync that failed is never repeated and believed (H48): the temporary file is thrown away, and a name whose directory
  could not be synced is *doubtful* until a fresh file with the same bytes has taken its place durably. A doubtful
  object is never shown to a caller of read(), who might conclude from its bytes that they are safe. (A removal in doubt
  is left alone: at worst a power cut brings garbage back, which no root names.)

A tag is the BLAKE2b hash of the content: equal bytes have equal tags. Whoever must tell two equal contents apart puts a
nonce into them (H4). Errors are OSError and the object errors; the store translates.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.filesystem.durable_directories import DurableDirectories
from tier2.object_stores.filesystem.file_names import (
    parent_of_path,
    part_of_component,
    path_of_key,
)
from tier2.object_stores.filesystem.temporary_files import TemporaryFiles

_COMPARE_BYTES = 1 << 20
_TAG_BYTES = 16


class WriteAttempt:
    """One call's wish to write. `abandoned` is set when its caller leaves: from then on the buffers may hold other
    bytes, so a file that was still being written must not get a name."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False


class AbandonedError(Exception):
    """The caller left before its bytes were written. Nobody waits for this error."""


class StoreLockedError(Exception):
    """Another process, or another store object of this one, holds the store's lock at the moment. Nothing was done."""


class ObjectFiles:
    """The files of one store. Any thread; verbs that say "under the lock" raise StoreLockedError instead of waiting."""

    def __init__(self, *, root: str, files: FileSystem, write_bytes_max: int) -> None:
        self._files = files
        self._root = root
        self._lock_path = f"{root}/lock"
        self._objects_path = f"{root}/objects"
        self._temporary_path = f"{root}/temporary"
        self._directories = DurableDirectories(root=root, files=files)
        self._temporary = TemporaryFiles(
            directory=self._temporary_path, files=files, write_bytes_max=write_bytes_max
        )
        self._doubtful: set[str] = set()

    # --- life ------------------------------------------------------------------------------------

    def start(self, token: str) -> int:
        """Make the directories and clear away what dead stores left; returns the files removed. Under the lock."""
        self._directories.ensure(self._root)
        with _locked(self._files, self._lock_path):
            self._directories.ensure(self._objects_path)
            self._directories.ensure(self._temporary_path)
            return self._temporary.start(token)

    def close(self) -> None:
        self._temporary.close()

    # --- writing ---------------------------------------------------------------------------------

    def put(self, key: str, content: Sequence[BufferView], attempt: WriteAttempt) -> None:
        """Create an immutable object; the same bytes again are welcome (H2). Raises ObjectExistsError for others."""
        temporary = self._write(content, attempt)
        path = self._path(key)
        try:
            try:
                self._link(temporary, path)
            except FileExistsError:
                self._refuse_directory(key, path)
                if not self._same_bytes(temporary, path):
                    raise ObjectExistsError(f"the key holds other bytes key={key}") from None
                # The earlier put may have failed to sync this name. Giving it to the fresh file writes it anew.
                self._files.rename(temporary, path)
            self._sync_name(path)
        finally:
            self._temporary.remove(temporary)

    def put_if_absent(self, key: str, content: BufferView, attempt: WriteAttempt) -> str:
        """Create; returns the tag. Raises ObjectExistsError."""
        new_tag = _tag(content)
        temporary = self._write([content], attempt)
        path = self._path(key)
        try:
            try:
                self._link(temporary, path)
            except FileExistsError:
                self._refuse_directory(key, path)
                raise ObjectExistsError(f"object exists already key={key}") from None
            self._sync_name(path)
        finally:
            self._temporary.remove(temporary)
        return new_tag

    def put_if_match(self, key: str, content: BufferView, tag: str, attempt: WriteAttempt) -> str:
        """Replace the version with that tag; returns the new tag. Under the lock. Raises ObjectChangedError."""
        path = self._path(key)
        with _locked(self._files, self._lock_path):
            try:
                found = _tag(self._read_all(path))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ObjectChangedError(f"object does not exist key={key} tag={tag}") from None
            if found != tag:
                raise ObjectChangedError(f"object has another version {key=!s} {tag=!s} {found=!s}")
            new_tag = _tag(content)
            self._replace(path, content, attempt)
        return new_tag

    def delete(self, key: str) -> None:
        """Remove the object if it is there, durably. Under the lock: a racing put_if_match must not bring it back."""
        path = self._path(key)
        with _locked(self._files, self._lock_path):
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._files.remove(path)
            self._doubtful.discard(path)
        parent = parent_of_path(path)
        # Also when it was gone already: the delete before this one may not have come as far as its sync.
        if self._files.is_directory(parent):
            self._files.sync_directory(parent)

    # --- reading ---------------------------------------------------------------------------------

    def is_doubtful(self, key: str) -> bool:
        """Whether settle() must come before read()."""
        return self._path(key) in self._doubtful

    def settle(self, key: str) -> None:
        """Make what the doubtful key shows durable, under the lock."""
        path = self._path(key)
        with _locked(self._files, self._lock_path):
            if path not in self._doubtful:
                return
            try:
                content = self._read_all(path)
            except FileNotFoundError:
                self._doubtful.discard(path)
                return
            self._replace(path, content, WriteAttempt())

    def read(self, key: str) -> VersionedObject:
        """Raises FileNotFoundError and its like."""
        content = self._read_all(self._path(key))
        return VersionedObject(content=content, tag=_tag(content))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        file = self._files.open(self._path(key))
        try:
            return file.read_at(start, length)
        finally:
            file.close()

    def size(self, key: str) -> int:
        path = self._path(key)
        if self._files.is_directory(path):
            raise IsADirectoryError(path)
        return self._files.size(path)

    def names_below(self, key_directory: str) -> list[str]:
        """Keys directly below "" or "a/b/" in key order; those that are directories end in "/"."""
        path = self._objects_path
        if key_directory:
            path = self._path(key_directory[:-1])
        try:
            components = self._files.list(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = []
        for component in components:
            part = part_of_component(component)
            if part is not None:
                end = "/" if self._files.is_directory(f"{path}/{component}") else ""
                names.append(f"{key_directory}{part}{end}")
        return sorted(names)

    def sizes(self, keys: Sequence[str]) -> list[ObjectInfo]:
        """Those of the keys that still exist."""
        found = []
        for key in keys:
            try:
                found.append(ObjectInfo(key=key, size=self.size(key)))
            except FileNotFoundError:
                continue
        return found

    # --- the parts -------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return path_of_key(self._objects_path, key)

    def _link(self, temporary: str, path: str) -> None:
        parent = parent_of_path(path)
        self._directories.ensure(parent)
        try:
            self._files.link(temporary, path)
        except FileNotFoundError:
            self._directories.forget(parent)
            self._directories.ensure(parent)
            self._files.link(temporary, path)

    def _write(self, content: Sequence[BufferView], attempt: WriteAttempt) -> str:
        temporary = self._temporary.write(content)
        if attempt.abandoned:
            self._temporary.remove(temporary)
            raise AbandonedError
        return temporary

    def _replace(self, path: str, content: BufferView, attempt: WriteAttempt) -> None:
        temporary = self._write([content], attempt)
        try:
            self._files.rename(temporary, path)
            self._sync_name(path)
        finally:
            self._temporary.remove(temporary)

    def _sync_name(self, path: str) -> None:
        # Doubtful from now on, not only after a failure: a caller that was cancelled and reads back must not take what
        # it sees for safe while the sync is still under way.
        self._doubtful.add(path)
        self._files.sync_directory(parent_of_path(path))
        self._doubtful.discard(path)

    def _refuse_directory(self, key: str, path: str) -> None:
        if self._files.is_directory(path):
            raise InvalidRequestError(f"key is a path prefix of another key={key}") from None

    def _read_all(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def _same_bytes(self, left_path: str, right_path: str) -> bool:
        left = self._files.open(left_path)
        try:
            right = self._files.open(right_path)
            try:
                size = left.size()
                return size == right.size() and all(
                    left.read_at(position, _COMPARE_BYTES)
                    == right.read_at(position, _COMPARE_BYTES)
                    for position in range(0, size, _COMPARE_BYTES)
                )
            finally:
                right.close()
        finally:
            left.close()


@contextmanager
def _locked(files: FileSystem, path: str) -> Iterator[None]:
    """The store's OS lock. It goes with the open file, so none is kept open. Raises StoreLockedError."""
    file = files.open(path, create=True)
    try:
        if not file.lock_exclusive():
            raise StoreLockedError
        yield
    finally:
        file.close()


def _tag(content: BufferView) -> str:
    return hashlib.blake2b(content, digest_size=_TAG_BYTES).hexdigest()
