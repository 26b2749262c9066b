"""H76: what senders declare of their events reaches the block indexes of Tier 2, whatever happens on the way."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from containers.metadata.append_run import AppendRun
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import EVENT_COUNT, ContainerId
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from segmentstore.contracts.storage import StoredBlock
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.containers.test_segment_container import append, read_all
from tier2.settings import StorageSettings
from tier2.store_reader import StoreReader

MIB = 1 << 20
EVENT = b"\0\0\0\0\0\0\0\x5c" + b"e" * 92
"""A header and 92 bytes."""
PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
)
"""Nothing is flushed unless a test asks for it."""
ONE_EVENT = AttributeUpdate(EVENT_COUNT, 1, AttributeUpdateType.ACCUMULATE)


async def blocks_of(tiers: MemoryTiers, name: str, start: int = 0) -> list[StoredBlock]:
    """What a reader without the owner learns of the segment's blocks."""
    store = StoreReader(object_store=tiers.object_store, settings=StorageSettings(), executor=None)
    reader = await store.open(ContainerId(0))
    record = await reader.find(name)
    assert record is not None, f"{name} is not in Tier 2"
    async with aclosing(reader.list_blocks(record.segment_id, start, record.length)) as blocks:
        found = [block async for block in blocks]
    assert found[0].offset <= start
    assert sum(block.length for block in found) == record.length - found[0].offset
    return found


def seen(blocks: list[StoredBlock]) -> list[tuple[int, int | None, int, bool]]:
    return [
        (block.offset, block.first_event_offset, block.event_number, block.events_known)
        for block in blocks
    ]


async def append_events(container: StreamSegmentContainer, name: str, count: int) -> int:
    async with container.open_segment(name) as segment:
        ends = [segment.append(EVENT * 100, events=100) for _ in range(count // 100)]
        return (await asyncio.gather(*ends))[-1]


async def test_h76_blocks_say_where_events_begin_and_which() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await append_events(container, "a", 30_000)
        assert (await container.info("a")).core_attributes == {EVENT_COUNT: 30_000}
        await container.flush()
        blocks = await blocks_of(tiers, "a")
        assert len(blocks) > 2
        for block in blocks:
            assert block.begins_on_event
            assert block.event_number == block.offset // len(EVENT)
            assert 0 < block.lowest_time_ms <= block.highest_time_ms
        assert (await blocks_of(tiers, "a", 2 * MIB))[0].offset > 0


async def test_h76_byte_streams_say_that_nothing_is_known() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await append(container, "a", b"bytes" * 1000)
        await container.flush()
        assert seen(await blocks_of(tiers, "a")) == [(0, None, 0, False)]
        # Declared events behind them are known again, in blocks of their own.
        await append_events(container, "a", 100)
        await container.flush()
        assert seen(await blocks_of(tiers, "a")) == [(0, None, 0, False), (5000, 5000, 0, True)]


async def test_h76_a_run_is_of_one_kind() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            await asyncio.gather(
                segment.append(EVENT, events=1),
                segment.append(EVENT * 2, events=2),
                segment.append(b"bytes"),
                segment.append(b"more"),
                segment.append(EVENT, events=1),
            )
        runs = [
            (item.events, item.event_number, item.length)
            for item in container._recovered.memory_log.items()
            if isinstance(item, AppendRun)
        ]
        assert runs == [(3, 0, 300), (None, 0, 9), (1, 3, 100)]


@pytest.mark.parametrize("published_first", [False, True])
async def test_h76_an_event_of_nine_megabytes_is_one_event_though_it_came_in_pieces(
    published_first: bool,
) -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=PATIENT) as container:
        await container.create("a")
        await container.create("transient")
        await append_events(container, "a", 100)
        for _ in range(9):
            await append(container, "transient", b"p" * MIB)
        if published_first:
            await container.flush()
        await container.merge("a", "transient", seal_source=True, attribute_updates=[ONE_EVENT])
        await append_events(container, "a", 200)
        container._recovered.memory_log.wake_reader_at(
            container._recovered.metadata.committed_sequence_number
        )
        while len(
            container._recovered.memory_log
        ):  # what is published together decides where blocks end
            await asyncio.sleep(0.01)
        await container.flush()
        assert (await container.info("a")).core_attributes == {EVENT_COUNT: 301}
        blocks = await blocks_of(tiers, "a")
        large, behind = 10_000, 10_000 + 9 * MIB
        starts = [block for block in blocks if block.first_event_offset is not None]
        begun = {block.event_number: block.first_event_offset for block in starts}
        assert begun[0] == 0
        assert begun[101] == behind
        assert begun.get(100, large) == large
        assert (100 in begun) == published_first
        inside = [block for block in blocks if block.offset > large and block.length == MIB]
        assert len(inside) >= 7
        assert all(block.first_event_offset is None for block in inside)
        assert all(block.events_known is not published_first for block in inside)


@pytest.mark.parametrize("published_first", [False, True])
async def test_h76_numbers_of_merged_events_go_on_at_the_target(published_first: bool) -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        for name in ("a", "b", "c"):
            await container.create(name)
        await append_events(container, "a", 100)
        await append_events(container, "b", 200)
        await append_events(container, "c", 20_000)
        if published_first:
            await container.flush()
        await container.merge("b", "c", seal_source=True)
        await append_events(container, "b", 300)
        if published_first:
            await container.flush()
        await container.merge("a", "b", seal_source=True)
        await append_events(container, "a", 400)
        await container.flush()
        assert (await container.info("a")).core_attributes == {EVENT_COUNT: 21_000}
        blocks = await blocks_of(tiers, "a")
        for block in blocks:
            assert block.begins_on_event
            assert block.event_number == block.offset // len(EVENT)
        assert await read_all(container, "a") == EVENT * 21_000


async def test_h76_events_that_the_target_does_not_count_have_no_numbers() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await container.create("b")
        await append_events(container, "b", 100)
        await container.flush()
        uncounted = AttributeUpdate(EVENT_COUNT, 0)
        await container.merge("a", "b", seal_source=True, attribute_updates=[uncounted])
        await container.flush()
        assert seen(await blocks_of(tiers, "a")) == [(0, None, 0, False)]


async def test_h76_declared_events_come_back_from_the_log() -> None:
    tiers = MemoryTiers()
    slow = replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
    async with running(tiers, settings=ContainerSettings(writer=slow)) as container:
        await container.create("a")
        await append_events(container, "a", 100)
        await container.flush()
        await append_events(container, "a", 200)
    async with running(tiers) as container:
        assert (await container.info("a")).core_attributes == {EVENT_COUNT: 300}
        await append_events(container, "a", 100)
        await container.flush()
        for block in await blocks_of(tiers, "a"):
            assert block.begins_on_event
            assert block.event_number == block.offset // len(EVENT)


async def test_h76_truncation_keeps_the_numbers() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await append_events(container, "a", 100)
        await container.truncate("a", 10_000)
        await append_events(container, "a", 100)
        await container.flush()
        assert seen(await blocks_of(tiers, "a", 10_000))[-1][1:] == (10_000, 100, True)


async def test_events_that_do_not_fit_their_bytes_are_refused() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            for data, events in ((b"", 1), (EVENT, 0), (EVENT, -1), (EVENT, 13)):
                with pytest.raises(InvalidRequestError):
                    await segment.append(data, events=events)
            assert await segment.append(b"\0" * 8, events=1) == 8
