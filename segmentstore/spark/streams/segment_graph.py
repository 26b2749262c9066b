"""A stream as its readers need it: which segments it has, in which order they follow each other, and how far they go.

`StreamMetadata` says that of one moment, in the same words whether it was made from the records in Tier 2, because the
service is not asked, or from the controller. `SegmentGraph` says where a reader stands in a stream that scales,
and what it may read next. Everything here is pure.

A reader's position is a cut: segment id -> offset. Segments that replace others by one scale event form a *generation*
with those that they replace: parents and children that together own the same keys. A generation is crossed as a whole:
its children take the place of its parents in the position when every parent is drained.

The order is known from the stream's head on. A position may name segments that retention has removed since (`gone`):
they lie before every segment of the order, and how long they became has to be learned elsewhere.

Invariants:

- The segments of a stream are those from the head on; each stands behind all of its predecessors.
- successors and predecessors name segments of the stream only, and agree with each other.
- start_offset <= published_end <= end_offset unless the segment was truncated past what is published; what lies between
  published_end and end_offset only the service has.
- No event of a segment is in a batch before the batches with all events of all its predecessors.
- A position covers the key space without gap or overlap as long as the one that it began with did, so it is at any
  time a stream cut as the controller and Pravega's clients understand it.
- What lies between two positions follows from them and the order of the segments alone; a checkpoint needs no more.
- A child begins at offset 0, wherever its present head is: what was truncated before it was read is loss, and is seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError

Cut = Mapping[int, int]
"""Segment id -> offset in bytes."""


class StreamMissingError(SegmentStoreError):
    """There is no such scope, stream or segment where the query looks for it."""

    kind = ErrorKind.NOT_FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegmentMetadata:
    """One segment of a stream. Offsets in bytes."""

    segment_id: int
    """In the stream: creation epoch in the upper 32 bits, number in the lower. In no stream: in its container."""
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
    """Nothing will be appended. False if neither the service nor Tier 2 says so."""
    container_id: int
    """Whose manifest leads to the segment in Tier 2; -1 if Tier 2 is not read."""
    successors: tuple[int, ...] = ()
    predecessors: tuple[int, ...] = ()


@dataclass(frozen=True)
class StreamMetadata:
    """One stream at one moment."""

    scope: str
    stream: str
    segments: Sequence[StreamSegmentMetadata]
    """Predecessors first, by ascending segment id among equals."""
    head: Mapping[int, int]
    """The cut at which the stream begins."""
    tags: tuple[str, ...] = ()
    is_sealed: bool = False
    """The whole stream: no segment takes events, none will be added."""
    created_ms: int = 0

    @property
    def name(self) -> str:
        """For messages: of a segment that is in no stream its own."""
        return f"{self.scope}/{self.stream}" if self.scope else self.segments[0].name

    @cached_property
    def by_id(self) -> Mapping[int, StreamSegmentMetadata]:
        """The segments by id."""
        return {segment.segment_id: segment for segment in self.segments}

    @property
    def active(self) -> Sequence[StreamSegmentMetadata]:
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


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The bytes [start, end) of one segment."""

    segment_id: int
    start: int
    end: int


class SegmentGraph:
    """Which segments follow which in one stream, and how long those became that take no more events."""

    def __init__(
        self,
        *,
        name: str,
        successors: Mapping[int, Sequence[int]],
        final_lengths: Mapping[int, int],
    ) -> None:
        """`successors` names every segment of the stream, those without successors too; `name` is for messages."""
        self._name = name
        self._successors = successors
        self._final_lengths = final_lengths
        self._predecessors: dict[int, list[int]] = {segment_id: [] for segment_id in successors}
        for segment_id in sorted(successors):
            for successor in successors[segment_id]:
                self._predecessors.setdefault(successor, []).append(segment_id)

    @classmethod
    def of(cls, stream: StreamMetadata) -> Self:
        """The order of a stream as it is mapped. O(segments + edges)."""
        return cls(
            name=stream.name,
            successors={each.segment_id: each.successors for each in stream.segments},
            final_lengths={
                each.segment_id: each.end_offset for each in stream.segments if each.is_sealed
            },
        )

    def is_drained(self, segment_id: int, offset: int) -> bool:
        """Whether nothing will ever follow at that offset of the segment."""
        final = self._final_lengths.get(segment_id)
        return final is not None and offset >= final

    def opened(self, cut: Cut, *, stop: Cut | None = None) -> dict[int, int]:
        """The cut with children in the place of parents that are drained; no generation is entered that lies
        behind `stop`."""
        assert not self.gone(cut), f"segments without successors {self.gone(cut)}"
        after = dict(cut)
        changed = True
        while changed:
            changed = False
            for segment_id in sorted(after):
                if segment_id not in after or not self.is_drained(segment_id, after[segment_id]):
                    continue
                parents, children = self._generation(segment_id)
                if not children or not all(self._is_past(each, after) for each in parents):
                    continue
                if stop is not None and any(each in stop for each in parents):
                    continue
                for each in parents:
                    after.pop(each, None)
                after.update((each, 0) for each in children)
                changed = True
        return dict(sorted(after.items()))

    def between(self, start: Cut, end: Cut) -> list[OffsetRange]:
        """Everything from one cut to a later one, by segment id; empty stretches are left out.

        Of segments that are gone only what both cuts name is found. Raises InvalidRequestError if `end` lies before
        `start`.
        """
        before_end = self._reached(end, self._predecessors)
        covered: set[int] = set(start)
        stretches: list[OffsetRange] = []
        for segment_id, offset in start.items():
            if segment_id not in end and segment_id not in self._successors:
                continue
            until = self._end_of(segment_id, end, before_end)
            if until < offset:
                raise self._goes_back(segment_id)
            stretches.append(OffsetRange(segment_id, offset, until))
        behind = self._reached(self._first_behind(start), self._successors) - covered
        for segment_id in sorted(behind & before_end):
            covered.add(segment_id)
            until = self._end_of(segment_id, end, before_end)
            stretches.append(OffsetRange(segment_id, 0, until))
        for segment_id in end:
            if segment_id not in covered:
                raise self._goes_back(segment_id)
        return sorted(each for each in stretches if each.end > each.start)

    def later_of(self, left: Cut, right: Cut) -> dict[int, int]:
        """The cut that is, for every key, where the later of both is; what is gone is left out. Commutative."""
        behind_left = self._reached(left, self._predecessors) - left.keys()
        behind_right = self._reached(right, self._predecessors) - right.keys()
        after: dict[int, int] = {}
        for segment_id in sorted(left.keys() | right.keys()):
            if segment_id not in self._successors:
                continue
            if segment_id in behind_left or segment_id in behind_right:
                continue
            after[segment_id] = max(left.get(segment_id, 0), right.get(segment_id, 0))
        return after

    def limited(self, available: Cut, stop: Cut | None) -> dict[int, int]:
        """How far segments may be read of which so many bytes are there, without passing `stop`.

        Segments neither before nor behind what `stop` names are not limited by it.
        """
        if stop is None:
            return dict(available)
        before = self._reached(stop, self._predecessors)
        behind = self._reached(stop, self._successors) - before
        if self.gone(stop):
            behind |= self._successors.keys() - before
        return {
            segment_id: 0 if segment_id in behind else min(offset, stop.get(segment_id, offset))
            for segment_id, offset in available.items()
        }

    def from_here(self, cut: Cut) -> list[int]:
        """The segments of the cut and everything behind them, by id; without what is gone."""
        found = self._reached(self._first_behind(cut), self._successors)
        return sorted(each for each in found if each in self._successors)

    def first_behind_gone(self, cut: Cut) -> list[int]:
        """The head's segments that are neither in the cut nor before it: what follows its gone segments now."""
        return sorted(set(self._first_behind(cut)) - cut.keys())

    def gone(self, cut: Iterable[int]) -> list[int]:
        """Segments of a cut that the order does not have, by id."""
        return sorted(segment_id for segment_id in cut if segment_id not in self._successors)

    def check(self) -> None:
        """Successors are segments of the stream, come later, and follow only sealed ones; O(n)."""
        for segment_id, successors in self._successors.items():
            for each in successors:
                assert each in self._successors, f"a successor that is no segment id={each}"
                assert each > segment_id, f"a successor of an earlier epoch {segment_id} {each}"

    def _generation(self, segment_id: int) -> tuple[list[int], list[int]]:
        """All parents and all children of the scale event that ended the segment."""
        parents, children = {segment_id}, set(self._successors[segment_id])
        grown = True
        while grown:
            wider = parents.union(*(self._predecessors[each] for each in children))
            grown = len(wider) > len(parents)
            parents = wider
            children = children.union(*(self._successors[each] for each in parents))
        return sorted(parents), sorted(children)

    def _is_past(self, segment_id: int, cut: Cut) -> bool:
        offset = cut.get(segment_id)
        return offset is not None and self.is_drained(segment_id, offset)

    def _first_behind(self, start: Cut) -> list[int]:
        """The cut's own segments; behind one that is gone, the head of the stream as well."""
        if not self.gone(start):
            return sorted(start)
        before = self._reached(start, self._predecessors)
        head = {each for each, parents in self._predecessors.items() if not parents}
        return sorted(set(start) | (head - before))

    def _end_of(self, segment_id: int, end: Cut, before_end: set[int]) -> int:
        if segment_id in end:
            return end[segment_id]
        final = self._final_lengths.get(segment_id)
        if segment_id not in before_end or final is None:
            raise self._goes_back(segment_id)
        return final

    def _goes_back(self, segment_id: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"position goes back, or is of another stream of that name; stream={self._name!r}"
            f" segment_id={segment_id}"
        )

    def _reached(self, cut: Iterable[int], links: Mapping[int, Sequence[int]]) -> set[int]:
        found = set(cut)
        ahead = sorted(found)
        while ahead:
            for each in links.get(ahead.pop(), ()):
                if each not in found:
                    found.add(each)
                    ahead.append(each)
        return found
