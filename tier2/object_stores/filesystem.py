"""FilesystemObjectStore: objects as files below a directory, for one host whose processes may share it.

start() first, close() last, after every other call has ended. FilesystemObjectStore is the asynchronous half: it hands
each verb to an executor thread, where ObjectFiles does it as one call that runs to its end. Errors of the blocking half
are OSError and the object errors; the asynchronous half translates every OSError into a StorageError, "no space" into a
StorageFullError, "no such file" into an ObjectNotFoundError.

A tag is the BLAKE2b hash of the content: equal bytes have equal tags. A caller that must tell two
equal contents apart puts a nonce into them.

Invariants:

- Each verb is one call in the executor that leaves nothing half done: a caller that is cancelled stops waiting, the
  call itself ends as it would have (a put may thus still happen, B4), except that bytes not yet read from the caller's
  buffers by then are never given a name.
- Bounded: at most `reads_max` and `writes_max` calls are handed to the executor at a time; one call of this store at
  a time tries for the OS lock, so calls of one process queue fairly and only processes poll.
- A file gets its name only when its bytes are synced, whole: no reader sees half an object, also not after a power cut.
- A verb returns only when the name, and every directory it lies in, is synced.
- Names are created by link(), which fails if the name exists, or replaced by rename() under the store's lock with the
  tag compared under the same lock; so one of several racing writers wins, in one process or in many.
- A sync that failed is never repeated and believed: the temporary file is thrown away, and a name whose directory
  could not be synced is *doubtful* until a fresh file with the same bytes has taken its place durably. A doubtful
  object is never shown to a caller of read(), which might conclude from its bytes that they are safe. (A removal in
  doubt is left alone: at worst a power cut brings garbage back, which no manifest names.)

Files and directories:

    <directory>/lock                            the store's lock: held while a name is conditionally replaced or removed
    <directory>/objects/<key>                   one file for each object, holding exactly its bytes
    <directory>/temporary/<token>.owner         held under an exclusive OS lock as long as the store that drew the token
                                                lives
    <directory>/temporary/<token>-<number>      one temporary file of that store: being written, without a key yet

File names of keys: each part of a key is one path component; the last one is the file. A part without capitals is its
own component. A part with capitals becomes

    lower-case part, "~", hexadecimal number whose bit i says that character i was a capital

so two keys that differ in case alone differ on every disk ("~" is not in the grammar of keys, so nothing else looks
like that). A part of 200 characters makes a component of at most 251 bytes; file systems allow 255.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.files import NO_SPACE_ERRNOS, File, FileSystem, read_whole
from tier2.object_stores.object_key import check_key, check_prefix, check_range, is_part

_NO_SUCH_OBJECT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_CREATING_VERBS = ("put", "put_if_absent")
_TOKEN_DRAWS_MAX = 8
_COMPARED_BYTES_AT_ONCE = 1 << 20
_TAG_BYTES = 16
_OWNER_SUFFIX = ".owner"
_CAPITALS_MARK = "~"
_KNOWN_DIRECTORIES_MAX = 16_384
"""When that many are known, all are forgotten: the price is one sync for each that is used again."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class FilesystemObjectStoreSettings:
    """How much at once, and how long to wait for other processes."""

    reads_max: int = 16
    """Calls in the executor that read; more wait."""
    writes_max: int = 8
    """Calls in the executor that write; more wait."""
    write_bytes_max: int = 8 << 20
    """Bytes of one write call of a large put."""
    lock_attempts_max: int = 2000
    """Tries for the OS lock, about half a minute of them, before StorageError."""
    lock_delay_seconds_min: float = 0.0005
    lock_delay_seconds_max: float = 0.02
    list_page_objects: int = 1000
    """Objects whose size is looked up in one call of a listing."""


class FilesystemObjectStore:
    """An ObjectStore in a directory, for one host: its processes may share it."""

    def __init__(
        self,
        root: str,
        *,
        files: FileSystem,
        executor: Executor | None,
        random: Random,
        settings: FilesystemObjectStoreSettings | None = None,
    ) -> None:
        """`root` is an absolute path, made by start() if it is missing. `random` draws the token of this store object:
        it must differ between processes that share a root, so production passes system_random()."""
        if not root.startswith("/") or root.endswith("/"):
            raise InvalidRequestError(
                f"root is not an absolute path without a final slash root={root!r}"
            )
        self._settings = settings if settings is not None else FilesystemObjectStoreSettings()
        self._objects = ObjectFiles(
            root=root, files=files, write_bytes_max=self._settings.write_bytes_max
        )
        self._executor = executor
        self._random = random
        self._reads = asyncio.Semaphore(self._settings.reads_max)
        self._writes = asyncio.Semaphore(self._settings.writes_max)
        self._lock = asyncio.Lock()
        self._started = False

    async def start(self) -> int:
        """Make what is missing, remove temporary files of dead processes; returns their number. Raises StorageError."""
        assert not self._started, "the store was started before"
        with _os_errors_translated("start"):
            for _ in range(_TOKEN_DRAWS_MAX):
                token = self._random.randbytes(12).hex()
                try:
                    removed = await self._under_lock(partial(self._objects.start, token))
                except FileExistsError:
                    continue
                self._started = True
                return removed
        raise StorageError(f"every token drawn is taken draws={_TOKEN_DRAWS_MAX}")

    async def close(self) -> None:
        if self._started:
            self._started = False
            with _os_errors_translated("close"):
                await self._call(self._writes, self._objects.close)

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        with _os_errors_translated("put", key), _write_attempt() as attempt:
            await self._call(self._writes, partial(self._objects.put, key, content, attempt))

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        with _os_errors_translated("put_if_absent", key), _write_attempt() as attempt:
            return await self._call(
                self._writes, partial(self._objects.put_if_absent, key, content, attempt)
            )

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        with _os_errors_translated("put_if_match", key), _write_attempt() as attempt:
            return await self._under_lock(
                partial(self._objects.put_if_match, key, content, tag, attempt)
            )

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        with _os_errors_translated("get", key):
            if self._objects.is_doubtful(key):
                await self._under_lock(partial(self._objects.settle, key))
            return await self._call(self._reads, partial(self._objects.read, key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        with _os_errors_translated("get_range", key):
            return await self._call(
                self._reads, partial(self._objects.read_range, key, start, length)
            )

    async def size(self, key: str) -> int:
        check_key(key)
        with _os_errors_translated("size", key):
            return await self._call(self._reads, partial(self._objects.size, key))

    async def delete(self, key: str) -> None:
        check_key(key)
        with _os_errors_translated("delete", key):
            await self._under_lock(partial(self._objects.delete, key))

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        # Keys still to be shown, the next one last; those that end in "/" (and "" at first) are directories.
        # At most the names of the directories on one path are held.
        pending = [prefix[: prefix.rfind("/") + 1]]
        first = True
        while pending:
            page: list[str] = []
            if first or pending[-1].endswith("/"):
                first = False
                names = await self._list_call(partial(self._objects.names_below, pending.pop()))
                pending += [name for name in reversed(names) if name.startswith(prefix)]
                continue
            while pending and not pending[-1].endswith("/"):
                page.append(pending.pop())
                if len(page) == self._settings.list_page_objects:
                    break
            for info in await self._list_call(partial(self._objects.sizes, page)):
                yield info

    async def _list_call(self, call: Callable[[], _Result]) -> _Result:
        with _os_errors_translated("list"):
            return await self._call(self._reads, call)

    async def _call(self, bound: asyncio.Semaphore, call: Callable[[], _Result]) -> _Result:
        async with bound:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def _under_lock(self, call: Callable[[], _Result]) -> _Result:
        settings = self._settings
        backoff = Backoff(
            seconds_first=settings.lock_delay_seconds_min,
            seconds_max=settings.lock_delay_seconds_max,
            random=self._random,
        )
        async with self._lock:
            for _ in range(settings.lock_attempts_max):
                try:
                    return await self._call(self._writes, call)
                except StoreLockedError:
                    await asyncio.sleep(backoff.next_seconds())
        raise StorageError(
            f"another process holds the lock of the store attempts={settings.lock_attempts_max}"
        )


class WriteAttempt:
    """One call's wish to write. `abandoned` is set when its caller leaves: from then on the buffers may hold other
    bytes, so a file that was still being written must not get a name."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False


@contextmanager
def _write_attempt() -> Iterator[WriteAttempt]:
    attempt = WriteAttempt()
    try:
        yield attempt
    finally:
        attempt.abandoned = True


@contextmanager
def _os_errors_translated(verb: str, key: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _store_error(error, verb, key) from error


def _store_error(error: OSError, verb: str, key: str | None) -> SegmentStoreError:
    if error.errno in NO_SPACE_ERRNOS:
        return StorageFullError(f"no space is left verb={verb} key={key}")
    if verb in _CREATING_VERBS:
        if isinstance(error, NotADirectoryError):
            return InvalidRequestError(f"key lies below another key verb={verb} key={key}")
    elif key is not None and isinstance(error, _NO_SUCH_OBJECT):
        return ObjectNotFoundError(f"object does not exist verb={verb} key={key}")
    return StorageError(f"file system failed verb={verb} key={key} error={error}")


class AbandonedError(Exception):
    """The caller left before its bytes were written. No caller waits for this error."""


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

    # --- start and close -------------------------------------------------------------------------

    def start(self, token: str) -> int:
        """Make the directories and clear away what dead stores left; returns the files removed. Under the lock."""
        self._directories.ensure(self._root)
        with _store_locked(self._files, self._lock_path):
            self._directories.ensure(self._objects_path)
            self._directories.ensure(self._temporary_path)
            return self._temporary.start(token)

    def close(self) -> None:
        self._temporary.close()

    # --- writing ---------------------------------------------------------------------------------

    def put(self, key: str, content: Sequence[BufferView], attempt: WriteAttempt) -> None:
        """Create an immutable object; the same bytes again are welcome. Raises ObjectExistsError for others."""
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
        new_tag = _tag_of_content(content)
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
        with _store_locked(self._files, self._lock_path):
            try:
                found = _tag_of_content(read_whole(self._files, path))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ObjectChangedError(f"object does not exist key={key} tag={tag}") from None
            if found != tag:
                raise ObjectChangedError(f"object has another version {key=!s} {tag=!s} {found=!s}")
            new_tag = _tag_of_content(content)
            self._replace(path, content, attempt)
        return new_tag

    def delete(self, key: str) -> None:
        """Remove the object if it is there, durably. Under the lock: a racing put_if_match must not bring it back."""
        path = self._path(key)
        with _store_locked(self._files, self._lock_path):
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
        with _store_locked(self._files, self._lock_path):
            if path not in self._doubtful:
                return
            try:
                content = read_whole(self._files, path)
            except FileNotFoundError:
                self._doubtful.discard(path)
                return
            self._replace(path, content, WriteAttempt())

    def read(self, key: str) -> VersionedObject:
        """Raises FileNotFoundError and its like."""
        content = read_whole(self._files, self._path(key))
        return VersionedObject(content=content, tag=_tag_of_content(content))

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

    def _same_bytes(self, left_path: str, right_path: str) -> bool:
        left = self._files.open(left_path)
        try:
            right = self._files.open(right_path)
            try:
                size = left.size()
                return size == right.size() and all(
                    left.read_at(position, _COMPARED_BYTES_AT_ONCE)
                    == right.read_at(position, _COMPARED_BYTES_AT_ONCE)
                    for position in range(0, size, _COMPARED_BYTES_AT_ONCE)
                )
            finally:
                right.close()
        finally:
            left.close()


@contextmanager
def _store_locked(files: FileSystem, path: str) -> Iterator[None]:
    """The store's OS lock. It goes with the open file, so none is kept open. Raises StoreLockedError."""
    file = files.open(path, create=True)
    try:
        if not file.lock_exclusive():
            raise StoreLockedError
        yield
    finally:
        file.close()


def _tag_of_content(content: BufferView) -> str:
    return hashlib.blake2b(content, digest_size=_TAG_BYTES).hexdigest()


class TemporaryFiles:
    """Files of one store object that are being written and have no key yet; removes those whose writer is dead.

    - A temporary file is removed by its own store, or by one that got the lock of its owner file: no age rule, so a
      slow writer is never robbed, and a killed one never leaves bytes behind for longer than the next start.
    - The owner file exists and is locked before the first temporary file of its token exists. start() runs under the
      store's lock, so no other store sees an owner file between its creation and its lock.

    Blocking; write() and remove() may be called from several threads.
    """

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
                for group in _write_groups(content, self._write_bytes_max):
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


def _write_groups(content: Sequence[BufferView], bytes_max: int) -> Iterator[list[BufferView]]:
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


class DurableDirectories:
    """Directories below one root whose names are known to survive a power cut; makes those that are missing.

    A directory in the known set, and every one above it up to the root, had its name synced by this process. Existing
    is not enough: the process that made it may have died, or been refused, before the sync. Blocking; any thread.
    """

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
        if len(self._known) >= _KNOWN_DIRECTORIES_MAX:
            self._known.clear()
        self._known.add(path)

    def forget(self, path: str) -> None:
        """The directory was removed: look again next time, all the way up."""
        while path in self._known and path != self._root:
            self._known.discard(path)
            path = parent_of_path(path)

    def _make(self, path: str) -> None:
        try:
            self._files.make_directories(path)
        except FileExistsError as error:
            raise NotADirectoryError(path) from error
        except OSError:
            # After a failed sync the next one may say OK without having stored the name, so the name must not
            # stay: made anew, it is written anew. A directory that is in use already does not go away.
            with suppress(OSError):
                self._files.remove_directory(path)
            raise

    def _sync_name(self, path: str) -> None:
        try:
            self._files.sync_directory(parent_of_path(path))
        except PermissionError:
            # Only above the root: another user, who may write there, made that directory.
            if path != self._root:
                raise


def component_of_part(part: str) -> str:
    """The path component for one part of a key."""
    capitals = sum(1 << place for place, letter in enumerate(part) if letter.isupper())
    return f"{part.lower()}{_CAPITALS_MARK}{capitals:x}" if capitals else part


def part_of_component(component: str) -> str | None:
    """The part of a key for a path component; None for a name that component_of_part never makes."""
    name, mark, capitals = component.partition(_CAPITALS_MARK)
    part = name
    if mark:
        try:
            places = int(capitals, 16)
        except ValueError:
            return None
        part = "".join(
            letter.upper() if places >> place & 1 else letter for place, letter in enumerate(name)
        )
    if not is_part(part) or component_of_part(part) != component:
        return None
    return part


def path_of_key(directory: str, key: str) -> str:
    """Absolute path of the file for a valid key."""
    return "/".join([directory, *map(component_of_part, key.split("/"))])


def parent_of_path(path: str) -> str:
    """The directory that holds the name."""
    return path.rpartition("/")[0] or "/"
