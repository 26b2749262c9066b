"""A container looks after its Tier 2: it joins what trickles in, and mends what is damaged from its cache."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectInfo
from segmentstore.runtime.clock import SystemWallClock
from tests.containers.node import ONLY_PROCESS, STORE_ID, MemoryTiers, running
from tests.containers.test_segment_container import append, read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.faulty_store import FaultyStore
from tier1.memory_log import MemoryDurableDataLog
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

CARING = StorageSettings(
    compaction_chunks_min=4,
    compaction_growth_min=2.0,
    garbage_grace_seconds=1.0,
    cold_seconds=30.0,
    scrub_bytes_per_second=1 << 20,
    scrub_pass_seconds=20.0,
)


@asynccontextmanager
async def caring(tiers: MemoryTiers, store: FaultyStore) -> AsyncIterator[StreamSegmentContainer]:
    """A container whose Tier 2 is scrubbed all the time."""
    container = StreamSegmentContainer(
        container_id=ContainerId(0),
        log=MemoryDurableDataLog(tiers.log_store),
        storage=TieredStorage(
            object_store=store,
            store_id=STORE_ID,
            container_id=ContainerId(0),
            container_count=1,
            settings=CARING,
            wall_clock=SystemWallClock(),
            random=Random(2),
            executor=None,
        ),
        cache=CacheManager(storage=CacheStorage(budget_bytes=16 << 20)),
        wall_clock=SystemWallClock(),
        random=Random(3),
        executor=None,
        settings=replace(ContainerSettings(), writer=replace(ContainerSettings().writer)),
        lease=ONLY_PROCESS,
    )
    await container.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(container.run())
        try:
            yield container
        finally:
            await container.close()


async def chunk_keys(store: FaultyStore) -> list[str]:
    return [info.key async for info in store.store.list("containers/0000/chunks/")]


def test_what_trickles_in_is_joined_while_the_container_works() -> None:
    async def main(_: SimLoop) -> None:
        tiers = MemoryTiers()
        store = FaultyStore(tiers.object_store)
        written = b""
        async with caring(tiers, store) as container:
            await container.create("a")
            for number in range(40):
                written += bytes([number]) * 500
                await append(container, "a", bytes([number]) * 500)
                await container.flush()
                await asyncio.sleep(12.0)
            await asyncio.sleep(300.0)
            metrics = container.metrics()
            assert metrics["tier2_joined_chunks_total"] >= 40
            assert metrics["tier2_joined_bytes_total"] <= 6 * len(written)
            assert metrics["tier2_scrub_passes_total"] > 5
            assert metrics["tier2_scrub_damages_total"] == 0
            assert len(await chunk_keys(store)) == 1
            assert await read_all(container, "a") == written
        async with caring(tiers, store) as container:
            assert await read_all(container, "a") == written

    run_simulation(3, main)


def test_a_damaged_chunk_is_mended_from_the_cache_before_anybody_misses_it() -> None:
    async def main(_: SimLoop) -> None:
        tiers = MemoryTiers()
        store = FaultyStore(tiers.object_store)
        async with caring(tiers, store) as container:
            await container.create("a")
            await append(container, "a", b"cached and flushed" * 100)
            await container.flush()
            (damaged,) = await chunk_keys(store)
            await store.store.delete(damaged)
            await asyncio.sleep(120.0)
            metrics = container.metrics()
            assert metrics["tier2_scrub_damages_total"] == 1
            assert metrics["tier2_scrub_repairs_total"] == 1
            assert await chunk_keys(store) != []
        async with caring(tiers, store) as container:
            assert await read_all(container, "a") == b"cached and flushed" * 100

    run_simulation(4, main)


def test_no_flush_waits_while_what_earlier_owners_left_is_looked_for() -> None:
    """Of a large store it takes long: here the listing alone takes a minute."""

    class LargeStore(MemoryObjectStore):
        async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
            if prefix.endswith("/chunks/"):
                await asyncio.sleep(60.0)
            async with aclosing(super().list(prefix)) as listing:
                async for info in listing:
                    yield info

    async def main(loop: SimLoop) -> None:
        tiers = MemoryTiers()
        tiers.object_store = LargeStore()
        async with running(tiers) as container:
            await container.create("a")
            await append(container, "a", b"first")
            await container.flush()
        left = "containers/0000/chunks/0000000000000001-ffffffff-0000000000000001"
        await tiers.object_store.put(left, [b"never published"])
        async with running(tiers) as container:
            await asyncio.sleep(11.0)
            await append(container, "a", b" second")
            began = loop.time()
            await container.flush()
            assert loop.time() - began < 5.0
            await asyncio.sleep(120.0 + 2 * StorageSettings().garbage_grace_seconds)
            keys = [info.key async for info in tiers.object_store.list("containers/0000/chunks")]
            assert keys
            assert left not in keys
        async with running(tiers) as container:
            assert await read_all(container, "a") == b"first second"

    run_simulation(5, main)
