"""The segments of a stream: which ranges of keys they take, who follows whom, and a position over all of them."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from segmentstore.client.errors import ClientError
from segmentstore.codec.routing_hash import range_index
from segmentstore.contracts.errors import InvalidRequestError

SegmentKey: TypeAlias = tuple[str, int]
"""`scope/stream` and segment id."""
_NUMBER_END: Final = 1 << 63
"""Segment ids and offsets are below it wherever they are sent."""


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
    """Which of the segments that a writer writes to takes a key.

    Invariants:

    - The ranges partition [0, 1): they are in ascending order, each begins where the one before it ends.
    - A segment that ended is replaced within its own ranges only. A successor that came of merging two segments takes
      over one of them at a time: keys of the other may still have events on their way there, which must stay first.
    """

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


@dataclass(slots=True)
class ReadingOrder:
    """When a segment of one stream that follows others may be read, and which segments make up a position in it.

    The user keeps which segments have begun (`begun`): those in its position.

    Invariants:

    - A successor is let go exactly once, by the last of its predecessors to finish, whatever their order.
    - A finished segment belongs to the position (at its end) until everything that follows it has begun and everything
      before it has left; a reader that starts from the position then neither misses a successor nor waits for a
      predecessor that was read long ago.
    """

    waiting: dict[int, list[int]] = field(default_factory=dict)
    """By successor: the predecessors that are not finished yet."""
    ended: dict[int, list[int]] = field(default_factory=dict)
    """By finished segment that is still in the position: what follows it."""

    def finish(
        self, segment_id: int, successors: Sequence[Successor], begun: Container[int]
    ) -> list[int]:
        """Note that a segment was read to its end; the successors that begin now."""
        self.ended[segment_id] = [each.range.segment_id for each in successors]
        ready: list[int] = []
        for each in successors:
            following = each.range.segment_id
            if following in begun:
                continue  # the position that the reading began with holds it already
            # The first predecessor to finish brings the whole list; the others find it here.
            rest = self.waiting.setdefault(following, list(each.predecessors))
            if segment_id in rest:
                rest.remove(segment_id)
            if not rest:
                del self.waiting[following]
                ready.append(following)
        return ready

    def settle(self, begun: Container[int]) -> list[int]:
        """Finished segments that leave the position now. O(finished segments in it, squared)."""
        left: list[int] = []
        # Ids grow with epochs, so predecessors come first.
        for segment_id in sorted(self.ended):
            following = self.ended[segment_id]
            has_predecessor = any(segment_id in other for other in self.ended.values())
            if following and not has_predecessor and all(each in begun for each in following):
                del self.ended[segment_id]
                left.append(segment_id)
        return left


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in a whole stream: an offset in bytes for each of the segments that together cover the key space.

    A cut without segments is the end of a sealed stream.

    The text form is the stream, a colon, then `segment id=offset` pairs by ascending id, joined by commas:
    `scope/stream:0=1024,4294967297=0`. It is stable, so that a cut can be kept in a file or a configuration.
    """

    stream: str
    """`scope/stream`."""
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        pairs = ",".join(f"{segment}={self.offsets[segment]}" for segment in sorted(self.offsets))
        return f"{self.stream}:{pairs}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cut that `str()` wrote. Raises InvalidRequestError."""
        stream, colon, pairs = text.partition(":")
        try:
            if not colon:
                raise ValueError
            offsets: dict[int, int] = {}
            for pair in filter(None, pairs.split(",")):
                segment, _, offset = pair.partition("=")
                offsets[int(segment)] = int(offset)
            if any(abs(number) >= _NUMBER_END for pair in offsets.items() for number in pair):
                raise ValueError
        except ValueError as error:
            raise InvalidRequestError(
                f"a stream cut looks like scope/stream:segment=offset,... given={text!r}"
            ) from error
        return cls(stream, offsets)
