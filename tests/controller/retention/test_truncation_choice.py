"""Which cut a stream is truncated at: by table."""

from collections.abc import Mapping

import pytest

from segmentstore.codec.controller_records.stream_records import (
    RetentionCut,
    RetentionType,
    SegmentWithRange,
)
from segmentstore.controller.retention import RetentionLimits, choose_cut
from segmentstore.controller.streams.stream_cuts import (
    CutOrder,
    highest_of,
    lowest_of,
    order_of,
    uncovered,
)
from tests.reference.loop_turns import work_of_turns

LEFT = SegmentWithRange(0, 0.0, 0.5)
RIGHT = SegmentWithRange(1, 0.5, 1.0)
WHOLE = SegmentWithRange((1 << 32) | 2, 0.0, 1.0)
RANGES = {each.segment_id: each for each in (LEFT, RIGHT, WHOLE)}

CUTS = [
    RetentionCut(time_ms=10, bytes_before=100, offsets={0: 50, 1: 50}),
    RetentionCut(time_ms=20, bytes_before=200, offsets={0: 100, 1: 100}),
    RetentionCut(time_ms=30, bytes_before=300, offsets={WHOLE.segment_id: 100}),
    RetentionCut(time_ms=40, bytes_before=400, offsets={WHOLE.segment_id: 200}),
]


def keyed(offsets: Mapping[int, int]) -> dict[SegmentWithRange, int]:
    return {RANGES[each]: at for each, at in offsets.items()}


async def chosen(
    type_: RetentionType,
    keep: int,
    *,
    keep_max: int | None = None,
    subscribed: Mapping[int, int] | None = None,
) -> Mapping[int, int] | None:
    return await choose_cut(
        limits=RetentionLimits(type=type_, keep=keep, keep_max=keep_max),
        cuts=CUTS,
        time_ms=40,
        bytes_total=400,
        subscribed=None if subscribed is None else keyed(subscribed),
        keyed=keyed,
    )


@pytest.mark.parametrize(
    ("type_", "keep", "expected"),
    [
        (RetentionType.TIME, 40, None),
        (RetentionType.TIME, 30, None),
        (RetentionType.TIME, 29, {0: 50, 1: 50}),
        (RetentionType.TIME, 15, {0: 100, 1: 100}),
        (RetentionType.TIME, 5, {WHOLE.segment_id: 100}),
        (RetentionType.SIZE, 300, None),
        (RetentionType.SIZE, 299, {0: 50, 1: 50}),
        (RetentionType.SIZE, 100, {0: 100, 1: 100}),
        (RetentionType.SIZE, 0, {WHOLE.segment_id: 100}),
    ],
)
async def test_without_subscribers_the_newest_cut_beyond_the_limit_is_chosen(
    type_: RetentionType, keep: int, expected: Mapping[int, int] | None
) -> None:
    assert await chosen(type_, keep) == expected


@pytest.mark.parametrize(
    ("subscribed", "keep_max", "expected"),
    [
        # Everybody has read more than the policy keeps: the policy decides.
        ({WHOLE.segment_id: 150}, None, {WHOLE.segment_id: 100}),
        # The slowest stands before it: it decides.
        ({0: 70, 1: 60}, None, {0: 70, 1: 60}),
        # So far behind that the policy allows no more.
        ({0: 10, 1: 20}, 25, {0: 50, 1: 50}),
        ({0: 70, 1: 60}, 25, {0: 70, 1: 60}),
        ({0: 10, 1: 20}, None, {0: 10, 1: 20}),
        # It crosses the oldest that must stay.
        ({0: 10, 1: 80}, 25, {0: 50, 1: 50}),
    ],
)
async def test_the_slowest_subscriber_moves_the_cut_within_the_bounds_of_the_policy(
    subscribed: Mapping[int, int], keep_max: int | None, expected: Mapping[int, int]
) -> None:
    assert await chosen(RetentionType.TIME, 5, keep_max=keep_max, subscribed=subscribed) == expected


async def test_where_subscribers_cross_the_newest_cut_the_newest_one_they_have_passed_is_chosen() -> (
    None
):
    assert await chosen(RetentionType.TIME, 15, subscribed={0: 120, 1: 60}) == {0: 50, 1: 50}
    assert await chosen(RetentionType.TIME, 29, subscribed={0: 60, 1: 10}) is None


async def test_others_run_while_very_many_cuts_are_compared() -> None:
    cuts = [RetentionCut(time_ms=n, bytes_before=n, offsets={0: 50, 1: n}) for n in range(500)]
    async with work_of_turns() as work:

        def counted(offsets: Mapping[int, int]) -> dict[SegmentWithRange, int]:
            work.note()
            return keyed(offsets)

        choice = await choose_cut(
            limits=RetentionLimits(type=RetentionType.TIME, keep=5, keep_max=None),
            cuts=cuts,
            time_ms=500,
            bytes_total=500,
            subscribed=keyed({0: 10, 1: 1000}),
            keyed=counted,
        )
    assert choice is None, "the subscriber crosses all of them"
    assert work.total > 400
    assert max(work.each_turn) <= 10


def test_cuts_are_compared_key_by_key() -> None:
    assert order_of({LEFT: 5, RIGHT: 5}, {LEFT: 5, RIGHT: 5}) is CutOrder.AT_OR_AFTER
    assert order_of({LEFT: 5, RIGHT: 6}, {LEFT: 5, RIGHT: 5}) is CutOrder.AT_OR_AFTER
    assert order_of({LEFT: 4, RIGHT: 5}, {LEFT: 5, RIGHT: 5}) is CutOrder.BEFORE
    assert order_of({LEFT: 4, RIGHT: 6}, {LEFT: 5, RIGHT: 5}) is CutOrder.CROSSING
    assert order_of({WHOLE: 0}, {LEFT: 99, RIGHT: 99}) is CutOrder.AT_OR_AFTER
    assert order_of({LEFT: 99, RIGHT: 99}, {WHOLE: 0}) is CutOrder.BEFORE


def test_the_lowest_and_the_highest_of_cuts_are_taken_key_by_key() -> None:
    cuts = [{LEFT: 5, RIGHT: 9}, {LEFT: 7, RIGHT: 3}]
    assert lowest_of(cuts) == {LEFT: 5, RIGHT: 3}
    assert highest_of(cuts) == {LEFT: 7, RIGHT: 9}
    for order in ([*cuts, {WHOLE: 1}], [{WHOLE: 1}, *cuts]):
        assert lowest_of(order) == {LEFT: 5, RIGHT: 3}
        assert highest_of(order) == {WHOLE: 1}


def test_gaps_of_the_key_space_are_found() -> None:
    assert uncovered([LEFT, RIGHT]) == []
    assert uncovered([RIGHT]) == [(0.0, 0.5)]
    assert uncovered([]) == [(0.0, 1.0)]
    assert uncovered([SegmentWithRange(1, 0.25, 0.5)]) == [(0.0, 0.25), (0.5, 1.0)]
