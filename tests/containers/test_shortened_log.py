"""A log that is shortened before its container goes elsewhere: the next owner has next to nothing to replay."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import CheckpointSettings, ContainerSettings, WriterSettings
from segmentstore.contracts.errors import ContainerNotFoundError
from tests.containers.node import MemoryTiers, make_container, running
from tests.containers.test_container_faults import FlakyObjectStore
from tests.containers.test_segment_container import append, read_all
from tier1.memory_log import MemoryDurableDataLog

LATE = ContainerSettings(writer=replace(WriterSettings(), flush_interval_seconds=3600.0))
APPENDS = 50


async def test_the_next_owner_replays_what_was_logged_since() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=LATE) as container:
        await container.create("a")
        for _ in range(APPENDS):
            await append(container, "a", b"x")
        async with asyncio.timeout(60):
            await container.shorten_log()
        # Nothing new: once more is no more.
        async with asyncio.timeout(60):
            await container.shorten_log()
        for _ in range(3):
            await append(container, "a", b"y")
    async with running(tiers) as container:
        summary = container.recovery_summary
        assert summary is not None
        assert 3 <= summary.frames < 3 + 10
        assert await read_all(container, "a") == b"x" * APPENDS + b"yyy"


async def test_it_is_shortened_under_appends_that_go_on() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=LATE) as container:
        await container.create("a")
        is_over = False
        appended = 0

        async def write() -> None:
            nonlocal appended
            while not is_over:
                await append(container, "a", b"x")
                appended += 1
                await asyncio.sleep(0)

        writing = asyncio.ensure_future(write())
        while appended < APPENDS:
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await container.shorten_log()
        is_over = True
        await writing
    async with running(tiers) as container:
        summary = container.recovery_summary
        assert summary is not None
        assert summary.frames < appended
        assert await read_all(container, "a") == b"x" * appended


async def test_without_tier_2_it_says_so_and_goes_on() -> None:
    tiers = MemoryTiers()
    store = FlakyObjectStore()
    store.down = True
    container = make_container(tiers, log=MemoryDurableDataLog(tiers.log_store), object_store=store)
    await container.start()
    run = asyncio.ensure_future(container.run())
    with pytest.raises(ContainerNotFoundError):
        await container.shorten_log()
    assert container.health().ready
    await container.close()
    await asyncio.gather(run, return_exceptions=True)


async def test_a_log_of_many_small_frames_stays_short_though_its_container_is_never_idle() -> None:
    """Each frame costs the next owner a request, however small it is."""
    tiers = MemoryTiers()
    settings = ContainerSettings(
        writer=LATE.writer, checkpoints=replace(CheckpointSettings(), frames_min=40)
    )
    async with running(tiers, settings=settings) as container:
        await container.create("a")
        is_over = False
        appended = 0

        async def write() -> None:
            nonlocal appended
            async with container.open_segment("a") as segment:
                under_way = segment.append(b"x")
                while not is_over:
                    following = segment.append(b"x")
                    await under_way
                    under_way = following
                    appended += 1
                    await asyncio.sleep(0)
                await under_way

        writing = asyncio.ensure_future(write())
        while appended < 4_000:
            await container.flush()
        is_over = True
        await writing
    async with running(tiers) as container:
        summary = container.recovery_summary
        assert summary is not None
        assert summary.frames < appended / 2
