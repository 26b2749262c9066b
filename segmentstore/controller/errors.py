"""What the controller refuses, and why.

The kind decides the gRPC status when a verb has no status of its own for the case (see api/grpc_server.py).
"""

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


class ControllerError(SegmentStoreError):
    """Root of the controller's own errors."""


class MetadataConflictError(ControllerError):
    """A batch met a record that changed since it was read. Nothing was written: read again and decide.

    The caller is told to come back: within one controller the locks prevent it, so another one is at work.
    """

    kind = ErrorKind.UNAVAILABLE


class IndexClosedError(ControllerError):
    """A name was to be added to an index that takes none any more: its scope is being deleted."""

    kind = ErrorKind.NOT_FOUND


class IndexNotEmptyError(ControllerError):
    """An index that has to be empty holds names."""

    kind = ErrorKind.CONFLICT


class ScopeNotFoundError(ControllerError):
    """No scope of that name exists."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, scope: str) -> None:
        super().__init__(f"scope does not exist scope={scope!r}")


class ScopeExistsError(ControllerError):
    """A create met a scope of the same name."""

    kind = ErrorKind.CONFLICT

    def __init__(self, scope: str) -> None:
        super().__init__(f"scope exists already scope={scope!r}")


class ScopeNotEmptyError(ControllerError):
    """A scope that is to be deleted holds streams, reader groups or tables."""

    kind = ErrorKind.CONFLICT

    def __init__(self, scope: str) -> None:
        super().__init__(f"scope is not empty scope={scope!r}")


class StreamNotFoundError(ControllerError):
    """No stream of that name exists in its scope."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream does not exist stream={scope!r}/{stream!r}")


class StreamExistsError(ControllerError):
    """A create met a stream of the same name."""

    kind = ErrorKind.CONFLICT

    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream exists already stream={scope!r}/{stream!r}")


class StreamSealedError(ControllerError):
    """The stream is sealed: it takes no events and keeps its shape."""

    kind = ErrorKind.CONFLICT

    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream is sealed stream={scope!r}/{stream!r}")


class StreamNotSealedError(ControllerError):
    """A stream has to be sealed before it is deleted."""

    kind = ErrorKind.CONFLICT

    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream is not sealed stream={scope!r}/{stream!r}")


class EpochNotFoundError(ControllerError):
    """The stream never had that epoch."""

    kind = ErrorKind.NOT_FOUND


class StreamSegmentNotFoundError(ControllerError):
    """The stream never had a segment of that id."""

    kind = ErrorKind.NOT_FOUND


class PreconditionError(ControllerError):
    """A request is well formed and does not fit the present state of the stream (segments, key ranges, stream cut)."""

    kind = ErrorKind.CONFLICT


class PolicyReplacedError(PreconditionError):
    """What was to be done by a policy is not done: an update has replaced the policy meanwhile."""


class RetryLaterError(ControllerError):
    """The answer is not known yet: recovery, or an operation on the same stream, is under way. Nothing was changed."""

    kind = ErrorKind.UNAVAILABLE


def too_many_waiters(name: str, count: int) -> RetryLaterError:
    """The refusal of a lock: requests for one stream, group or table wait for one another."""
    return RetryLaterError(f"too many requests wait for one thing name={name!r} count={count}")


class ControllerRestartedError(ControllerError):
    """The controller's run ended while the call was under way. Its outcome is unknown: ask again."""

    kind = ErrorKind.UNAVAILABLE
