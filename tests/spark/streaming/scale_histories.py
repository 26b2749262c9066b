"""Streams that scaled at random, for property tests of what follows from their order."""

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

from segmentstore.spark.streams.segment_graph import SegmentGraph


@dataclass(frozen=True)
class ScaleHistory:
    """A stream whose segments of all epochs but the last are sealed; ranges are in 64ths of the key space."""

    ranges: dict[int, tuple[int, int]]
    successors: dict[int, tuple[int, ...]]
    lengths: dict[int, int]
    sealed: frozenset[int]

    @property
    def order(self) -> SegmentGraph:
        finals = {each: self.lengths[each] for each in self.lengths if each in self.sealed}
        return SegmentGraph(name="plant/readings", successors=self.successors, final_lengths=finals)

    def covers(self, cut: dict[int, int]) -> bool:
        bounds = sorted(self.ranges[each] for each in cut)
        ends = [0, *(high for _, high in bounds)]
        return ends[-1] == 64 and all(
            low == end for (low, _), end in zip(bounds, ends, strict=False)
        )


@st.composite
def scale_histories(draw: st.DrawFn) -> ScaleHistory:
    ranges: dict[int, tuple[int, int]] = {}
    successors: dict[int, tuple[int, ...]] = {}
    number = 0

    def born(epoch: int, bounds: list[int]) -> list[int]:
        nonlocal number
        made = []
        for low, high in itertools.pairwise(bounds):
            segment_id = epoch << 32 | number
            number += 1
            ranges[segment_id] = (low, high)
            successors[segment_id] = ()
            made.append(segment_id)
        return made

    def cuts(low: int, high: int) -> list[int]:
        inner = draw(st.sets(st.integers(low + 1, high - 1), max_size=2)) if high - low > 1 else ()
        return [low, *sorted(inner), high]

    active = born(0, cuts(0, 64))
    sealed: set[int] = set()
    for epoch in range(1, draw(st.integers(0, 4)) + 1):
        first = draw(st.integers(0, len(active) - 1))
        last = draw(st.integers(first, len(active) - 1))
        parents = active[first : last + 1]
        children = born(epoch, cuts(ranges[parents[0]][0], ranges[parents[-1]][1]))
        for parent in parents:
            low, high = ranges[parent]
            successors[parent] = tuple(
                each for each in children if ranges[each][0] < high and low < ranges[each][1]
            )
        sealed.update(parents)
        active[first : last + 1] = children
    if draw(st.booleans()) and draw(st.booleans()):
        sealed.update(active)
    lengths = {each: draw(st.integers(0, 5)) for each in ranges}
    return ScaleHistory(ranges, successors, lengths, frozenset(sealed))
