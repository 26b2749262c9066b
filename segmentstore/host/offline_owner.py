"""The owner of a store's containers while its service is off, for a job that changes Tier 2.

- A container's next epoch is claimed as the service would claim it: by opening the container's log. So epochs stay one
  sequence, and a service that starts later claims a higher one and finds nothing that contradicts its log.
- The logs are held until `close()`, and whatever is in them waits for the next start of the service.
"""

import os
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path

from segmentstore.contracts.errors import InvalidRequestError, LogInUseError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host.data_directory import log_path_in
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.file_log.log import FileDurableDataLog
from tier2.settings import StorageSettings
from tier2.store_reader import StoreReader
from tier2.tiered_storage import TieredStorage


class OfflineOwner:
    """Claims containers as they are asked for. `close()` once."""

    def __init__(
        self, object_store: ObjectStore, executor: Executor | None, *, data_directory: Path
    ) -> None:
        """`data_directory`: with the logs of the store."""
        self._object_store = object_store
        self._data_directory = str(data_directory.absolute())
        self._executor = executor
        self._stack = AsyncExitStack()
        self._claimed: dict[ContainerId, TieredStorage] = {}

    async def owner_of(self, container_id: ContainerId) -> TieredStorage:
        """The container's Tier 2 under an epoch of ours.

        Raises InvalidRequestError if the log is not there or in use, ObjectNotFoundError without a manifest.
        """
        if container_id not in self._claimed:
            self._claimed[container_id] = await self._claim(container_id)
        return self._claimed[container_id]

    async def close(self) -> None:
        """Let go of the logs; what was published stays. Idempotent."""
        self._claimed.clear()
        await self._stack.aclose()

    async def _claim(self, container_id: ContainerId) -> TieredStorage:
        path = Path(log_path_in(self._data_directory, container_id))
        if not (path / "identity").exists():
            raise InvalidRequestError(
                f"the log of the container is not there, so its next epoch is not known path={path}; "
                "name the data directory of the store with --data"
            )
        reader = await StoreReader(
            object_store=self._object_store, settings=StorageSettings(), executor=self._executor
        ).open(container_id)
        log = FileDurableDataLog(
            str(path),
            files=SystemFileSystem(),
            executor=self._executor,
            random=system_random(),
            owner=f"compaction process_id={os.getpid()}",
        )
        try:
            epoch = await log.initialize()
        except LogInUseError as error:
            raise InvalidRequestError(
                f"the store runs: name it with --server, so that it can check what is proposed: {error}"
            ) from error
        self._stack.push_async_callback(log.close)
        storage = TieredStorage(
            object_store=self._object_store,
            store_id=reader.manifest.store_id,
            container_id=container_id,
            container_count=reader.manifest.container_count,
            settings=StorageSettings(),
            wall_clock=SystemWallClock(),
            random=system_random(),
            executor=self._executor,
        )
        await storage.claim(epoch=epoch, log_id=log.log_id, follows=log.follows)
        return storage
