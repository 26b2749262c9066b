"""Whether any container of the store has a backup, wherever it runs: files of records that one names are not deleted.

Invariants:

- A container that runs here is asked itself. Of any other its manifest is read, in which a backup is before the one who
  asked for it hears of it.
- What cannot be read may have a backup. A container that never published a manifest has none.
"""

from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ObjectNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host.container_registry import ContainerRegistry
from tier2.manifest.snapshots import read_snapshots
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader


class KeptBackups:
    """exist() any number of times."""

    def __init__(self, *, registry: ContainerRegistry, object_store: ObjectStore) -> None:
        self._registry = registry
        self._object_store = object_store
        self._readers: dict[ContainerId, ContainerReader] = {}

    async def exist(self) -> bool:
        """True if one may be. A request to Tier 2 for each container that is elsewhere, a few if it has changed."""
        for number in range(self._registry.container_count):
            if await self._has_one(ContainerId(number)):
                return True
        return False

    async def _has_one(self, container_id: ContainerId) -> bool:
        try:
            backups = self._registry.get(container_id).backups
        except ContainerNotFoundError:
            return await self._publishes_one(container_id)
        return bool(await backups.list())

    async def _publishes_one(self, container_id: ContainerId) -> bool:
        reader = self._readers.get(container_id)
        if reader is None:
            reader = self._readers[container_id] = ContainerReader(
                object_store=self._object_store,
                container_id=container_id,
                settings=StorageSettings(),
                executor=None,
            )
        try:
            view = await reader.refresh()
        except ObjectNotFoundError:
            return False
        except SegmentStoreError:
            return True
        try:
            return bool(await read_snapshots(view))
        except SegmentStoreError:
            # Mostly an object that the owner has replaced meanwhile.
            return True
