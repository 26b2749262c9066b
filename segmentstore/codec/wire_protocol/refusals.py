"""What a server answers when it does not do what it was asked. InvalidEventNumber is among the appends."""

from dataclasses import dataclass
from typing import ClassVar

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import Int32, Int64, Text

UNSPECIFIED = -1
"""Error code of AuthTokenCheckFailed and ErrorMessage."""
TOKEN_CHECK_FAILED = 0
"""Error code of AuthTokenCheckFailed: the client gives up."""
TOKEN_EXPIRED = 1
"""Error code of AuthTokenCheckFailed: the client fetches a new token and tries again."""
ILLEGAL_ARGUMENT = 0
"""Error code of ErrorMessage."""


@dataclass(frozen=True, slots=True)
class WrongHost(Command):
    """The segment's container runs elsewhere; an empty host means that the sender does not know where."""

    type: ClassVar[int] = 50
    request_id: Int64
    segment: Text
    correct_host: Text
    server_stack: Text = ""


@dataclass(frozen=True, slots=True)
class SegmentIsSealed(Command):
    """For an append, `offset` is the event number; for a read, the requested offset."""

    type: ClassVar[int] = 51
    request_id: Int64
    segment: Text
    server_stack: Text = ""
    offset: Int64 = -1


@dataclass(frozen=True, slots=True)
class SegmentAlreadyExists(Command):
    """A create met a segment of the same name."""

    type: ClassVar[int] = 52
    request_id: Int64
    segment: Text
    server_stack: Text = ""


@dataclass(frozen=True, slots=True)
class NoSuchSegment(Command):
    """For a read, `offset` is the requested offset."""

    type: ClassVar[int] = 53
    request_id: Int64
    segment: Text
    server_stack: Text = ""
    offset: Int64 = -1


@dataclass(frozen=True, slots=True)
class SegmentIsTruncated(Command):
    """What was asked for lies below the start; `offset` is the requested one."""

    type: ClassVar[int] = 56
    request_id: Int64
    segment: Text
    start_offset: Int64
    server_stack: Text = ""
    offset: Int64 = -1


@dataclass(frozen=True, slots=True)
class OperationUnsupported(Command):
    """This segment, or this server, cannot do that."""

    type: ClassVar[int] = 57
    request_id: Int64
    operation_name: Text
    server_stack: Text = ""


@dataclass(frozen=True, slots=True)
class AuthTokenCheckFailed(Command):
    """Only the three codes above exist; clients fall over others."""

    type: ClassVar[int] = 60
    request_id: Int64
    server_stack: Text
    error_code: Int32 = UNSPECIFIED


@dataclass(frozen=True, slots=True)
class ErrorMessage(Command):
    """Anything that has no command of its own."""

    type: ClassVar[int] = 61
    request_id: Int64
    segment: Text
    message: Text
    error_code: Int32


@dataclass(frozen=True, slots=True)
class TableSegmentNotEmpty(Command):
    """A table that has to be empty to be deleted holds entries."""

    type: ClassVar[int] = 80
    request_id: Int64
    segment: Text
    server_stack: Text = ""


@dataclass(frozen=True, slots=True)
class TableKeyDoesNotExist(Command):
    """A conditional update or removal expected a version of a key that does not exist."""

    type: ClassVar[int] = 81
    request_id: Int64
    segment: Text
    server_stack: Text = ""


@dataclass(frozen=True, slots=True)
class TableKeyBadVersion(Command):
    """A conditional update or removal expected another version of a key."""

    type: ClassVar[int] = 82
    request_id: Int64
    segment: Text
    server_stack: Text = ""
