import asyncio
from random import Random

import pytest

from containers.container_settings import ReadIndexSettings
from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.errors import CorruptedDataError
from tests.containers.reading.read_index_bench import (
    MIB,
    ReadIndexBench,
    acknowledge,
    append,
    flush,
    merge,
    read_all,
    seal,
    stage,
    truncate,
)

DATA = Random(11).randbytes(50_000)


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def merged_pair(bench: ReadIndexBench) -> tuple[SegmentReadIndex, SegmentReadIndex]:
    """A target of 100 bytes + a source of DATA, which is in Tier 2 and not cached, + 100 bytes."""
    source = bench.open()
    append(source, DATA)
    flush(bench, source)
    bench.cache.evict(MIB)
    seal(source)
    target = bench.open()
    append(target, b"<" * 100)
    merge(target, source)
    append(target, b">" * 100)
    return target, source


def publish_merge(
    bench: ReadIndexBench, target: SegmentReadIndex, source: SegmentReadIndex
) -> None:
    """Tier 2's side: the source's bytes move to the target, the source is gone."""
    tier2 = bench.tier2.published
    tier2[target.metadata.segment_id] = b"<" * 100 + tier2.pop(source.metadata.segment_id)


WHOLE = b"<" * 100 + DATA + b">" * 100


async def test_h57_every_offset_reads_the_same_before_during_and_after_a_merge() -> None:
    bench = ReadIndexBench()
    target, source = merged_pair(bench)
    assert (await read_all(target, 0, MIB))[0] == WHOLE
    bench.container.remove(source.metadata.segment_id)
    bench.cache.evict(MIB)
    assert (await read_all(target, 0, MIB))[0] == WHOLE
    publish_merge(bench, target, source)
    bench.cache.evict(MIB)
    assert (await read_all(target, 0, MIB))[0] == WHOLE
    acknowledge(target, 100 + len(DATA))
    bench.cache.evict(MIB)
    assert (await read_all(target, 0, MIB))[0] == WHOLE
    target.complete_merge(source)
    bench.cache.evict(MIB)
    assert (await read_all(target, 0, MIB))[0] == WHOLE
    bench.container.check()


async def test_h57_a_fetch_under_the_source_that_meets_the_publish_goes_on_under_the_target() -> (
    None
):
    bench = ReadIndexBench()
    target, source = merged_pair(bench)
    bench.tier2.hold()
    reader = asyncio.ensure_future(target.wait_for_bytes(1_000, 500))
    await turns()
    assert bench.tier2.reads[-1][0] == source.metadata.segment_id
    publish_merge(bench, target, source)
    acknowledge(target, 100 + len(DATA))
    target.complete_merge(source)
    bench.tier2.release()
    assert await reader == WHOLE[1_000:1_500]
    assert bench.tier2.reads[-1][0] == target.metadata.segment_id
    bench.container.check()


async def test_h57_a_source_gone_from_tier_2_before_the_container_knows_is_found_in_the_target() -> (
    None
):
    bench = ReadIndexBench()
    target, source = merged_pair(bench)
    publish_merge(bench, target, source)
    assert await target.wait_for_bytes(1_000, 500) == WHOLE[1_000:1_500]
    bench.container.check()


async def test_bytes_that_neither_source_nor_target_has_are_corruption() -> None:
    bench = ReadIndexBench()
    target, _ = merged_pair(bench)
    bench.tier2.published.clear()
    with pytest.raises(CorruptedDataError):
        await target.wait_for_bytes(1_000, 500)


async def test_h57_chains_of_merges_read_through_and_complete_in_any_order() -> None:
    for inner_first in (True, False):
        bench = ReadIndexBench()
        inner, middle, outer = bench.open(), bench.open(), bench.open()
        append(inner, b"inner")
        seal(inner)
        append(middle, b"mid[")
        merge(middle, inner)
        append(middle, b"]dle")
        seal(middle)
        append(outer, b"out(")
        merge(outer, middle)
        append(outer, b")er")
        whole = b"out(mid[inner]dle)er"
        assert outer.read_cached(0, 100) == whole
        assert b"".join(outer.views(6, 10)) == whole[6:16]
        # Nothing was in Tier 2 before: all of it is written as the target's own bytes.
        flush(bench, outer)
        if inner_first:
            middle.complete_merge(inner)
            bench.container.remove(inner.metadata.segment_id)
            assert outer.read_cached(0, 100) == whole
        outer.complete_merge(middle)
        middle.complete_merge(inner)
        for index in (inner, middle):
            bench.container.remove(index.metadata.segment_id)
        bench.container.check()
        bench.cache.evict(MIB)
        assert bench.memory.occupied_bytes == 0
        assert (await read_all(outer, 0, 100))[0] == whole


async def test_h57_a_thousand_merges_deep_reads_without_recursion() -> None:
    bench = ReadIndexBench(budget_bytes=16 * MIB)
    source = bench.open()
    append(source, b"s")
    expected = b"s"
    for _ in range(1_500):
        seal(source)
        target = bench.open()
        merge(target, source)
        source = target
    assert source.read_cached(0, 10) == expected
    flush(bench, source)
    assert (await read_all(source, 0, 1))[0] == expected


async def test_h57_a_big_merge_frees_its_blocks_over_several_turns() -> None:
    settings = ReadIndexSettings(discards_per_turn=10)
    bench = ReadIndexBench(budget_bytes=8 * MIB, settings=settings)
    source = bench.open()
    for _ in range(64):
        append(source, b"s" * 4096)
        flush(bench, source)  # closes the block: 64 entries of 4 KiB
    seal(source)
    target = bench.open()
    merge(target, source)
    publish_own = bench.tier2.published.pop(source.metadata.segment_id)
    bench.tier2.published[target.metadata.segment_id] = publish_own
    acknowledge(target)
    target.complete_merge(source)
    occupied = [bench.memory.occupied_bytes]
    while occupied[-1]:
        await asyncio.sleep(0)
        bench.container.check()
        occupied.append(bench.memory.occupied_bytes)
    assert occupied[:3] == [54 * 4096, 44 * 4096, 34 * 4096]


async def test_blocks_waiting_to_be_freed_may_be_evicted_meanwhile() -> None:
    settings = ReadIndexSettings(discards_per_turn=1)
    bench = ReadIndexBench(settings=settings)
    index = bench.open()
    for _ in range(8):
        append(index, b"s" * 4096)
        flush(bench, index)
    bench.container.remove(index.metadata.segment_id)
    assert bench.cache.evict(MIB) == 7 * 4096
    await turns(10)
    bench.container.check()
    assert bench.memory.occupied_bytes == 0


def test_a_merge_of_an_empty_source_leaves_no_redirect() -> None:
    bench = ReadIndexBench()
    source, target = bench.open(), bench.open()
    seal(source)
    append(target, b"abc")
    merge(target, source)
    append(target, b"def")
    assert target.read_cached(0, 10) == b"abcdef"
    target.complete_merge(source)
    bench.container.check()


def test_bytes_staged_before_a_merge_stay_readable_behind_its_redirect() -> None:
    bench = ReadIndexBench()
    source, target = bench.open(), bench.open()
    append(source, b"S" * 10)
    seal(source)
    append(target, b"a" * 10)
    stage(target, b"b" * 10)
    merge(target, source)
    assert target.read_cached(0, 100) == b"a" * 10 + b"b" * 10 + b"S" * 10
    bench.container.check()


def test_a_truncation_past_a_merged_stretch_leaves_it_until_the_merge_is_complete() -> None:
    bench = ReadIndexBench()
    source, target = bench.open(), bench.open()
    append(source, b"S" * 10)
    seal(source)
    append(target, b"a" * 10)
    merge(target, source)
    append(target, b"z" * 10)
    truncate(bench, target, 25)
    flush(bench, target)
    bench.container.check()
    assert target.read_cached(25, 5) == b"z" * 5
    target.complete_merge(source)
    assert source.copy_cached(0, 10) == b""
    target.truncated(25)
    bench.container.check()


def test_deleting_a_target_frees_the_sources_that_waited_to_be_merged() -> None:
    bench = ReadIndexBench()
    source, target = bench.open(), bench.open()
    append(source, b"S" * 10)
    seal(source)
    merge(target, source)
    bench.container.remove(source.metadata.segment_id)
    assert bench.memory.occupied_bytes == 4096
    bench.container.remove(target.metadata.segment_id)
    assert bench.memory.occupied_bytes == 0
    bench.container.check()
