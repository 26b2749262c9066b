"""Blocks as clients pack them: whatever the shape, what is stored is the events."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.wire_protocol.appends import AppendBlock, AppendBlockEnd, DataAppended
from segmentstore.codec.wire_protocol.command import FRAME_HEADER, Padding, PartialEvent
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.wire.connection import ReceiveBuffer
from segmentstore.wire.received_appends import (
    ReceivedAppend,
    is_event_framed,
    read_append,
    read_whole_append,
)
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import memory_bound, running_node
from tests.wire.protocol_client import event


@dataclass(frozen=True)
class Packed:
    """Some events and the frames that carry them."""

    events: tuple[bytes, ...]
    frames: bytes
    last_number: int

    @property
    def data(self) -> bytes:
        return b"".join(map(event, self.events))


def pack(
    events: list[bytes], *, shape: str, split: int, padding: int, last_number: int, request_id: int
) -> Packed:
    framed = list(map(event, events))
    whole = b"".join(framed)
    tail = b""
    block = whole
    match shape:
        case "end":
            block, tail = b"", whole
        case "split":
            last = framed[-1]
            cut = split % (len(last) + 1)
            whole = b"".join(framed[:-1])
            block = whole + PartialEvent(last[:cut]).encode()
            tail = last[cut:]
        case "padding":
            block = whole + Padding(bytes(padding)).encode()
    end = AppendBlockEnd(WRITER, len(whole), tail, len(events), last_number, request_id)
    frames = end.encode()
    if shape != "end":
        frames = AppendBlock(WRITER, block).encode() + frames
    return Packed(tuple(events), frames, last_number)


@st.composite
def packed(draw: st.DrawFn, *, last_number: int = 7) -> Packed:
    return pack(
        draw(st.lists(st.binary(max_size=60), min_size=1, max_size=6)),
        shape=draw(st.sampled_from(["end", "exact", "split", "padding"])),
        split=draw(st.integers(0, 100)),
        padding=draw(st.integers(0, 30)),
        last_number=last_number,
        request_id=draw(st.integers(0, 1 << 40)),
    )


def read(frames: bytes) -> ReceivedAppend:
    """The only append in some frames."""
    spans: list[tuple[int, tuple[int, int]]] = []
    position = 0
    while position < len(frames):
        kind, length = FRAME_HEADER.unpack_from(frames, position)
        spans.append((kind, (position + 8, position + 8 + length)))
        position += 8 + length
    block = spans[0][1] if spans[0][0] == AppendBlock.type else None
    return read_append(memoryview(frames), block=block, end=spans[-1][1])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(packed())
def test_an_append_of_any_shape_is_its_events(append: Packed) -> None:
    unit = read(append.frames)
    assert unit.data == append.data
    assert unit.event_count == len(append.events)
    assert unit.last_event_number == append.last_number
    assert unit.writer_id == WRITER
    assert is_event_framed(unit.data, unit.event_count)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(packed(), st.data())
def test_a_damaged_append_is_read_or_refused(append: Packed, data: st.DataObject) -> None:
    frames = bytearray(append.frames)
    # Not in the type and length of the first frame: those are the receiver's to judge.
    position = data.draw(st.integers(8, len(frames) - 1))
    frames[position] ^= data.draw(st.integers(1, 255))
    kind, length = FRAME_HEADER.unpack_from(frames)
    begin = 8
    try:
        if kind == AppendBlock.type:
            end = (begin + length + 8, len(frames))
            read_append(memoryview(frames), block=(begin, begin + length), end=end)
        else:
            read_append(memoryview(frames), block=None, end=(begin, len(frames)))
    except ProtocolError:
        pass


def block_and_end(
    block: bytes, whole: int, tail: bytes, *, count: int = 1, writer: bytes = WRITER
) -> bytes:
    return (
        AppendBlock(WRITER, block).encode()
        + AppendBlockEnd(writer, whole, tail, count, 1, 0).encode()
    )


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (block_and_end(b"abc", 3, b"", writer=bytes(16)), "another writer"),
        (block_and_end(b"abc", 4, b""), "exceed the block"),
        (block_and_end(b"abc", -1, b""), "exceed the block"),
        (block_and_end(b"abc", 3, b"tail"), "data behind"),
        (block_and_end(b"abcde", 3, b""), "inside a header"),
        (block_and_end(b"abc" + FRAME_HEADER.pack(-2, 1), 3, b""), "another length"),
        (block_and_end(b"abc" + FRAME_HEADER.pack(-2, -1), 3, b""), "another length"),
        (block_and_end(b"abc" + FRAME_HEADER.pack(5, 0), 3, b""), "neither padding"),
        (block_and_end(b"abc" + FRAME_HEADER.pack(-1, 0), 3, b"x"), "neither padding"),
        (block_and_end(b"abc", 3, b"", count=0), "no events"),
        (block_and_end(b"abc", 3, b"", count=-1), "no events"),
        (AppendBlockEnd(WRITER, 2, b"abc", 1, 1, 0).encode(), "whole events are not"),
        (FRAME_HEADER.pack(4, 20) + bytes(20), "too short"),
        (FRAME_HEADER.pack(4, 40) + WRITER + FRAME_HEADER.pack(0, 99) + bytes(16), "not fit"),
        (FRAME_HEADER.pack(4, 40) + WRITER + FRAME_HEADER.pack(0, -9) + bytes(16), "not fit"),
        (FRAME_HEADER.pack(3, 4) + b"abcd" + block_and_end(b"", 0, b"")[24:], "another writer"),
    ],
)
def test_an_append_that_contradicts_itself_is_refused_with_a_reason(
    frames: bytes, reason: str
) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read(frames)


def test_an_end_without_a_request_id_has_request_zero() -> None:
    frames = AppendBlockEnd(WRITER, 3, b"abc", 1, 5, 99).encode()[8:-8]
    unit = read_append(memoryview(frames), block=None, end=(0, len(frames)))
    assert (unit.request_id, unit.last_event_number, unit.data) == (0, 5, b"abc")


@pytest.mark.parametrize(
    ("data", "count", "framed"),
    [
        (event(b""), 1, True),
        (event(b"a") + event(b"b"), 2, True),
        (event(b"a") + event(b"b"), 1, False),
        (event(b"a")[:-1], 1, False),
        (event(b"abc") + b"1234567", 2, False),
        (FRAME_HEADER.pack(0, -1) + b"abc", 1, False),
        (FRAME_HEADER.pack(1, 3) + b"abc", 1, False),
        (b"raw", 1, False),
        (b"", 1, False),
        (event(b"a"), 100, False),
    ],
)
def test_events_are_told_from_bytes_by_their_first_header(
    data: bytes, count: int, framed: bool
) -> None:
    assert is_event_framed(data, count) is framed


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(packed(), max_size=6),
    st.lists(st.integers(1, 400), min_size=1, max_size=20),
    st.booleans(),
)
def test_frames_are_found_however_the_bytes_arrive(
    appends: list[Packed], pieces: list[int], is_full: bool
) -> None:
    memory = memory_bound(bytes_max=1 if is_full else 1 << 40)
    stream = memoryview(b"".join(append.frames for append in appends))
    shared = memoryview(bytearray(96))
    buffer = ReceiveBuffer(memory=memory, shared=shared, capacity_min=64, capacity_busy=256)
    units: list[ReceivedAppend] = []
    position = turn = 0
    while position < len(stream):
        free = buffer.free()
        count = min(len(free), pieces[turn % len(pieces)], len(stream) - position)
        free[:count] = stream[position : position + count]
        buffer.filled(count)
        position += count
        turn += 1
        while (frame := buffer.peek(buffer.start)) is not None:
            kind, begin, end = frame
            block = None
            if kind == AppendBlock.type:
                block = begin, end
                last = buffer.peek(end, only=AppendBlockEnd.type)
                if last is None:
                    break
                _, begin, end = last
            units.append(read_append(buffer.view, block=block, end=(begin, end)))
            buffer.consume(end)
            assert not (is_full and buffer.ends_with_frame and not buffer.is_empty)
        buffer.keep()
        assert memory.held_bytes == buffer.capacity
        if memory.is_full:
            buffer.give_back()
            received = buffer.end - buffer.start
            assert buffer.capacity <= (max(64, 2 * received) if received else 0)
            buffer.ends_with_frame = not buffer.is_empty
        shared[:] = bytes([255]) * len(shared)  # others receive
    assert [unit.data for unit in units] == [append.data for append in appends]
    buffer.free()
    buffer.release()
    assert buffer.capacity == memory.held_bytes == 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(packed(), st.binary(max_size=30), st.integers(0, 400), st.integers(1, 255))
def test_the_short_reader_says_what_the_general_one_says_or_nothing(
    append: Packed, behind: bytes, damaged_at: int, damage: int
) -> None:
    frames = bytearray(append.frames)
    if 0 < damaged_at < len(frames):
        frames[damaged_at] ^= damage
    view = memoryview(b"before" + bytes(frames) + behind)
    limit = len(view)
    short = read_whole_append(view, 6, limit)
    if short is None:
        return
    unit, end = short
    buffer = ReceiveBuffer(
        memory=memory_bound(), shared=view[6:], capacity_min=64, capacity_busy=64
    )
    buffer.filled(limit - 6)
    first = buffer.peek(0)
    assert first is not None
    block = first[1:] if first[0] == AppendBlock.type else None
    last = buffer.peek(first[2] if block is not None else 0, only=AppendBlockEnd.type)
    assert last is not None
    same = read_append(buffer.view, block=block, end=last[1:])
    assert end - 6 == last[2]
    assert [getattr(unit, name) for name in ReceivedAppend.__slots__] == [
        getattr(same, name) for name in ReceivedAppend.__slots__
    ]


@pytest.mark.parametrize(
    ("shape", "is_short"), [("exact", True), ("end", True), ("split", False), ("padding", False)]
)
def test_the_short_reader_takes_the_two_usual_shapes_once_they_are_complete(
    shape: str, is_short: bool
) -> None:
    append = pack([b"a", b"bc"], shape=shape, split=3, padding=4, last_number=9, request_id=5)
    view = memoryview(append.frames)
    assert (read_whole_append(view, 0, len(view)) is not None) is is_short
    for limit in range(len(view)):
        assert read_whole_append(view, 0, limit) is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_a_client_packs_is_what_the_segment_holds(data: st.DataObject) -> None:
    appends: list[Packed] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        number += data.draw(st.integers(1, 5))
        appends.append(data.draw(packed(last_number=number)))
    stream = b"".join(append.frames for append in appends)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))

    async def scenario() -> None:
        async with running_node() as node:
            await node.container.create(SEGMENT)
            client = await node.client()
            await client.set_up(WRITER, SEGMENT)
            for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                client.send_bytes(stream[begin:end])
                await client.writer.drain()
                await asyncio.sleep(0)
            told = -1
            while told < number:
                told = (await client.expect(DataAppended)).event_number
            assert await node.content(SEGMENT) == b"".join(append.data for append in appends)
            counted = await node.container.attributes(SEGMENT, [EVENT_COUNT])
            assert counted[EVENT_COUNT] == sum(len(append.events) for append in appends)

    asyncio.run(scenario())
