import asyncio
from dataclasses import replace
from random import Random

import pytest

from containers.container_settings import ReadIndexSettings
from segmentstore.contracts.errors import (
    CacheFullError,
    ContainerStoppedError,
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StorageError,
)
from tests.containers.reading.read_index_bench import (
    MIB,
    SMALL_FETCHES,
    ReadIndexBench,
    read_all,
    truncate,
)

DATA = Random(3).randbytes(200_000)


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_h59_readers_of_one_stretch_share_a_fetch() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    readers = [asyncio.ensure_future(index.wait_for_bytes(n, 100)) for n in (0, 50, 399)]
    await turns()
    bench.tier2.release()
    assert await asyncio.gather(*readers) == [DATA[n : n + 100] for n in (0, 50, 399)]
    assert len(bench.tier2.reads) == 1
    assert bench.container.statistics().fetches_joined == 2


async def test_h59_a_reader_that_goes_away_leaves_the_shared_fetch_running() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    first = asyncio.ensure_future(index.wait_for_bytes(0, 100))
    second = asyncio.ensure_future(index.wait_for_bytes(10, 100))
    await turns()
    first.cancel()
    await turns()
    assert bench.tier2.running == 1
    bench.tier2.release()
    assert await second == DATA[10:110]
    assert first.cancelled()
    assert len(bench.tier2.reads) == 1


async def test_h59_a_fetch_whose_readers_all_left_still_fills_the_cache() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    reader = asyncio.ensure_future(index.wait_for_bytes(0, 100))
    await turns()
    reader.cancel()
    bench.tier2.release()
    await turns()
    assert index.read_cached(0, 100) == DATA[:100]


async def test_h59_readers_whose_byte_the_shared_answer_lacks_share_the_next_fetch() -> None:
    bench = ReadIndexBench()
    bench.tier2.one_block_at_a_time = True
    index = bench.open(published=DATA)
    bench.tier2.hold()
    offsets = (0, 4_000, 4_000, 2_500, 999)
    readers = [asyncio.ensure_future(index.wait_for_bytes(n, 6_000)) for n in offsets]
    await turns()
    bench.tier2.release()
    for offset, content in zip(offsets, await asyncio.gather(*readers), strict=True):
        assert content
        assert content == DATA[offset : offset + len(content)]
    assert [offset for _, offset, _ in bench.tier2.reads] == [0, 4_000, 2_500]
    assert (await read_all(index, 0, len(DATA)))[0] == DATA
    bench.container.check()


async def test_h59_a_failed_fetch_fails_its_readers_and_the_next_one_tries_again() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.error = StorageError("tier 2 is down")
    readers = [asyncio.ensure_future(index.wait_for_bytes(0, 100)) for _ in range(3)]
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(result) for result in results] == [StorageError] * 3
    bench.tier2.error = None
    assert await index.wait_for_bytes(0, 100) == DATA[:100]


async def test_h59_a_result_is_not_kept_below_a_truncation_that_overtook_it() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    reader = asyncio.ensure_future(index.wait_for_bytes(0, 100))
    await turns()
    truncate(bench, index, 300)
    bench.tier2.start_offsets.clear()  # the chunk was opened before it went
    bench.tier2.release()
    with pytest.raises(SegmentTruncatedError):
        await reader
    await turns()
    assert index.copy_cached(0, 300) == b""
    assert index.copy_cached(300, 400) == DATA[300:400]
    bench.container.check()


async def test_h59_a_result_is_not_kept_for_a_deleted_segment() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    reader = asyncio.ensure_future(index.wait_for_bytes(0, 100))
    await turns()
    index.end_reads(SegmentNotFoundError(index.metadata.name))
    bench.container.remove(index.metadata.segment_id)
    bench.tier2.release()
    with pytest.raises(SegmentNotFoundError):
        await reader
    await turns()
    assert bench.memory.occupied_bytes == 0


async def test_h59_a_result_fills_only_the_gaps_between_what_is_cached() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    index.insert_fetched(300, memoryview(DATA[300:400]))
    index.insert_fetched(600, memoryview(DATA[600:5000]))
    index.insert_fetched(100, memoryview(DATA[100:10_000]))
    assert index.read_cached(100, 9_900) == DATA[100:10_000]
    bench.container.check()


async def test_h36_cold_reads_pass_by_a_cache_full_of_unflushed_bytes() -> None:
    bench = ReadIndexBench(budget_bytes=MIB)
    cold = bench.open(published=DATA)
    hot = bench.open()
    while bench.memory.occupied_bytes < MIB:
        hot.insert_recovered(hot.staged_end, bytes(4096))
    with pytest.raises(CacheFullError):
        hot.insert_recovered(hot.staged_end, bytes(MIB))
    assert bench.memory.occupied_bytes == MIB
    content, _ = await read_all(cold, 0, len(DATA))
    assert content == DATA
    assert bench.memory.occupied_bytes == MIB


async def test_reads_of_tier_2_are_bounded() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    readers = [
        asyncio.ensure_future(index.wait_for_bytes(n, 100)) for n in range(0, 200_000, 9_999)
    ]
    await turns()
    assert bench.tier2.running == SMALL_FETCHES.fetches_max
    bench.tier2.release()
    assert await asyncio.gather(*readers) == [DATA[n : n + 100] for n in range(0, 200_000, 9_999)]
    assert bench.tier2.running_most == SMALL_FETCHES.fetches_max


async def test_a_sequential_reader_is_read_ahead_of() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    content, _ = await read_all(index, 0, len(DATA))
    assert content == DATA
    assert bench.tier2.running_most > 1
    fetched = bench.container.statistics().fetched_bytes
    assert fetched < 2 * len(DATA)
    bench.container.check()


async def test_a_sequential_reader_is_read_ahead_of_while_it_finds_everything_in_the_cache() -> (
    None
):
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    position, waited = 0, 0
    while position < len(DATA):
        content = index.read_nowait(position, 1000)
        if content is None:
            waited += 1
            content = await index.wait_for_bytes(position, 1000)
        assert content == DATA[position : position + len(content)]
        position += len(content)
        await turns()
    # One without read-ahead would wait for each fetch; one that misses start for each window.
    assert waited <= 3
    assert bench.container.statistics().fetched_bytes < 2 * len(DATA)
    bench.container.check()


async def test_what_is_read_ahead_comes_in_larger_steps_than_what_somebody_waits_for() -> None:
    settings = replace(SMALL_FETCHES, fetch_bytes_max=4096, ahead_fetch_bytes_max=8192)
    bench = ReadIndexBench(settings=ReadIndexSettings(fetch=settings))
    index = bench.open(published=DATA)
    assert (await read_all(index, 0, len(DATA)))[0] == DATA
    lengths = [length for _, _, length in bench.tier2.reads]
    assert lengths[0] == 4096
    assert 8192 <= max(lengths) < 8192 + settings.alignment_bytes
    bench.container.check()


async def test_what_is_read_ahead_is_read_from_tier_2_once() -> None:
    settings = replace(SMALL_FETCHES, fetch_bytes_max=4096)
    bench = ReadIndexBench(settings=ReadIndexSettings(fetch=settings))
    bench.tier2.block_bytes = 3_700
    index = bench.open(published=DATA)
    position = 0
    while position < len(DATA):
        content = index.read_nowait(position, 777) or await index.wait_for_bytes(position, 777)
        assert content == DATA[position : position + len(content)]
        position += len(content)
    # Neither reads nor windows end where blocks do.
    assert bench.container.statistics().fetched_bytes < 1.1 * len(DATA)
    bench.container.check()


async def test_h59_a_block_that_one_fetch_left_out_is_awaited_from_the_fetch_behind() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    first = asyncio.ensure_future(index.wait_for_bytes(0, 8_192))
    await turns()
    behind = asyncio.ensure_future(index.wait_for_bytes(8_192, 8_192))
    await turns()
    left_out = asyncio.ensure_future(index.wait_for_bytes(8_100, 50))
    await turns()
    bench.tier2.release_one()
    assert await first == DATA[:8_000]
    await turns()
    assert not left_out.done()
    late = asyncio.ensure_future(index.wait_for_bytes(8_000, 50))
    await turns()
    bench.tier2.release()
    assert await behind == DATA[8_192:16_000]
    assert await left_out == DATA[8_100:8_150]
    assert await late == DATA[8_000:8_050]
    assert [offset for _, offset, _ in bench.tier2.reads] == [0, 8_192]
    bench.container.check()


async def test_marks_for_reading_ahead_do_not_pile_up_in_a_segment() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=Random(4).randbytes(2_000_000))
    for start in range(0, 1_900_000, 100_000):
        await read_all(index, start, 20_000)
        await turns()
    assert len(index.read_ahead_marks) == SMALL_FETCHES.marks_max


async def test_a_random_reader_is_not_read_ahead_of() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    for offset in (150_000, 20_000, 90_000, 50_000):
        assert await index.wait_for_bytes(offset, 100) == DATA[offset : offset + 100]
    await turns()
    assert len(bench.tier2.reads) == 4


async def test_closing_ends_readers_and_leaves_no_fetch() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.hold()
    running = asyncio.ensure_future(index.wait_for_bytes(0, 100))
    await turns()
    unstarted = asyncio.ensure_future(index.wait_for_bytes(100_000, 100))
    await asyncio.sleep(0)
    await bench.container.close()
    for reader in (running, unstarted):
        with pytest.raises(ContainerStoppedError):
            await reader
    assert bench.tier2.running == 0
    assert bench.memory.occupied_bytes == 0
    with pytest.raises(ContainerStoppedError):
        await index.wait_for_bytes(0, 100)


async def test_bytes_that_tier_2_lost_are_corruption_and_never_zeroes() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=DATA)
    bench.tier2.published[index.metadata.segment_id] = DATA[:1000]
    with pytest.raises(CorruptedDataError):
        await index.wait_for_bytes(150_000, 100)
    del bench.tier2.published[index.metadata.segment_id]
    with pytest.raises(CorruptedDataError):
        await index.wait_for_bytes(150_000, 100)
