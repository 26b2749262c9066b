"""Gives a data directory an identity and logs again that belong to the manifests in Tier 2.

Everything that Tier 2 holds is there afterwards; what was acknowledged and not yet flushed went with Tier 1.

Invariants:

- Epochs continue above those in the manifests, and above those in the names of objects if a manifest is older than they
  are: so the old owner, which held the lost logs, is fenced, and no key is used twice. Segment ids and sequence numbers
  continue above the highest that a manifest knows.
- A log that still belongs to its manifest is left as it is. One that does not is set aside, never deleted, or refused
  (`rebuilt_logs`). It belongs if it has the manifest's log id, or follows the log that has it, and an epoch that is not
  below the manifest's: one that has only the id was left by a recovery that was cut off, or is an old copy, and could
  not claim the manifest.
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
    decode_identity,
)
from segmentstore.recovery.rebuilt_logs import FoundLog, RebuiltLogs
from segmentstore.recovery.tier2_access import open_objects
from segmentstore.recovery.unfinished_work import mark_lost_logs
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import SystemFileSystem
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
    is_disabled: bool = False
    """One that was kept: its container does not start."""


class DataDirectoryRebuild:
    """One recovery of one data directory from the manifests of its containers."""

    def __init__(
        self,
        data_directory: Path,
        manifests: Sequence[Manifest],
        *,
        logs: RebuiltLogs,
        highest_epochs: Mapping[int, int] | None = None,
    ) -> None:
        """`highest_epochs`: by container, where an epoch above the manifest's was seen.

        Raises InvalidRequestError if the manifests are not those of one store.
        """
        check_one_store(manifests)
        self._path = data_directory.absolute()
        self._manifests = manifests
        self._logs = logs
        self._highest_epochs = highest_epochs or {}
        self._identity = DirectoryIdentity(
            store_id=manifests[0].store_id,
            container_count=manifests[0].container_count,
            created_ms=SystemWallClock().now_ms(),
        )

    async def check_target(self) -> None:
        """Raises DataDirectoryError if the directory is that of another store, DataDirectoryCorruptedError.

        And as RebuiltLogs does for its logs.
        """
        path = self._path / IDENTITY_NAME
        if path.exists():
            # Opened for reading alone: a dry run may have no right to write here.
            with path.open("rb") as file:
                found = decode_identity(file.read(_IDENTITY_BYTES_MAX), str(path))
            if (found.store_id, found.container_count) != (
                self._identity.store_id,
                self._identity.container_count,
            ):
                raise DataDirectoryError(
                    "the data directory belongs to another store than the Tier 2; name an empty or a new one "
                    f"store_id={found.store_id.hex()} tier2={self._identity.store_id.hex()} path={self._path}"
                )
        await self._logs.check(self._identity)
        for manifest in self._manifests:
            log = await self._logs.find(manifest.container_id)
            if log is not None and not self._belongs(log, manifest):
                await self._logs.require_replaceable(log)

    async def run(self) -> list[RecoveredLog]:
        """Raises DataDirectoryInUseError, DataDirectoryError, and as RebuiltLogs does."""
        directory = DataDirectory(
            str(self._path),
            files=SystemFileSystem(),
            executor=None,
            random=system_random(),
            wall_clock=SystemWallClock(),
            process_id=os.getpid(),
        )
        await directory.hold()
        try:
            await self._logs.check(self._identity)
            await directory.adopt(self._identity, log_place=self._logs.log_place)
            mark_lost_logs(self._path, await self._without_log())
            recovered = [await self._recover_log(manifest) for manifest in self._manifests]
            await self._logs.finish(self._identity)
            return recovered
        finally:
            await directory.close()

    async def preview(self, begun_anew: Mapping[int, int] | None = None) -> list[RecoveredLog]:
        """What run() would do; nothing is changed.

        `begun_anew`: highest epochs of the containers without a manifest that begin anew, by id.
        """
        logs: list[RecoveredLog] = []
        for manifest in self._manifests:
            container_id = manifest.container_id
            log = await self._logs.find(container_id)
            if log is not None and self._belongs(log, manifest):
                logs.append(_kept(container_id, log))
            else:
                logs.append(await self._made(container_id, self._floor(manifest)))
        for begun_id, epoch in (begun_anew or {}).items():
            logs.append(await self._made(begun_id, epoch))
        return logs

    async def _without_log(self) -> list[int]:
        """Those that get a new one now, and those without a manifest that will begin with one."""
        by_container = {int(manifest.container_id): manifest for manifest in self._manifests}
        without: list[int] = []
        for container_id in range(self._identity.container_count):
            log = await self._logs.find(container_id)
            manifest = by_container.get(container_id)
            if log is None or (manifest is not None and not self._belongs(log, manifest)):
                without.append(container_id)
        return without

    async def _made(self, container_id: int, floor: int) -> RecoveredLog:
        log = await self._logs.find(container_id)
        return RecoveredLog(container_id, "made", floor + 1, "" if log is None else log.place)

    async def _recover_log(self, manifest: Manifest) -> RecoveredLog:
        container_id = manifest.container_id
        log = await self._logs.find(container_id)
        if log is not None and self._belongs(log, manifest):
            return _kept(container_id, log)
        set_aside = "" if log is None else await self._logs.set_aside(log)
        epoch = await self._logs.make(manifest, floor=self._floor(manifest))
        return RecoveredLog(container_id, "made", epoch, set_aside)

    def _belongs(self, log: FoundLog, manifest: Manifest) -> bool:
        return log.belongs(manifest, floor=self._floor(manifest))

    def _floor(self, manifest: Manifest) -> int:
        return max(manifest.epoch, self._highest_epochs.get(manifest.container_id, 0))


def _kept(container_id: int, log: FoundLog) -> RecoveredLog:
    return RecoveredLog(container_id, "kept", log.epoch, "", is_disabled=log.is_disabled)


def check_one_store(manifests: Sequence[Manifest]) -> None:
    """Raises InvalidRequestError."""
    first = manifests[0]
    for manifest in manifests:
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
    manifests: list[Manifest] = []
    async with open_objects(place, read_only=False) as store:
        for container_id in container_ids:
            components = Components(
                object_store=store,
                container_id=ContainerId(container_id),
                settings=StorageSettings(),
                executor=None,
            )
            manifests.append(
                await begin_anew(
                    components,
                    of_store=of_store,
                    nonce=random_id(random),
                    log_id=random_id(random),
                )
            )
    return manifests
