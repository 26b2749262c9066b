"""Writers wait, and only as long as they must: nothing waits for ever, nothing grows without a bound."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from containers.attributes.attribute_updates import decode_merge, merged_source_key
from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ContainerSettings
from containers.log.in_memory_log import ITEM_BYTES
from segmentstore.contracts.errors import AppendTooLargeError
from segmentstore.contracts.identifiers import SHORT_LIVED, AttributeKey, AttributeValue, SegmentId
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.containers.test_container_faults import FlakyObjectStore
from tests.containers.test_segment_container import append, read_all

MIB = 1 << 20
QUICK_RETRY = replace(FAST_FLUSH, retry_seconds_first=0.01, retry_seconds_max=0.02)
COUNTER = AttributeKey(b"counter")


async def test_h22_an_append_that_no_cache_could_hold_is_refused_and_the_largest_fits() -> None:
    async with running(MemoryTiers(), cache_bytes=1 << 20) as container:
        await container.create("a")
        largest = container._recovered.cache.append_bytes_max
        with pytest.raises(AppendTooLargeError) as refusal:
            await append(container, "a", bytes(largest + 1))
        assert refusal.value.length_max == largest
        async with asyncio.timeout(60):
            assert await append(container, "a", b"x" * largest) == largest
            assert await append(container, "a", b"y" * largest) == 2 * largest
        assert await read_all(container, "a") == b"x" * largest + b"y" * largest


async def test_h35_an_append_that_waits_for_room_is_not_passed_by_smaller_ones() -> None:
    store = FlakyObjectStore()
    settings = ContainerSettings(writer=QUICK_RETRY, housekeeping_seconds=0.01)
    async with running(
        MemoryTiers(), settings=settings, cache_bytes=1 << 20, object_store=store
    ) as container:
        for name in ("large", "small"):
            await container.create(name)
        store.down = True
        async with (
            container.open_segment("large") as large,
            container.open_segment("small") as small,
        ):
            await small.append(b"s" * 400_000)
            waiting = large.append(b"l" * 450_000)
            while not container._components.processor._admission_queue.needs_cache_room:
                await asyncio.sleep(0)
            behind = small.append(b"s")
            for _ in range(20):
                await asyncio.sleep(0)
            assert not behind.done()
            store.down = False
            async with asyncio.timeout(60):
                assert await waiting == 450_000
                assert await behind == 400_001


async def test_h52_no_more_is_accepted_ahead_of_the_log_than_its_reserve_can_take() -> None:
    pipeline = replace(ContainerSettings().processor.pipeline, queued_bytes_max=10_000)
    settings = ContainerSettings(
        writer=FAST_FLUSH, processor=replace(ContainerSettings().processor, pipeline=pipeline)
    )
    async with running(MemoryTiers(), settings=settings) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            futures = [segment.append(b"x" * 1000) for _ in range(100)]
            statistics = container._components.processor.statistics()
            assert statistics.queued_operations <= 10
            assert statistics.waiting_requests == 100 - statistics.queued_operations
            async with asyncio.timeout(60):
                assert [await future for future in futures] == [n * 1000 for n in range(1, 101)]


async def test_h34_operations_without_bytes_slow_their_writers_down_while_tier_2_is_away() -> None:
    store = FlakyObjectStore()
    settings = ContainerSettings(
        writer=QUICK_RETRY,
        housekeeping_seconds=0.01,
        throttler=replace(ContainerSettings().throttler, items_begin=50, items_stop=100),
    )
    tiers = MemoryTiers()
    async with running(tiers, settings=settings, object_store=store) as container:
        await container.create("a")
        store.down = True
        updates = [
            asyncio.ensure_future(
                container.update_attributes(
                    "a", [AttributeUpdate(COUNTER, 1, AttributeUpdateType.ACCUMULATE)]
                )
            )
            for _ in range(300)
        ]
        async with asyncio.timeout(60):
            # The storage writer has taken them from the log, and they count as before.
            while container._components.writer.statistics().pending_items < 100:
                await asyncio.sleep(0.01)
            container._components.housekeeping.refresh_writer_pressure()
            container._components.processor.refresh_throttle()
            assert container.health().throttle
            late = asyncio.ensure_future(
                container.update_attributes(
                    "a", [AttributeUpdate(COUNTER, 1, AttributeUpdateType.ACCUMULATE)]
                )
            )
            for _ in range(20):
                await asyncio.sleep(0)
            assert not late.done()
            await container.truncate("a", 0)
            store.down = False
            await asyncio.gather(*updates, late)
            await container.flush()
        assert await container.attributes("a") == {COUNTER: 301}
        container._components.writer.check()
        assert container._components.writer.statistics().pending_items == 0


async def test_h26_a_value_read_before_a_newer_one_left_memory_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        await container.update_attributes("a", [AttributeUpdate(COUNTER, 1)])
        await container.create("b")
        await append(container, "b", b"bytes")
        await container.flush()
        container._components.mapper.evict(2)
        # Set by the merge alone, without a look at what it was: no update could overtake the request.
        key = merged_source_key("b")
        storage = container._recovered.storage
        load_attributes = storage.load_attributes
        newer_is_published = asyncio.Event()
        answers = 0

        async def answer_late(
            segment_id: SegmentId, keys: Sequence[AttributeKey] | None
        ) -> Mapping[AttributeKey, AttributeValue]:
            nonlocal answers
            found = await load_attributes(segment_id, keys)
            answers += 1
            if answers == 1:
                await newer_is_published.wait()
            return found

        monkeypatch.setattr(storage, "load_attributes", answer_late)
        async with container.open_segment("a") as segment:
            table = segment.metadata.attributes
            early = asyncio.ensure_future(segment.load_attributes([key]))
            while answers < 1:
                await asyncio.sleep(0)
            assert await container.merge("a", "b", seal_source=True) == 5
            await container.flush()
            table.sweep(segment.metadata.published_sequence_number, 10)
            assert not table.is_known(key)
            newer_is_published.set()
            assert {each: decode_merge(value)[0] for each, value in (await early).items()} == {
                key: 5
            }


async def test_h34_items_of_the_log_are_charged_to_the_cache_until_they_are_published() -> None:
    store = FlakyObjectStore()
    settings = ContainerSettings(writer=QUICK_RETRY, housekeeping_seconds=0.01)
    async with running(
        MemoryTiers(), settings=settings, cache_bytes=1 << 20, object_store=store
    ) as container:
        await container.create("a")
        await container.flush()
        share = container._recovered.read_index.cache.share
        store.down = True
        tasks = [
            asyncio.ensure_future(
                container.update_attributes(
                    "a", [AttributeUpdate(COUNTER, 1, AttributeUpdateType.ACCUMULATE)]
                )
            )
            for _ in range(3000)
        ]
        async with asyncio.timeout(60):
            while not container.health().throttle:
                await asyncio.sleep(0.01)
            # A megabyte, of which throttling begins at 55 %, is less than a thousand items of 640 bytes.
            assert 800 * ITEM_BYTES < share.charged_bytes < 1100 * ITEM_BYTES + 2048 * ITEM_BYTES
            assert container._recovered.cache.statistics().charged_bytes == share.charged_bytes
            store.down = False
            await asyncio.gather(*tasks)
            await container.flush()
            while share.charged_bytes:
                await asyncio.sleep(0.01)
        assert not container.health().throttle
        assert await container.attributes("a") == {COUNTER: 3000}


async def test_what_a_short_lived_segment_truncates_makes_room_although_tier_2_is_down() -> None:
    store = FlakyObjectStore()
    settings = ContainerSettings(
        writer=replace(QUICK_RETRY, flush_interval_seconds=60, flush_bytes=64 * MIB),
        housekeeping_seconds=0.01,
    )
    tiers = MemoryTiers()
    async with running(
        tiers, settings=settings, cache_bytes=4 * MIB, object_store=store
    ) as container:
        await container.create("a", [AttributeUpdate(SHORT_LIVED, 1)])
        await container.flush()
        store.down = True
        length = 0
        for number in range(20):
            async with asyncio.timeout(60):
                length = await append(container, "a", bytes([number]) * (MIB // 2))
            await container.truncate("a", length - 1000)
            while container._recovered.read_index.unflushed_bytes > MIB:
                await asyncio.sleep(0.01)
        container.check()
        assert await read_all(container, "a", length - 1000) == bytes([19]) * 1000
        store.down = False
    async with running(
        tiers, settings=settings, cache_bytes=64 * MIB, object_store=store
    ) as container:
        assert await read_all(container, "a", length - 1000) == bytes([19]) * 1000
        await container.flush()
        container.check()
    async with running(
        tiers, settings=settings, cache_bytes=4 * MIB, object_store=store
    ) as container:
        assert await read_all(container, "a", length - 1000) == bytes([19]) * 1000


async def test_h37_a_container_whose_tier_2_is_down_leaves_another_its_part_of_the_cache() -> None:
    cache = CacheManager(storage=CacheStorage(budget_bytes=8 * MIB))
    stores = [FlakyObjectStore(), FlakyObjectStore()]
    settings = ContainerSettings(
        writer=QUICK_RETRY,
        housekeeping_seconds=0.01,
        throttler=replace(ContainerSettings().throttler, delay_seconds_max=0.001),
    )
    async with (
        running(MemoryTiers(), settings=settings, cache=cache, object_store=stores[0]) as greedy,
        running(MemoryTiers(), settings=settings, cache=cache, object_store=stores[1]) as other,
    ):
        for container, store in zip((greedy, other), stores, strict=True):
            await container.create("a")
            await container.flush()
            store.down = True
        async with greedy.open_segment("a") as segment, asyncio.timeout(60):
            appends = [segment.append(bytes(60_000)) for _ in range(200)]
            while not greedy._components.processor._admission_queue.needs_cache_room:
                await asyncio.sleep(0.01)
        part = cache.shares.guaranteed_bytes
        assert part == int(8 * MIB * 0.9) // 2 // 2
        assert greedy._recovered.read_index.unflushed_bytes > 2 * part
        async with other.open_segment("a") as segment, asyncio.timeout(60):
            occupied = 0
            while occupied < 0.6 * part - 131_072:  # neither slowed down
                await segment.append(bytes(10_000))
                occupied = other._recovered.read_index.unflushed_bytes
                assert other._components.processor.throttle.delay_seconds == 0.0
            while occupied < part - 262_144:  # nor stopped
                await segment.append(bytes(60_000))
                occupied = other._recovered.read_index.unflushed_bytes
        for store in stores:
            store.down = False
        async with asyncio.timeout(60):
            await asyncio.gather(*appends)
