"""H74: many merges into one target share the log's frames, and a crash between any two of them loses none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import MERGED_TOGETHER_MAX
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DurableDataLogError,
    SegmentNotFoundError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, AttributeKey
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import FailingLog
from tests.containers.test_segment_container import append, read_all

COUNT = 6


async def with_sources(container: StreamSegmentContainer, count: int) -> list[str]:
    """A target `a`, and so many open sources of a few bytes each."""
    await container.create("a")
    names = [f"b{number}" for number in range(count)]
    for name in names:
        await container.create(name)
        await append(container, name, f"{name};".encode())
    return names


def content(names: list[str]) -> bytes:
    return b"".join(f"{name};".encode() for name in names)


def ends(names: list[str]) -> list[int]:
    return [len(content(names[: place + 1])) for place in range(len(names))]


async def test_many_merges_wait_for_a_few_frames() -> None:
    # Nothing is flushed: how often the log is shortened meanwhile depends on how long the merges take.
    unflushed = replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
    async with running(MemoryTiers(), settings=ContainerSettings(writer=unflushed)) as container:
        names = await with_sources(container, MERGED_TOGETHER_MAX + 50)
        before = container.metrics()["frames_total"]
        lengths = await container.merge_all("a", names, seal_sources=True)
        assert list(lengths) == ends(names)
        # One for each slice; a checkpoint may be written in between.
        assert container.metrics()["frames_total"] - before <= 4
        assert await read_all(container, "a") == content(names)
        container.check()


@pytest.mark.parametrize("operations_per_frame", [1, 2])
@pytest.mark.parametrize("written", range(COUNT))
async def test_h74_a_crash_between_any_two_of_many_merges_leaves_the_first_ones(
    written: int, operations_per_frame: int
) -> None:
    tiers = MemoryTiers()
    default = ContainerSettings()
    pipeline = replace(default.processor.pipeline, frame_operations_max=operations_per_frame)
    small_frames = ContainerSettings(
        writer=replace(FAST_FLUSH, flush_interval_seconds=100.0, prompt_age_seconds=100.0),
        processor=replace(default.processor, pipeline=pipeline),
    )
    log = FailingLog(tiers.log_store)
    container = make_container(tiers, settings=small_frames, log=log)
    await container.start()
    running_task = asyncio.ensure_future(container.run())
    names = await with_sources(container, COUNT)
    log.successes = written
    merging = container.merge_all("a", names, seal_sources=True)
    if written * operations_per_frame < COUNT:
        with pytest.raises(ContainerStoppedError):
            await merging
        with pytest.raises(DurableDataLogError):
            await running_task
    else:
        assert list(await merging) == ends(names)
        running_task.cancel()
        await asyncio.gather(running_task, return_exceptions=True)
        await container.close()
    merged = min(written * operations_per_frame, COUNT)
    async with running(tiers) as container:
        assert await read_all(container, "a") == content(names[:merged])
        for name in names[:merged]:
            with pytest.raises(SegmentNotFoundError):
                await container.info(name)
        for name in names[merged:]:
            assert await read_all(container, name) == content([name])
        assert list(await container.merge_all("a", names, seal_sources=True)) == ends(names)
        assert await read_all(container, "a") == content(names)
        container.check()


async def test_h74_attempts_at_once_merge_each_source_once_and_in_order() -> None:
    async with running(MemoryTiers()) as container:
        names = await with_sources(container, COUNT)
        attempts = [container.merge_all("a", names, seal_sources=True) for _ in range(3)]
        assert await asyncio.gather(*attempts) == [ends(names)] * 3
        assert await read_all(container, "a") == content(names)


async def test_h27_more_sources_than_may_be_active_are_merged_all_the_same() -> None:
    settings = ContainerSettings(
        writer=FAST_FLUSH,
        mapper=replace(ContainerSettings().mapper, active_segments_max=4, eviction_share=0.5),
    )
    async with running(MemoryTiers(), settings=settings) as container:
        names = await with_sources(container, 12)
        assert list(await container.merge_all("a", names, seal_sources=True)) == ends(names)
        assert await read_all(container, "a") == content(names)
        container.check()


@asynccontextmanager
async def held_up(
    container: StreamSegmentContainer, names: list[str]
) -> AsyncIterator["asyncio.Future[int]"]:
    """An append to the target waits in line, for an attribute that is not in memory."""
    await container.update_attributes("a", [AttributeUpdate(AttributeKey(b"known"), 1)])
    await container.flush()
    async with AsyncExitStack() as opened:
        for name in names:
            await opened.enter_async_context(container.open_segment(name))
        assert container._components.mapper.evict(1000) == 1
    async with container.open_segment("a") as target:
        unknown = AttributeUpdate(AttributeKey(b"unknown"), 1)
        appended = target.append(b"first;", attribute_updates=[unknown])
        assert target.metadata.waiting_requests == 1
        yield appended


async def test_merges_wait_behind_what_the_target_has_in_line() -> None:
    async with running(MemoryTiers()) as container:
        names = await with_sources(container, COUNT)
        async with held_up(container, names) as appended:
            merging = asyncio.ensure_future(container.merge_all("a", names, seal_sources=True))
            assert await appended == 6
            assert await merging == [6 + end for end in ends(names)]
        assert await read_all(container, "a") == b"first;" + content(names)


async def test_h27_sources_stay_active_while_their_merge_waits_in_line() -> None:
    async with running(MemoryTiers()) as container:
        names = await with_sources(container, COUNT)
        async with held_up(container, names) as appended:
            merging = asyncio.ensure_future(container.merge_all("a", names, seal_sources=True))
            await asyncio.sleep(0)
            merging.cancel()
            await asyncio.gather(merging, return_exceptions=True)
            assert not appended.done()
            assert container._components.mapper.evict(1000) == 0
            await appended
        assert await read_all(container, "a") == b"first;" + content(names)
        assert container.container_metadata.get(names[0]) is None


async def test_many_merges_add_the_events_of_their_sources() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        for name, events in (("b", 2), ("c", 3)):
            await container.create(name)
            async with container.open_segment(name) as segment:
                await segment.append(bytes(8 * events), events=events)
        await container.merge_all("a", ["b", "c"], seal_sources=True)
        assert (await container.info("a")).core_attributes == {EVENT_COUNT: 5}
