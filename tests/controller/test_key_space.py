"""Ranges of the key space: even at first, exact for ever."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.controller_records.stream_records import StreamSegment
from segmentstore.controller.errors import PreconditionError
from segmentstore.controller.streams.key_space import replacing_ranges, split_range


@given(st.integers(1, 1000))
def test_even_parts_cover_the_key_space_without_gap(count: int) -> None:
    ranges = split_range(0.0, 1.0, count)
    assert len(ranges) == count
    assert ranges[0][0] == 0.0
    assert ranges[-1][1] == 1.0
    assert all(left[1] == right[0] for left, right in pairwise(ranges))


@given(st.integers(1, 50), st.integers(0, 1 << 32))
def test_replacing_ranges_cover_exactly_what_they_replace(count: int, seed: int) -> None:
    random = Random(seed)
    segments = [
        StreamSegment(number, low, high, 0)
        for number, (low, high) in enumerate(split_range(0.0, 1.0, count))
    ]
    sealed = sorted(
        random.sample(segments, random.randint(1, count)), key=lambda segment: segment.low
    )
    # Every sealed segment is split in some parts, whose bounds come with a rounding error.
    wanted = []
    for segment in sealed:
        parts = random.randint(1, 3)
        width = (segment.high - segment.low) / parts
        for part in range(parts):
            error = random.uniform(-1e-6, 1e-6)
            wanted.append((segment.low + part * width + error, segment.low + (part + 1) * width))
    random.shuffle(wanted)
    exact = replacing_ranges(sealed, wanted)
    assert len(exact) == len(wanted)
    kept = [(each.low, each.high) for each in segments if each not in sealed]
    everything = sorted(kept + exact)
    assert everything[0][0] == 0.0
    assert everything[-1][1] == 1.0
    for left, right in pairwise(everything):
        assert left[1] == right[0]


def test_a_range_can_be_halved_until_the_numbers_end() -> None:
    segment = StreamSegment(0, 0.0, 1.0, 0)
    for number in range(1, 60):
        middle = (segment.low + segment.high) / 2
        wanted = [(segment.low, middle), (middle, segment.high)]
        assert replacing_ranges([segment], wanted) == wanted
        segment = StreamSegment(number, segment.low, middle, 0)


def test_a_bound_is_never_moved_into_a_neighbour() -> None:
    segments = [StreamSegment(0, 0.0, 0.5, 0), StreamSegment(1, 0.5, 1.0, 0)]
    with pytest.raises(PreconditionError):
        replacing_ranges(segments[:1], [(0.0, 0.51)])
    with pytest.raises(PreconditionError):
        replacing_ranges(segments[1:], [(0.49, 1.0)])
    assert replacing_ranges(segments, [(0.0, 0.25), (0.25, 1.0)]) == [(0.0, 0.25), (0.25, 1.0)]
