"""How two cuts of one stream lie to one another.

A cut names one segment, and an offset in it, for every routing key. For one key, the segment of the higher id is the
later one: ids grow with the epoch in which a segment was created, and a segment's successors are created after it.

| order | means |
|---|---|
| AT_OR_AFTER | for every key the first cut lies at the second or behind it |
| BEFORE | the same the other way round, and they differ |
| CROSSING | it depends on the key |
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from segmentstore.codec.stream_records.watermark import KeyedSegment

KeyedCut = Mapping[KeyedSegment, int]


class CutOrder(Enum):
    """How the first of two cuts lies to the second."""

    AT_OR_AFTER = "at or after"
    BEFORE = "before"
    CROSSING = "crossing"


def order_of(first: KeyedCut, second: KeyedCut) -> CutOrder:
    """O(n log n + m) for cuts of n and m segments."""
    below = above = False
    for segment, other in _overlapping(first, second):
        left = (segment.segment_id, first[segment])
        right = (other.segment_id, second[other])
        below = below or left < right
        above = above or left > right
    if below and above:
        return CutOrder.CROSSING
    return CutOrder.BEFORE if below else CutOrder.AT_OR_AFTER


def lowest_of(cuts: Iterable[KeyedCut]) -> dict[KeyedSegment, int]:
    """For every key the earliest position that any of the cuts has there."""
    lowest: dict[KeyedSegment, int] = {}
    for cut in cuts:
        for segment in sorted(cut):
            if segment in lowest:
                lowest[segment] = min(lowest[segment], cut[segment])
                continue
            if any(segment.overlaps(held) and held < segment for held in lowest):
                # A predecessor is held; it stands for all of its keys, also those this segment shares.
                continue
            for held in [held for held in lowest if segment.overlaps(held)]:
                del lowest[held]
            lowest[segment] = cut[segment]
    return lowest


def highest_of(cuts: Iterable[KeyedCut]) -> dict[KeyedSegment, int]:
    """For every key the latest position that any of the cuts has there; keys may be left uncovered."""
    highest: dict[KeyedSegment, int] = {}
    for cut in cuts:
        for segment in sorted(cut):
            if segment in highest:
                highest[segment] = max(highest[segment], cut[segment])
                continue
            if any(segment.overlaps(held) and segment < held for held in highest):
                continue
            for held in [held for held in highest if segment.overlaps(held)]:
                del highest[held]
            highest[segment] = cut[segment]
    return highest


def uncovered(segments: Iterable[KeyedSegment]) -> list[tuple[float, float]]:
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


def _overlapping(first: KeyedCut, second: KeyedCut) -> Iterable[tuple[KeyedSegment, KeyedSegment]]:
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
