"""Every error of the store. The class says why; the kind says what the caller should do.

| kind | the caller should | HTTP | the container |
|---|---|---|---|
| INVALID | fix the request | 400 | goes on |
| NOT_FOUND | stop, or look elsewhere | 404 | goes on |
| CONFLICT | read the state again and decide | 409 | goes on |
| TOO_LARGE | send less at once | 413 | goes on |
| UNAVAILABLE | retry with back-off; the outcome of a sent append is unknown | 503 | goes on or restarts |
| FULL | free space, then retry; nothing was stored | 507 | goes on |
| FENCED | look for the new owner | 410 | stops at once, without a flush |
| CORRUPT | page a person | 500 | stops; its log is disabled |

Messages are lower case, with the facts as key=value at the end.
"""

from enum import Enum


class ErrorKind(Enum):
    """What the receiver of an error should do about it."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"
    FULL = "full"
    FENCED = "fenced"
    CORRUPT = "corrupt"


class SegmentStoreError(Exception):
    """Base class of all errors that one package raises to another."""

    kind = ErrorKind.UNAVAILABLE


def is_outcome_unknown(error: SegmentStoreError) -> bool:
    """Whether a change that ended with this error may have been made all the same: stored, and the answer lost.

    The caller that asked for the change must neither be told that nothing was done, nor do it again as if nothing was.
    Other errors come before a change is handed to the log.
    """
    return error.kind is ErrorKind.FENCED or isinstance(
        error, ContainerStoppedError | DurableDataLogError | ServiceHaltError
    )


# --- contract errors: the request met a state that forbids it; nothing was changed ---------------


class InvalidRequestError(SegmentStoreError):
    """The request can never succeed as it stands (bad name, negative offset, bad attribute key)."""

    kind = ErrorKind.INVALID


class NewerFormatError(InvalidRequestError):
    """A later version of the program wrote it, in a format that this one does not know: it is no damage."""


class SwapRefusedError(InvalidRequestError):
    """The swap was not made; the message says why. Whether a new try makes sense follows from it."""


class AppendTooLargeError(SegmentStoreError):
    """One append is larger than the configured limit."""

    kind = ErrorKind.TOO_LARGE

    def __init__(self, *, length: int, length_max: int) -> None:
        super().__init__(f"append is too large length={length} length_max={length_max}")
        self.length = length
        self.length_max = length_max


class SegmentNotFoundError(SegmentStoreError):
    """No segment of that name exists (never did, was deleted, or was merged away)."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, name: str) -> None:
        super().__init__(f"segment does not exist name={name!r}")
        self.name = name


class ContainerNotFoundError(SegmentStoreError):
    """The container that owns the name does not run here (wrong host, or not yet recovered)."""

    kind = ErrorKind.UNAVAILABLE

    def __init__(self, container_id: int, why: str = "not running here") -> None:
        super().__init__(f"container is not available: {why} container={container_id}")
        self.container_id = container_id


class SegmentExistsError(SegmentStoreError):
    """A create met a segment of the same name."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str) -> None:
        super().__init__(f"segment exists already name={name!r}")
        self.name = name


class SegmentSealedError(SegmentStoreError):
    """An append, or any other change of the bytes, met a sealed segment."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str, *, length: int) -> None:
        super().__init__(f"segment is sealed name={name!r} length={length}")
        self.name = name
        self.length = length


class SegmentNotSealedError(SegmentStoreError):
    """A merge met a source that still takes appends."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str) -> None:
        super().__init__(f"segment is not sealed; seal it before merging it name={name!r}")
        self.name = name


class SegmentTruncatedError(SegmentStoreError):
    """A read or a merge met bytes below the start offset."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str, *, start_offset: int) -> None:
        super().__init__(f"segment is truncated name={name!r} start_offset={start_offset}")
        self.name = name
        self.start_offset = start_offset


class BadOffsetError(SegmentStoreError):
    """A conditional append named another offset than the end; or an offset lies past the end."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str, *, expected: int, given: int) -> None:
        super().__init__(f"offset does not match name={name!r} expected={expected} given={given}")
        self.name = name
        self.expected = expected
        self.given = given


class BadAttributeUpdateError(SegmentStoreError):
    """An attribute update's condition did not hold."""

    kind = ErrorKind.CONFLICT

    def __init__(
        self, name: str, *, key: bytes, current: int | bytes | None, why: str = "condition failed"
    ) -> None:
        super().__init__(
            f"attribute update refused: {why} name={name!r} key={key.hex()} current={current!r}"
        )
        self.name = name
        self.key = key
        self.current = current


class NotATableError(SegmentStoreError):
    """A table verb met a segment that is no table, or a segment verb that would break a table."""

    kind = ErrorKind.CONFLICT


class TableNotEmptyError(SegmentStoreError):
    """A table that has to be empty to be deleted holds entries."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str) -> None:
        super().__init__(f"table is not empty name={name!r}")
        self.name = name


class TableKeyNotFoundError(SegmentStoreError):
    """A conditional update or removal expected a version of a key that does not exist."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str, *, key: bytes) -> None:
        super().__init__(f"table key does not exist name={name!r} key={key.hex()}")
        self.name = name
        self.key = key


class TableVersionError(SegmentStoreError):
    """A conditional update or removal expected another version of a key."""

    kind = ErrorKind.CONFLICT

    def __init__(self, name: str, *, key: bytes, expected: int, current: int) -> None:
        super().__init__(
            f"table key has another version name={name!r} key={key.hex()} expected={expected} current={current}"
        )
        self.name = name
        self.key = key
        self.expected = expected
        self.current = current


class MergeRefusedError(SegmentStoreError):
    """Two segments cannot be merged; the message says why and what would work."""

    kind = ErrorKind.CONFLICT


class TooManyActiveSegmentsError(SegmentStoreError):
    """Every active segment is busy, so none can make room for another. Retry with back-off."""


class TooManyWaitersError(SegmentStoreError):
    """As many readers as allowed wait at the tails of this container's segments. Retry with back-off."""


class BackupInterruptedError(SegmentStoreError):
    """A backup could not be made of one moment, and is not to be used; make it again."""


class StoreFullError(SegmentStoreError):
    """The disk that holds Tier 1 or Tier 2 is full. Deletes and truncates still work."""

    kind = ErrorKind.FULL


class ContainerStoppedError(SegmentStoreError):
    """The container stopped while the request was under way; its outcome is unknown."""


class LeaderReplacedError(SegmentStoreError):
    """A controller's call met a node that knows a newer leader; nothing was done. Only the newer one is answered."""

    def __init__(self, *, given: int, newest: int) -> None:
        super().__init__(f"another controller leads meanwhile epoch={given} newest_epoch={newest}")
        self.given = given
        self.newest = newest


# --- Tier 1 --------------------------------------------------------------------------------------


class DurableDataLogError(SegmentStoreError):
    """Tier 1 failed. The log is closed; only a new initialisation helps."""


class LogNotPrimaryError(DurableDataLogError):
    """A writer with a higher epoch owns the log."""

    kind = ErrorKind.FENCED


class LogDisabledError(DurableDataLogError):
    """The log was disabled after corruption, to keep the evidence; a person must enable it."""

    kind = ErrorKind.CORRUPT


class LogInUseError(DurableDataLogError):
    """Another living process holds the log."""


class LogFullError(StoreFullError):
    """No journal space is left for this entry; nothing was written and the log stays open."""


class LogCorruptedError(DurableDataLogError):
    """A frame that is known to have been synced does not read back."""

    kind = ErrorKind.CORRUPT


# --- Tier 2 --------------------------------------------------------------------------------------


class StorageError(SegmentStoreError):
    """Tier 2 failed; the outcome of a write is unknown until it is read back."""


class StorageUnavailableError(StorageError):
    """Tier 2 does not do what it is asked, for a reason that has a name: `state` is a word for `/health`."""

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state


class StorageNotPrimaryError(StorageError):
    """The manifest was claimed under a higher epoch."""

    kind = ErrorKind.FENCED


class StorageFullError(StoreFullError):
    """Tier 2 has no space left; nothing was published."""


class ObjectNotFoundError(StorageError):
    """No object of that key exists."""

    kind = ErrorKind.NOT_FOUND


class ObjectExistsError(StorageError):
    """A put-if-absent met an object (or, after a lost answer, its own earlier success)."""

    kind = ErrorKind.CONFLICT


class ObjectChangedError(StorageError):
    """A put-if-match met another version (or, after a lost answer, its own earlier success)."""

    kind = ErrorKind.CONFLICT


class ObjectLockedError(StorageError):
    """A deletion or an overwrite met an object under retention or legal hold."""

    kind = ErrorKind.CONFLICT


class CorruptedDataError(StorageError):
    """Stored bytes fail their checksum or contradict the record that names them."""

    kind = ErrorKind.CORRUPT


# --- halts: going on could lose data -------------------------------------------------------------


class ServiceHaltError(SegmentStoreError):
    """The container stops because a promise can no longer be kept. Nothing is flushed after it."""


class DataCorruptionError(ServiceHaltError):
    """What was read contradicts what was promised. The log is disabled; a person must look."""

    kind = ErrorKind.CORRUPT


class CacheFullError(SegmentStoreError):
    """The cache cannot reserve room. Never reaches a user: the appender waits instead."""
