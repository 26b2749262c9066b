import pytest

from segmentstore.client.errors import ClientError
from segmentstore.client.stream_segments import KeySpace, SegmentRange

HALVES = [SegmentRange(1, 0.5, 1.0), SegmentRange(0, 0.0, 0.5)]


def test_a_position_has_one_segment() -> None:
    space = KeySpace(HALVES)
    assert space.segment_of(0.0) == 0
    assert space.segment_of(0.49) == 0
    assert space.segment_of(0.5) == 1
    assert space.segment_of(0.999999) == 1
    assert space.segment_ids == [0, 1]


def test_a_split_replaces_its_own_range() -> None:
    space = KeySpace(HALVES)
    space.replace(0, [SegmentRange(2, 0.0, 0.2), SegmentRange(3, 0.2, 0.5)])
    assert [space.segment_of(position) for position in (0.1, 0.3, 0.7)] == [2, 3, 1]


def test_a_merge_takes_over_one_half_at_a_time() -> None:
    space = KeySpace(HALVES)
    merged = [SegmentRange(2, 0.0, 1.0)]
    space.replace(0, merged)
    assert [space.segment_of(0.1), space.segment_of(0.7)] == [2, 1]
    assert space.segment_ids == [2, 1]
    space.replace(1, merged)
    assert [space.segment_of(0.1), space.segment_of(0.7)] == [2, 2]
    space.replace(2, [SegmentRange(3, 0.0, 1.0)])
    assert space.segment_ids == [3]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [SegmentRange(0, 0.0, 0.5)],
        [SegmentRange(0, 0.1, 1.0)],
        [SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.6, 1.0)],
        [SegmentRange(0, 0.0, 0.6), SegmentRange(1, 0.5, 1.0)],
    ],
)
def test_ranges_that_do_not_cover_the_key_space_are_refused(ranges: list[SegmentRange]) -> None:
    with pytest.raises(ClientError):
        KeySpace(ranges)


def test_successors_that_leave_a_gap_are_refused() -> None:
    with pytest.raises(ClientError):
        KeySpace(HALVES).replace(0, [SegmentRange(2, 0.0, 0.4)])
