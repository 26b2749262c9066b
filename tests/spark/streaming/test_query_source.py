import pytest

from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.options import parse_options
from segmentstore.spark.streaming.event_boundaries import Boundary
from segmentstore.spark.streaming.stream_reader import (
    ByteBoundaries,
    StreamingQuerySource,
    frontier_of,
)
from segmentstore.spark.streams.stream_source import StreamSource
from tests.spark.event_segment import NAME as SEGMENT
from tests.spark.event_segment import START_MS, frame
from tests.spark.stream_history import begin_history
from tests.spark.streaming.memory_streams import NAME, MemoryStreams

LEFT, RIGHT, LAST = 1 << 32 | 1, 1 << 32 | 2, 2 << 32 | 3


def scaled() -> MemoryStreams:
    """0 was split into LEFT and RIGHT, which were merged into LAST; each event takes 20 bytes."""
    streams = MemoryStreams()
    streams.put(0, [b"e" * 12] * 7, sealed=True, successors=(LEFT, RIGHT))
    for segment_id in (LEFT, RIGHT):
        streams.put(segment_id, [b"e" * 12] * 5, sealed=True, successors=(LAST,), predecessors=(0,))
    streams.put(LAST, [b"e" * 12] * 3, predecessors=(LEFT, RIGHT))
    return streams


@pytest.mark.parametrize(
    ("offsets", "frontier"),
    [
        ({0: 60, LEFT: 0, RIGHT: 0, LAST: 0}, {0: 60}),
        ({0: 140, LEFT: 40, RIGHT: 0, LAST: 0}, {LEFT: 40, RIGHT: 0}),
        ({0: 140, LEFT: 100, RIGHT: 20, LAST: 0}, {LEFT: 100, RIGHT: 20}),
        ({0: 140, LEFT: 100, RIGHT: 100, LAST: 60}, {LAST: 60}),
    ],
)
def test_offsets_of_all_segments_become_the_cut_that_is_reached_first(
    offsets: dict[int, int], frontier: dict[int, int]
) -> None:
    assert frontier_of(scaled().streams[NAME], offsets) == frontier


async def test_a_segment_of_bytes_may_be_left_at_any_byte() -> None:
    boundaries = ByteBoundaries()
    start = await boundaries.number_at(10)
    assert await boundaries.at_most(start, target=17, end=100) == Boundary(17, None)
    assert await boundaries.at_most(start, target=500, end=100) == Boundary(100, None)


@pytest.mark.parametrize("least", [0, 5, 20, 28, 44, 52, 58])
async def test_a_query_from_inside_of_an_event_begins_with_the_next_one(least: int) -> None:
    history = await begin_history()
    # Inside of each event lies one that nobody wrote.
    history.write([frame(b"FAKE"), frame(b"FAKE"), b"plain text"])
    await history.flush(START_MS)
    text = f'{{"0": {least}}}'
    options = parse_options({"tier2": "x", "segment": SEGMENT, "startingOffsets": text})
    source = StreamSource(
        options=options, view=await history.segment.view(), store=None, served=None
    )
    query = StreamingQuerySource(source, wall_clock=SystemWallClock())
    (stream,) = (await query.maps()).values()
    first = next(each for each in [*history.starts, len(history.content)] if each >= least)
    assert await query.start_of(stream) == {0: first}
