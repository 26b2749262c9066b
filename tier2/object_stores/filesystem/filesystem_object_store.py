"""FilesystemObjectStore: the asynchronous face of a directory of objects.

Invariants:

- Each verb is one call in the executor that leaves nothing half done: a caller that is cancelled stops waiting, the
  call itself ends as it would have (a put may thus still happen, B4), except that bytes not yet read from the caller's
  buffers by then are never given a name.
- Bounded: at most `reads_max` and `writes_max` calls are handed to the executor at a time; one call of this store at
  a time tries for the OS lock, so calls of one process queue fairly and only processes poll.
- Every OSError becomes a StorageError here, "no space" a StorageFullError, "no such file" an ObjectNotFoundError.

start() first, close() last, after every other call has ended.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.filesystem.object_files import ObjectFiles, StoreLockedError, WriteAttempt
from tier2.object_stores.object_key import check_key, check_prefix, check_range

_Result = TypeVar("_Result")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_SUCH_OBJECT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_CREATING_VERBS = ("put", "put_if_absent")
_TOKEN_DRAWS_MAX = 8


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
        with _translated("start"):
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
            with _translated("close"):
                await self._call(self._writes, self._objects.close)

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        with _translated("put", key), _attempt() as attempt:
            await self._call(self._writes, partial(self._objects.put, key, content, attempt))

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        with _translated("put_if_absent", key), _attempt() as attempt:
            return await self._call(
                self._writes, partial(self._objects.put_if_absent, key, content, attempt)
            )

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        with _translated("put_if_match", key), _attempt() as attempt:
            return await self._under_lock(
                partial(self._objects.put_if_match, key, content, tag, attempt)
            )

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        with _translated("get", key):
            if self._objects.is_doubtful(key):
                await self._under_lock(partial(self._objects.settle, key))
            return await self._call(self._reads, partial(self._objects.read, key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        with _translated("get_range", key):
            return await self._call(
                self._reads, partial(self._objects.read_range, key, start, length)
            )

    async def size(self, key: str) -> int:
        check_key(key)
        with _translated("size", key):
            return await self._call(self._reads, partial(self._objects.size, key))

    async def delete(self, key: str) -> None:
        check_key(key)
        with _translated("delete", key):
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
        with _translated("list"):
            return await self._call(self._reads, call)

    async def _call(self, bound: asyncio.Semaphore, call: Callable[[], _Result]) -> _Result:
        async with bound:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def _under_lock(self, call: Callable[[], _Result]) -> _Result:
        settings = self._settings
        delay = settings.lock_delay_seconds_min
        async with self._lock:
            for _ in range(settings.lock_attempts_max):
                try:
                    return await self._call(self._writes, call)
                except StoreLockedError:
                    await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))
                    delay = min(delay * 2, settings.lock_delay_seconds_max)
        raise StorageError(
            f"another process holds the lock of the store attempts={settings.lock_attempts_max}"
        )


@contextmanager
def _attempt() -> Iterator[WriteAttempt]:
    attempt = WriteAttempt()
    try:
        yield attempt
    finally:
        attempt.abandoned = True


@contextmanager
def _translated(verb: str, key: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translation(error, verb, key) from error


def _translation(error: OSError, verb: str, key: str | None) -> SegmentStoreError:
    if error.errno in _NO_SPACE:
        return StorageFullError(f"no space is left verb={verb} key={key}")
    if verb in _CREATING_VERBS:
        if isinstance(error, NotADirectoryError):
            return InvalidRequestError(f"key lies below another key verb={verb} key={key}")
    elif key is not None and isinstance(error, _NO_SUCH_OBJECT):
        return ObjectNotFoundError(f"object does not exist verb={verb} key={key}")
    return StorageError(f"file system failed verb={verb} key={key} error={error}")
