"""The directory that holds one store: which store it is, how it is divided, and that one process at a time uses it.

Layout:

    lock                       locked by the process that uses the directory; holds its process id as text
    identity                   what never changes in the store, format below
    tier1/container-0003/      the log of container 3
    tier2/                     the object store, if it is on this file system

Invariants:

- The lock is taken before anything else is read or written, and held until `close` or until the process ends. A stopped
  process still holds it, so it can never wake up beside a successor. The lock file is never removed.
- `identity` appears whole or not at all: written aside, synced, renamed, directory synced. It never changes afterwards.
- The container count never changes: another one is refused.
- A directory with foreign files and no identity is refused: it is not ours, or its identity was lost.

Format of `identity`, version 1: two lines of ASCII text, each ended by a newline.

    line 1   a JSON object without spaces, keys in this order:
             format_version    1
             store_id          32 hex digits, random
             container_count   1 to 1024
             created_ms        Unix time in milliseconds
    line 2   CRC32 of line 1 (its newline excluded), 8 hex digits
"""

import asyncio
import json
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.files import File, FileSystem, LockHeldError, lock_file

FORMAT_VERSION = 1
LOCK_NAME = "lock"
IDENTITY_NAME = "identity"
_NEW_IDENTITY_NAME = "identity.new"
_IDENTITY_BYTES_MAX = 4096

_Result = TypeVar("_Result")


class DataDirectoryError(InvalidRequestError):
    """The directory cannot be used as asked; the message says what to do instead."""


class DataDirectoryInUseError(SegmentStoreError):
    """Another living process holds the directory."""

    kind = ErrorKind.CONFLICT


class DataDirectoryCorruptedError(SegmentStoreError):
    """The identity does not read back as it was written."""

    kind = ErrorKind.CORRUPT


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """What never changes in a store."""

    store_id: bytes
    container_count: int
    created_ms: int


def log_path_in(directory: str, container_id: int) -> str:
    """Where a data directory has the log of a container."""
    return f"{directory}/tier1/container-{container_id:04d}"


class DataDirectory:
    """Create, `open()` once, `close()` once. File calls run on the executor."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        executor: Executor | None,
        random: Random,
        wall_clock: WallClock,
        process_id: int,
    ) -> None:
        self._path = path
        self._files = files
        self._executor = executor
        self._random = random
        self._wall_clock = wall_clock
        self._process_id = process_id
        self._lock: File | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def tier2_path(self) -> str:
        return f"{self._path}/tier2"

    def log_path(self, container_id: int) -> str:
        """Directory of one container's log."""
        return log_path_in(self._path, container_id)

    async def open(self, *, container_count: int | None, default_count: int) -> DirectoryIdentity:
        """Lock the directory and read its identity, or give it one.

        `container_count` is what the user asked for; None takes what is there, or `default_count` for a new store.
        Raises DataDirectoryInUseError, DataDirectoryError, DataDirectoryCorruptedError; then nothing stays locked.
        """

        def locked_open() -> DirectoryIdentity:
            self._take_lock()
            try:
                return self._read_or_create(container_count, default_count)
            except BaseException:
                self._release_lock()
                raise

        return await self._blocking(locked_open)

    async def restore(self, identity: DirectoryIdentity) -> None:
        """Lock the directory and give it an identity that is known from elsewhere, unless it has that one already.

        For recovery from Tier 2 alone. Raises as `open` does; then nothing stays locked.
        """

        def locked_restore() -> None:
            self._take_lock()
            try:
                self._restore(identity)
            except BaseException:
                self._release_lock()
                raise

        await self._blocking(locked_restore)

    async def hold(self) -> None:
        """Lock the directory, whatever is in it, and look at nothing: for a recovery that brings its content.

        Raises DataDirectoryInUseError, DataDirectoryError; then nothing stays locked.
        """
        await self._blocking(self._take_lock)

    async def close(self) -> None:
        """Give the directory to the next process. Idempotent."""
        await self._blocking(self._release_lock)

    async def _blocking(self, call: Callable[[], _Result]) -> _Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except OSError as error:
            raise DataDirectoryError(
                f"the data directory cannot be used: {error.strerror} path={self._path}"
            ) from error

    def _take_lock(self) -> None:
        self._files.make_directories(self._path)
        path = f"{self._path}/{LOCK_NAME}"
        try:
            self._lock = lock_file(self._files, path, holder=str(self._process_id))
        except LockHeldError as error:
            raise DataDirectoryInUseError(
                f"the data directory is in use by another process; it keeps the directory while it lives, "
                f"also when it is stopped: end it first process_id={error.holder} path={self._path}"
            ) from error

    def _release_lock(self) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    def _read_or_create(self, container_count: int | None, default_count: int) -> DirectoryIdentity:
        if not self._has_identity():
            return self._create(container_count or default_count)
        identity = self._read()
        if container_count is not None and container_count != identity.container_count:
            raise DataDirectoryError(
                "the container count of a store is fixed when it is created, because segments are placed by it: "
                f"leave the setting out, or use another data directory container_count={identity.container_count} "
                f"given={container_count} path={self._path}"
            )
        return identity

    def _restore(self, identity: DirectoryIdentity) -> None:
        if not self._has_identity():
            self._write(identity)
            return
        found = self._read()
        if (found.store_id, found.container_count) != (identity.store_id, identity.container_count):
            raise DataDirectoryError(
                "the data directory belongs to another store than its Tier 2; use an empty one "
                f"store_id={found.store_id.hex()} tier2={identity.store_id.hex()} path={self._path}"
            )

    def _has_identity(self) -> bool:
        return self._files.exists(f"{self._path}/{IDENTITY_NAME}")

    def _read(self) -> DirectoryIdentity:
        path = f"{self._path}/{IDENTITY_NAME}"
        file = self._files.open(path)
        try:
            return decode_identity(file.read_at(0, _IDENTITY_BYTES_MAX), path)
        finally:
            file.close()

    def _create(self, container_count: int) -> DirectoryIdentity:
        strangers = [
            name
            for name in self._files.list(self._path)
            if name not in (LOCK_NAME, _NEW_IDENTITY_NAME, "lost+found")
        ]
        if strangers:
            raise DataDirectoryError(
                "the directory holds files but no store identity; name an empty or a new directory, or bring the "
                f"identity file back found={strangers[0]} path={self._path}"
            )
        identity = DirectoryIdentity(
            store_id=random_id(self._random),
            container_count=container_count,
            created_ms=self._wall_clock.now_ms(),
        )
        self._write(identity)
        return identity

    def _write(self, identity: DirectoryIdentity) -> None:
        new_path = f"{self._path}/{_NEW_IDENTITY_NAME}"
        file = self._files.open(new_path, create=True)
        try:
            file.truncate(0)
            file.write_at(0, [encode_identity(identity)])
            file.sync_data()
        finally:
            file.close()
        self._files.rename(new_path, f"{self._path}/{IDENTITY_NAME}")
        self._files.sync_directory(self._path)


def encode_identity(identity: DirectoryIdentity) -> bytes:
    """The content of the identity file."""
    line = json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "store_id": identity.store_id.hex(),
            "container_count": identity.container_count,
            "created_ms": identity.created_ms,
        },
        separators=(",", ":"),
    ).encode("ascii")
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def decode_identity(content: bytes, path: str) -> DirectoryIdentity:
    """The identity in a file's content. Raises DataDirectoryCorruptedError, DataDirectoryError (newer format)."""
    line, _, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(line):
        raise DataDirectoryCorruptedError(f"the store identity is damaged path={path}")
    fields = json.loads(line)
    version = fields["format_version"]
    if version != FORMAT_VERSION:
        raise DataDirectoryError(
            f"the data directory has a format that this program does not know: use the program that wrote it "
            f"format_version={version} known={FORMAT_VERSION} path={path}"
        )
    return DirectoryIdentity(
        store_id=bytes.fromhex(fields["store_id"]),
        container_count=fields["container_count"],
        created_ms=fields["created_ms"],
    )
