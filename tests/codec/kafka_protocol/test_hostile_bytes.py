"""Whatever bytes arrive, a reader returns a message or raises KafkaProtocolError; it never takes memory that was only
announced."""

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.kafka_protocol.fetch import FetchRequest, ListOffsetsRequest
from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    FRAME_BYTES_MAX,
    REQUEST_ITEMS_MAX,
    FrameCutter,
    decode_request,
    decode_response,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.groups import (
    DescribeGroupsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
)
from segmentstore.codec.kafka_protocol.structure import (
    Structure,
    decode_structure,
    encode_structure,
)
from tests.codec.kafka_protocol.any_message import SPOKEN, messages


@pytest.mark.parametrize(
    ("kind", "version"), SPOKEN, ids=lambda each: getattr(each, "__name__", each)
)
@settings(max_examples=8)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(
    kind: type[Structure], version: int, content: bytes
) -> None:
    try:
        message = decode_structure(kind, content, version)
    except KafkaProtocolError:
        return
    assert isinstance(message, kind)


@given(data=st.data())
def test_a_damaged_message_is_read_or_refused(data: st.DataObject) -> None:
    kind, version = data.draw(st.sampled_from(SPOKEN))
    content = bytearray(b"".join(encode_structure(data.draw(messages(kind, version)), version)))
    if content:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(KafkaProtocolError):
        assert isinstance(decode_structure(kind, content, version), kind)


@given(data=st.data())
def test_a_message_that_is_cut_short_or_goes_on_is_refused(data: st.DataObject) -> None:
    kind, version = data.draw(st.sampled_from(SPOKEN))
    content = b"".join(encode_structure(data.draw(messages(kind, version)), version))
    for length in range(0, len(content), max(1, len(content) // 40)):
        with pytest.raises(KafkaProtocolError):
            decode_structure(kind, content[:length], version)
    with pytest.raises(KafkaProtocolError):
        decode_structure(kind, content + b"\0", version)


@given(content=st.binary(max_size=60))
def test_any_frame_is_a_request_or_refused(content: bytes) -> None:
    try:
        decode_request(read_request_header(content), content)
    except KafkaProtocolError:
        return


@pytest.mark.parametrize("count", [-2, 2, 1 << 20, (1 << 31) - 1, -(1 << 31)])
def test_a_list_of_more_items_than_bytes_is_refused_before_it_is_made(count: int) -> None:
    content = count.to_bytes(4, "big", signed=True) + b"\0\1a"
    tracemalloc.start()
    try:
        with pytest.raises(KafkaProtocolError):
            decode_structure(DescribeGroupsRequest, content, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


@pytest.mark.parametrize("more", [0, 1])
def test_the_lists_of_a_request_have_a_bound_together(more: int) -> None:
    """One partition of each topic: no list alone is above it."""
    topics = REQUEST_ITEMS_MAX // 2
    # ListOffsets, of which a partition has an index and a time; the replica's number comes first.
    body = b"\xff" * 4 + topics.to_bytes(4, "big")
    partition = bytes(12)
    body += (b"\0\1t" + (1).to_bytes(4, "big") + partition) * (topics - 1)
    body += b"\0\1t" + (1 + more).to_bytes(4, "big") + partition * (1 + more)
    frame = struct.pack(">hhih", 2, 1, 7, -1) + body
    header = read_request_header(frame)
    if more:
        with pytest.raises(KafkaProtocolError, match="too many items"):
            decode_request(header, frame)
    else:
        assert isinstance(decode_request(header, frame), ListOffsetsRequest)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("place", ["header", "list", "item"])
def test_lists_and_tagged_fields_of_a_flexible_request_have_a_bound(place: str, more: int) -> None:
    count = REQUEST_ITEMS_MAX + more
    many = _unsigned_varint(count - 2) + b"\0\0" * (count - 2)
    head, item, behind = b"\0", b"\2p\1\0", b"\0"
    protocols = b"\2" + item
    match place:
        case "header":
            head = _unsigned_varint(count) + b"\0\0" * count
        case "list":
            protocols = _unsigned_varint(count + 1) + item * count
        case "item":
            # With the item itself, and one tagged field of the message.
            protocols, behind = b"\2" + b"\2p\1" + many, b"\1\0\0"
    join = b"\2g" + bytes(8) + b"\1" + b"\0" + b"\2t" + protocols + behind
    frame = struct.pack(">hhih", 11, 7, 7, -1) + head + join
    header = read_request_header(frame)
    if more:
        with pytest.raises(KafkaProtocolError, match="too many items"):
            decode_request(header, frame)
    else:
        assert isinstance(decode_request(header, frame), JoinGroupRequest)


def _unsigned_varint(value: int) -> bytes:
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def test_null_is_refused_where_it_must_not_be() -> None:
    with pytest.raises(KafkaProtocolError, match="null"):
        decode_structure(LeaveGroupRequest, b"\xff\xff\0\0", 0)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(KafkaProtocolError, match="UTF-8"):
        decode_structure(LeaveGroupRequest, b"\0\1\xff\0\0", 0)


def test_values_that_no_field_holds_are_refused() -> None:
    for request in (
        FetchRequest(max_wait_ms=1 << 31, min_bytes=0, topics=()),
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=(), rack_id="x" * 40_000),
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=(), rack_id="\ud800"),
    ):
        with pytest.raises(KafkaProtocolError):
            encode_structure(request, 11)


@pytest.mark.parametrize("length", [-1, -(1 << 31), FRAME_BYTES_MAX + 1])
def test_a_length_that_no_frame_has_is_refused(length: int) -> None:
    with pytest.raises(KafkaProtocolError, match="length"):
        FrameCutter().feed(length.to_bytes(4, "big", signed=True))


def test_an_announced_frame_takes_no_memory_before_it_arrives() -> None:
    cutter = FrameCutter()
    tracemalloc.start()
    try:
        assert cutter.feed(FRAME_BYTES_MAX.to_bytes(4, "big") + bytes(1000)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16
    assert cutter.gathered_bytes == 1004


def test_an_answer_to_another_request_is_refused() -> None:
    with pytest.raises(KafkaProtocolError, match="another request"):
        decode_response(LeaveGroupRequest, b"\0\0\0\7" + b"\0\0\0\0", 0, correlation_id=8)
    with pytest.raises(KafkaProtocolError, match="header"):
        decode_response(LeaveGroupRequest, b"\0\0\0", 0, correlation_id=8)
