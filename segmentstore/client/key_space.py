"""Which segment takes which part of a stream's key space.

Invariants:

- The ranges partition [0, 1): they are in ascending order, each begins where the one before it ends.
- A segment that ended is replaced within its own ranges only. A successor that came of merging two segments takes over
  one of them at a time: keys of the other may still have events on their way there, which must stay first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segmentstore.client.errors import ClientError
from segmentstore.codec.routing_hash import range_index


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the positions [low, high) that it takes."""

    segment_id: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others: it begins when all of its predecessors have ended."""

    range: SegmentRange
    predecessors: tuple[int, ...]


class KeySpace:
    """The segments that a writer writes to."""

    def __init__(self, ranges: Iterable[SegmentRange]) -> None:
        self._ranges: Sequence[SegmentRange] = ()
        self._bounds: Sequence[float] = ()
        self._set(ranges)

    @property
    def segment_ids(self) -> Sequence[int]:
        """In the order of their first range; each once."""
        return list(dict.fromkeys(each.segment_id for each in self._ranges))

    def segment_of(self, position: float) -> int:
        """O(log segments)."""
        return self._ranges[range_index(self._bounds, position)].segment_id

    def replace(self, segment_id: int, successors: Sequence[SegmentRange]) -> None:
        """Give the ranges of an ended segment to those that follow it. Raises ClientError if they leave a gap."""
        replaced: list[SegmentRange] = []
        for each in self._ranges:
            if each.segment_id != segment_id:
                replaced.append(each)
                continue
            for successor in successors:
                low, high = max(each.low, successor.low), min(each.high, successor.high)
                if low < high:
                    replaced.append(SegmentRange(successor.segment_id, low, high))
        self._set(replaced)

    def check(self) -> None:
        """O(segments). Raises ClientError: the ranges come from a server."""
        edge = 0.0
        for each in self._ranges:
            if each.low != edge or not each.low < each.high:
                raise ClientError(f"segments do not cover the key space ranges={self._ranges!r}")
            edge = each.high
        if edge != 1.0:
            raise ClientError(f"segments do not cover the key space ranges={self._ranges!r}")

    def _set(self, ranges: Iterable[SegmentRange]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.low)
        self._bounds = [each.high for each in self._ranges]
        self.check()
