"""Which command tells a client of an error.

| error | command | what the client does |
|---|---|---|
| ContainerNotFoundError, ContainerStoppedError, fenced | WrongHost | asks the controller again and comes back |
| SegmentNotFoundError | NoSuchSegment | |
| SegmentSealedError | SegmentIsSealed | goes on with the successors |
| SegmentTruncatedError, BadOffsetError | SegmentIsTruncated | goes on at the start offset |
| SegmentExistsError | SegmentAlreadyExists | |
| NotATableError | OperationUnsupported | |
| TableNotEmptyError, TableKeyNotFoundError, TableVersionError | their own commands | reads again and decides |
| other kinds INVALID and TOO_LARGE | ErrorMessage, illegal argument | gives up |
| everything else | ErrorMessage, unspecified | gives up, or tries again |
"""

from typing import Final

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import (
    ILLEGAL_ARGUMENT,
    UNSPECIFIED,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    NotATableError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableKeyNotFoundError,
    TableNotEmptyError,
    TableVersionError,
)

TEXT_CHARACTERS_MAX: Final = 500


def ascii_text(error: SegmentStoreError) -> str:
    """The message as every client can read it."""
    return str(error).encode("ascii", "backslashreplace").decode("ascii")[:TEXT_CHARACTERS_MAX]


def is_elsewhere(error: SegmentStoreError) -> bool:
    """Whether the segment's container is not here, or not any more."""
    return (
        isinstance(error, ContainerNotFoundError | ContainerStoppedError)
        or error.kind is ErrorKind.FENCED
    )


def is_stale(error: BaseException) -> bool:
    """Whether a handle that was kept open may be at fault: opening it again may help."""
    return isinstance(error, SegmentStoreError) and (
        isinstance(error, SegmentNotFoundError) or is_elsewhere(error)
    )


def reply_to_error(
    error: SegmentStoreError, *, request_id: int, segment: str, offset: int = -1
) -> Command:
    """The refusal of a request; `offset` is the one that was asked for."""
    text = ascii_text(error)
    if is_elsewhere(error):
        return WrongHost(request_id, segment, "", text)
    match error:
        case SegmentNotFoundError():
            return NoSuchSegment(request_id, segment, text, offset)
        case SegmentSealedError():
            return SegmentIsSealed(request_id, segment, text, offset)
        case SegmentTruncatedError():
            return SegmentIsTruncated(request_id, segment, error.start_offset, text, offset)
        case BadOffsetError():
            return SegmentIsTruncated(request_id, segment, error.expected, text, offset)
        case SegmentExistsError():
            return SegmentAlreadyExists(request_id, segment, text)
        case NotATableError():
            return OperationUnsupported(request_id, "table", text)
        case TableNotEmptyError():
            return TableSegmentNotEmpty(request_id, segment, text)
        case TableKeyNotFoundError():
            return TableKeyDoesNotExist(request_id, segment, text)
        case TableVersionError():
            return TableKeyBadVersion(request_id, segment, text)
    illegal = error.kind in (ErrorKind.INVALID, ErrorKind.TOO_LARGE)
    code = ILLEGAL_ARGUMENT if illegal else UNSPECIFIED
    return ErrorMessage(request_id, segment, text, code)
