"""Stream cuts: positions in a stream, one offset per segment, that together cover the key space.

Two segments whose ranges overlap never took events at the same time: the one created in the earlier epoch was sealed
before the other was born. Everything here follows from comparing creation epochs of overlapping segments.

Invariant: a segment counts as behind a cut only if it precedes *every* segment of the cut that it overlaps; where a cut
runs around it on both sides it is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from segmentstore.codec.stream_records.stream_segment import StreamSegment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import PreconditionError

Cut = Mapping[int, int]
"""Segment id -> offset. A negative offset means the segment's start: clients write it for segments yet unread."""


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


def lies_behind(segment: StreamSegment, cut: Sequence[StreamSegment]) -> bool:
    """Whether everything in the segment comes before the cut."""
    return all(
        segment.creation_epoch < other.creation_epoch for other in cut if segment.overlaps(other)
    )


def lies_ahead(segment: StreamSegment, cut: Sequence[StreamSegment]) -> bool:
    """Whether everything in the segment comes after the cut."""
    return all(
        segment.creation_epoch > other.creation_epoch for other in cut if segment.overlaps(other)
    )


def reaches(
    later: Cut,
    later_segments: Iterable[StreamSegment],
    earlier: Cut,
    earlier_segments: Sequence[StreamSegment],
) -> bool:
    """Whether no position of the later cut lies before the earlier cut."""
    for segment in later_segments:
        for other in earlier_segments:
            if not segment.overlaps(other):
                continue
            if segment.segment_id == other.segment_id:
                if later[segment.segment_id] < earlier[other.segment_id]:
                    return False
            elif segment.creation_epoch < other.creation_epoch:
                return False
    return True
