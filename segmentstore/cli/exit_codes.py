"""What the `segmentstore` command tells a script by its exit code."""

from enum import IntEnum

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


class ExitCode(IntEnum):
    """Scripts depend on these: never renumber."""

    OK = 0
    ERROR = 1
    USAGE = 2
    """Wrong arguments or settings, or a request that can never succeed."""
    NOT_FOUND = 3
    CONFLICT = 4
    """The state forbids it: exists, sealed, another offset, directory in use."""
    UNAVAILABLE = 5
    """Retry later: no connection, recovering, stopping."""
    FULL = 6
    """No space is left; deletes and truncates still work."""
    CORRUPT = 7
    """Stored bytes are damaged; a person must look."""
    INTERRUPTED = 130


_OF_KIND = {
    ErrorKind.INVALID: ExitCode.USAGE,
    ErrorKind.TOO_LARGE: ExitCode.USAGE,
    ErrorKind.NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorKind.CONFLICT: ExitCode.CONFLICT,
    ErrorKind.UNAVAILABLE: ExitCode.UNAVAILABLE,
    ErrorKind.FENCED: ExitCode.UNAVAILABLE,
    ErrorKind.FULL: ExitCode.FULL,
    ErrorKind.CORRUPT: ExitCode.CORRUPT,
}


def exit_code_of(error: SegmentStoreError) -> ExitCode:
    """By the kind of the error."""
    return exit_code_of_kind(error.kind)


def exit_code_of_kind(kind: ErrorKind | None) -> ExitCode:
    """OK for None: nothing failed."""
    return ExitCode.OK if kind is None else _OF_KIND[kind]
