"""The owner of a store's containers while its service is off, for a job that changes Tier 2.

- A container's next epoch is claimed as the service would claim it: by opening the container's log. So epochs stay one
  sequence, and a service that starts later claims a higher one and finds nothing that contradicts its log.
- The logs are held until `close()`, and whatever is in them waits for the next start of the service. What a claim that
  failed had of them is given back at once: it may be made again.
- Of a store in BookKeeper the data directory is held meanwhile: a log there is given to the process that asks last,
  so a service that starts from another machine fences the job, and a job fences a service that runs on another machine.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import InvalidRequestError, LogInUseError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host.data_directory import DataDirectoryInUseError, log_path_in
from segmentstore.host.log_cluster import (
    data_directory_at,
    find_log_place,
    log_in_cluster,
    open_cluster,
)
from segmentstore.host.store_record import log_record_path
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.bookkeeper.owned_record import is_vacant
from tier1.file_log.log import FileDurableDataLog
from tier2.settings import StorageSettings
from tier2.store_reader import StoreReader
from tier2.tiered_storage import TieredStorage

LogOfContainer: TypeAlias = Callable[[ContainerId], Awaitable[DurableDataLog]]
_PURPOSE = "compaction"


class OfflineOwner:
    """Claims containers as they are asked for. `close()` once."""

    def __init__(
        self,
        object_store: ObjectStore,
        executor: Executor | None,
        *,
        data_directory: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`data_directory`: with the logs of the store, or the place where they are."""
        self._object_store = object_store
        self._data_directory = str(data_directory.absolute())
        self._environment = environment
        self._log_of: LogOfContainer | None = None
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
        if self._log_of is None:
            self._log_of = await self._open_logs()
        log = await self._log_of(container_id)
        reader = await StoreReader(
            object_store=self._object_store, settings=StorageSettings(), executor=self._executor
        ).open(container_id)
        async with AsyncExitStack() as claim:
            claim.push_async_callback(log.close)
            try:
                epoch = await log.initialize()
            except LogInUseError as error:
                raise _in_use(error) from error
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
            self._stack.push_async_callback(claim.pop_all().aclose)
        return storage

    async def _open_logs(self) -> LogOfContainer:
        """How they are made, those that are there."""
        directory = Path(self._data_directory)
        resolved, log_place = await find_log_place(directory, environment=self._environment)
        if log_place is None:
            return self._log_in_directory
        settings = resolved.settings.bookkeeper
        async with AsyncExitStack() as opening:
            held = data_directory_at(directory)
            try:
                await held.hold()
            except DataDirectoryInUseError as error:
                raise _in_use(error) from error
            opening.push_async_callback(held.close)
            opened = await opening.enter_async_context(open_cluster(log_place, settings))
            self._stack.push_async_callback(opening.pop_all().aclose)

        async def log_in_bookkeeper(container_id: ContainerId) -> DurableDataLog:
            if is_vacant(await opened.metadata.get(log_record_path(container_id))):
                raise InvalidRequestError(
                    "the log of the container is not there, so its next epoch is not known"
                    f" container={container_id} {opened.names.facts}"
                )
            return log_in_cluster(
                opened, container_id, settings=settings, random=system_random(), purpose=_PURPOSE
            )

        return log_in_bookkeeper

    async def _log_in_directory(self, container_id: ContainerId) -> DurableDataLog:
        path = Path(log_path_in(self._data_directory, container_id))
        if not (path / "identity").exists():
            raise InvalidRequestError(
                f"the log of the container is not there, so its next epoch is not known path={path}; "
                "name the data directory of the store with --data"
            )
        return FileDurableDataLog(
            str(path),
            files=SystemFileSystem(),
            executor=self._executor,
            random=system_random(),
            owner=f"{_PURPOSE} process_id={os.getpid()}",
        )


def _in_use(error: SegmentStoreError) -> InvalidRequestError:
    return InvalidRequestError(
        f"the store runs: name it with --server, so that it can check what is proposed: {error}"
    )
