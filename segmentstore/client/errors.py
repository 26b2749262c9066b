"""What can go wrong for a user of the client, beyond the errors of segments and tables in `contracts.errors`.

Every class is a SegmentStoreError, so `error.kind` says what to do without looking at the class:

| class | kind | meaning |
|---|---|---|
| ConnectionLostError, ServiceUnavailableError | UNAVAILABLE | retry: it had no effect, or may be repeated |
| WrongHostError, TokenExpiredError, NotDoneError | UNAVAILABLE | the same, for reasons that have a name |
| OutcomeUnknownError | UNAVAILABLE | the request may have been carried out; look before repeating it |
| PlaceUnknownError | UNAVAILABLE | bytes are stored, and no server can say where |
| DeadlineExceededError | UNAVAILABLE | the setting's time is over; outcome unknown |
| ClosedError | UNAVAILABLE | the client was closed before this was sent |
| NotFoundError | NOT_FOUND | no scope, stream, group or table of that name |
| AlreadyExistsError, NotEmptyError, StreamSealedError, StateConflictError | CONFLICT | the state forbids it |
| TableConditionError | CONFLICT | a key has another version than the update expected |
| TransactionClosedError | CONFLICT | the transaction is committed or aborted already |
| WriterFullError | UNAVAILABLE | write_nowait met the bound on unacknowledged events |
| ReaderOfflineError | CONFLICT | the group gave this reader's segments to others |
| RefusedError | as given | any other error reply of a server |

`error_from_reply` makes errors of a segment store's error replies: the one place where commands become exceptions.
"""

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


class ClientError(SegmentStoreError):
    """Root of the errors that the client adds."""


class ConnectionLostError(ClientError):
    """The connection ended, or none could be made."""


class NoCommonVersionError(ConnectionLostError):
    """Of a request there is no version that both sides speak. Nothing was sent."""


class ServiceUnavailableError(ClientError):
    """A server is there but cannot serve now: recovering, stopping, or not the owner of the segment."""


class OutcomeUnknownError(ClientError):
    """What was sent may have been carried out: its answer was lost, and it was not sent again, or in vain.

    You do not get it for what was never sent, or was refused by an answer.
    """


class PlaceUnknownError(OutcomeUnknownError):
    """Bytes were stored, once, and the answer that would have said where was lost. Nothing is to be repeated."""

    def __init__(self, segment: str) -> None:
        super().__init__(
            f"bytes are stored, but others appended too: where is unknown segment={segment!r}"
        )
        self.segment = segment


class DeadlineExceededError(ClientError):
    """No answer came within the time that the settings allow."""


class ClosedError(ClientError):
    """The store, or the part of it that was asked, is closed. What was under way then has OutcomeUnknownError."""


class NotFoundError(ClientError):
    """There is no such scope, stream, transaction, group or table."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} does not exist name={name!r}")
        self.name = name


class AlreadyExistsError(ClientError):
    """There is one of that name."""

    kind = ErrorKind.CONFLICT

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} exists already name={name!r}")
        self.name = name


class NotEmptyError(ClientError):
    """It has to be empty to be deleted."""

    kind = ErrorKind.CONFLICT

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} is not empty name={name!r}")
        self.name = name


class StreamSealedError(ClientError):
    """The stream takes no more events."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str) -> None:
        super().__init__(f"stream is sealed name={name!r}")
        self.name = name


class StateConflictError(ClientError):
    """The present state forbids it, for example deleting a stream that is not sealed."""

    kind = ErrorKind.CONFLICT


class TableConditionError(ClientError):
    """A conditional update or removal met another version of a key, or none; nothing of its batch was done."""

    kind = ErrorKind.CONFLICT

    def __init__(self, table: str) -> None:
        super().__init__(f"table has another version of a key table={table!r}")
        self.table = table


class TransactionClosedError(ClientError):
    """The transaction was committed or aborted, by its owner or because its lease ran out."""

    kind = ErrorKind.CONFLICT

    def __init__(self, transaction_id: str, state: str) -> None:
        super().__init__(f"transaction is not open id={transaction_id} state={state}")
        self.transaction_id = transaction_id
        self.state = state


class WriterFullError(ClientError):
    """As many events or bytes as the settings allow wait for their acknowledgements."""


class ReaderOfflineError(ClientError):
    """The group took this reader for dead, or another client put it offline; its segments are with others."""

    kind = ErrorKind.CONFLICT

    def __init__(self, group: str, reader: str) -> None:
        super().__init__(f"reader is offline group={group!r} reader={reader!r}")
        self.reader = reader


class RefusedError(ClientError):
    """A refusal that has no class of its own."""

    def __init__(self, message: str, kind: ErrorKind) -> None:
        super().__init__(message)
        self.kind = kind


class WrongHostError(ServiceUnavailableError):
    """The segment's container runs elsewhere, or nowhere at the moment. Nothing was done."""


class TokenExpiredError(ServiceUnavailableError):
    """The delegation token is too old, and the next one may not be. Nothing was done."""


class NotDoneError(ServiceUnavailableError):
    """The controller answered that it did not do it, and not why: it cannot now, or the present state forbids it."""


def outcome_unknown(reason: SegmentStoreError) -> OutcomeUnknownError:
    """What the reason means for something that was sent and not acknowledged; the reason itself if it says so."""
    if isinstance(reason, OutcomeUnknownError):
        return reason
    error = OutcomeUnknownError(f"it may be done or not: {reason}")
    error.__cause__ = reason
    return error


def error_from_reply(reply: Command) -> SegmentStoreError:
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
            return TokenExpiredError("the token is too old; the next one may not be")
        case AuthTokenCheckFailed():
            return RefusedError("server does not accept the token", ErrorKind.INVALID)
        case ErrorMessage(message=message, error_code=code):
            if code == ILLEGAL_ARGUMENT:
                return InvalidRequestError(message)
            return ServiceUnavailableError(message)
        case _:
            return ClientError(f"server gives an answer to another question reply={reply!r:.200}")
