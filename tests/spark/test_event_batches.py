import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.spark.scan.arrow_batches import ByteBatchBuilder, EventBatchBuilder
from segmentstore.spark.scan.block_reader import Block, BlockInfo
from segmentstore.spark.schema import BYTES_COLUMNS, EVENT_COLUMNS
from tests.spark.segment_blocks import CutSegment, cut_segment, frame, part_of

Rows = list[dict[str, object]]

SEGMENTS = st.builds(
    cut_segment,
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.lists(st.integers(1, 1500), max_size=12),
    unknown=st.just(()),
)


def rows_of(segment: CutSegment, start: int, end: int, *, at_once: int = 1) -> Rows:
    """The rows of one range, whose reading begins with the last block where an event begins at or before it."""
    batches = EventBatchBuilder(part_of(start, end), EVENT_COLUMNS)
    begin = max(
        number
        for number, block in enumerate(segment.blocks)
        if block.facts.first_event_offset is not None and block.facts.first_event_offset <= start
    )
    rows: Rows = []
    for place in range(begin, len(segment.blocks), at_once):
        for batch in batches.add(segment.blocks[place : place + at_once]):
            assert batch.num_rows or start == end
            rows += batch.to_pylist()
        if batches.is_done:
            break
    return rows


@given(SEGMENTS, st.lists(st.integers(0, 1300), max_size=6), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_h76_ranges_cut_anywhere_hold_every_event_once(
    segment: CutSegment, cuts: list[int], at_once: int
) -> None:
    bounds = sorted({0, *(cut for cut in cuts if cut < segment.length), segment.length})
    rows: Rows = []
    for start, end in itertools.pairwise(bounds):
        rows += rows_of(segment, start, end, at_once=at_once)
    assert [row["value"] for row in rows] == list(segment.events)
    assert [row["offset"] for row in rows] == list(segment.offsets)
    assert [row["event_number"] for row in rows] == list(range(len(segment.events)))


def test_numbers_go_on_through_blocks_of_which_nobody_said_anything() -> None:
    events = [b"%d" % number for number in range(12)]
    segment = cut_segment(events, [30, 60, 90], unknown=[1, 2])
    rows = rows_of(segment, 0, segment.length)
    assert [row["event_number"] for row in rows] == list(range(12))


def test_a_time_is_that_of_the_block_in_which_the_event_begins() -> None:
    segment = cut_segment([b"x" * 20, b"y" * 20, b"z" * 20], [28, 40, 56])
    times = [row["timestamp"] for row in rows_of(segment, 0, segment.length)]
    assert [round(time.timestamp() * 1000) for time in times] == [1000, 1001, 1003]  # type: ignore[attr-defined]


def test_columns_of_one_value_are_as_long_as_each_batch() -> None:
    segment = cut_segment([b"%d" % number for number in range(10)], [18, 63, 72])
    batches = EventBatchBuilder(part_of(0, segment.length), EVENT_COLUMNS)
    sizes = []
    for block in segment.blocks:
        for batch in batches.add([block]):
            batch.validate(full=True)
            sizes.append(batch.num_rows)
            assert batch.column("scope").to_pylist() == ["s"] * batch.num_rows
            assert batch.column("segment_id").to_pylist() == [5] * batch.num_rows
            assert batch.column("key").to_pylist() == [None] * batch.num_rows
    assert sizes == [2, 5, 1, 2]


def test_an_event_without_its_end_is_no_event_yet() -> None:
    segment = cut_segment([b"whole", b"cut off"], [])
    (block,) = segment.blocks
    batches = EventBatchBuilder(part_of(0, segment.length), EVENT_COLUMNS)
    (batch,) = batches.add([Block(block.facts, block.content[:-1])])
    assert batch.column("value").to_pylist() == [b"whole"]
    assert batches.has_rest
    assert not batches.is_done


def test_a_big_event_of_many_blocks_is_parsed_once_it_is_whole() -> None:
    event = bytes(range(256)) * 4096
    segment = cut_segment([b"before", event, b"behind"], range(0, 1 << 20, 10_000))
    rows = rows_of(segment, 0, segment.length)
    assert [row["value"] for row in rows] == [b"before", event, b"behind"]


def test_bytes_that_are_no_events_raise_and_say_where() -> None:
    content = frame(b"good") + struct.pack(">ii", 7, 1) + b"x"
    batches = EventBatchBuilder(part_of(100, 200), EVENT_COLUMNS)
    facts = BlockInfo(offset=100, first_event_offset=100, event_number=0, lowest_time_ms=0)
    with pytest.raises(CorruptedDataError, match=r"no event begins here .*offset=112 type=7"):
        batches.add([Block(facts, content)])


def test_a_block_whose_event_is_elsewhere_than_the_index_says_raises() -> None:
    segment = cut_segment([b"aaaa", b"bbbb", b"cccc"], [12])
    wrong = BlockInfo(offset=12, first_event_offset=16, event_number=1, lowest_time_ms=0)
    batches = EventBatchBuilder(part_of(0, 36), EVENT_COLUMNS)
    with pytest.raises(CorruptedDataError, match="expected=16 found=12"):
        batches.add([segment.blocks[0], Block(wrong, segment.blocks[1].content)])


def test_only_the_columns_asked_for_are_made_in_their_order() -> None:
    segment = cut_segment([b"a", b"b"], [])
    batches = EventBatchBuilder(part_of(0, segment.length), ("offset", "stream", "segment_id"))
    (batch,) = batches.add(segment.blocks)
    assert batch.to_pylist() == [
        {"offset": 0, "stream": "t", "segment_id": 5},
        {"offset": 9, "stream": "t", "segment_id": 5},
    ]


def test_what_was_truncated_is_left_out_and_reading_goes_on_behind_it() -> None:
    segment = cut_segment([b"aaaa", b"bbbb", b"cccc", b"dddd"], [12, 24, 36])
    batches = EventBatchBuilder(part_of(0, 48), ("value",))
    batches.add(segment.blocks[:1])
    batches.skip_to(24)
    (batch,) = batches.add(segment.blocks[2:])
    assert batch.column("value").to_pylist() == [b"cccc", b"dddd"]
    assert batches.is_done


@given(
    st.binary(min_size=1, max_size=200),
    st.lists(st.integers(1, 199), max_size=8),
    st.lists(st.integers(1, 199), max_size=4),
)
def test_bytes_come_back_whatever_the_blocks_and_the_ranges(
    content: bytes, blocks: list[int], cuts: list[int]
) -> None:
    bounds = sorted({0, *(cut for cut in blocks if cut < len(content)), len(content)})
    pieces = [
        Block(
            BlockInfo(offset=start, first_event_offset=None, event_number=None, lowest_time_ms=0),
            content[start:end],
        )
        for start, end in itertools.pairwise(bounds)
    ]
    ends = sorted({0, *(cut for cut in cuts if cut < len(content)), len(content)})
    found = bytearray()
    for start, end in itertools.pairwise(ends):
        batches = ByteBatchBuilder(part_of(start, end, "bytes"), BYTES_COLUMNS)
        for piece in (each for each in pieces if each.end_offset > start):
            for batch in batches.add([piece]):
                (row,) = batch.to_pylist()
                assert row["offset"] == len(found)
                found += row["bytes"]
            if batches.is_done:
                break
    assert bytes(found) == content
