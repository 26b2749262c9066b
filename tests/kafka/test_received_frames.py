"""Frames out of received bytes: whole, in order, in memory that is used again only when nothing looks at it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.kafka.received_frames import SHARED_BYTES, FrameMemories, ReceivedFrames

_FRAME_BYTES_MAX = 100 << 20
_KEPT_BYTES_MAX = 1 << 20
_AHEAD_BYTES_MAX = 2 << 20


def _received(memories: FrameMemories, frame_bytes_max: int = _FRAME_BYTES_MAX) -> ReceivedFrames:
    return ReceivedFrames(memories=memories, frame_bytes_max=frame_bytes_max)


def _memories() -> FrameMemories:
    return FrameMemories(kept_bytes_max=_KEPT_BYTES_MAX, ahead_bytes_max=_AHEAD_BYTES_MAX)


def _feed(received: ReceivedFrames, stream: bytes, step: int) -> list[memoryview]:
    """As a socket does that has at most `step` bytes at a time."""
    frames: list[memoryview] = []
    at = 0
    while at < len(stream):
        free = received.free()
        assert len(free) > 0
        count = min(step, len(free), len(stream) - at)
        free[:count] = stream[at : at + count]
        del free
        frames += received.filled(count)
        at += count
    return frames


def _stream(*contents: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in contents)


def _content(length: int, seed: int) -> bytes:
    return bytes((seed, 255 - seed, 7)) * (length // 3) + bytes([seed]) * (length % 3)


@given(
    lengths=st.lists(
        st.one_of(
            st.integers(0, 300),
            st.integers(4_000, 5_000),
            st.integers(SHARED_BYTES - 10, SHARED_BYTES + 10),
            st.integers(100_000, 400_000),
        ),
        max_size=8,
    ),
    steps=st.lists(st.integers(1, 300_000), min_size=1, max_size=8),
    kept=st.integers(0, 7),
)
def test_frames_do_not_depend_on_how_their_bytes_arrive(
    lengths: list[int], steps: list[int], kept: int
) -> None:
    memories = _memories()
    received = _received(memories)
    contents = [_content(length, number) for number, length in enumerate(lengths)]
    held: list[tuple[int, memoryview]] = []
    for number, content in enumerate(contents):
        found = _feed(
            received, _stream(content), max(steps[number % len(steps)], len(content) // 50)
        )
        assert [bytes(each) for each in found] == [content]
        if number % 8 == kept:
            # It is looked at for longer.
            held.append((number, found[0][:]))
        received.give_back(found[0])
        assert memories.kept_bytes <= _KEPT_BYTES_MAX
    assert received.gathered_bytes == 0
    for number, view in held:
        assert view == contents[number]


@given(
    lengths=st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    step=st.integers(20_000, 600_000),
)
def test_frames_that_arrive_together_are_told_apart(lengths: list[int], step: int) -> None:
    received = _received(_memories())
    contents = [_content(length, number) for number, length in enumerate(lengths)]

    frames = _feed(received, _stream(*contents), step)

    assert [bytes(each) for each in frames] == contents
    assert received.gathered_bytes == 0


def test_a_long_frame_is_not_copied_and_its_memory_is_used_again() -> None:
    memories = _memories()
    received = _received(memories)
    (first,) = _feed(received, _stream(bytes(200_000)), 200_000)
    received.give_back(first)
    (second,) = _feed(received, _stream(bytes(200_000)), 200_000)
    memory = second.obj
    received.give_back(second)
    (third,) = _feed(received, _stream(b"x" * 200_000), 200_000)

    assert isinstance(memory, bytearray)
    assert third.obj is memory
    assert third == b"x" * 200_000


def test_memory_that_is_looked_at_is_not_used_again() -> None:
    memories = _memories()
    received = _received(memories)
    (first,) = _feed(received, _stream(b"a" * 200_000), 200_000)
    records = first[100:]
    received.give_back(first)

    assert memories.kept_bytes == 0
    for _ in range(3):
        for frame in _feed(received, _stream(b"b" * 200_000), 200_000):
            received.give_back(frame)
    assert records == b"a" * (200_000 - 100)


def test_no_more_memory_is_kept_than_its_bound() -> None:
    memories = _memories()
    received = _received(memories)
    frames = _feed(received, _stream(*[bytes(300_000)] * 6), 300_000)
    for frame in frames:
        received.give_back(frame)

    assert 0 < memories.kept_bytes <= _KEPT_BYTES_MAX


def test_an_announced_frame_takes_no_memory_before_it_arrives() -> None:
    received = _received(_memories())
    assert _feed(received, _FRAME_BYTES_MAX.to_bytes(4, "big") + bytes(1000), 1004) == []

    assert received.gathered_bytes == 1004
    assert len(received.free()) <= 16 * 1004


def test_a_client_of_short_frames_takes_no_memory_while_none_is_under_way() -> None:
    memories = _memories()
    received = _received(memories)
    for frame in _feed(received, _stream(*[bytes(200_000)], *[bytes(100)] * 40), 4_096):
        received.give_back(frame)

    assert received.free().obj is memories.shared.obj


def test_connections_that_wait_for_a_long_frame_hold_no_more_than_the_bound() -> None:
    memories = _memories()
    waiting = [_received(memories) for _ in range(50)]
    for number, received in enumerate(waiting):
        _feed(received, _stream(bytes(200_000)), 200_000)
        received.free()  # there was nothing to read
        assert memories.ahead_bytes <= _AHEAD_BYTES_MAX
        assert (received.free().obj is memories.shared.obj) == (number >= 9)

    contents = [_content(200_000 + number, number) for number in range(50)]
    for received, content in zip(waiting, contents, strict=True):
        assert [bytes(each) for each in _feed(received, _stream(content), 90_000)] == [content]
    for received in waiting:
        received.free()
        received.close()
        received.close()
    assert memories.ahead_bytes == 0


@pytest.mark.parametrize("length", [-1, -(1 << 31), 1001])
def test_a_length_that_no_frame_has_is_refused(length: int) -> None:
    with pytest.raises(KafkaProtocolError, match="length"):
        _feed(_received(_memories(), 1000), length.to_bytes(4, "big", signed=True), 4)
