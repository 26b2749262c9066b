"""Cuts of streams with as many segments as there may be are compared as those of small ones are, and about as fast."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import ClassVar, Self

import pytest

from segmentstore.codec.controller_records.stream_records import SegmentWithRange, StreamSegment
from segmentstore.codec.stream_names import segment_id_of
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.key_space import split_range
from segmentstore.controller.streams.stream_cuts import (
    Cut,
    CutWithRanges,
    SegmentsByKey,
    highest_of,
    lies_ahead,
    lies_behind,
    lowest_of,
    reaches,
)

SEGMENTS = StreamSettings().segments_per_stream_max
LOOKS_PER_SEGMENT_MAX = 100


class CountedBound(float):
    """A bound of a key range; comparisons are counted."""

    compared: ClassVar[int] = 0

    def __lt__(self, other: float) -> bool:
        CountedBound.compared += 1
        return super().__lt__(other)

    def __gt__(self, other: float) -> bool:
        CountedBound.compared += 1
        return super().__gt__(other)

    @classmethod
    def during(cls, work: Callable[[], object]) -> int:
        cls.compared = 0
        work()
        return cls.compared

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __new__(cls, value: float) -> Self:
        return super().__new__(cls, value)


def epoch(number: int, count: int) -> list[StreamSegment]:
    return [
        StreamSegment(
            segment_id_of(number=number * count + place, creation_epoch=number),
            CountedBound(low),
            CountedBound(high),
            0,
        )
        for place, (low, high) in enumerate(split_range(0.0, 1.0, count))
    ]


def cut_of(segments: Sequence[StreamSegment], offset: int = 0) -> dict[int, int]:
    return {each.segment_id: offset for each in segments}


def ranged(segments: Sequence[StreamSegment], offset: int = 0) -> CutWithRanges:
    return {each.with_range: offset for each in segments}


OLD = epoch(1, SEGMENTS)
NEW = epoch(2, SEGMENTS)


@pytest.mark.parametrize(
    "work",
    [
        lambda: reaches(cut_of(NEW), NEW, cut_of(OLD), OLD),
        lambda: [lies_behind(each, cut) for cut in [SegmentsByKey(NEW)] for each in OLD],
        lambda: [lies_ahead(each, cut) for cut in [SegmentsByKey(OLD)] for each in NEW],
        lambda: lowest_of([ranged(OLD), ranged(NEW)]),
        lambda: highest_of([ranged(OLD), ranged(NEW)]),
    ],
    ids=["reaches", "behind", "ahead", "lowest", "highest"],
)
def test_cuts_of_many_segments_are_compared_without_looking_at_every_pair(
    work: Callable[[], object],
) -> None:
    assert CountedBound.during(work) < LOOKS_PER_SEGMENT_MAX * SEGMENTS


# --- the same by looking at every pair -----------------------------------------------------------


def plain_reaches(
    later: Cut,
    later_segments: Sequence[StreamSegment],
    earlier: Cut,
    earlier_segments: Sequence[StreamSegment],
) -> bool:
    return not any(
        later[segment.segment_id] < earlier[other.segment_id]
        if segment.segment_id == other.segment_id
        else segment.creation_epoch < other.creation_epoch
        for segment in later_segments
        for other in earlier_segments
        if segment.overlaps(other)
    )


def plain_extreme(cuts: Sequence[CutWithRanges], *, lowest: bool) -> dict[SegmentWithRange, int]:
    best: dict[SegmentWithRange, int] = {}
    for cut in cuts:
        for segment in sorted(cut):
            if segment in best:
                best[segment] = (min if lowest else max)(best[segment], cut[segment])
                continue
            shared = [each for each in best if segment.overlaps(each)]
            if any((each < segment) is lowest for each in shared):
                continue
            for each in shared:
                del best[each]
            best[segment] = cut[segment]
    return best


def random_segments(random: Random, *, epochs: int) -> list[StreamSegment]:
    """The segments of a stream that was scaled at random."""
    active = [StreamSegment(segment_id_of(number=0, creation_epoch=0), 0.0, 1.0, 0)]
    all_segments = list(active)
    for number in range(1, epochs):
        start = random.randrange(len(active))
        replaced = active[start : start + random.randint(1, 3)]
        ranges = split_range(replaced[0].low, replaced[-1].high, random.randint(1, 4))
        born = [
            StreamSegment(
                segment_id_of(number=len(all_segments) + place, creation_epoch=number), low, high, 0
            )
            for place, (low, high) in enumerate(ranges)
        ]
        active[start : start + len(replaced)] = born
        all_segments += born
    return all_segments


@pytest.mark.parametrize("seed", range(60))
def test_what_is_said_of_cuts_is_what_every_pair_says(seed: int) -> None:
    # Also of positions that leave keys out or name a segment beside its successors: clients send what they like.
    random = Random(seed)
    segments = random_segments(random, epochs=12)

    def some() -> list[StreamSegment]:
        return random.sample(segments, random.randint(0, len(segments)))

    def offsets(of: Sequence[StreamSegment]) -> dict[int, int]:
        return {each.segment_id: random.randint(0, 2) for each in of}

    later, earlier = some(), some()
    later_cut, earlier_cut = offsets(later), offsets(earlier)
    assert reaches(later_cut, later, earlier_cut, earlier) == plain_reaches(
        later_cut, later, earlier_cut, earlier
    )
    by_key = SegmentsByKey(earlier)
    for each in segments:
        shared = [other for other in earlier if each.overlaps(other)]
        assert sorted(other.segment_id for other in by_key.overlapping(each)) == sorted(
            other.segment_id for other in shared
        )
        epoch_of = each.creation_epoch
        assert lies_behind(each, by_key) == all(epoch_of < other.creation_epoch for other in shared)
        assert lies_ahead(each, by_key) == all(epoch_of > other.creation_epoch for other in shared)
    cuts: list[Mapping[SegmentWithRange, int]] = [
        {each.with_range: random.randint(0, 9) for each in some()} for _ in range(3)
    ]
    assert lowest_of(cuts) == plain_extreme(cuts, lowest=True)
    assert highest_of(cuts) == plain_extreme(cuts, lowest=False)
