"""Whether bytes are the events that their indexes describe."""

from itertools import pairwise

import pytest

from segmentstore.spark.jobs.chunk_scrub import ChunkFraming, FramingWalk, joint_damages
from tests.spark.jobs.generated_store import frame
from tier2.format.chunk_format import EventInformation


def walked(content: bytes, cuts: list[int], start: int = 0, number: int = 0) -> ChunkFraming:
    """The walk of one chunk whose blocks end at the cuts, with a right index."""
    walk = FramingWalk(start)
    starts = event_starts(content)
    for begin, end in pairwise([0, *cuts, len(content)]):
        assert walk.block(content[begin:end], described(starts, begin, end, number)) == ""
    return walk.result()


def event_starts(content: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(content):
        starts.append(at)
        at += 8 + int.from_bytes(content[at + 4 : at + 8], "big")
    return starts


def described(starts: list[int], begin: int, end: int, number: int = 0) -> EventInformation:
    for index, at in enumerate(starts):
        if begin <= at < end:
            return EventInformation(at - begin, number + index, 1, 2)
    return EventInformation(None, 0, 1, 2)


EVENTS = b"".join(frame(bytes(length)) for length in (5, 0, 40, 7, 1, 90, 3))


@pytest.mark.parametrize("cut", range(1, len(EVENTS)))
def test_events_may_be_cut_by_blocks_anywhere(cut: int) -> None:
    framing = walked(EVENTS, [cut], start=1000, number=50)
    assert framing == ChunkFraming(
        start_offset=1000,
        end_offset=1000 + len(EVENTS),
        first_offset=1000,
        first_number=50,
        first_known=True,
        next_offset=1000 + len(EVENTS),
        next_number=57,
        events=7,
    )


def test_blocks_smaller_than_an_event_header_are_put_together() -> None:
    framing = walked(EVENTS, list(range(3, len(EVENTS), 3)))
    assert (framing.events, framing.next_offset) == (7, len(EVENTS))


def test_an_index_that_names_another_place_or_another_number_is_found() -> None:
    starts = event_starts(EVENTS)
    cut = starts[3] + 2
    right = described(starts, cut, len(EVENTS))
    for wrong in (
        EventInformation(right.first_event_position or 1, right.first_event_number + 1, 1, 2),
        EventInformation((right.first_event_position or 0) + 1, right.first_event_number, 1, 2),
        EventInformation(None, 0, 1, 2),
    ):
        walk = FramingWalk(0)
        assert walk.block(EVENTS[:cut], described(starts, 0, cut)) == ""
        assert "as the index says" in walk.block(EVENTS[cut:], wrong)


def test_bytes_that_are_no_event_are_found() -> None:
    for bad in (b"\0\0\0\1" + bytes(8), b"\0\0\0\0\xff\xff\xff\xff"):
        walk = FramingWalk(100)
        assert "offset=113" in walk.block(frame(b"hello") + bad, EventInformation(0, 0, 1, 2))


def test_nothing_is_concluded_from_blocks_of_unknown_structure() -> None:
    walk = FramingWalk(0)
    assert walk.block(b"whatever this is", None) == ""
    assert walk.block(frame(b"one"), EventInformation(0, 9, 1, 2)) == ""
    framing = walk.result()
    assert (framing.first_known, framing.next_number) == (False, 10)


def test_neighbouring_chunks_have_to_agree() -> None:
    content = EVENTS
    starts = event_starts(content)
    for cut in range(1, len(content)):
        left = FramingWalk(0)
        assert left.block(content[:cut], described(starts, 0, cut)) == ""
        right = FramingWalk(cut)
        assert right.block(content[cut:], described(starts, cut, len(content))) == ""
        chunks = [left.result(), right.result()]
        assert joint_damages(chunks, sealed_length=len(content)) == []
    shifted = ChunkFraming(cut, len(content), cut, 9, True, len(content), 10, 1)
    chunks = [ChunkFraming(0, cut, 0, 0, True, cut, 6, 6), shifted]
    (damage,) = joint_damages(chunks, sealed_length=None)
    assert "do not go on" in damage


def test_a_sealed_segment_does_not_end_inside_an_event() -> None:
    walk = FramingWalk(0)
    assert walk.block(EVENTS[:-1], described(event_starts(EVENTS), 0, len(EVENTS) - 1)) == ""
    (damage,) = joint_damages([walk.result()], sealed_length=len(EVENTS) - 1)
    assert "cut off" in damage
    assert joint_damages([walk.result()], sealed_length=None) == []
