"""Stream cuts: positions in a stream, one offset per segment, that together cover the key space.

Pure. Two segments whose ranges overlap never took events at the same time: the one created in the earlier epoch was
sealed before the other was born. Everything here follows from comparing creation epochs of overlapping segments.

A cut names one segment, and an offset in it, for every routing key. For one key, the segment of the higher id is the
later one: ids grow with the epoch in which a segment was created, and a segment's successors are created after it. Two
cuts of one stream lie to one another in one of three ways:

| order | means |
|---|---|
| AT_OR_AFTER | for every key the first cut lies at the second or behind it |
| BEFORE | the same the other way round, and they differ |
| CROSSING | it depends on the key |

Invariants:

- A segment counts as behind a cut only if it precedes *every* segment of the cut that it overlaps; where a cut runs
  around it on both sides it is kept.
- No cut is compared pair by pair: a stream has a thousand segments, and the loop has other work.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

from segmentstore.codec.controller_records.stream_records import SegmentWithRange, StreamSegment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import PreconditionError

Cut = Mapping[int, int]
"""Segment id -> offset. A negative offset means the segment's start: clients write it for segments yet unread."""

CutWithRanges = Mapping[SegmentWithRange, int]
"""The same, with the range of each segment."""


SegmentType = TypeVar("SegmentType", StreamSegment, SegmentWithRange)


class SegmentsByKey(Generic[SegmentType]):
    """Segments in the order of their keys; any, also such that share keys with one another."""

    def __init__(self, segments: Iterable[SegmentType]) -> None:
        """O(n log n)."""
        self._segments: list[SegmentType] = sorted(segments, key=lambda each: each.low)
        self._lows: list[float] = [each.low for each in self._segments]
        self._reached: list[float] = list(accumulate((each.high for each in self._segments), max))
        """Up to which key the segments so far reach."""

    def __len__(self) -> int:
        return len(self._segments)

    def overlapping(self, segment: SegmentType) -> list[SegmentType]:
        """Those that share keys with it. O(log n + found) among segments that do not overlap."""
        first = bisect_right(self._reached, segment.low)
        last = bisect_left(self._lows, segment.high)
        return [each for each in self._segments[first:last] if each.high > segment.low]


class _DisjointSegments:
    """Segments that share no keys with one another, in the order of their keys."""

    def __init__(self) -> None:
        self._segments: list[SegmentWithRange] = []
        self._lows: list[float] = []
        self._highs: list[float] = []

    def overlapping(self, segment: SegmentWithRange) -> list[SegmentWithRange]:
        """Those that share keys with it. O(log n + found)."""
        return self._segments[self._place_of(segment)]

    def replace_overlapping(self, segment: SegmentWithRange) -> None:
        """Put it in the place of those."""
        place = self._place_of(segment)
        self._segments[place] = [segment]
        self._lows[place] = [segment.low]
        self._highs[place] = [segment.high]

    def _place_of(self, segment: SegmentWithRange) -> slice:
        return slice(bisect_right(self._highs, segment.low), bisect_left(self._lows, segment.high))


def check_cover(segments: Sequence[StreamSegment]) -> None:
    """Raises PreconditionError unless the segments partition the key space."""
    ordered = sorted(segments, key=lambda each: each.low)
    if not ordered or ordered[0].low != 0.0 or ordered[-1].high != 1.0:
        raise PreconditionError("a stream cut covers the whole key space")
    for left, right in pairwise(ordered):
        if left.high != right.low:
            raise PreconditionError(
                f"a stream cut has a gap or an overlap segments={left.segment_id},{right.segment_id}"
            )


def check_cut(cut: Cut) -> None:
    """Raises InvalidRequestError for ids that no segment can have."""
    for segment_id in cut:
        if segment_id < 0:
            raise InvalidRequestError(f"a segment id is not negative segment_id={segment_id}")


def normalised(cut: Cut) -> dict[int, int]:
    """The cut in the order of its ids, negative offsets become 0."""
    return {segment_id: max(0, cut[segment_id]) for segment_id in sorted(cut)}


def lies_behind(segment: StreamSegment, cut: SegmentsByKey[StreamSegment]) -> bool:
    """Whether everything in the segment comes before the cut."""
    return all(segment.creation_epoch < other.creation_epoch for other in cut.overlapping(segment))


def lies_ahead(segment: StreamSegment, cut: SegmentsByKey[StreamSegment]) -> bool:
    """Whether everything in the segment comes after the cut."""
    return all(segment.creation_epoch > other.creation_epoch for other in cut.overlapping(segment))


def reaches(
    later: Cut,
    later_segments: Iterable[StreamSegment],
    earlier: Cut,
    earlier_segments: Sequence[StreamSegment],
) -> bool:
    """Whether no position of the later cut lies before the earlier cut.

    It is no order_of(): neither has to cover all keys, as the position of a writer does not.
    """
    earlier_by_key = SegmentsByKey(earlier_segments)
    for segment in later_segments:
        for other in earlier_by_key.overlapping(segment):
            if segment.segment_id == other.segment_id:
                if later[segment.segment_id] < earlier[other.segment_id]:
                    return False
            elif segment.creation_epoch < other.creation_epoch:
                return False
    return True


class CutOrder(Enum):
    """How the first of two cuts lies to the second."""

    AT_OR_AFTER = "at or after"
    BEFORE = "before"
    CROSSING = "crossing"


def order_of(first: CutWithRanges, second: CutWithRanges) -> CutOrder:
    """O(n log n + m) for cuts of n and m segments."""
    below = above = False
    for segment, other in _overlapping_pairs(first, second):
        left = (segment.segment_id, first[segment])
        right = (other.segment_id, second[other])
        below = below or left < right
        above = above or left > right
    if below and above:
        return CutOrder.CROSSING
    return CutOrder.BEFORE if below else CutOrder.AT_OR_AFTER


def lowest_of(cuts: Iterable[CutWithRanges]) -> dict[SegmentWithRange, int]:
    """For every key the earliest position that any of the cuts has there."""
    return _extreme_of(cuts, lowest=True)


def highest_of(cuts: Iterable[CutWithRanges]) -> dict[SegmentWithRange, int]:
    """For every key the latest position that any of the cuts has there; keys may be left uncovered."""
    return _extreme_of(cuts, lowest=False)


def uncovered(segments: Iterable[SegmentWithRange]) -> list[tuple[float, float]]:
    """Parts of the key space 0.0 to 1.0 that none of the segments covers, in order; segments do not overlap."""
    gaps: list[tuple[float, float]] = []
    reached = 0.0
    for segment in sorted(segments, key=lambda segment: segment.low):
        if segment.low > reached:
            gaps.append((reached, segment.low))
        reached = max(reached, segment.high)
    if reached < 1.0:
        gaps.append((reached, 1.0))
    return gaps


def _extreme_of(cuts: Iterable[CutWithRanges], *, lowest: bool) -> dict[SegmentWithRange, int]:
    extreme: dict[SegmentWithRange, int] = {}
    held = _DisjointSegments()
    for cut in cuts:
        for segment in sorted(cut):
            if segment in extreme:
                extreme[segment] = (min if lowest else max)(extreme[segment], cut[segment])
                continue
            shared = held.overlapping(segment)
            if any((each < segment) is lowest for each in shared):
                # A predecessor (of the highest: a successor) is held; it stands for all of its keys, also those that
                # this segment shares.
                continue
            for each in shared:
                del extreme[each]
            held.replace_overlapping(segment)
            extreme[segment] = cut[segment]
    return extreme


def _overlapping_pairs(
    first: CutWithRanges, second: CutWithRanges
) -> Iterable[tuple[SegmentWithRange, SegmentWithRange]]:
    """Pairs that share keys: one walk over both, because each covers the keys without overlaps."""
    left = sorted(first, key=lambda segment: segment.low)
    right = sorted(second, key=lambda segment: segment.low)
    at = 0
    for segment in left:
        while at < len(right) and right[at].high <= segment.low:
            at += 1
        ahead = at
        while ahead < len(right) and right[ahead].low < segment.high:
            yield segment, right[ahead]
            ahead += 1
