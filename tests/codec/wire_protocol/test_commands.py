import struct
from contextlib import suppress
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.wire_protocol import appends, reads, refusals, segments, tables
from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    PAYLOAD_BYTES_MAX,
    Command,
    Event,
    Hello,
    Padding,
    PartialEvent,
    frame,
)
from segmentstore.codec.wire_protocol.fields import (
    CLIENT_LIST_ITEMS_MAX,
    ProtocolError,
    decode_text,
    encode_text,
)
from segmentstore.codec.wire_protocol.frames import COMMANDS, FrameSplitter, decode_command
from segmentstore.codec.wire_protocol.tables import IteratorArguments
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableKey
from tests.codec.wire_protocol.commands import any_command

WRITER = bytes(range(16))


def payload(command: Command) -> bytes:
    return command.encode()[8:]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(any_command)
def test_every_command_reads_back_what_it_wrote(command: Command) -> None:
    encoded = command.encode()
    assert FRAME_HEADER.unpack_from(encoded) == (command.type, len(encoded) - 8)
    assert decode_command(command.type, memoryview(encoded)[8:]) == command


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(any_command, st.binary(min_size=1, max_size=12))
def test_fields_that_newer_peers_append_are_ignored(command: Command, more: bytes) -> None:
    if isinstance(command, Padding | PartialEvent | Event):
        return
    if any(name in type(command).__slots__ for name in ("iterator",)) or isinstance(
        command, appends.AppendBlock
    ):
        return  # These take all that there is.
    assert decode_command(command.type, payload(command) + more) == command


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(any_command, st.data())
def test_a_frame_that_ends_early_is_refused_or_lacks_only_optional_fields(
    command: Command, data: st.DataObject
) -> None:
    content = payload(command)
    cut = data.draw(st.integers(0, len(content)))
    try:
        shorter = decode_command(command.type, content[:cut])
    except ProtocolError:
        return
    assert isinstance(shorter, type(command))
    # Reading it again must not depend on what was cut off.
    assert decode_command(command.type, payload(shorter)) == shorter


@pytest.mark.slow
@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(kind: int, content: bytes) -> None:
    try:
        command = decode_command(kind, content)
    except ProtocolError:
        return
    assert command.type == kind


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(any_command, st.data())
def test_a_flipped_byte_raises_nothing_but_protocol_errors(
    command: Command, data: st.DataObject
) -> None:
    content = bytearray(payload(command))
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(ProtocolError):
        assert isinstance(decode_command(command.type, bytes(content)), type(command))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(any_command, max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_a_stream_cut_anywhere_gives_the_same_frames(
    commands: list[Command], lengths: list[int]
) -> None:
    stream = b"".join(command.encode() for command in commands)
    splitter = FrameSplitter()
    received: list[Command] = []
    position = turn = 0
    while position < len(stream):
        length = lengths[turn % len(lengths)]
        received += splitter.feed_commands(stream[position : position + length])
        position += length
        turn += 1
    assert received == commands


@pytest.mark.parametrize("length", [-1, -(1 << 31), PAYLOAD_BYTES_MAX + 1, (1 << 31) - 1])
def test_an_impossible_frame_length_is_refused_with_a_reason(length: int) -> None:
    splitter = FrameSplitter()
    with pytest.raises(ProtocolError, match="impossible length"):
        splitter.feed(FRAME_HEADER.pack(4, length))
    with pytest.raises(ProtocolError, match="impossible length"):
        splitter.feed(b"")


def test_the_longest_frame_passes_and_one_byte_more_is_refused() -> None:
    longest = Padding(bytes(PAYLOAD_BYTES_MAX)).encode()
    assert len(longest) == FRAME_BYTES_MAX
    assert FrameSplitter().feed(longest) == [(-1, bytes(PAYLOAD_BYTES_MAX))]
    with pytest.raises(ProtocolError, match="too long"):
        Padding(bytes(PAYLOAD_BYTES_MAX + 1)).encode()


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown command type=72"):
        decode_command(72, b"")


@pytest.mark.parametrize(
    "command",
    [
        segments.CreateSegment(1 << 63, "s", 0, 0, ""),
        segments.CreateSegment(0, "s", 1 << 31, 0, ""),
        segments.CreateSegment(0, "s", 0, 128, ""),
        segments.CreateSegment(0, "s" * 65536, 0, 0, ""),
        segments.CreateSegment(0, "\ud800", 0, 0, ""),
        appends.SetupAppend(0, b"short", "s", ""),
        segments.MergeSegments(0, "t", "s", "", (segments.AttributeChange(WRITER, 5, 0, 0),)),
    ],
)
def test_a_value_that_fits_into_no_field_is_refused(command: Command) -> None:
    with pytest.raises(ProtocolError):
        command.encode()


def test_a_list_longer_than_its_frame_is_refused_before_it_is_read() -> None:
    count = (1 << 31) - 1
    content = bytes(8) + count.to_bytes(4, "big") + bytes(16)
    with pytest.raises(ProtocolError, match="list does not fit"):
        tables.TableEntriesUpdated.decode(content)


def test_merge_without_a_list_of_changes_is_read_as_none() -> None:
    whole = payload(segments.MergeSegments(1, "target", "source", ""))
    assert segments.MergeSegments.decode(whole[:-4]) == segments.MergeSegments(
        1, "target", "source", "", ()
    )


def test_a_table_creation_without_options_asks_for_the_hash_layout() -> None:
    content = payload(tables.CreateTableSegment(1, "s", "", True, 16, 5))
    assert tables.CreateTableSegment.decode(content[: 8 + 3 + 2]) == tables.CreateTableSegment(
        1, "s", "", False, 0, 0
    )
    assert tables.CreateTableSegment.decode(content[:-8]).key_length == 16


def test_an_iterator_of_the_token_alone_has_no_bounds() -> None:
    content = payload(tables.ReadTableKeys(1, "s", "", 10, IteratorArguments(b"token", b"", b"a")))
    cut = len(content) - 4 - (4 + 1) - 4
    assert tables.ReadTableKeys.decode(content[:cut]).iterator == IteratorArguments(b"token")


def test_a_block_end_without_a_request_id_has_request_zero() -> None:
    end = appends.AppendBlockEnd(WRITER, 3, b"abc", 1, 7, 99)
    assert appends.AppendBlockEnd.decode(payload(end)[:-8]) == replace(end, request_id=0)


def test_an_empty_key_stands_without_a_version() -> None:
    request = tables.ReadTable(5, "s", "", (TableKey(b""), TableKey(b"k", 3)))
    content = payload(request)
    assert content == bytes.fromhex(
        "0000000000000005 0001 73 0000 00000002 0000000c 00000000"
        "0000000d 00000001 6b 0000000000000003".replace(" ", "")
    )
    assert tables.ReadTable.decode(content) == request
    assert request.keys[0].version == NO_VERSION


def test_a_key_that_contradicts_its_length_is_refused() -> None:
    content = bytearray(payload(tables.ReadTable(5, "s", "", (TableKey(b"key", 3),))))
    content[8 + 3 + 2 + 4 + 3] += 1
    with pytest.raises(ProtocolError, match="contradicts"):
        tables.ReadTable.decode(bytes(content))


def test_a_value_that_contradicts_its_length_is_refused() -> None:
    entry = TableEntry(b"key", b"value", 3)
    content = bytearray(payload(tables.TableRead(5, "s", (entry,))))
    content[-len(b"value") - 5] += 1
    with pytest.raises(ProtocolError, match="contradicts"):
        tables.TableRead.decode(bytes(content))


def test_an_event_in_a_conditional_append_must_have_the_type_of_an_event() -> None:
    content = bytearray(payload(appends.ConditionalAppend(WRITER, 1, 2, b"data", 3)))
    assert appends.ConditionalAppend.decode(bytes(content)).event == b"data"
    content[16 + 8 + 8 + 3] = 1
    with pytest.raises(ProtocolError, match="not an event"):
        appends.ConditionalAppend.decode(bytes(content))


@pytest.mark.parametrize("text", ["", "plain", "a\0b", "é€", "\U0001f600", "\0\U0001f600\0"])
def test_text_is_read_as_java_and_as_rust_write_it(text: str) -> None:
    assert decode_text(encode_text(text)) == text
    assert decode_text(text.encode("utf-8")) == text
    assert b"\0" not in encode_text(text)
    assert all(byte < 0xF0 for byte in encode_text(text)), "no four-byte sequence"


@pytest.mark.parametrize(
    "content", ["80", "c0", "c080ff", "eda080", "eda080eda080", "edb080eda080"]
)
def test_bytes_that_are_no_text_are_refused(content: str) -> None:
    with pytest.raises(ProtocolError):
        decode_text(bytes.fromhex(content))


@given(st.binary(max_size=30))
def test_any_bytes_are_text_or_a_protocol_error(content: bytes) -> None:
    try:
        text = decode_text(content)
    except ProtocolError:
        return
    assert decode_text(encode_text(text)) == text


@pytest.mark.parametrize(
    ("theirs", "meets"),
    [((16, 5), True), ((17, 5), True), ((15, 5), True), ((5, 5), True), ((4, 1), False)],
)
def test_versions_meet_when_the_ranges_overlap(theirs: tuple[int, int], meets: bool) -> None:
    hello = Hello(*theirs)
    assert hello.speaks(high_version=16, low_version=5) is meets


def test_versions_from_the_future_do_not_meet() -> None:
    assert not Hello(20, 17).speaks(high_version=16, low_version=5)
    assert not Hello(5, 16).speaks(high_version=16, low_version=5), "an empty range"


def test_every_command_is_frozen_and_has_its_own_type() -> None:
    assert len(COMMANDS) == 106
    for kind, command in COMMANDS.items():
        assert command.type == kind
        assert command.__doc__, command


def test_a_field_that_may_be_missing_is_followed_only_by_such() -> None:
    for command in COMMANDS.values():
        optional = [field.default is not field.default_factory for field in fields(command)]
        assert optional == sorted(optional), command


def test_a_frame_is_header_and_parts() -> None:
    assert frame(100) == bytes.fromhex("0000006400000000")
    assert frame(-1, b"ab", b"c") == bytes.fromhex("ffffffff00000003616263")


def test_error_codes_are_those_that_clients_know() -> None:
    codes = (refusals.UNSPECIFIED, refusals.TOKEN_CHECK_FAILED, refusals.TOKEN_EXPIRED)
    assert codes == (-1, 0, 1)
    assert reads.NO_ATTRIBUTE_VALUE == appends.NO_EVENT_NUMBER == -(1 << 63)


CLIENT_LISTS: tuple[Command, ...] = (
    segments.MergeSegmentsBatch(1, "target", ("",) * (CLIENT_LIST_ITEMS_MAX), ""),
    tables.ReadTable(1, "table", "", (TableKey(b"", NO_VERSION),) * CLIENT_LIST_ITEMS_MAX),
    tables.RemoveTableKeys(1, "table", "", (TableKey(b"", NO_VERSION),) * CLIENT_LIST_ITEMS_MAX),
    tables.UpdateTableEntries(1, "table", "", (TableEntry(b"", b""),) * CLIENT_LIST_ITEMS_MAX),
    segments.MergeSegments(
        1,
        "target",
        "source",
        "",
        (segments.AttributeChange(WRITER, 0, 0, 0),) * CLIENT_LIST_ITEMS_MAX,
    ),
)


@pytest.mark.parametrize("command", CLIENT_LISTS, ids=lambda each: type(each).__name__)
def test_a_list_of_a_client_has_a_bound_that_is_looked_at_before_its_items(
    command: Command,
) -> None:
    content = payload(command)
    assert decode_command(command.type, content) == command
    count = struct.pack(">i", CLIENT_LIST_ITEMS_MAX)
    at = content.index(count)
    # What follows is no item of it: a decoder that began with them would say something else.
    more = (
        content[:at] + struct.pack(">i", CLIENT_LIST_ITEMS_MAX + 1) + b"\xff" * (len(content) * 2)
    )
    with pytest.raises(ProtocolError, match="too many items"):
        decode_command(command.type, more)


def test_a_longer_list_is_not_written_either() -> None:
    sources = ("",) * (CLIENT_LIST_ITEMS_MAX + 1)
    with pytest.raises(ProtocolError, match="too many items"):
        segments.MergeSegmentsBatch(1, "target", sources, "").encode()
