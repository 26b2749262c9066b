"""A segment store's refusals as errors. The one place where commands become exceptions."""

from segmentstore.client.errors import (
    ClientError,
    RefusedError,
    ServiceUnavailableError,
    TableConditionError,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import (
    ILLEGAL_ARGUMENT,
    TOKEN_EXPIRED,
    AuthTokenCheckFailed,
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
    ErrorKind,
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableNotEmptyError,
)


class WrongHostError(ServiceUnavailableError):
    """The segment's container runs elsewhere, or nowhere at the moment. Nothing was done."""


def error_of(reply: Command) -> SegmentStoreError:
    """What a reply means that is not the answer to the request."""
    match reply:
        case WrongHost(segment=segment):
            return WrongHostError(f"segment is not served there now segment={segment!r}")
        case SegmentIsSealed(segment=segment, offset=offset):
            return SegmentSealedError(segment, length=offset)
        case NoSuchSegment(segment=segment):
            return SegmentNotFoundError(segment)
        case SegmentIsTruncated(segment=segment, start_offset=start_offset):
            return SegmentTruncatedError(segment, start_offset=start_offset)
        case SegmentAlreadyExists(segment=segment):
            return SegmentExistsError(segment)
        case TableSegmentNotEmpty(segment=segment):
            return TableNotEmptyError(segment)
        case TableKeyDoesNotExist(segment=segment) | TableKeyBadVersion(segment=segment):
            return TableConditionError(segment)
        case OperationUnsupported(operation_name=operation):
            return RefusedError(
                f"server does not support the operation operation={operation!r}", ErrorKind.INVALID
            )
        case AuthTokenCheckFailed(error_code=code) if code == TOKEN_EXPIRED:
            return ServiceUnavailableError("the token is too old; the next one may not be")
        case AuthTokenCheckFailed():
            return RefusedError("server does not accept the token", ErrorKind.INVALID)
        case ErrorMessage(message=message, error_code=code):
            if code == ILLEGAL_ARGUMENT:
                return InvalidRequestError(message)
            return ServiceUnavailableError(message)
        case _:
            return ClientError(f"server gives an answer to another question reply={reply!r:.200}")
