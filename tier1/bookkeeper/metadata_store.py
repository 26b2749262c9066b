"""Where a log keeps its small record: a value per log, changed by compare-and-set, in ZooKeeper or in memory of a test.

Guarantees: a compare-and-set with the version that get() gave succeeds only if nothing was written since; after it
returned, every get() of every client sees it or a later value; of several with one version exactly one succeeds.
"""

from typing import Protocol

from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.coordination.coordination_store import VersionedValue

__all__ = ["MetadataChangedError", "MetadataStore", "MetadataUnavailableError", "VersionedValue"]


class MetadataChangedError(DurableDataLogError):
    """The value has another version than the caller thought, it exists already, or it is gone: read it again."""


class MetadataUnavailableError(DurableDataLogError):
    """The store cannot be reached, or the connection was lost: a write may have happened, or may happen yet."""


class MetadataStore(Protocol):
    """Values by path, below one root of one store."""

    async def get(self, path: str) -> VersionedValue | None:
        """None if there is no such value. Raises MetadataUnavailableError."""

    async def create(self, path: str, value: bytes) -> int:
        """The version of the new value; parents are made. Raises MetadataChangedError if there is one already."""

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        """The new version. Raises MetadataChangedError, MetadataUnavailableError."""

    async def delete(self, path: str, *, version: int) -> None:
        """Raises MetadataChangedError as compare_and_set(), MetadataUnavailableError."""

    async def children(self, path: str) -> list[str]:
        """Names below the path, sorted; none if it does not exist. Raises MetadataUnavailableError."""

    async def close(self) -> None: ...
