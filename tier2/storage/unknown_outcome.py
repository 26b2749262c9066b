"""A conditional put that was not answered as it should be, and is not known to have happened (H4)."""

from segmentstore.contracts.errors import SegmentStoreError, StorageError, StorageUnavailableError


def unknown_outcome(what: str, cause: SegmentStoreError) -> StorageError:
    """Says what is not known and why, and keeps the word that the object store has for it."""
    message = f"outcome of {what} is unknown: {cause}"
    if isinstance(cause, StorageUnavailableError):
        return StorageUnavailableError(message, state=cause.state)
    return StorageError(message)
