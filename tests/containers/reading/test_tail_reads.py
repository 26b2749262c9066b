import asyncio

import pytest

from containers.container_settings import ReadIndexSettings
from containers.read_index.tail_waiters import WAKE_UPS_PER_TURN
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TooManyWaitersError,
)
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.containers.reading.read_index_bench import (
    ReadIndexBench,
    append,
    confirmed,
    flush,
    metadata_of,
    seal,
    stage,
    truncate,
)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_future_entry_gives_the_bytes_of_the_next_append() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"old")
    entries = index.read(3, 100, confirm=confirmed)
    entry = await anext(entries)
    assert entry.kind is ReadResultEntryKind.FUTURE
    content = asyncio.ensure_future(entry.content())
    await turns()
    stage(index, b"new")
    await turns()
    assert not content.done()
    metadata_of(index).set_length(6)
    index.appended()
    assert await content == b"new"
    following = await anext(entries)
    assert (following.kind, following.offset) == (ReadResultEntryKind.FUTURE, 6)
    await entries.aclose()
    assert not index.has_waiters


async def test_h58_an_append_between_the_step_and_its_content_is_not_missed() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    entries = index.read(0, 100, confirm=confirmed)
    entry = await anext(entries)
    append(index, b"between")
    assert await entry.content() == b"between"
    await entries.aclose()


async def test_h58_a_waiter_ends_with_no_bytes_only_when_the_segment_is_sealed() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    waiter = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    await turns()
    index.appended()  # a wake-up without news leaves it waiting
    await turns()
    assert not waiter.done()
    assert index.has_waiters
    seal(index)
    assert await waiter == b""


@pytest.mark.parametrize(
    "error", [SegmentNotFoundError("deleted"), SegmentNotFoundError("merged away")]
)
async def test_h58_a_waiter_ends_when_its_segment_is_gone(error: SegmentNotFoundError) -> None:
    bench = ReadIndexBench()
    index = bench.open()
    waiter = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    await turns()
    index.end_reads(error)
    with pytest.raises(SegmentNotFoundError):
        await waiter
    assert bench.container.statistics().waiters == 0


async def test_h58_waiters_end_when_the_container_stops() -> None:
    bench = ReadIndexBench()
    waiters = [asyncio.ensure_future(bench.open().wait_for_bytes(0, 10)) for _ in range(5)]
    await turns()
    await bench.container.close()
    for waiter in waiters:
        with pytest.raises(ContainerStoppedError):
            await waiter


async def test_h58_a_cancelled_waiter_leaves_nothing_behind() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    first = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    second = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    await turns()
    first.cancel()
    await turns()
    assert bench.container.statistics().waiters == 1
    append(index, b"x")
    assert await second == b"x"
    assert bench.container.statistics().waiters == 0
    assert not index.has_waiters


async def test_h58_wake_ups_of_many_are_spread_over_turns_and_reach_each_once() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    count = 2 * WAKE_UPS_PER_TURN + 7
    waiters = [asyncio.ensure_future(index.wait_for_bytes(0, 10)) for _ in range(count)]
    await turns()
    append(index, b"x")
    done_per_turn = []
    for _ in range(6):
        await asyncio.sleep(0)
        done_per_turn.append(sum(waiter.done() for waiter in waiters))
    steps = [
        after - before for before, after in zip([0, *done_per_turn], done_per_turn, strict=False)
    ]
    assert max(steps) == WAKE_UPS_PER_TURN
    assert done_per_turn[-1] == count
    assert await asyncio.gather(*waiters) == [b"x"] * count


async def test_h58_an_end_during_a_sliced_wake_up_reaches_the_rest_once() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    count = WAKE_UPS_PER_TURN + 10
    waiters = [asyncio.ensure_future(index.wait_for_bytes(0, 10)) for _ in range(count)]
    await turns()
    append(index, b"x")
    index.end_reads(SegmentNotFoundError("deleted in the same stretch"))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(result, SegmentNotFoundError) for result in results)


async def test_h58_the_number_of_waiters_is_bounded() -> None:
    bench = ReadIndexBench(settings=ReadIndexSettings(waiters_max=2))
    index = bench.open()
    waiters = [asyncio.ensure_future(index.wait_for_bytes(0, 10)) for _ in range(2)]
    await turns()
    with pytest.raises(TooManyWaitersError):
        await index.wait_for_bytes(0, 10)
    append(index, b"x")
    assert await asyncio.gather(*waiters) == [b"x"] * 2


async def test_a_waiter_overtaken_by_flush_and_eviction_reads_tier_2() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    waiter = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    await turns()
    append(index, b"x" * 20)
    flush(bench, index)
    bench.cache.evict(4096)
    assert await waiter == b"x" * 10
    assert len(bench.tier2.reads) == 1


async def test_a_waiter_overtaken_by_a_truncation_is_told() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    waiter = asyncio.ensure_future(index.wait_for_bytes(0, 10))
    await turns()
    append(index, b"x" * 20)
    truncate(bench, index, 5)
    with pytest.raises(SegmentTruncatedError):
        await waiter
