"""read_nowait and readable: what a connection uses that serves many readers without a task for each."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TooManyWaitersError,
)
from tests.containers.node import FAST_FLUSH, MemoryTiers, running


async def test_what_is_cached_is_read_at_once() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            assert segment.read_nowait(0, 100) is None
            submitted = segment.append(b"x" * 10_000)
            assert segment.read_nowait(0, 100) is None  # not committed yet
            await submitted
            await segment.append(b"y" * 10_000)
            assert segment.read_nowait(9_999, 3) == b"xyy"
            assert segment.read_nowait(0, 1 << 20) == b"x" * 10_000 + b"y" * 10_000
            assert segment.read_nowait(20_000, 1) is None
            for offset in (-1, 20_001):
                with pytest.raises(BadOffsetError):
                    segment.read_nowait(offset, 1)
            await container.truncate("a", 5)
            with pytest.raises(SegmentTruncatedError):
                segment.read_nowait(4, 1)
            assert segment.read_nowait(5, 1) == b"x"
            await container.delete("a")
            with pytest.raises(SegmentNotFoundError):
                segment.read_nowait(5, 1)


async def test_what_only_tier_2_has_is_not_read_at_once() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            await segment.append(b"flushed")
        await container.flush()
    async with running(tiers) as container, container.open_segment("a") as segment:
        assert segment.read_nowait(0, 7) is None
        assert segment.readable(0).done()
        await segment.append(b"new")
        assert segment.read_nowait(7, 10) == b"new"


async def test_h58_a_waiter_ends_by_whatever_comes_first_and_once() -> None:
    async with running(MemoryTiers()) as container:
        for name in ("a", "b", "c", "d"):
            await container.create(name)
        async with container.open_segment("a") as segment:
            at_start = segment.readable(0)
            assert not at_start.done()
            submitted = segment.append(b"data")
            assert not at_start.done()
            await submitted
            await at_start
            assert segment.readable(3).done()
            at_end = segment.readable(4)
            await container.seal("a")
            await at_end
            assert segment.readable(4).done()
        async with container.open_segment("b") as segment:
            waiting = segment.readable(0)
            await container.delete("b")
            await waiting
            assert segment.readable(0).done()
        async with container.open_segment("c") as segment:
            waiting = segment.readable(0)
            await container.merge("d", "c", seal_source=True)
            await waiting
        async with container.open_segment("d") as segment:
            waiting = segment.readable(0)
            await container.close()
            await waiting


async def test_h58_a_merge_wakes_the_waiters_of_its_target() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        await container.create("b")
        async with container.open_segment("a") as target, container.open_segment("b") as source:
            await source.append(b"moved")
            waiting = target.readable(0)
            await container.merge("a", "b", seal_source=True)
            await waiting
            assert target.read_nowait(0, 10) == b"moved"


async def test_h58_places_of_waiters_are_bounded_and_given_back() -> None:
    defaults = ContainerSettings(writer=FAST_FLUSH)
    settings = replace(defaults, read_index=replace(defaults.read_index, waiters_max=2))
    async with running(MemoryTiers(), settings=settings) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            first, second = segment.readable(0), segment.readable(0)
            with pytest.raises(TooManyWaitersError):
                await segment.readable(0)
            first.cancel()
            await asyncio.sleep(0)
            third = segment.readable(0)
            container.check()
            await segment.append(b"data")
            await asyncio.gather(second, third)
            # Places come back by callbacks; gather() gives them no turn from Python 3.12 on.
            await asyncio.sleep(0)
            again = [segment.readable(4) for _ in range(2)]
            container.check()
            for waiter in again:
                waiter.cancel()
            await asyncio.sleep(0)
        container.check()
