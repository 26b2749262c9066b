import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.client.event import EventParser
from segmentstore.client.stream_segments import StreamCut
from segmentstore.codec.event_frame import frame_event
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError


def test_an_event_has_a_type_and_a_length_before_it() -> None:
    assert frame_event(b"abc") == b"\0\0\0\0\0\0\0\x03abc"
    assert frame_event(b"") == b"\0" * 8


@given(
    st.lists(st.binary(max_size=20), max_size=20), st.lists(st.integers(1, 30)), st.integers(0, 99)
)
def test_events_are_found_wherever_the_pieces_are_cut(
    events: list[bytes], lengths: list[int], offset: int
) -> None:
    content = b"".join(map(frame_event, events))
    parser = EventParser("segment", offset)
    found: list[tuple[bytes, int]] = []
    start = 0
    for length in [*lengths, len(content)]:
        assert parser.next_offset == offset + start
        found += parser.events(content[start : start + length])
        start = min(start + length, len(content))
    assert [event for event, _ in found] == events
    ends = [
        offset + len(b"".join(map(frame_event, events[:count])))
        for count in range(1, len(events) + 1)
    ]
    assert [end for _, end in found] == ends
    assert parser.offset == offset + len(content)


@pytest.mark.parametrize("content", [b"\0\0\0\1\0\0\0\0", b"\0\0\0\0\xff\xff\xff\xff"])
def test_bytes_that_are_no_event_are_said_to_be_so(content: bytes) -> None:
    parser = EventParser("segment", 100)
    with pytest.raises(CorruptedDataError, match="offset=100"):
        parser.events(content)


@given(st.dictionaries(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)))
def test_a_cut_is_what_its_text_says(offsets: dict[int, int]) -> None:
    cut = StreamCut("scope/stream", offsets)
    assert StreamCut.parse(str(cut)) == cut


@pytest.mark.parametrize("text", ["", "s/t", "s/t:1", "s/t:1=x", "s/t:=1"])
def test_other_texts_are_no_cuts(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        StreamCut.parse(text)
