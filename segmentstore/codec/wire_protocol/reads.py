"""How readers read, and what may be asked about a segment."""

from dataclasses import dataclass
from typing import ClassVar, Final

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import Blob, Flag, Int32, Int64, Text, Uuid

NO_ATTRIBUTE_VALUE: Final = -(1 << 63)
"""The value of an attribute that is absent."""


@dataclass(frozen=True, slots=True)
class ReadSegment(Command):
    """Bytes from `offset` on. Waits at the end of an open segment. Answer: SegmentRead."""

    type: ClassVar[int] = 9
    segment: Text
    offset: Int64
    suggested_length: Int32
    delegation_token: Text
    request_id: Int64 = 0


@dataclass(frozen=True, slots=True)
class SegmentRead(Command):
    """Bytes from the requested offset on, as many as the server likes."""

    type: ClassVar[int] = 10
    segment: Text
    offset: Int64
    at_tail: Flag
    end_of_segment: Flag
    data: Blob
    request_id: Int64 = 0


@dataclass(frozen=True, slots=True)
class GetStreamSegmentInfo(Command):
    """Answer: StreamSegmentInfo."""

    type: ClassVar[int] = 11
    request_id: Int64
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class StreamSegmentInfo(Command):
    """The state of a segment; `write_offset` is its length."""

    type: ClassVar[int] = 12
    request_id: Int64
    segment: Text
    exists: Flag
    is_sealed: Flag
    is_deleted: Flag
    last_modified_ms: Int64
    write_offset: Int64
    start_offset: Int64 = 0


@dataclass(frozen=True, slots=True)
class GetSegmentAttribute(Command):
    """Answer: SegmentAttribute."""

    type: ClassVar[int] = 34
    request_id: Int64
    segment: Text
    attribute_id: Uuid
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentAttribute(Command):
    """NO_ATTRIBUTE_VALUE if it is absent."""

    type: ClassVar[int] = 35
    request_id: Int64
    value: Int64


@dataclass(frozen=True, slots=True)
class UpdateSegmentAttribute(Command):
    """Compare and set; NO_ATTRIBUTE_VALUE stands for absent. Answer: SegmentAttributeUpdated."""

    type: ClassVar[int] = 36
    request_id: Int64
    segment: Text
    attribute_id: Uuid
    new_value: Int64
    expected_value: Int64
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentAttributeUpdated(Command):
    """Whether the expected value was met."""

    type: ClassVar[int] = 37
    request_id: Int64
    success: Flag


@dataclass(frozen=True, slots=True)
class LocateOffset(Command):
    """Where a reader that wants to be near `target_offset` should begin. Answer: OffsetLocated. Version 17."""

    type: ClassVar[int] = 41
    request_id: Int64
    segment: Text
    target_offset: Int64
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class OffsetLocated(Command):
    """An offset at which an append began."""

    type: ClassVar[int] = 42
    request_id: Int64
    segment: Text
    offset: Int64
