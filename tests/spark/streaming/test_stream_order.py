import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.streams.segment_graph import OffsetRange, SegmentGraph
from tests.spark.streaming.scale_histories import ScaleHistory, scale_histories
from tests.spark.streaming.unhurried import UNHURRIED

EPOCH_1, EPOCH_2 = 1 << 32, 2 << 32


def first_cut(history: ScaleHistory) -> dict[int, int]:
    return {each: 0 for each in history.ranges if each < EPOCH_1}


def walk(history: ScaleHistory, data: st.DataObject) -> list[dict[int, int]]:
    """Positions of a reader that takes some of what is there with every step, until nothing is left."""
    order = history.order
    positions = [first_cut(history)]
    while True:
        opened = order.opened(positions[-1])
        after = dict(opened)
        for segment_id, offset in opened.items():
            length = history.lengths[segment_id]
            if offset < length:
                after[segment_id] = data.draw(st.integers(offset + 1, length))
        if after == opened:
            return positions
        positions.append(after)


@UNHURRIED
@given(history=scale_histories(), data=st.data())
def test_a_walk_in_batches_reads_every_byte_once_and_parents_first(
    history: ScaleHistory, data: st.DataObject
) -> None:
    order = history.order
    order.check()
    positions = walk(history, data)
    read = dict.fromkeys(history.ranges, 0)
    for start, end in itertools.pairwise(positions):
        before_batch = dict(read)
        for stretch in order.between(start, end):
            assert read[stretch.segment_id] == stretch.start, "a gap or an overlap"
            read[stretch.segment_id] = stretch.end
            for parent, children in history.successors.items():
                if stretch.segment_id in children:
                    assert before_batch[parent] == history.lengths[parent], "a child too early"
    assert read == history.lengths


@UNHURRIED
@given(history=scale_histories(), data=st.data())
def test_every_position_of_a_walk_is_a_stream_cut(
    history: ScaleHistory, data: st.DataObject
) -> None:
    for position in walk(history, data):
        assert history.covers(position)
        assert history.covers(history.order.opened(position))


@UNHURRIED
@given(history=scale_histories(), data=st.data())
def test_batches_put_together_are_what_lies_between_first_and_last_position(
    history: ScaleHistory, data: st.DataObject
) -> None:
    order = history.order
    positions = walk(history, data)
    at = data.draw(st.integers(0, len(positions) - 1))
    to = data.draw(st.integers(at, len(positions) - 1))
    joined: dict[int, int] = {}
    for start, end in zip(positions[at:to], positions[at + 1 : to + 1], strict=False):
        for each in order.between(start, end):
            joined[each.segment_id] = joined.get(each.segment_id, 0) + each.end - each.start
    whole = order.between(positions[at], positions[to])
    assert {each.segment_id: each.end - each.start for each in whole} == joined


@UNHURRIED
@given(history=scale_histories(), data=st.data())
def test_no_position_is_passed_where_reading_has_to_stop(
    history: ScaleHistory, data: st.DataObject
) -> None:
    order = history.order
    stop = data.draw(st.sampled_from(walk(history, data)))
    position = first_cut(history)
    while True:
        opened = order.opened(position, stop=stop)
        ends = order.limited({each: history.lengths[each] for each in opened}, stop)
        after = {each: max(opened[each], ends[each]) for each in opened}
        if after == opened:
            break
        position = after
    assert order.between(first_cut(history), position) == order.between(first_cut(history), stop)


@UNHURRIED
@given(history=scale_histories(), data=st.data())
def test_the_later_of_two_positions_is_behind_neither(
    history: ScaleHistory, data: st.DataObject
) -> None:
    order = history.order
    left = data.draw(st.sampled_from(walk(history, data)))
    right = data.draw(st.sampled_from(walk(history, data)))
    later = order.later_of(left, right)
    assert later == order.later_of(right, left)
    for earlier in (left, right):
        order.between(earlier, later)


def test_a_merge_waits_for_both_parents() -> None:
    order = SegmentGraph(
        name="plant/readings",
        successors={0: (EPOCH_1 | 2,), 1: (EPOCH_1 | 2,), EPOCH_1 | 2: ()},
        final_lengths={0: 10, 1: 20},
    )
    assert order.opened({0: 10, 1: 19}) == {0: 10, 1: 19}
    assert order.opened({0: 10, 1: 20}) == {EPOCH_1 | 2: 0}


def test_a_segment_that_is_sealed_but_not_read_to_its_end_is_not_left() -> None:
    order = SegmentGraph(
        name="plant/readings", successors={0: (EPOCH_1 | 1,), EPOCH_1 | 1: ()}, final_lengths={0: 8}
    )
    assert order.opened({0: 7}) == {0: 7}
    assert order.opened({0: 8}) == {EPOCH_1 | 1: 0}


def test_empty_generations_are_crossed_at_once() -> None:
    order = SegmentGraph(
        name="plant/readings",
        successors={0: (EPOCH_1 | 1,), EPOCH_1 | 1: (EPOCH_2 | 2,), EPOCH_2 | 2: ()},
        final_lengths={0: 8, EPOCH_1 | 1: 0},
    )
    assert order.opened({0: 8}) == {EPOCH_2 | 2: 0}


def test_segments_that_were_born_and_drained_between_two_positions_are_read_whole() -> None:
    order = SegmentGraph(
        name="plant/readings",
        successors={0: (EPOCH_1 | 1,), EPOCH_1 | 1: (EPOCH_2 | 2,), EPOCH_2 | 2: ()},
        final_lengths={0: 8, EPOCH_1 | 1: 5},
    )
    assert order.between({0: 6}, {EPOCH_2 | 2: 3}) == [
        OffsetRange(0, 6, 8),
        OffsetRange(EPOCH_1 | 1, 0, 5),
        OffsetRange(EPOCH_2 | 2, 0, 3),
    ]


@pytest.mark.parametrize(
    ("start", "end"), [({EPOCH_1 | 1: 0}, {0: 3}), ({0: 4}, {0: 3}), ({0: 4}, {})]
)
def test_a_position_that_goes_back_is_refused(start: dict[int, int], end: dict[int, int]) -> None:
    order = SegmentGraph(
        name="plant/readings", successors={0: (EPOCH_1 | 1,), EPOCH_1 | 1: ()}, final_lengths={0: 8}
    )
    with pytest.raises(InvalidRequestError, match="position goes back"):
        order.between(start, end)


def test_a_batch_behind_segments_that_retention_removed_begins_at_the_head() -> None:
    order = SegmentGraph(
        name="plant/readings",
        successors={EPOCH_1 | 2: (), EPOCH_1 | 3: ()},
        final_lengths={},
    )
    assert order.gone({0: 3, EPOCH_1 | 3: 5}) == [0]
    assert order.between({0: 3, EPOCH_1 | 3: 5}, {EPOCH_1 | 2: 4, EPOCH_1 | 3: 6}) == [
        OffsetRange(EPOCH_1 | 2, 0, 4),
        OffsetRange(EPOCH_1 | 3, 5, 6),
    ]
    assert order.between({0: 3}, {0: 9}) == [OffsetRange(0, 3, 9)]
    assert order.later_of({0: 3, EPOCH_1 | 3: 5}, {EPOCH_1 | 2: 0, EPOCH_1 | 3: 1}) == {
        EPOCH_1 | 2: 0,
        EPOCH_1 | 3: 5,
    }


def test_a_position_that_names_some_segments_only_begins_at_the_head_of_the_others() -> None:
    order = SegmentGraph(name="plant/readings", successors={0: (), 1: ()}, final_lengths={})
    assert order.later_of({0: 3, 1: 4}, {1: 9}) == {0: 3, 1: 9}
