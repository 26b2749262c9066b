"""The directory that holds one store: which store it is, how it is divided, and that one process at a time uses it.

Layout:

    lock                       locked by the process that uses the directory; holds its process id as text
    identity                   what never changes in the store, format below
    tier1/container-0003/      the log of container 3, if logs are files here
    tier1/place                where the logs are, if that is elsewhere, format below
    tier2/                     the object store, if it is on this file system

Invariants:

- The lock is taken before anything else is read or written, and held until `close` or until the process ends. A stopped
  process still holds it, so it can never wake up beside a successor. The lock file is never removed.
- `identity` appears whole or not at all: written aside, synced, renamed, directory synced. It never changes afterwards.
- The container count never changes: another one is refused.
- A directory with foreign files and no identity is refused: it is not ours, or its identity was lost. Where an identity
  is kept outside as well, with the logs, Tier 2 alone may be there: a new node over an old Tier 2.
- A directory with an identity has `tier1/place` if the logs are not here: the place is written first.

Format of `identity`, version 1: two lines of ASCII text, each ended by a newline.

    line 1   a JSON object without spaces, keys in this order:
             format_version    1
             store_id          32 hex digits, random
             container_count   1 to 1024
             created_ms        Unix time in milliseconds
    line 2   CRC32 of line 1 (its newline excluded), 8 hex digits

Format of `tier1/place`, version 1: two lines as above, with these keys:

             format_version    1
             place             as the setting tier1.kind, such as bookkeeper://127.0.0.1:2181/ledgers
             root              as the setting bookkeeper.root
"""

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import Random
from typing import TypeVar, cast

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.files import File, FileSystem, LockHeldError, SystemFile, lock_file

FORMAT_VERSION = 1
LOCK_NAME = "lock"
IDENTITY_NAME = "identity"
_LOG_PLACE_NAME = "tier1/place"
_FILE_BYTES_MAX = 4096

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


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the logs of a store are, if they are not in its data directory."""

    place: str
    """As the setting tier1.kind."""
    root: str
    """As the setting bookkeeper.root."""


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

        await self.hold()
        try:
            return await self.read_or_begin(
                container_count=container_count, default_count=default_count
            )
        except BaseException:
            await self.close()
            raise

    async def hold(self) -> None:
        """Lock the directory, whatever is in it, and look at nothing: for a caller that brings its identity or content.

        Raises DataDirectoryInUseError, DataDirectoryError; then nothing stays locked.
        """
        await self._blocking(self._take_lock)

    async def read_or_begin(
        self, *, container_count: int | None, default_count: int
    ) -> DirectoryIdentity:
        """As open(), of a directory that is held, and stays so."""
        return await self._blocking(lambda: self._read_or_create(container_count, default_count))

    async def find_identity(self) -> DirectoryIdentity | None:
        """Of a directory that is held: None if it has none yet, and nothing but a Tier 2.

        Raises DataDirectoryError, DataDirectoryCorruptedError.
        """

        def find() -> DirectoryIdentity | None:
            if self._has_identity():
                return self._read()
            self._refuse_strangers(besides=("tier2",))
            return None

        return await self._blocking(find)

    async def adopt(self, identity: DirectoryIdentity, *, log_place: LogPlace | None) -> None:
        """Give a directory that is held an identity that is known from elsewhere, unless it has that one already.

        `log_place`: None if the logs are in the directory. Raises DataDirectoryError if it has another identity,
        DataDirectoryCorruptedError.
        """

        def adopt_both() -> None:
            if self._has_identity():
                self._refuse_another(identity)
            if log_place is not None and log_place != self._log_place():
                self._write(_LOG_PLACE_NAME, encode_log_place(log_place))
            if not self._has_identity():
                self._write(IDENTITY_NAME, encode_identity(identity))

        await self._blocking(adopt_both)

    async def log_place(self) -> LogPlace | None:
        """Where the logs are; None if they are, or will be, in the directory. It need not be held for that.

        Raises DataDirectoryCorruptedError, DataDirectoryError.
        """
        return await self._blocking(self._log_place)

    async def has_tier2(self) -> bool:
        """Whether anything is where Tier 2 is if it is in the directory."""
        path = self.tier2_path
        return await self._blocking(
            lambda: self._files.is_directory(path) and bool(self._files.list(path))
        )

    async def has_logs(self) -> bool:
        """Whether there are logs in the directory."""
        path = f"{self._path}/tier1"

        def find() -> bool:
            return self._files.is_directory(path) and any(
                name.startswith("container-") for name in self._files.list(path)
            )

        return await self._blocking(find)

    @property
    def lock_descriptor(self) -> int:
        """Of a directory that is held, for processes that use it with this one: it is held until all have ended."""
        assert isinstance(self._lock, SystemFile), f"no lock of the system path={self._path}"
        return self._lock.descriptor

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

    def _refuse_another(self, identity: DirectoryIdentity) -> None:
        found = self._read()
        if (found.store_id, found.container_count) != (identity.store_id, identity.container_count):
            raise DataDirectoryError(
                "the data directory belongs to another store than what is to be used with it; name its own, or an empty"
                f" directory store_id={found.store_id.hex()} other={identity.store_id.hex()} path={self._path}"
            )

    def _has_identity(self) -> bool:
        return self._files.exists(f"{self._path}/{IDENTITY_NAME}")

    def _read(self) -> DirectoryIdentity:
        path = f"{self._path}/{IDENTITY_NAME}"
        return decode_identity(self._content(path), path)

    def _log_place(self) -> LogPlace | None:
        path = f"{self._path}/{_LOG_PLACE_NAME}"
        return decode_log_place(self._content(path), path) if self._files.exists(path) else None

    def _content(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return file.read_at(0, _FILE_BYTES_MAX)
        finally:
            file.close()

    def _refuse_strangers(self, *, besides: Sequence[str] = ()) -> None:
        strangers = [
            name
            for name in self._files.list(self._path)
            if name not in (LOCK_NAME, f"{IDENTITY_NAME}.new", "lost+found", *besides)
            and not (besides and name == "tier1" and self._has_log_place_alone())
        ]
        if strangers:
            raise DataDirectoryError(
                "the directory holds files but no store identity; name an empty or a new directory, or bring the "
                f"identity file back found={strangers[0]} path={self._path}"
            )

    def _has_log_place_alone(self) -> bool:
        """Left by a process that ended between the place of the logs and the identity."""
        return set(self._files.list(f"{self._path}/tier1")) <= {"place", "place.new"}

    def _create(self, container_count: int) -> DirectoryIdentity:
        self._refuse_strangers()
        identity = DirectoryIdentity(
            store_id=random_id(self._random),
            container_count=container_count,
            created_ms=self._wall_clock.now_ms(),
        )
        self._write(IDENTITY_NAME, encode_identity(identity))
        return identity

    def _write(self, name: str, content: bytes) -> None:
        path = PurePosixPath(self._path, name)
        self._files.make_directories(str(path.parent))
        file = self._files.open(f"{path}.new", create=True)
        try:
            file.truncate(0)
            file.write_at(0, [content])
            file.sync_data()
        finally:
            file.close()
        self._files.rename(f"{path}.new", str(path))
        self._files.sync_directory(str(path.parent))
        if path.parent != PurePosixPath(self._path):
            self._files.sync_directory(self._path)


def encode_identity(identity: DirectoryIdentity) -> bytes:
    """The content of the identity file."""
    return encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "store_id": identity.store_id.hex(),
            "container_count": identity.container_count,
            "created_ms": identity.created_ms,
        }
    )


def decode_identity(content: bytes, path: str) -> DirectoryIdentity:
    """The identity in a file's content. Raises DataDirectoryCorruptedError, DataDirectoryError (newer format)."""
    fields = decode_fields(content, what="the store identity", path=path)
    return DirectoryIdentity(
        store_id=bytes.fromhex(str(fields["store_id"])),
        container_count=int(fields["container_count"]),
        created_ms=int(fields["created_ms"]),
    )


def encode_log_place(log_place: LogPlace) -> bytes:
    """The content of `tier1/place`."""
    return encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "place": log_place.place,
            "root": log_place.root,
        }
    )


def decode_log_place(content: bytes, path: str) -> LogPlace:
    """Raises as decode_identity()."""
    fields = decode_fields(content, what="the place of the logs", path=path)
    return LogPlace(place=str(fields["place"]), root=str(fields["root"]))


def encode_fields(fields: Mapping[str, int | str]) -> bytes:
    """Two lines: the fields as JSON, and the checksum of that."""
    line = json.dumps(fields, separators=(",", ":")).encode("ascii")
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def decode_fields(content: bytes, *, what: str, path: str) -> Mapping[str, int | str]:
    """Raises DataDirectoryCorruptedError, DataDirectoryError (newer format)."""
    line, _, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(line):
        raise DataDirectoryCorruptedError(f"{what} is damaged path={path}")
    fields = json.loads(line)
    version = fields["format_version"]
    if version != FORMAT_VERSION:
        raise DataDirectoryError(
            f"{what} has a format that this program does not know: use the program that wrote it "
            f"format_version={version} known={FORMAT_VERSION} path={path}"
        )
    return cast("Mapping[str, int | str]", fields)
