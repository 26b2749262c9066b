import sys
from random import Random

import pytest

from containers.cache.cache_storage import BLOCK_BYTES_MIN
from segmentstore.contracts.errors import (
    BadOffsetError,
    CacheFullError,
    DataCorruptionError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    ServiceHaltError,
)
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.containers.reading.read_index_bench import (
    MIB,
    ReadIndexBench,
    append,
    commit,
    confirmed,
    flush,
    merge,
    metadata_of,
    read_all,
    seal,
    stage,
    truncate,
)

CACHE = ReadResultEntryKind.CACHE
STORAGE = ReadResultEntryKind.STORAGE
FUTURE = ReadResultEntryKind.FUTURE
END = ReadResultEntryKind.END_OF_SEGMENT
TRUNCATED = ReadResultEntryKind.TRUNCATED


def random_bytes(size: int, seed: int = 7) -> bytes:
    return Random(seed).randbytes(size)


async def test_committed_bytes_are_read_and_staged_ones_are_not() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"committed")
    stage(index, b"pending")
    assert await read_all(index, 0, 100) == (b"committed", [CACHE, FUTURE])
    assert index.read_cached(0, 100) == b"committed"
    assert b"".join(index.views(0, 16)) == b"committedpending"
    commit(index)
    assert await read_all(index, 4, 8) == (b"ittedpen", [CACHE])
    bench.container.check()


async def test_a_read_of_a_sealed_segment_ends_at_its_end() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"abc")
    seal(index)
    assert await read_all(index, 1, 100) == (b"bc", [CACHE, END])
    assert await read_all(index, 3, 100) == (b"", [END])


@pytest.mark.parametrize("offset", [-1, 4])
async def test_a_read_past_the_length_or_below_zero_is_refused(offset: int) -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"abc")
    stage(index, b"d")
    with pytest.raises(BadOffsetError):
        await read_all(index, offset, 10)


async def test_bytes_beyond_one_block_are_one_piece_up_to_a_mebibyte() -> None:
    bench = ReadIndexBench(budget_bytes=8 * MIB)
    index = bench.open()
    data = random_bytes(3 * MIB + 17)
    for begin in range(0, len(data), 100_003):
        append(index, data[begin : begin + 100_003])
    content, kinds = await read_all(index, 5, 3 * MIB)
    assert content == data[5 : 5 + 3 * MIB]
    assert kinds == [CACHE] * 3
    assert index.read_cached(0, len(data)) == data


async def test_what_was_evicted_comes_from_tier_2_and_is_cached_again() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    data = random_bytes(10_000)
    append(index, data)
    flush(bench, index)
    assert index.read_cached(0, 10_000) == data
    assert bench.cache.evict(MIB) > 0
    assert index.read_cached(0, 10_000) is None
    content, kinds = await read_all(index, 0, 10_000)
    assert content == data
    assert kinds[0] == STORAGE
    assert index.read_cached(0, 8_192) == data[:8_192]
    bench.container.check()


async def test_a_segment_opened_from_tier_2_takes_appends_behind_its_bytes() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=b"old" * 100)
    append(index, b"new")
    content, _ = await read_all(index, 297, 10)
    assert content == b"oldnew"
    bench.container.check()


def test_staging_that_finds_no_room_changes_nothing() -> None:
    bench = ReadIndexBench(budget_bytes=MIB)
    index = bench.open()
    append(index, b"x" * 1000)
    before = bench.cache.unflushed_bytes
    with pytest.raises(CacheFullError):
        index.stage(bytes(2 * MIB))
    assert bench.cache.unflushed_bytes == bench.container.unflushed_bytes == before
    assert index.staged_end == 1000
    append(index, b"y" * 5000)
    assert index.read_cached(0, 6000) == b"x" * 1000 + b"y" * 5000
    bench.container.check()


def test_replayed_bytes_below_the_storage_length_are_left_out() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=bytes(100))
    index.insert_recovered(50, b"a" * 50)
    index.insert_recovered(90, b"b" * 20)
    index.insert_recovered(110, b"c" * 10)
    metadata_of(index).set_length(120)
    assert b"".join(index.views(100, 20)) == b"b" * 10 + b"c" * 10
    assert index.first_missing_offset() is None
    bench.container.check()


def test_h38_replayed_appends_share_blocks_like_new_ones() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    for offset in range(0, 40_000, 100):
        index.insert_recovered(offset, b"r" * 100)
        assert bench.container.unflushed_bytes <= max(2 * (offset + 100), BLOCK_BYTES_MIN)
    metadata_of(index).set_length(40_000)
    metadata_of(index).reset_pending()
    append(index, b"n" * 100)
    assert index.read_cached(39_950, 150) == b"r" * 50 + b"n" * 100
    bench.container.check()


def test_replayed_bytes_may_not_lie_in_a_merged_stretch() -> None:
    bench = ReadIndexBench()
    source, target = bench.open(), bench.open()
    append(source, b"source")
    seal(source)
    merge(target, source)
    with pytest.raises(DataCorruptionError):
        target.insert_recovered(3, b"x")
    target.insert_recovered(6, b"x")
    assert target.staged_end == 7


def test_an_index_without_cached_bytes_is_small() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=bytes(100))
    assert not hasattr(index, "__dict__")
    assert sys.getsizeof(index) <= 200
    append(index, b"x")
    flush(bench, index)
    bench.cache.evict(4096)
    assert index._entries is None


def test_replayed_bytes_that_overlap_are_corruption() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    index.insert_recovered(0, b"abc")
    with pytest.raises(DataCorruptionError):
        index.insert_recovered(2, b"cd")


def test_h31_a_gap_behind_the_storage_length_is_found() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=bytes(100))
    index.insert_recovered(200, b"a" * 10)
    metadata_of(index).set_length(210)
    assert index.first_missing_offset() == 100


def test_views_of_bytes_that_are_nowhere_halt() -> None:
    bench = ReadIndexBench()
    index = bench.open(published=bytes(100))
    with pytest.raises(ServiceHaltError):
        index.views(50, 10)


async def test_h19_a_read_meets_a_truncation_at_its_next_step() -> None:
    bench = ReadIndexBench(budget_bytes=8 * MIB)
    index = bench.open()
    append(index, random_bytes(2 * MIB))
    entries = index.read(0, 2 * MIB, confirm=confirmed)
    first = await anext(entries)
    truncate(bench, index, 3 * MIB // 2)
    assert len(await first.content()) == MIB
    second = await anext(entries)
    assert second.kind == TRUNCATED
    with pytest.raises(SegmentTruncatedError):
        await second.content()
    await entries.aclose()
    assert await read_all(index, 3 * MIB // 2, 10) == (
        random_bytes(2 * MIB)[3 * MIB // 2 :][:10],
        [CACHE],
    )


def test_truncation_frees_only_what_tier_2_has() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, bytes(4096))
    append(index, bytes(4096))
    truncate(bench, index, 8192)
    assert bench.memory.occupied_bytes == 8192
    flush(bench, index, 4096)
    assert bench.memory.occupied_bytes == 4096
    flush(bench, index)
    assert bench.memory.occupied_bytes == 0
    bench.container.check()


async def test_a_deleted_segment_answers_every_read_with_its_error() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"abc")
    entries = index.read(0, 100, confirm=confirmed)
    assert await (await anext(entries)).content() == b"abc"
    index.end_reads(SegmentNotFoundError("segment-1"))
    with pytest.raises(SegmentNotFoundError):
        await anext(entries)
    assert index.read_cached(0, 3) is None
    bench.container.remove(index.metadata.segment_id)
    assert bench.memory.occupied_bytes == 0


def test_h53_a_copy_outlives_the_block_it_came_from() -> None:
    bench = ReadIndexBench(budget_bytes=MIB)
    index = bench.open()
    append(index, b"a" * 4096)
    copy = index.read_cached(0, 4096)
    flush(bench, index)
    assert bench.cache.evict(4096) == 4096
    other = bench.open()
    append(other, b"b" * 4096)
    assert copy == b"a" * 4096


def test_h54_an_evicted_truncated_or_flushed_block_is_never_extended() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"a" * 100)
    flush(bench, index)
    bench.cache.evict(4096)
    other = bench.open()
    append(other, b"o" * 100)
    append(index, b"b" * 100)
    assert other.read_cached(0, 100) == b"o" * 100
    assert index.read_cached(100, 100) == b"b" * 100
    flush(bench, index)
    truncate(bench, index, 200)
    append(index, b"c" * 100)
    assert index.read_cached(200, 100) == b"c" * 100
    bench.container.check()


def test_h54_staged_bytes_do_not_change_under_their_views() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    data = random_bytes(300_000)
    views = []
    for begin in range(0, len(data), 777):
        piece = data[begin : begin + 777]
        stage(index, piece)
        views.append((piece, index.views(begin, len(piece))))
    commit(index)
    for piece, kept in views:
        assert b"".join(kept) == piece


def test_h54_an_append_accepted_behind_a_pending_merge_leaves_its_place_free() -> None:
    bench = ReadIndexBench()
    source = bench.open()
    append(source, b"SOURCE")
    seal(source)
    target = bench.open()
    append(target, b"before")
    metadata = metadata_of(target)
    metadata.pending_length += 6
    stage(target, b"after")
    metadata.set_length(12)
    target.begin_merge(6, source)
    assert target.read_cached(0, 100) == b"beforeSOURCE"
    commit(target)
    assert target.read_cached(0, 100) == b"beforeSOURCEafter"
    bench.container.check()


@pytest.mark.slow
def test_h55_twenty_five_thousand_segments_of_one_byte_fit_into_256_mb() -> None:
    bench = ReadIndexBench(budget_bytes=256 * 10**6)
    indexes = [bench.open() for _ in range(25_000)]
    for index in indexes:
        append(index, b"x")
    assert bench.cache.unflushed_bytes == 25_000 * BLOCK_BYTES_MIN
    assert bench.cache.utilisation(bench.container.cache.share) < 0.5
    assert all(index.read_cached(0, 1) == b"x" for index in indexes)


@pytest.mark.parametrize("piece", [1_000, 4_096, 5_000, 70_000, 1_500_000])
def test_h55_an_unflushed_run_occupies_at_most_twice_its_bytes(piece: int) -> None:
    bench = ReadIndexBench(budget_bytes=16 * MIB)
    index = bench.open()
    length = 0
    while length + piece < 5 * MIB:
        append(index, bytes(piece))
        length += piece
        assert bench.container.unflushed_bytes <= max(2 * length, BLOCK_BYTES_MIN)


def test_h55_a_large_block_is_not_kept_pinned_by_what_trickles_in() -> None:
    bench = ReadIndexBench(budget_bytes=16 * MIB)
    index = bench.open()
    append(index, bytes(3 * MIB))
    append(index, b"x")
    flush(bench, index, 3 * MIB)
    append(index, b"y")
    flush(bench, index, 3 * MIB + 1)
    assert bench.container.unflushed_bytes == BLOCK_BYTES_MIN
    assert index.read_cached(3 * MIB, 2) == b"xy"
    bench.container.check()


def test_h56_an_entry_that_straddles_the_storage_length_is_not_evicted() -> None:
    bench = ReadIndexBench()
    index = bench.open()
    append(index, b"a" * 3000)
    flush(bench, index, 2999)
    assert bench.cache.evict(MIB) == 0
    assert index.read_cached(0, 3000) == b"a" * 3000
    flush(bench, index)
    assert bench.cache.evict(MIB) == 4096


def test_h56_a_merged_source_is_evictable_by_its_own_storage_length() -> None:
    bench = ReadIndexBench()
    source = bench.open()
    append(source, b"s" * 4096)
    flush(bench, source)
    append(source, b"t" * 4096)
    seal(source)
    target = bench.open()
    append(target, b"t" * 10)
    merge(target, source)
    assert bench.cache.evict(MIB) == 4096
    assert target.read_cached(0, 10) == b"t" * 10
    assert target.read_cached(10 + 4096, 4096) == b"t" * 4096
    bench.container.check()
