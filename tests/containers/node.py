"""A container over memory tiers that outlive it: what most tests of the whole container start from."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ContainerSettings
from containers.ownership import OnlyProcess
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.cluster import Lease
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock, WallClock
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

ONLY_PROCESS = OnlyProcess()
STORE_ID = b"0123456789abcdef"
FAST_FLUSH = replace(
    ContainerSettings().writer, flush_interval_seconds=0.02, prompt_age_seconds=0.01
)


class MemoryTiers:
    """What survives a container: its log and its objects."""

    def __init__(self) -> None:
        self.log_store = MemoryLogStore(log_id=b"log-id-of-tests!")
        self.object_store = MemoryObjectStore()


def make_container(
    tiers: MemoryTiers,
    *,
    settings: ContainerSettings | None = None,
    cache_bytes: int = 64 << 20,
    log: DurableDataLog | None = None,
    object_store: ObjectStore | None = None,
    wall_clock: WallClock | None = None,
    cache: CacheManager | None = None,
    seed: int = 2,
    container_id: int = 0,
    container_count: int = 1,
    lease: Lease | None = ONLY_PROCESS,
) -> StreamSegmentContainer:
    """A container that is not started. Two that may run at once, or after a crash, need a seed of their own each."""
    return StreamSegmentContainer(
        container_id=ContainerId(container_id),
        log=log or MemoryDurableDataLog(tiers.log_store),
        storage=TieredStorage(
            object_store=object_store or tiers.object_store,
            store_id=STORE_ID,
            container_id=ContainerId(container_id),
            container_count=container_count,
            settings=StorageSettings(),
            wall_clock=SystemWallClock(),
            random=Random(seed),
            executor=None,
        ),
        cache=cache or CacheManager(storage=CacheStorage(budget_bytes=cache_bytes)),
        wall_clock=wall_clock or SystemWallClock(),
        random=Random(seed + 1),
        executor=None,
        settings=settings or ContainerSettings(writer=FAST_FLUSH),
        lease=lease,
    )


@asynccontextmanager
async def running(
    tiers: MemoryTiers,
    *,
    settings: ContainerSettings | None = None,
    cache_bytes: int = 64 << 20,
    log: DurableDataLog | None = None,
    object_store: ObjectStore | None = None,
    wall_clock: WallClock | None = None,
    cache: CacheManager | None = None,
    seed: int = 2,
    lease: Lease | None = ONLY_PROCESS,
) -> AsyncIterator[StreamSegmentContainer]:
    """A running container; closed in order at the end."""
    container = make_container(
        tiers,
        settings=settings,
        cache_bytes=cache_bytes,
        log=log,
        object_store=object_store,
        wall_clock=wall_clock,
        cache=cache,
        seed=seed,
        lease=lease,
    )
    await container.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(container.run())
        try:
            yield container
        finally:
            await container.close()
