"""Bytes that a disk says it cannot read (EIO): damage of these bytes, and not a store that does not answer."""

import errno

from segmentstore.contracts.errors import StorageError


def is_unreadable(error: StorageError) -> bool:
    """Whether that is why: a bad sector stays bad, so whoever looks for damage has found some."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO
