"""The logs of a store while it is rebuilt from its Tier 2: which are there, which belong to it, and new ones.

Of a store in files they are directories below DATA/tier1, of one in BookKeeper records below a root in ZooKeeper.

- A log is never deleted. One in a directory that does not belong is moved aside, durably, and so is one that a person
  takes as lost (`set_file_log_aside`); one below a root may be that of a store that runs on another machine, so it is
  refused, with the command that sets it aside.
- A new log has an id of its own, and follows that of the manifest. When `make` has returned it is durable, with an
  epoch that is not below the manifest's, so that what is cut off behind it finds that it belongs. A directory that was
  left before it had its epoch does not belong, and is empty: it is moved aside.
- The record of a store in BookKeeper is made last: without it no store opens what is not finished.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from segmentstore.contracts.errors import InvalidRequestError, LogCorruptedError
from segmentstore.host.data_directory import DirectoryIdentity, LogPlace, log_path_in
from segmentstore.host.log_cluster import OpenedCluster, find_log_place, open_cluster
from segmentstore.host.store_record import (
    find_store_record,
    log_record_path,
    require_same_store,
    restore_store_record,
)
from segmentstore.recovery.tier2_copy import held_directory
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.bookkeeper.log_record import LogRecord
from tier1.bookkeeper.owned_record import edit_record, read_record
from tier1.file_log.directory import LogDirectory, LogIdentity, decode_identity, encode_identity
from tier1.file_log.log import FileDurableDataLog
from tier2.manifest.manifest import Manifest

_IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log that is there."""

    place: str
    log_id: bytes
    """Empty: it has lost its identity."""
    follows: bytes
    epoch: int
    is_disabled: bool = False
    """No store opens it before a person has said so."""

    def belongs(self, manifest: Manifest, *, floor: int) -> bool:
        """Whether it goes on with the manifest; `floor`: the highest epoch that was seen of the container."""
        return (
            self.log_id != b""
            and manifest.log_id in (self.log_id, self.follows)
            and self.epoch >= floor
        )


class RebuiltLogs(Protocol):
    """The logs of one store."""

    @property
    def log_place(self) -> LogPlace | None:
        """Where they are; None: in the data directory."""

    async def check(self, identity: DirectoryIdentity) -> None:
        """Raises InvalidRequestError if they are those of another store. Changes nothing."""

    async def find(self, container_id: int) -> FoundLog | None: ...

    async def require_replaceable(self, found: FoundLog) -> None:
        """Raises InvalidRequestError if a log that does not belong stays where it is. Changes nothing."""

    async def set_aside(self, found: FoundLog) -> str:
        """Where it is then."""

    async def make(self, manifest: Manifest, *, floor: int) -> int:
        """A new, empty log; its epoch, which is above the floor."""

    async def finish(self, identity: DirectoryIdentity) -> None:
        """All of them are there."""


class FileLogsRebuilt:
    """In the data directory."""

    log_place = None

    def __init__(self, data_directory: Path) -> None:
        self._path = data_directory.absolute()
        self._files = SystemFileSystem()
        self._random = system_random()

    async def check(self, identity: DirectoryIdentity) -> None:
        """The directory is compared by its own identity."""

    async def find(self, container_id: int) -> FoundLog | None:
        path = self._log_path(container_id)
        if not self._files.exists(path):
            return None
        identity = _identity_in(Path(path))
        if identity is None:
            return FoundLog(path, b"", b"", 0)
        directory = LogDirectory(path, files=self._files, random=self._random, owner="recover")
        return FoundLog(
            path,
            identity.log_id,
            identity.follows,
            directory.highest_epoch(),
            is_disabled=directory.is_disabled,
        )

    async def require_replaceable(self, found: FoundLog) -> None:
        """Every one: it is set aside."""

    async def set_aside(self, found: FoundLog) -> str:
        aside = f"{found.place}.set-aside-{random_id(self._random).hex()[:8]}"
        self._files.rename(found.place, aside)
        self._files.sync_directory(str(Path(aside).parent))
        return aside

    async def make(self, manifest: Manifest, *, floor: int) -> int:
        path = self._log_path(manifest.container_id)
        self._write_identity(
            path,
            LogIdentity(
                random_id(self._random), follows=manifest.log_id, follows_changes=manifest.changes
            ),
        )
        log = FileDurableDataLog(
            path,
            files=self._files,
            executor=None,
            random=self._random,
            owner=f"recovery process_id={os.getpid()}",
            epoch_floor=floor,
        )
        epoch = await log.initialize()
        await log.close()
        return epoch

    async def finish(self, identity: DirectoryIdentity) -> None:
        """Nothing is left to do."""

    def _log_path(self, container_id: int) -> str:
        return log_path_in(str(self._path), container_id)

    def _write_identity(self, path: str, identity: LogIdentity) -> None:
        """Durable before the log is opened: a log without it would make an id of its own."""
        self._files.make_directories(path)
        file = self._files.open(f"{path}/identity", create=True, exclusive=True)
        try:
            file.write_at(0, [encode_identity(identity)])
            file.sync_data()
        finally:
            file.close()
        self._files.sync_directory(path)
        self._files.sync_directory(str(Path(path).parent))


def _identity_in(path: Path) -> LogIdentity | None:
    identity = path / "identity"
    if not identity.exists():
        return None
    # Opened for reading alone: a dry run may have no right to write here.
    with identity.open("rb") as file:
        return decode_identity(file.read(_IDENTITY_BYTES_MAX))


class BookKeeperLogsRebuilt:
    """Below a root in ZooKeeper."""

    def __init__(self, opened: OpenedCluster, log_place: LogPlace) -> None:
        self._opened = opened
        self._log_place = log_place
        self._random: Random = system_random()

    @property
    def log_place(self) -> LogPlace | None:
        return self._log_place

    async def check(self, identity: DirectoryIdentity) -> None:
        names = self._opened.names
        found = await find_store_record(self._opened.metadata, names, may_lack_record=True)
        if found is not None:
            require_same_store(found, identity, names)

    async def find(self, container_id: int) -> FoundLog | None:
        path = log_record_path(container_id)
        place = f"{self._opened.names.root}{path}"
        try:
            record = await read_record(path, metadata=self._opened.metadata)
        except LogCorruptedError:
            return FoundLog(place, b"", b"", 0)
        if record is None:
            return None
        return FoundLog(
            place, record.log_id, record.follows, record.epoch, is_disabled=bool(record.disabled)
        )

    async def require_replaceable(self, found: FoundLog) -> None:
        container_id = int(found.place.rpartition("/")[2])
        raise InvalidRequestError(
            "a log below the root in ZooKeeper does not belong to this Tier 2: name another root, or, if no store uses"
            f" the log any more, `segmentstore log set-aside {self._log_place.place} --container {container_id}`"
            f" container={container_id} log_id={found.log_id.hex()} epoch={found.epoch} {self._opened.names.facts}"
        )

    async def set_aside(self, found: FoundLog) -> str:
        await self.require_replaceable(found)
        raise AssertionError("no log below a root is replaceable")

    async def make(self, manifest: Manifest, *, floor: int) -> int:
        made = LogRecord(
            random_id(self._random),
            follows=manifest.log_id,
            follows_changes=manifest.changes,
            epoch=floor + 1,
            owner="recovery",
        )
        path = log_record_path(manifest.container_id)
        await edit_record(
            path, lambda found: made if found is None else None, metadata=self._opened.metadata
        )
        found = await self.find(manifest.container_id)
        if found is None or found.log_id != made.log_id:
            raise InvalidRequestError(
                f"another process makes logs below the root container={manifest.container_id}"
                f" {self._opened.names.facts}"
            )
        return made.epoch

    async def finish(self, identity: DirectoryIdentity) -> None:
        await restore_store_record(self._opened.metadata, self._opened.names, identity)


async def set_file_log_aside(data_directory: Path, container_id: int) -> str:
    """Also a log that belongs to the store: a person takes it as lost. Where it is then.

    Raises InvalidRequestError if there is no such log, DataDirectoryInUseError.
    """
    logs = FileLogsRebuilt(data_directory)
    if await logs.find(container_id) is None:
        raise InvalidRequestError(
            f"there is no log of that container container={container_id} path={data_directory}"
        )
    async with held_directory(data_directory):
        found = await logs.find(container_id)
        assert found is not None, f"the directory is held, its logs stay container={container_id}"
        return await logs.set_aside(found)


@asynccontextmanager
async def open_rebuilt_logs(
    data_directory: Path, *, tier1: str, environment: Mapping[str, str]
) -> AsyncIterator[RebuiltLogs]:
    """`tier1`: as the setting tier1.kind; empty: where the data directory says, or what the environment says.

    Raises SettingsError, DataDirectoryError, and as open_cluster() does.
    """
    resolved, log_place = await find_log_place(data_directory, tier1=tier1, environment=environment)
    if log_place is None:
        yield FileLogsRebuilt(data_directory)
        return
    async with open_cluster(log_place, resolved.settings.bookkeeper) as opened:
        yield BookKeeperLogsRebuilt(opened, log_place)
