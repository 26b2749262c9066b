"""Frames written once and kept for ever: tests/golden/wire_commands.hex, a name and the frame's bytes on each line."""

from pathlib import Path

import pytest

from segmentstore.codec.wire_protocol.appends import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import FRAME_HEADER, Command, Event, Hello, KeepAlive
from segmentstore.codec.wire_protocol.frames import decode_command
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead
from segmentstore.codec.wire_protocol.refusals import (
    AuthTokenCheckFailed,
    NoSuchSegment,
    SegmentIsSealed,
)
from segmentstore.codec.wire_protocol.segments import (
    AttributeChange,
    CreateSegment,
    MergeSegments,
)
from segmentstore.codec.wire_protocol.store_calls import (
    AnswerChanged,
    AnswerDelta,
    AnswerEntries,
    AnswerRefused,
    AnswerSegments,
    CallAppend,
    CallMergeAll,
    CallReadPage,
    CallUpdateTable,
    CarriedError,
    OpenStoreCalls,
)
from segmentstore.codec.wire_protocol.tables import (
    IteratorArguments,
    ReadTableEntries,
    ReadTableEntriesDelta,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import BadAttributeUpdateError, TableVersionError
from segmentstore.contracts.identifiers import EVENT_COUNT, AttributeKey, SegmentId
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    SegmentProperties,
)
from segmentstore.contracts.tables import TableEntry, TableInfo

GOLDEN = Path(__file__).parents[2] / "golden" / "wire_commands.hex"
WRITER = bytes(range(16))
SEGMENT = "scope/stream/0.#epoch.0"

FRAMES: dict[str, Command] = {
    "hello": Hello(16, 5),
    "keep_alive": KeepAlive(),
    "event": Event(b"event"),
    "setup_append": SetupAppend(1 << 32, WRITER, SEGMENT, ""),
    "append_setup": AppendSetup(1 << 32, SEGMENT, WRITER, -(1 << 63)),
    "append_block": AppendBlock(WRITER, b"\0\0\0\0\0\0\0\1a"),
    "append_block_end": AppendBlockEnd(WRITER, 9, b"", 1, 7, 1 << 32),
    "conditional_append": ConditionalAppend(WRITER, 8, 9, b"event", 3),
    "conditional_block_end": ConditionalBlockEnd(WRITER, 8, 9, b"bytes", 3),
    "data_appended": DataAppended(WRITER, 8, 7, 1 << 32, 18),
    "read_segment": ReadSegment(SEGMENT, 5, 1 << 20, "", 4),
    "segment_read": SegmentRead(SEGMENT, 5, True, False, b"data", 4),
    "segment_is_sealed": SegmentIsSealed(4, SEGMENT, "", 5),
    "no_such_segment": NoSuchSegment(4, SEGMENT),
    "token_expired": AuthTokenCheckFailed(4, "", 1),
    "create_segment": CreateSegment(5, SEGMENT, 100, 2, "", 1 << 30),
    "merge_segments": MergeSegments(6, "a", "b", "", (AttributeChange(WRITER, 4, 2, 1),)),
    "update_entries": UpdateTableEntries(7, "t", "", (TableEntry(b"k", b"value", -1),), -1),
    "read_entries": ReadTableEntries(8, "t", "", 10, IteratorArguments(b"x", b"", b"a", b"z")),
    "read_delta": ReadTableEntriesDelta(9, "t", "", 17, 10),
    "open_store_calls": OpenStoreCalls(1, "token", 3),
    "call_append": CallAppend(
        2,
        SEGMENT,
        17,
        None,
        True,
        (AttributeUpdate(EVENT_COUNT, 1, AttributeUpdateType.ACCUMULATE, None),),
        b"data",
    ),
    "call_merge_all": CallMergeAll(3, "a", ("b", "c"), True),
    "call_update_table": CallUpdateTable(4, "t", None, False, (TableEntry(b"k", b"v", -1),)),
    "call_read_page": CallReadPage(5, "t", True, 10, b"token", None, b"z"),
    "answer_segments": AnswerSegments(
        6,
        True,
        (
            SegmentProperties(
                name="a",
                segment_id=SegmentId(2),
                container_id=1,
                start_offset=3,
                length=5,
                storage_length=4,
                sealed=True,
                sealed_in_storage=False,
                last_modified_ms=1_000,
                core_attributes={EVENT_COUNT: 6, AttributeKey(b"key"): b"value"},
            ),
        ),
    ),
    "answer_changed": AnswerChanged(
        7,
        (9, CarriedError.of(TableVersionError("t", key=b"k", expected=1, current=2))),
        TableInfo("t", 0, 3, 5, 1),
    ),
    "answer_entries": AnswerEntries(8, (None, TableEntry(b"k", b"v", 9))),
    "answer_delta": AnswerDelta(9, False, True, 17, ()),
    "answer_refused": AnswerRefused(
        10, CarriedError.of(BadAttributeUpdateError("a", key=b"k", current=None))
    ),
}


def golden_frames() -> dict[str, bytes]:
    lines = GOLDEN.read_text("ascii").splitlines()
    return {name: bytes.fromhex(content) for name, content in map(str.split, lines)}


def test_every_golden_frame_has_its_command() -> None:
    assert list(golden_frames()) == list(FRAMES)


@pytest.mark.parametrize("name", FRAMES)
def test_a_golden_frame_is_written_and_read(name: str) -> None:
    golden = golden_frames()[name]
    assert FRAMES[name].encode() == golden
    kind, length = FRAME_HEADER.unpack_from(golden)
    assert length == len(golden) - 8
    assert decode_command(kind, golden[8:]) == FRAMES[name]
