import base64
import gzip
import tracemalloc
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.streams.offsets import Position
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamSegmentMetadata

SECOND, THIRD, FOURTH = 1 << 32 | 2, 1 << 32 | 3, 2 << 32 | 4


def segment(
    segment_id: int, *, successors: tuple[int, ...] = (), predecessors: tuple[int, ...] = ()
) -> StreamSegmentMetadata:
    return StreamSegmentMetadata(
        segment_id=segment_id,
        name=f"s/t/{segment_id & 0xFFFFFFFF}.#epoch.{segment_id >> 32}",
        epoch=segment_id >> 32,
        low=0.0,
        high=1.0,
        start_offset=10,
        end_offset=100,
        published_end=90,
        is_sealed=False,
        container_id=0,
        successors=successors,
        predecessors=predecessors,
    )


def split_and_merged() -> StreamMetadata:
    """0 became 2 and 3; both of them, and 1, became 4."""
    stream = StreamMetadata(
        scope="s",
        stream="t",
        segments=[
            segment(0, successors=(SECOND, THIRD)),
            segment(1, successors=(FOURTH,)),
            segment(SECOND, successors=(FOURTH,), predecessors=(0,)),
            segment(THIRD, successors=(FOURTH,), predecessors=(0,)),
            segment(FOURTH, predecessors=(1, SECOND, THIRD)),
        ],
        head={0: 10, 1: 10},
    )
    stream.check()
    return stream


def cut_text(stream: str, offsets: dict[int, int]) -> str:
    """As the Java client writes it."""
    numbers = [each & 0xFFFFFFFF for each in offsets]
    epochs = [each >> 32 for each in offsets]
    text = f"0:{stream}:{numbers}:{epochs}:{list(offsets.values())}"
    return base64.b64encode(gzip.compress(text.encode())).decode()


def test_a_start_has_what_is_before_it_read_and_what_is_behind_it_unread() -> None:
    starts = Position({1: 50, SECOND: 60, THIRD: 70}).starts_in(split_and_merged())
    assert starts == {0: 100, 1: 50, SECOND: 60, THIRD: 70, FOURTH: 10}


def test_an_end_takes_what_is_before_it_and_nothing_behind_it() -> None:
    ends = Position({1: 50, SECOND: 60, THIRD: 70}).ends_in(split_and_merged())
    assert ends == {0: 100, 1: 50, SECOND: 60, THIRD: 70, FOURTH: 10}


def test_a_segment_beside_the_named_ones_counts_as_unread_and_is_read_to_its_end() -> None:
    position = Position({0: 20})
    assert position.starts_in(split_and_merged())[1] == 10
    assert position.ends_in(split_and_merged())[1] == 100


def without(stream: StreamMetadata, *gone: int) -> StreamMetadata:
    """The stream after retention removed some segments."""
    segments = [
        replace(each, predecessors=tuple(one for one in each.predecessors if one not in gone))
        for each in stream.segments
        if each.segment_id not in gone
    ]
    head = {each.segment_id: 10 for each in segments if not each.predecessors}
    return replace(stream, segments=segments, head=head)


def test_an_end_takes_nothing_of_what_came_behind_a_segment_that_is_gone() -> None:
    shorter = without(split_and_merged(), 0)
    ends = {1: 20, SECOND: 10, THIRD: 10, FOURTH: 10}
    assert Position({0: 50, 1: 20}).ends_in(shorter) == ends
    assert Position({0: 50}).ends_in(shorter) == {**ends, 1: 100}
    last = without(split_and_merged(), 0, 1, SECOND, THIRD)
    assert Position({0: 50, 1: 20}).ends_in(last) == {FOURTH: 10}
    # What is before a segment that is named is taken as a whole still, and begins as it did.
    assert Position({0: 50, SECOND: 30}).ends_in(shorter)[SECOND] == 30
    assert Position({0: 50, FOURTH: 30}).ends_in(shorter)[SECOND] == 100
    assert Position({0: 50, 1: 20}).starts_in(shorter)[SECOND] == 10


def test_json_has_words_for_the_earliest_and_the_latest_offset() -> None:
    position = Position.parse('{"0": -2, "1": -1}')
    starts = position.starts_in(split_and_merged())
    assert (starts[0], starts[1]) == (10, 100)


def test_all_kinds_of_text_mean_the_same_cut() -> None:
    offsets = {0: 7, SECOND: 12345}
    assert Position.parse(f'{{"0": 7, "{SECOND}": 12345}}').offsets == offsets
    assert Position.parse(f"s/t:0=7,{SECOND}=12345").offsets == offsets
    assert Position.parse(cut_text("s/t", offsets)).offsets == offsets
    assert Position.parse(Position(offsets).to_json()).offsets == offsets


def test_a_cut_that_the_java_client_printed_is_understood() -> None:
    # StreamCutImpl.asText() of client 0.13.0 for plant/readings: segment 3 of epoch 1 at 1234567, segment 1 at 42.
    text = "H4sIAAAAAAAA/zOwKshJzCvRL0pNTMnMSy+2MtYxtDLUMbAyNDI2MTUz1zExAgB/+20dIwAAAA=="
    assert Position.parse(text).offsets == {1 << 32 | 3: 1_234_567, 1: 42}


@pytest.mark.parametrize("text", ["", "newest", "{", '{"a": 1}', '{"0": "1"}', '{"0": -3}', "e30="])
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="a position is earliest, latest, JSON"):
        Position.parse(text)


def test_a_stream_cut_is_a_position_of_its_own_stream_alone() -> None:
    stream = split_and_merged()
    for text in ("s/t:0=50,1=20", cut_text("s/t", {0: 50, 1: 20})):
        assert Position.parse(text).starts_in(stream)[0] == 50
    for text in ("s/other:0=50,1=20", cut_text("other/t", {0: 50, 1: 20})):
        for resolve in (Position.parse(text).starts_in, Position.parse(text).ends_in):
            with pytest.raises(InvalidRequestError, match="one of another stream given="):
                resolve(stream)


def test_a_stream_cut_has_no_negative_offsets() -> None:
    for text in ("s/t:0=-7", cut_text("s/t", {0: -7})):
        with pytest.raises(InvalidRequestError, match="not negative"):
            Position.parse(text)


def test_a_long_text_is_not_decompressed_as_a_whole() -> None:
    text = base64.b64encode(gzip.compress(b"0" * (64 << 20), 9)).decode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="longer than"):
            Position.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
