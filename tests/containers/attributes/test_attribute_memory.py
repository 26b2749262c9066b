"""Extended attributes beyond the bound of memory, on a whole container."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from containers.attributes.attribute_updates import ATTRIBUTE_UPDATES_MAX
from containers.attributes.extended_attributes import AttributeMemory
from containers.container_settings import AttributeMemorySettings, ContainerSettings
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.segment_container import StreamSegmentContainer
from containers.segments import segment_queries
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.reference.loop_turns import WorkOfTurns, work_of_turns
from tier2.read import published_segments

BOUND_BYTES = 100_000
SETTINGS = ContainerSettings(
    writer=FAST_FLUSH,
    attribute_memory=AttributeMemorySettings(
        bytes_max=BOUND_BYTES, look_seconds=0.005, throttle_factor=100.0
    ),
    housekeeping_seconds=0.01,
)
WRITERS = 5_000


def writer(number: int) -> AttributeKey:
    return AttributeKey(b"writer-%09d" % number)


def held_bytes(container: StreamSegmentContainer) -> int:
    return container.container_metadata.attribute_ledger.held_bytes


async def write_as_many(container: StreamSegmentContainer, *, first: int, last: int) -> None:
    async with container.open_segment("s") as segment:
        futures = []
        for number in range(first, last):
            update = AttributeUpdate(writer(number), 1, AttributeUpdateType.REPLACE_IF_GREATER)
            futures.append(segment.append(b"x", attribute_updates=[update]))
            if len(futures) == 200:
                await asyncio.gather(*futures)
                futures.clear()
        await asyncio.gather(*futures)


async def settled(container: StreamSegmentContainer) -> None:
    """Everything is published, and the hand has been round."""
    await container.flush()
    while held_bytes(container) > BOUND_BYTES:
        await asyncio.sleep(0.005)


async def test_h26_thousands_of_writers_fit_a_small_bound_with_right_answers() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=SETTINGS) as container:
        await container.create("s")
        await write_as_many(container, first=0, last=WRITERS)
        await settled(container)
        async with container.open_segment("s") as segment:
            keys = [writer(number) for number in range(WRITERS)]
            assert await segment.load_attributes(keys) == dict.fromkeys(keys, 1)
            assert await segment.load_attributes([writer(WRITERS)]) == {}
        container.check()
    async with running(tiers, settings=SETTINGS) as container:
        assert held_bytes(container) == 0  # not even what the log still has comes back
        async with container.open_segment("s") as segment:
            assert await segment.load_attributes([writer(1), writer(WRITERS)]) == {writer(1): 1}
            # A duplicate of an event of a writer that has left memory is found out.
            update = AttributeUpdate(writer(7), 1, AttributeUpdateType.REPLACE_IF_GREATER)
            duplicate = segment.append(b"again", attribute_updates=[update])
            results = await asyncio.gather(duplicate, return_exceptions=True)
            assert isinstance(results[0], Exception)
            assert segment.info().length == WRITERS
        assert held_bytes(container) < BOUND_BYTES


async def test_h14_attributes_that_take_too_much_memory_are_published_early() -> None:
    lazy = replace(SETTINGS, writer=replace(FAST_FLUSH, flush_interval_seconds=10_000.0))
    async with running(MemoryTiers(), settings=lazy) as container:
        await container.create("s")
        await write_as_many(container, first=0, last=2_000)
        async with asyncio.timeout(60):
            while held_bytes(container) > BOUND_BYTES:
                await asyncio.sleep(0.005)
        assert (await container.info("s")).storage_length > 0


async def test_one_request_serves_all_who_want_attributes_of_a_segment() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=SETTINGS) as container:
        await container.create("s")
        await write_as_many(container, first=0, last=500)
        await settled(container)
    async with (
        running(tiers, settings=SETTINGS) as container,
        container.open_segment("s") as segment,
    ):
        fetches = container._components.mapper._attribute_fetches
        found = await asyncio.gather(
            *(segment.load_attributes([writer(number)]) for number in range(300))
        )
        assert [len(each) for each in found] == [1] * 300
        assert fetches.requests <= 3


async def test_h26_a_listing_has_what_was_published_and_left_memory_while_tier_2_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = MemoryTiers()
    first, second = writer(1), writer(2)
    async with running(tiers, settings=SETTINGS) as container:
        await container.create("s", [AttributeUpdate(first, 1)])
        await container.flush()
    async with running(tiers, settings=SETTINGS) as container:
        async with container.open_segment("s"):
            segment = container.container_metadata.last_of_name("s")
        assert segment is not None
        table = segment.attributes

        def leave_memory() -> None:
            for _ in range(2):
                table.sweep(segment.published_sequence_number, 1000)

        load = container._recovered.storage.load_attributes

        async def overtaken(
            segment_id: SegmentId, keys: Sequence[AttributeKey] | None
        ) -> Mapping[AttributeKey, AttributeValue]:
            answer = await load(segment_id, keys)
            await container.flush()
            leave_memory()
            assert not table.is_known(second)
            return answer

        await container.flush()
        leave_memory()
        await container.update_attributes(
            "s", [AttributeUpdate(first, 3), AttributeUpdate(second, 2)]
        )
        monkeypatch.setattr(container._recovered.storage, "load_attributes", overtaken)
        assert await container.attributes("s") == {first: 3, second: 2}


async def test_others_are_served_while_very_many_attributes_of_a_segment_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 30_000

    def counted(work: Callable[..., Any], looks: WorkOfTurns) -> Callable[..., Any]:
        def one_more(*given: object) -> Any:
            looks.note()
            return work(*given)

        return one_more

    async with running(MemoryTiers()) as container:
        await container.create("s")
        for first in range(0, count, ATTRIBUTE_UPDATES_MAX):
            some = range(first, first + ATTRIBUTE_UPDATES_MAX)
            await container.update_attributes(
                "s", [AttributeUpdate(writer(number), number) for number in some]
            )
        await container.flush()
        assert container._components.mapper.evict(1) == 1
        async with work_of_turns() as looks:
            for module, name in (
                (published_segments, "decode_attribute"),
                (segment_queries, "is_merged_source_key"),
            ):
                monkeypatch.setattr(module, name, counted(getattr(module, name), looks))
            told = await container.attributes("s")
    assert told == {writer(number): number for number in range(count)}
    assert looks.total >= 2 * count
    assert max(looks.each_turn) < count / 10


def one_value_each(segments: int) -> ContainerMetadata:
    """Nothing of it is published."""
    metadata = ContainerMetadata(container_id=ContainerId(0))
    for number in range(1, segments + 1):
        segment = SegmentMetadata(segment_id=SegmentId(number), name=f"s{number}")
        metadata.add(segment)
        changes: list[tuple[AttributeKey, AttributeValue | None]] = [(writer(number), 1)]
        segment.attributes.accept(changes, SequenceNumber(number))
        segment.attributes.commit(changes, SequenceNumber(number))
    return metadata


async def turns_of(shrinking: AttributeMemory) -> int:
    """How often the loop had its turn during a shrink."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    await shrinking.shrink()
    counting.cancel()
    return turns


async def test_h23_the_loop_gets_its_turn_however_many_segments_hold_values() -> None:
    metadata = one_value_each(5000)
    settings = AttributeMemorySettings(bytes_max=BOUND_BYTES, slice_count=100)
    memory = AttributeMemory(metadata=metadata, settings=settings)
    # Twice over all of them, a hundred at a time.
    assert 99 <= await turns_of(memory) <= 101
    assert memory.wants_flush


async def test_values_that_cannot_leave_are_not_looked_at_again_before_a_publication() -> None:
    metadata = one_value_each(5000)
    settings = AttributeMemorySettings(bytes_max=BOUND_BYTES, slice_count=100)
    memory = AttributeMemory(metadata=metadata, settings=settings)
    await memory.shrink()
    held = memory.held_bytes
    assert await turns_of(memory) == 0
    for segment in metadata.by_id.values():
        segment.published_sequence_number = segment.last_sequence_number = SequenceNumber(5000)
        metadata.attribute_ledger.publications += 1
    await memory.shrink()
    assert memory.held_bytes <= BOUND_BYTES < held
    assert not memory.wants_flush
    metadata.check()


async def test_segments_leave_memory_while_their_values_are_swept() -> None:
    metadata = one_value_each(1000)
    settings = AttributeMemorySettings(bytes_max=BOUND_BYTES, slice_count=10)
    memory = AttributeMemory(metadata=metadata, settings=settings)
    shrinking = asyncio.create_task(memory.shrink())
    for segment in list(metadata.by_id.values())[::3]:
        await asyncio.sleep(0)
        metadata.remove(segment)
    await shrinking
    metadata.check()
    assert memory.held_bytes > 0
