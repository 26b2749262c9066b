"""A stream as its readers need it: which segments it has, in which order they follow each other, and how far they go.

The same from both sources: from the records in Tier 2 when the service is not asked (H78), and from the controller.

Invariants:

- The segments are those from the head on; each stands behind all of its predecessors.
- successors and predecessors name segments of the map only, and agree with each other.
- start_offset <= published_end <= end_offset unless the segment was truncated past what is published; what lies between
  published_end and end_offset only the service has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSegment:
    """One segment of a stream. Offsets in bytes."""

    segment_id: int
    """In the stream: creation epoch in the upper 32 bits, number in the lower."""
    name: str
    """Qualified: `scope/stream/0.#epoch.0`."""
    epoch: int
    """In which it was created."""
    low: float
    high: float
    """The part [low, high) of the key space."""
    start_offset: int
    """First offset that can be read: what is before was truncated."""
    end_offset: int
    """Behind the last byte that can be read: the service's word if it was asked, else what Tier 2 holds."""
    published_end: int
    """Behind the last byte in Tier 2; 0 if nothing of the segment is there."""
    is_sealed: bool
    """Nothing will be appended. False if nobody says so."""
    container_id: int
    """Whose root leads to the segment in Tier 2; -1 if Tier 2 is not read."""
    successors: tuple[int, ...] = ()
    predecessors: tuple[int, ...] = ()


@dataclass(frozen=True)
class StreamMap:
    """One stream at one moment."""

    scope: str
    stream: str
    segments: Sequence[MappedSegment]
    """Predecessors first, by ascending segment id among equals."""
    head: Mapping[int, int]
    """The cut at which the stream begins."""
    tags: tuple[str, ...] = ()
    is_sealed: bool = False
    """The whole stream: no segment takes events, none will be added."""
    created_ms: int = 0

    @cached_property
    def by_id(self) -> Mapping[int, MappedSegment]:
        """The segments by id."""
        return {segment.segment_id: segment for segment in self.segments}

    @property
    def active(self) -> Sequence[MappedSegment]:
        """The segments that nothing follows: those that take events, or the last ones of a sealed stream."""
        return [segment for segment in self.segments if not segment.successors]

    @property
    def tail(self) -> Mapping[int, int]:
        """The cut at the end of what can be read."""
        return {segment.segment_id: segment.end_offset for segment in self.active}

    def check(self) -> None:
        """Order and edges agree. O(segments + edges)."""
        place = {segment.segment_id: number for number, segment in enumerate(self.segments)}
        assert len(place) == len(self.segments), f"a segment is named twice {self.segments}"
        for segment in self.segments:
            assert segment.start_offset <= segment.end_offset, f"offsets out of order {segment}"
            for each in segment.successors:
                assert place[each] > place[segment.segment_id], f"out of order {segment}"
                assert segment.segment_id in self.by_id[each].predecessors, f"edge {segment}"
            for each in segment.predecessors:
                assert segment.segment_id in self.by_id[each].successors, f"edge {segment}"
