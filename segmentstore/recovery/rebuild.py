"""Gives a data directory an identity and logs again that belong to the manifests in Tier 2.

Everything that Tier 2 holds is there afterwards; what was acknowledged and not yet flushed went with Tier 1.

Invariants:

- Epochs continue above those in the manifests, and above those in the names of objects if a manifest is older than they
  are: so the old owner, which held the lost logs, is fenced, and no key is used twice. Segment ids and sequence numbers
  continue above the highest that a manifest knows.
- A log that still belongs to its manifest is left as it is. One that does not is set aside, never deleted. It belongs
  if it has the manifest's log id, or follows the log that has it, and an epoch that is not below the manifest's: one
  that has only the id was left by a recovery that was cut off, or is an old copy, and could not claim the manifest.
- A new log has an id of its own, and follows that of the manifest: with its first claim the manifest is its own for
  good. Should the lost log turn up again (another machine, a directory that was moved away), it is refused.
- Containers that get a new log are marked before (`unfinished_work`): what their segments held last may be gone.
- A directory of another store is refused before anything is brought there (`check_target`).
- Nothing in Tier 2 is changed, but for `create_empty_manifests`: it writes a manifest where the one of a container is
  lost and a person said that the container shall begin empty. The next start of the store claims the manifests as after
  any restart.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import (
    IDENTITY_NAME,
    DataDirectory,
    DataDirectoryError,
    DirectoryIdentity,
    log_path_in,
)
from segmentstore.host.data_directory import decode_identity as decode_store_identity
from segmentstore.recovery.tier2_access import open_objects
from segmentstore.recovery.unfinished_work import mark_lost_logs
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.file_log.directory import LogDirectory, LogIdentity, decode_identity, encode_identity
from tier1.file_log.log import FileDurableDataLog
from tier2.manifest.manifest import Manifest
from tier2.offline.lost_data import begin_anew
from tier2.read.components import Components
from tier2.settings import StorageSettings

_IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What was done for one container."""

    container: int
    action: str
    """kept: its log was there; made: it has a new, empty log."""
    epoch: int
    """Of the log, after it: every start of the store goes on above."""
    set_aside: str
    """Where a log that belonged to nothing was moved; empty if there was none."""


class DataDirectoryRebuild:
    """One recovery of one data directory from the manifests of its containers."""

    def __init__(
        self,
        data_directory: Path,
        roots: Sequence[Manifest],
        *,
        highest_epochs: Mapping[int, int] | None = None,
    ) -> None:
        """`highest_epochs`: by container, where an epoch above the manifest's was seen.

        Raises InvalidRequestError if the manifests are not those of one store.
        """
        check_one_store(roots)
        self._path = data_directory.absolute()
        self._roots = roots
        self._highest_epochs = highest_epochs or {}
        self._files = SystemFileSystem()
        self._random = system_random()

    def check_target(self) -> None:
        """Raises DataDirectoryError if the directory is that of another store, DataDirectoryCorruptedError."""
        path = f"{self._path}/{IDENTITY_NAME}"
        if not self._files.exists(path):
            return
        found = decode_store_identity(self._content(path), path)
        first = self._roots[0]
        if (found.store_id, found.container_count) != (first.store_id, first.container_count):
            raise DataDirectoryError(
                "the data directory belongs to another store than the Tier 2; name an empty or a new one "
                f"store_id={found.store_id.hex()} tier2={first.store_id.hex()} path={self._path}"
            )

    async def run(self) -> list[RecoveredLog]:
        """Raises DataDirectoryInUseError, DataDirectoryError."""
        first = self._roots[0]
        directory = DataDirectory(
            str(self._path),
            files=self._files,
            executor=None,
            random=self._random,
            wall_clock=SystemWallClock(),
            process_id=os.getpid(),
        )
        await directory.hold()
        try:
            await directory.adopt(
                DirectoryIdentity(
                    store_id=first.store_id,
                    container_count=first.container_count,
                    created_ms=SystemWallClock().now_ms(),
                ),
                log_place=None,
            )
            mark_lost_logs(self._path, self._without_log(first.container_count))
            return [
                await self._recover_log(manifest, directory.log_path(manifest.container_id))
                for manifest in self._roots
            ]
        finally:
            await directory.close()

    def preview(self, begun_anew: Mapping[int, int] | None = None) -> list[RecoveredLog]:
        """What run() would do; nothing is changed.

        `begun_anew`: highest epochs of the containers without a manifest that begin anew, by id.
        """
        logs: list[RecoveredLog] = []
        for manifest in self._roots:
            path = self._log_path(manifest.container_id)
            if self._files.exists(path) and self._belongs(path, manifest):
                epoch = self._epoch_of_log(path)
                logs.append(RecoveredLog(manifest.container_id, "kept", epoch, ""))
            else:
                logs.append(self._made(manifest.container_id, self._floor(manifest)))
        for container_id, epoch in (begun_anew or {}).items():
            logs.append(self._made(container_id, epoch))
        return logs

    def _without_log(self, container_count: int) -> list[int]:
        """Those that get a new one now, and those without a manifest that will begin with one."""
        roots = {int(manifest.container_id): manifest for manifest in self._roots}
        without: list[int] = []
        for container_id in range(container_count):
            path = self._log_path(container_id)
            manifest = roots.get(container_id)
            belongs = manifest is None or self._belongs(path, manifest)
            if not self._files.exists(path) or not belongs:
                without.append(container_id)
        return without

    def _made(self, container_id: int, floor: int) -> RecoveredLog:
        path = self._log_path(container_id)
        set_aside = path if self._files.exists(path) else ""
        return RecoveredLog(container_id, "made", floor + 1, set_aside)

    def _log_path(self, container_id: int) -> str:
        return log_path_in(str(self._path), container_id)

    async def _recover_log(self, manifest: Manifest, path: str) -> RecoveredLog:
        set_aside = ""
        if self._files.exists(path):
            if self._belongs(path, manifest):
                return RecoveredLog(manifest.container_id, "kept", self._epoch_of_log(path), "")
            set_aside = f"{path}.set-aside-{random_id(self._random).hex()[:8]}"
            self._files.rename(path, set_aside)
        self._write_log_identity(
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
            epoch_floor=self._floor(manifest),
        )
        epoch = await log.initialize()
        await log.close()
        return RecoveredLog(manifest.container_id, "made", epoch, set_aside)

    def _belongs(self, path: str, manifest: Manifest) -> bool:
        identity = f"{path}/identity"
        if not self._files.exists(identity):
            return False
        found = decode_identity(self._content(identity))
        return (
            found is not None
            and manifest.log_id in (found.log_id, found.follows)
            and self._epoch_of_log(path) >= self._floor(manifest)
        )

    def _floor(self, manifest: Manifest) -> int:
        return max(manifest.epoch, self._highest_epochs.get(manifest.container_id, 0))

    def _epoch_of_log(self, path: str) -> int:
        directory = LogDirectory(path, files=self._files, random=self._random, owner="recover")
        return directory.highest_epoch()

    def _content(self, path: str) -> bytes:
        # Opened for reading alone: a dry run may have no right to write here.
        with Path(path).open("rb") as file:
            return file.read(_IDENTITY_BYTES_MAX)

    def _write_log_identity(self, path: str, identity: LogIdentity) -> None:
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


def check_one_store(roots: Sequence[Manifest]) -> None:
    """Raises InvalidRequestError."""
    first = roots[0]
    for manifest in roots:
        if (manifest.store_id, manifest.container_count) != (first.store_id, first.container_count):
            raise InvalidRequestError(
                f"the manifests in Tier 2 belong to different stores container={manifest.container_id} "
                f"store_id={manifest.store_id.hex()} other={first.store_id.hex()}"
            )


async def create_empty_manifests(
    place: str, container_ids: Sequence[int], *, of_store: Manifest
) -> list[Manifest]:
    """`place`: a bucket or a data directory; `of_store`: any sound manifest of it. Returns the new manifests, in order.

    Raises InvalidRequestError if one of them has a sound manifest, StorageError.
    """
    random = system_random()
    roots: list[Manifest] = []
    async with open_objects(place, read_only=False) as store:
        for container_id in container_ids:
            components = Components(
                object_store=store,
                container_id=ContainerId(container_id),
                settings=StorageSettings(),
                executor=None,
            )
            roots.append(
                await begin_anew(
                    components,
                    of_store=of_store,
                    nonce=random_id(random),
                    log_id=random_id(random),
                )
            )
    return roots
