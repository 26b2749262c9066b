from dataclasses import replace

from segmentstore.contracts.identifiers import (
    ContainerId,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.spark.jvm.block_locations import Found, ResolvedBlockCache
from segmentstore.spark.scan.partitions import BlockLocation, SegmentRange
from tests.spark.segment_blocks import part_of
from tier2.manifest.manifest import Manifest

ROOT = Manifest(
    store_id=b"s" * 16,
    log_id=b"log",
    container_id=ContainerId(0),
    container_count=1,
    epoch=Epoch(1),
    version=7,
    nonce=b"n" * 16,
    highest_segment_id=SegmentId(1),
    highest_sequence_number=SequenceNumber(1),
)
PART = part_of(0, 100)


def found(blocks: int) -> Found:
    block = BlockLocation(
        object_key="chunk",
        position=0,
        stored_length=10,
        compression=0,
        offset=0,
        length=10,
        first_event_offset=0,
        event_number=0,
        lowest_time_ms=0,
    )
    return Found(blocks=[block] * blocks, published_end=100, start=0, end=100)


def test_what_was_found_is_found_again_below_the_same_root() -> None:
    placed = ResolvedBlockCache()
    blocks = found(3)
    placed.keep(ROOT.identity, PART, blocks)
    assert placed.get(ROOT.identity, PART) is blocks


def test_another_version_store_or_attempt_is_asked_anew() -> None:
    placed = ResolvedBlockCache()
    placed.keep(ROOT.identity, PART, found(1))
    for other in (
        replace(ROOT, version=8),
        replace(ROOT, nonce=b"m" * 16),
        replace(ROOT, store_id=b"t" * 16),
        replace(ROOT, container_id=ContainerId(1)),
    ):
        assert placed.get(other.identity, PART) is None


def test_another_range_is_asked_anew_though_its_bounds_of_time_alone_differ() -> None:
    placed = ResolvedBlockCache()
    placed.keep(ROOT.identity, PART, found(1))
    assert placed.get(ROOT.identity, part_of(0, 99)) is None
    assert placed.get(ROOT.identity, replace(PART, lowest_time_ms=5)) is None
    plain = SegmentRange(
        scope=PART.scope,
        stream=PART.stream,
        segment_id=PART.segment_id,
        segment_name=PART.segment_name,
        container_id=PART.container_id,
        start=PART.start,
        end=PART.end,
        content=PART.content,
    )
    assert placed.get(ROOT.identity, plain) is None


def test_what_was_not_asked_for_longest_goes_first_when_blocks_are_too_many() -> None:
    placed = ResolvedBlockCache(blocks_max=10)
    parts = [part_of(0, end) for end in (1, 2, 3)]
    for part in parts[:2]:
        placed.keep(ROOT.identity, part, found(5))
    assert placed.get(ROOT.identity, parts[0]) is not None
    placed.keep(ROOT.identity, parts[2], found(4))
    assert [placed.get(ROOT.identity, part) is not None for part in parts] == [True, False, True]
    placed.keep(ROOT.identity, PART, found(11))
    assert placed.get(ROOT.identity, PART) is None
