import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.event_frame import NoEventError, frame_event, skip_events, walk_events

contents = st.lists(st.binary(max_size=20), max_size=20)


@given(events=contents, cut=st.integers(0, 600))
def test_a_walk_finds_every_header_that_is_whole(events: list[bytes], cut: int) -> None:
    content = b"".join(frame_event(event) for event in events)[:cut]
    expected: list[tuple[int, int]] = []
    position = 0
    for event in events:
        if position + 8 > len(content):
            break
        expected.append((position, position + 8 + len(event)))
        position = expected[-1][1]
    assert list(walk_events(content)) == expected
    assert skip_events(memoryview(content)) == (len(expected), position)


@given(events=contents, stop=st.integers(0, 600))
def test_events_that_begin_before_a_stop_are_skipped(events: list[bytes], stop: int) -> None:
    content = b"".join(frame_event(event) for event in events)
    walked = [end for start, end in walk_events(content) if start < stop]
    assert skip_events(content, stop=stop) == (len(walked), max(walked, default=0))


def test_a_walk_may_begin_anywhere() -> None:
    content = frame_event(b"one") + frame_event(b"three")
    assert list(walk_events(content, 11)) == [(11, 24)]
    assert skip_events(content, 11) == (1, 24)


@pytest.mark.parametrize(("kind", "length"), [(7, 3), (0, -1), (-1, 0)])
def test_what_is_no_header_is_never_passed_by(kind: int, length: int) -> None:
    content = frame_event(b"good") + struct.pack(">ii", kind, length) + b"abc"
    walk = walk_events(content)
    assert next(walk) == (0, 12)
    with pytest.raises(NoEventError, match=f"position=12 type={kind} length={length}") as walked:
        next(walk)
    assert (walked.value.position, walked.value.event_type, walked.value.length) == (
        12,
        kind,
        length,
    )
    with pytest.raises(NoEventError):
        skip_events(content)
    assert skip_events(content, stop=12) == (1, 12)
