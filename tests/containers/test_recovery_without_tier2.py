"""A life without Tier 2 (H41) knows less than the one before it; the next one with Tier 2 makes sense of both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.identifiers import SHORT_LIVED
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import FlakyObjectStore
from tests.containers.test_segment_container import append, read_all

MIB = 1 << 20
TRANSACTION = "a#transaction." + "0" * 32
PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0),
    claim_retry_seconds=3600.0,
)
"""Nothing is flushed unless a test asks for it, and Tier 2 is not asked again."""


@asynccontextmanager
async def abandoned(
    tiers: MemoryTiers, store: FlakyObjectStore
) -> AsyncIterator[StreamSegmentContainer]:
    """A container that is never closed; its storage writer runs unless Tier 2 was down at the start."""
    container = make_container(tiers, settings=PATIENT, object_store=store)
    await container.start()
    task = asyncio.ensure_future(container._components.housekeeping.run_writer())
    try:
        yield container
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_h41_a_life_without_tier_2_takes_along_what_an_earlier_one_had_evicted() -> None:
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with abandoned(tiers, store) as container:
        await container.create("a")
        await append(container, "a", b"flushed")
        await container.create("b")
        await container.flush()
        await append(container, "b", b"pending")
        assert container._components.mapper.evict(1) == 1
        # A checkpoint without the segment: replay with Tier 2 at hand learns of the eviction there.
        await container._components.processor.checkpoint()
    store.down = True
    async with abandoned(tiers, store) as container:
        await append(container, "a", b" and more")
    store.down = False
    async with abandoned(tiers, store) as container:
        await container.flush()
        assert await read_all(container, "a") == b"flushed and more"
        assert await read_all(container, "b") == b"pending"
        container.check()


async def test_h41_the_log_may_have_let_go_of_an_eviction_that_such_a_life_undid() -> None:
    """Then nothing before the checkpoint of that life speaks of the segment: Tier 2 alone knows it."""
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with abandoned(tiers, store) as container:
        await container.create("a")
        await append(container, "a", b"flushed")
        await container.create("b")
        await container.flush()
        assert container._components.mapper.evict(1) == 1
        await container._components.processor.checkpoint()
        without_it = container._recovered.markers._points[-1]
        await append(container, "b", b"pending")
    store.down = True
    async with abandoned(tiers, store) as container:
        assert (await container.info("a")).length == 7
    store.down = False
    async with abandoned(tiers, store) as container:
        # As its storage writer does when nothing before that checkpoint is missing in Tier 2.
        address = container._recovered.markers.address_before(without_it)
        assert address is not None
        await container._recovered.log.truncate(address)
    async with abandoned(tiers, store) as container:
        assert await read_all(container, "a") == b"flushed"
        assert await read_all(container, "b") == b"pending"
        container.check()


async def test_h41_bytes_of_a_merged_source_that_only_tier_2_has_are_missed_by_nobody() -> None:
    """The source never was in Tier 2 by itself: its bytes went there as its target's, and the log let go of some."""
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with abandoned(tiers, store) as container:
        await container.create("target")
        await append(container, "target", bytes(100_000))
        await container.create("source")
        await append(container, "source", b"in the first checkpoint, ")
        await container._components.processor.checkpoint()
        await append(container, "source", b"and behind it")
        await container.seal("source")
        await container.merge("target", "source")
        await container.flush()
        while tiers.log_store.stored_bytes > 100_000:
            await asyncio.sleep(0.01)
    store.down = True
    async with abandoned(tiers, store) as container:
        container.check()
        assert container.health().unflushed_bytes == 0  # nothing of the source is taken for missing
        await append(container, "target", b"!")
    store.down = False
    async with abandoned(tiers, store) as container:
        expected = bytes(100_000) + b"in the first checkpoint, and behind it!"
        assert await read_all(container, "target") == expected


async def test_h31_bytes_that_the_log_let_go_of_are_known_to_be_in_tier_2_without_asking_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The segment was evicted before the storage checkpoint, so nothing in the log says how much of it Tier 2 has."""
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with abandoned(tiers, store) as container:
        await container.create("big")
        await append(container, "big", bytes(100_000))
        await container.create("a")
        await append(container, "a", b"in Tier 2 alone")
        await container._components.processor.checkpoint()
        await append(container, "big", b"1")
        storage_checkpoint = container._components.processor.storage_checkpoint

        def evict_first() -> "asyncio.Future[int]":
            container._components.mapper.evict(2)
            return storage_checkpoint()

        monkeypatch.setattr(container._components.processor, "storage_checkpoint", evict_first)
        await container.flush()
        while tiers.log_store.stored_bytes > 100_000:
            await asyncio.sleep(0.01)
    store.down = True
    async with abandoned(tiers, store) as container:
        container.check()
        assert (await container.info("a")).storage_length == 15
    store.down = False
    async with abandoned(tiers, store) as container:
        assert await read_all(container, "a") == b"in Tier 2 alone"


async def test_h38_what_was_truncated_takes_no_room_in_a_life_without_tier_2() -> None:
    """A short-lived segment gave back the memory of its truncated bytes; the log has all of them, more than fit."""
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with running(
        tiers, settings=PATIENT, cache_bytes=4 * MIB, object_store=store
    ) as container:
        await container.create("a", [AttributeUpdate(SHORT_LIVED, 1)])
        await append(container, "a", b"x" * 1000)
        await container.flush()
        store.down = True
        length = 0
        for number in range(12):
            length = await append(container, "a", bytes([number]) * (MIB // 2))
            await container.truncate("a", length - 1000)
            async with asyncio.timeout(60):
                while container._recovered.read_index.unflushed_bytes > MIB:
                    await asyncio.sleep(0.01)
    kept = bytes([11]) * 1000
    async with running(
        tiers, settings=PATIENT, cache_bytes=4 * MIB, object_store=store
    ) as container:
        assert container.health().storage_state == "unclaimed"
        assert await read_all(container, "a", length - 1000) == kept
        assert await append(container, "a", b"more") == length + 4
        container.check()
    store.down = False
    async with running(
        tiers, settings=PATIENT, cache_bytes=4 * MIB, object_store=store
    ) as container:
        await container.flush()
        assert await read_all(container, "a", length - 1000) == kept + b"more"
        container.check()


@pytest.mark.parametrize("verb", ["truncate", "delete"])
async def test_h41_truncations_and_deletions_make_room_in_a_life_without_tier_2(verb: str) -> None:
    tiers, store = MemoryTiers(), FlakyObjectStore()
    names = [f"s{number}" for number in range(8)]
    async with abandoned(tiers, store) as container:
        for name in names:
            await container.create(name)
    store.down = True
    async with running(
        tiers, settings=PATIENT, cache_bytes=4 * MIB, object_store=store
    ) as container:
        async with asyncio.timeout(60):
            for name in names:
                length = await append(container, name, b"x" * MIB)
                if verb == "delete":
                    await container.delete(name)
                else:
                    await container.truncate(name, length)
        container.check()
    store.down = False
    async with running(
        tiers, settings=PATIENT, cache_bytes=4 * MIB, object_store=store
    ) as container:
        await container.flush()
        listed = await container.list_segments()
        assert [each.length for each in listed] == ([] if verb == "delete" else [MIB] * 8)
        container.check()


async def test_what_stands_behind_a_merge_is_not_evicted_in_a_life_without_tier_2() -> None:
    """The merge's bytes are read through the source's, and stay where they are until Tier 2 has them."""
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with abandoned(tiers, store) as container:
        for name in ("a", TRANSACTION):
            await container.create(name)
        await append(container, "a", b"in front")
        await append(container, TRANSACTION, b"merged")
        await container.merge("a", TRANSACTION, seal_source=True)
        length = await append(container, "a", b"behind")
        await container.truncate("a", length)
    store.down = True
    async with abandoned(tiers, store) as container:
        container._recovered.cache.evict(MIB)
        container.check()
        await append(container, "a", b"more")
        assert await read_all(container, "a", length) == b"more"
    store.down = False
    async with abandoned(tiers, store) as container:
        await container.flush()
        assert await read_all(container, "a", length) == b"more"
        container.check()
