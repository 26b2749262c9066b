"""What Tier 2 knows of a segment, as the host tells it to servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.host.segment_store import SegmentLayout
from segmentstore.runtime.clock import SystemWallClock
from tests.containers.node import FAST_FLUSH, ONLY_PROCESS, STORE_ID, MemoryTiers
from tier1.memory_log import MemoryDurableDataLog
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

NAME = "scope/stream/0.#epoch.0"


@asynccontextmanager
async def layout() -> AsyncIterator[tuple[SegmentLayout, StreamSegmentContainer]]:
    tiers = MemoryTiers()
    storage = TieredStorage(
        object_store=tiers.object_store,
        store_id=STORE_ID,
        container_id=ContainerId(0),
        container_count=1,
        settings=StorageSettings(),
        wall_clock=SystemWallClock(),
        random=Random(2),
        executor=None,
    )
    container = StreamSegmentContainer(
        container_id=ContainerId(0),
        log=MemoryDurableDataLog(tiers.log_store),
        storage=storage,
        cache=CacheManager(storage=CacheStorage(budget_bytes=64 << 20)),
        wall_clock=SystemWallClock(),
        random=Random(3),
        executor=None,
        settings=ContainerSettings(writer=FAST_FLUSH),
        lease=ONLY_PROCESS,
    )
    await container.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(container.run())
        yield (
            SegmentLayout(segments=container, storage_of=lambda _: storage, container_count=1),
            container,
        )
        await container.close()


def framed(count: int, length: int) -> bytes:
    return (bytes(4) + length.to_bytes(4, "big") + b"e" * length) * count


async def append(container: StreamSegmentContainer, data: bytes, events: int | None) -> None:
    async with container.open_segment(NAME) as segment:
        await segment.append(data, events=events)
    await container.flush(NAME)


async def test_chunks_of_a_segment_cover_what_is_published() -> None:
    async with layout() as (asked, container):
        await container.create(NAME)
        assert await asked.list_chunks(NAME) == []
        await append(container, b"x" * 100_000, None)
        await append(container, b"y" * 50_000, None)
        chunks = await asked.list_chunks(NAME)
        position = 0
        for chunk in chunks:
            assert chunk.start_offset == position
            assert chunk.exists
            assert 0 < chunk.storage_length < chunk.metadata_length
            position += chunk.metadata_length
        assert position == 150_000
        assert len({chunk.name for chunk in chunks}) == len(chunks)


async def test_an_event_is_known_near_every_offset_of_a_segment_of_events() -> None:
    async with layout() as (asked, container):
        await container.create(NAME)
        assert await asked.event_near(NAME, 5) is None, "nothing is published"
        await append(container, framed(1000, 92), 1000)
        await append(container, framed(1, 3_000_000), 1)
        await append(container, framed(10, 92), 10)
        large, behind, end = 100_000, 3_100_008, 3_101_008
        for offset in (0, 150, 99_999, large, large + 1, 2_000_000, behind, behind + 50):
            near = await asked.event_near(NAME, offset)
            assert near is not None
            begins = near % 100 == 0 if near <= large else (near - behind) % 100 == 0
            assert begins, near
            if near < offset and offset > large:
                assert near in (large, behind), f"whole events between {near=} and {offset=}"
        for offset in (end, end + 1000):
            assert await asked.event_near(NAME, offset) == end


@pytest.mark.parametrize("removed", [False, True])
async def test_no_event_is_known_where_tier_2_lost_it_since_the_segment_was_found(
    monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    async with layout() as (asked, container):
        await container.create(NAME)
        await append(container, framed(1000, 92), 1000)
        find = TieredStorage.find

        async def found_before(storage: TieredStorage, name: str) -> SegmentRecord | None:
            monkeypatch.setattr(TieredStorage, "find", find)
            record = await find(storage, name)
            if removed:
                await container.delete(NAME)
            else:
                await container.truncate(NAME, 50_000)
            await container.flush()
            return record

        monkeypatch.setattr(TieredStorage, "find", found_before)
        assert await asked.event_near(NAME, 150) is None


async def test_no_event_is_known_among_bytes_that_nobody_described() -> None:
    async with layout() as (asked, container):
        await container.create(NAME)
        await append(container, b"x" * 1000, None)
        assert [await asked.event_near(NAME, offset) for offset in (0, 500, 1000)] == [None] * 3


async def test_an_unknown_segment_and_a_container_that_is_elsewhere_are_told() -> None:
    def elsewhere(container_id: ContainerId) -> TieredStorage:
        raise ContainerNotFoundError(container_id)

    async with layout() as (asked, container):
        with pytest.raises(SegmentNotFoundError):
            await asked.list_chunks("scope/none/0.#epoch.0")
        await container.create(NAME)
        lost = SegmentLayout(segments=container, storage_of=elsewhere, container_count=1)
        with pytest.raises(ContainerNotFoundError):
            await lost.list_chunks(NAME)
