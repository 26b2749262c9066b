"""Rules of age and size: what they drop, and what they never touch (H76, H77)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings, ExpirySettings, RetentionRule
from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.stream_names import is_of_internal_stream
from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.identifiers import EVENT_COUNT, SegmentId
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.containers.test_rules_time import SetClock
from tests.containers.test_segment_container import append, read_all

HOUR_MS = 3_600_000


def ruled(*rules: RetentionRule, interval_seconds: float = 1e6) -> ContainerSettings:
    """Looks only when the test says so, and trusts its clock at once."""
    expiry = ExpirySettings(
        rules=rules,
        exempt=is_of_internal_stream,
        interval_seconds=interval_seconds,
        clock_settle_seconds=0.0,
    )
    return ContainerSettings(writer=FAST_FLUSH, expiry=expiry)


async def rounds(container: StreamSegmentContainer, clock: SetClock, name: str, count: int) -> None:
    """An append an hour, each flushed by itself: a chunk, and a block, each."""
    await container.create(name)
    for number in range(count):
        await append(container, name, bytes([number]) * 1000)
        await container.flush()
        clock.milliseconds += HOUR_MS
        container._components.processor.refresh_throttle()


async def start_of(container: StreamSegmentContainer, name: str) -> int:
    return (await container.info(name)).start_offset


async def test_whole_blocks_beyond_the_size_go_and_unflushed_bytes_do_not_count() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("kept/", bytes_max=10_000), RetentionRule("", bytes_max=2_500))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await rounds(container, clock, "a", 6)
        await rounds(container, clock, "kept/a", 6)
        await container._components.expiry.look()
        assert await start_of(container, "a") == 3000
        assert await start_of(container, "kept/a") == 0
        assert await read_all(container, "a", 3000) == b"".join(
            bytes([number]) * 1000 for number in (3, 4, 5)
        )
        with pytest.raises(SegmentTruncatedError):
            await read_all(container, "a", 2999)
        truncations = container._components.expiry.truncations
        await container.flush()
        await container._components.expiry.look()
        assert container._components.expiry.truncations == truncations


async def test_a_segment_to_which_nothing_was_appended_for_long_is_emptied_by_age() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", age_seconds=3 * 3600.0))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await rounds(container, clock, "a", 2)
        await container._components.expiry.look()
        assert await start_of(container, "a") == 0
        clock.milliseconds += 4 * HOUR_MS
        container._components.expiry.clock_watch.look()
        container._components.expiry.clock_watch.settle()
        await container._components.expiry.look()
        assert await start_of(container, "a") == 2000
        await append(container, "a", b"new")
        assert await read_all(container, "a", 2000) == b"new"


async def test_h77_a_clock_that_jumps_stops_rules_of_age_and_says_so() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", age_seconds=3600.0))
    settings = replace(settings, expiry=replace(settings.expiry, clock_settle_seconds=1e9))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        expiry = container._components.expiry
        while not expiry.complaint():
            await asyncio.sleep(0)
        assert "has just started" in expiry.complaint()
        await rounds(container, clock, "a", 2)
        expiry.clock_watch.settle()
        expiry.clock_watch.look()
        clock.milliseconds += 365 * 24 * HOUR_MS
        await expiry.look()
        assert "clock jumped" in expiry.complaint()
        assert await start_of(container, "a") == 0
        assert container.health().complaint == expiry.complaint()
        container.settle_clocks()
        assert expiry.complaint() == container.health().complaint == ""
        await expiry.look()
        assert await start_of(container, "a") == 2000


@pytest.mark.parametrize(
    "suffix", ["#transaction." + "0" * 32, f"#transient.{'1' * 32}.{'2' * 32}"]
)
async def test_h17_a_segment_that_is_to_be_merged_expires_only_in_its_parent(suffix: str) -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", age_seconds=3600.0, bytes_max=2_500))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await container.create("a")
        await rounds(container, clock, "a" + suffix, 6)
        await container._components.expiry.look()
        assert await start_of(container, "a" + suffix) == 0
        await container.seal("a" + suffix)
        await container.merge("a", "a" + suffix)
        await container.flush()
        assert len(await read_all(container, "a", 0)) == 6_000
        await container._components.expiry.look()
        assert await start_of(container, "a") == 3_000


async def test_h76_a_merged_event_of_unknown_time_is_as_new_as_its_segment() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("a", age_seconds=3600.0))
    counted = AttributeUpdate(EVENT_COUNT, 1, AttributeUpdateType.ACCUMULATE)
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await container.create("a")
        source = f"a#transient.{'1' * 32}.{'2' * 32}"
        await container.create(source)
        await append(container, source, b"x" * 1000)
        await container.flush()
        clock.milliseconds += 10 * HOUR_MS
        container._components.processor.refresh_throttle()
        await container.merge("a", source, attribute_updates=[counted], seal_source=True)
        await container.flush()
        await container._components.expiry.look()
        assert await start_of(container, "a") == 0
        clock.milliseconds += 2 * HOUR_MS
        await container._components.expiry.look()
        assert await start_of(container, "a") == 1000


async def test_a_reader_group_that_rests_keeps_its_state() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("shop/", age_seconds=3600.0))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        for stream in ("_RGbilling", "_MARKorders", "orders"):
            await rounds(container, clock, f"shop/{stream}/0.#epoch.0", 2)
        clock.milliseconds += 10 * HOUR_MS
        await container._components.expiry.look()
        assert await start_of(container, "shop/orders/0.#epoch.0") == 2_000
        assert await start_of(container, "shop/_RGbilling/0.#epoch.0") == 0
        assert await start_of(container, "shop/_MARKorders/0.#epoch.0") == 0


async def test_tables_never_expire_and_hold_nobody_up() -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", bytes_max=0))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await container.create_table("a-table")
        await rounds(container, clock, "b", 2)
        await container._components.expiry.look()
        assert await start_of(container, "b") == 2000
        assert await start_of(container, "a-table") == 0


async def test_expiry_is_in_the_log_and_survives_a_crash() -> None:
    clock = SetClock(HOUR_MS)
    tiers = MemoryTiers()
    settings = ruled(RetentionRule("", bytes_max=1000))
    async with running(tiers, settings=settings, wall_clock=clock) as container:
        await rounds(container, clock, "a", 4)
        await container._components.expiry.look()
    async with running(tiers, wall_clock=clock) as container:
        assert await start_of(container, "a") == 3000


async def test_h20_a_segment_created_anew_while_its_name_was_looked_at_keeps_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", bytes_max=0))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await rounds(container, clock, "a", 4)
        list_blocks = container._recovered.storage.list_blocks

        async def slowly(
            segment_id: SegmentId, start: int, end: int
        ) -> AsyncGenerator[StoredBlock, None]:
            async with aclosing(list_blocks(segment_id, start, end)) as blocks:
                async for block in blocks:
                    yield block
            await container.delete("a")
            await container.create("a")
            await append(container, "a", b"young" * 1000)

        monkeypatch.setattr(container._recovered.storage, "list_blocks", slowly)
        await container._components.expiry.look()
        assert container._components.expiry.truncations == 0
        assert await start_of(container, "a") == 0


async def test_h20_a_segment_that_left_tier_2_since_it_was_listed_holds_no_other_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SetClock(HOUR_MS)
    settings = ruled(RetentionRule("", bytes_max=1_000))
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        for name in ("a", "b", "c"):
            await rounds(container, clock, name, 4)
        list_segments = container._recovered.storage.list_segments

        async def slowly(prefix: str, start_after: str) -> AsyncGenerator[SegmentRecord, None]:
            async with aclosing(list_segments(prefix, start_after)) as records:
                async for record in records:
                    if record.name == "a":
                        await container.delete("a")
                        await container.truncate("b", 3_500)
                        await container.flush()
                    yield record

        monkeypatch.setattr(container._recovered.storage, "list_segments", slowly)
        await container._components.expiry.look()
        assert await start_of(container, "b") == 3_500
        assert await start_of(container, "c") == 3_000


async def test_a_segment_with_a_lost_chunk_holds_no_other_up() -> None:
    clock = SetClock(HOUR_MS)
    tiers = MemoryTiers()
    settings = ruled(RetentionRule("", bytes_max=1_000))
    async with running(tiers, settings=settings, wall_clock=clock) as container:
        await rounds(container, clock, "a", 4)
        for key in list(tiers.object_store._objects):
            if "/chunks/" in key:
                await tiers.object_store.delete(key)
        await rounds(container, clock, "b", 4)
        await container._components.expiry.look()
        assert await start_of(container, "a") == 0
        assert await start_of(container, "b") == 3_000
