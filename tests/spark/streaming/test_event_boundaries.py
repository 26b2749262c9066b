from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import StoredBlock
from segmentstore.spark.streaming.event_boundaries import Boundary, EventBoundaries
from tests.spark.streaming.memory_segment import MemorySegment
from tests.spark.streaming.unhurried import UNHURRIED


@st.composite
def segments(draw: st.DrawFn) -> MemorySegment:
    events = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
    length = sum(8 + len(event) for event in events)
    ends = draw(st.lists(st.integers(1, length), max_size=8))
    return MemorySegment(
        "plant/readings/0.#epoch.0", events, ends, events_known=draw(st.booleans())
    )


def boundary(segment: MemorySegment, number: int) -> Boundary:
    return Boundary(segment.starts[number], number)


@UNHURRIED
@given(segment=segments(), data=st.data())
async def test_h76_a_batch_ends_behind_the_last_event_that_fits(
    segment: MemorySegment, data: st.DataObject
) -> None:
    last = len(segment.events)
    first = data.draw(st.integers(0, last))
    end = data.draw(st.integers(segment.starts[first], len(segment.content)))
    target = data.draw(st.integers(segment.starts[first], end))
    found = await EventBoundaries(segment).at_most(boundary(segment, first), target=target, end=end)
    fitting = [number for number in range(first, last + 1) if segment.starts[number] <= target]
    expected = fitting[-1]
    if expected == first and first < last and segment.starts[first + 1] <= end:
        expected = first + 1
    assert found == boundary(segment, expected)


@UNHURRIED
@given(segment=segments(), data=st.data())
async def test_so_many_events_are_counted_from_any_boundary(
    segment: MemorySegment, data: st.DataObject
) -> None:
    last = len(segment.events)
    first = data.draw(st.integers(0, last))
    end = data.draw(st.integers(first, last))
    count = data.draw(st.integers(1, 15))
    start = boundary(segment, first)
    if data.draw(st.booleans()):
        start = Boundary(start.offset, None)
    found = await EventBoundaries(segment).after_events(
        start, count=count, end=boundary(segment, end)
    )
    assert found.offset == segment.starts[min(first + count, end)]
    assert found.event_number in (None, min(first + count, end))


@UNHURRIED
@given(segment=segments(), data=st.data())
async def test_h76_the_number_at_a_boundary_is_that_of_the_index(
    segment: MemorySegment, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(segment.events)))
    segment.start_offset = segment.starts[data.draw(st.integers(0, number))]
    found = await EventBoundaries(segment).number_at(segment.starts[number])
    assert found.offset == segment.starts[number]
    assert found.event_number in (None, number)
    if segment.start_offset == 0:
        assert found.event_number == number


async def test_h76_a_number_behind_a_truncated_head_comes_from_the_index_or_not_at_all() -> None:
    segment = MemorySegment("s/t/0.#epoch.0", [b"x" * 12] * 10, [40, 70, 100])
    segment.start_offset = 60
    assert await EventBoundaries(segment).number_at(80) == Boundary(80, 4)
    segment.block_ends = [40, 100]
    # The only block that is left begins with events that are truncated: nobody can count on from them.
    assert await EventBoundaries(segment).number_at(80) == Boundary(80, None)
    unpublished = MemorySegment("s/t/0.#epoch.0", [b"x" * 12] * 10, start_offset=60)
    assert await EventBoundaries(unpublished).number_at(80) == Boundary(80, None)


async def test_pieces_of_a_large_event_of_which_nothing_is_known_are_passed_by() -> None:
    class WithPieces(MemorySegment):
        async def blocks(self, start: int, end: int) -> AsyncGenerator[StoredBlock, None]:
            async with aclosing(super().blocks(start, end)) as blocks:
                async for each in blocks:
                    inside = 2_000 < each.offset < 12_000
                    yield replace(
                        each,
                        events_known=not inside,
                        first_event_offset=None if inside else each.first_event_offset,
                    )

    events = [*([b"x" * 12] * 100), b"L" * 9_992, b"y"]
    segment = WithPieces("s/t/0.#epoch.0", events, range(500, 12_001, 500))
    found = await EventBoundaries(segment).at_most(Boundary(0, 0), target=11_999, end=12_009)
    assert found == Boundary(2_000, 100)
    assert segment.reads < 5


async def test_an_event_larger_than_the_limit_is_taken_whole_and_alone() -> None:
    segment = MemorySegment("s/t/0.#epoch.0", [b"x" * 100, b"y"], [50, 100, 117])
    found = await EventBoundaries(segment).at_most(Boundary(0, 0), target=1, end=117)
    assert found == Boundary(108, 1)


async def test_an_event_of_which_only_a_part_is_there_waits() -> None:
    segment = MemorySegment("s/t/0.#epoch.0", [b"x", b"y" * 100], [9, 60])
    found = await EventBoundaries(segment).at_most(Boundary(9, 1), target=60, end=60)
    assert found == Boundary(9, 1)


async def test_only_the_last_block_is_read_for_the_end_of_a_long_stretch() -> None:
    events = [b"z" * 92] * 1_000
    segment = MemorySegment("s/t/0.#epoch.0", events, list(range(1_000, 100_001, 1_000)))
    found = await EventBoundaries(segment).at_most(Boundary(0, 0), target=99_950, end=100_000)
    assert found == Boundary(99_900, 999)
    assert segment.reads < 25


async def test_a_few_events_of_a_long_stretch_are_counted_without_listing_all_of_it() -> None:
    events = [b"z" * 92] * 1_000
    segment = MemorySegment("s/t/0.#epoch.0", events, list(range(1_000, 100_001, 1_000)))
    boundaries = EventBoundaries(segment)
    found = await boundaries.after_events(Boundary(700, 7), count=25, end=Boundary(100_000, 1_000))
    assert found == Boundary(3_200, 32)
    assert segment.blocks_listed < 10


async def test_bytes_that_are_no_event_are_never_taken_for_one() -> None:
    segment = MemorySegment("s/t/0.#epoch.0", [b"x" * 20])
    with pytest.raises(CorruptedDataError, match=r"offset=5 "):
        await EventBoundaries(segment).at_most(Boundary(5, None), target=28, end=28)
