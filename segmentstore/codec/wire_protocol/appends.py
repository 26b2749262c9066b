"""How writers append, and what they are told.

A writer is sixteen bytes; its events carry numbers that only grow. A batch of events is one append: an AppendBlock
that was begun before its content was complete, then an AppendBlockEnd that says how it ended, or the end alone:

| block data behind the writer id | AppendBlockEnd |
|---|---|
| whole events only | data empty |
| whole events, then a PartialEvent frame up to the end | data = the remaining bytes of that event, maybe none |
| whole events, then a Padding frame up to the end | data empty |
| no AppendBlock was sent | data = everything |
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import Blob, Framed, Int32, Int64, Rest, Text, Uuid

NO_EVENT_NUMBER: Final = -(1 << 63)
"""In AppendSetup: the segment does not know the writer."""


@dataclass(frozen=True, slots=True)
class SetupAppend(Command):
    """Make the connection ready for a writer's appends to one segment. Answer: AppendSetup."""

    type: ClassVar[int] = 1
    request_id: Int64
    writer_id: Uuid
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class AppendSetup(Command):
    """The number of the writer's last stored event, or NO_EVENT_NUMBER."""

    type: ClassVar[int] = 2
    request_id: Int64
    segment: Text
    writer_id: Uuid
    last_event_number: Int64


@dataclass(frozen=True, slots=True)
class AppendBlock(Command):
    """The first part of an append; an AppendBlockEnd of the same writer follows at once."""

    type: ClassVar[int] = 3
    writer_id: Uuid
    data: Rest


@dataclass(frozen=True, slots=True)
class AppendBlockEnd(Command):
    """An append, or the end of one. Answer: DataAppended, maybe for several appends at once."""

    type: ClassVar[int] = 4
    writer_id: Uuid
    size_of_whole_events: Int32
    data: Blob
    event_count: Int32
    last_event_number: Int64
    request_id: Int64 = 0


@dataclass(frozen=True, slots=True)
class ConditionalAppend(Command):
    """Append one event, with its header, if the segment is exactly `expected_offset` bytes long."""

    type: ClassVar[int] = 5
    writer_id: Uuid
    event_number: Int64
    expected_offset: Int64
    event: Framed
    request_id: Int64 = 0


@dataclass(frozen=True, slots=True)
class ConditionalBlockEnd(Command):
    """Append bytes as they are if the segment is exactly `expected_offset` bytes long."""

    type: ClassVar[int] = 89
    writer_id: Uuid
    event_number: Int64
    expected_offset: Int64
    data: Blob
    request_id: Int64


@dataclass(frozen=True, slots=True)
class DataAppended(Command):
    """Everything behind `previous_event_number` up to `event_number` is stored."""

    type: ClassVar[int] = 7
    writer_id: Uuid
    event_number: Int64
    previous_event_number: Int64
    request_id: Int64 = 0
    segment_length: Int64 = -1


@dataclass(frozen=True, slots=True)
class ConditionalCheckFailed(Command):
    """The segment had another length; nothing was stored, and the writer may go on."""

    type: ClassVar[int] = 8
    writer_id: Uuid
    event_number: Int64
    request_id: Int64 = 0


@dataclass(frozen=True, slots=True)
class InvalidEventNumber(Command):
    """The segment knows another last event of the writer: another client writes under its id."""

    type: ClassVar[int] = 55
    writer_id: Uuid
    request_id: Int64
    server_stack: Text
    event_number: Int64


@dataclass(frozen=True, slots=True)
class CreateTransientSegment(Command):
    """Make a segment that will be merged into its parent. Answer: SegmentCreated with its generated name."""

    type: ClassVar[int] = 40
    request_id: Int64
    writer_id: Uuid
    parent_segment: Text
    delegation_token: Text
