"""The interface of an object store: keys, immutable bytes, and a compare-and-set.

Guarantees (tests/contracts/object_store_suite.py):

- B1  A completed put is durable and every later get, range, list and condition sees it.
- B2  A put is atomic: readers see all of it or nothing, also after a power cut.
- B3  put_if_absent and put_if_match: of several racing calls exactly one wins, also between processes.
- B4  A failed conditional put may still have happened, or may still happen later (lost or late answer):
      the caller reads back. No implementation retries one by itself.
- B5  delete is idempotent. list is in key order and may be stale; no caller concludes existence from it.

Keys: `/`-separated parts of [A-Za-z0-9._=-], each at most 200 characters, never starting with a dot; no key is a
path prefix of another key (some gateways over file systems refuse that).
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from segmentstore.contracts.identifiers import BufferView


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing shows it."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class VersionedObject:
    """Content and the tag that put_if_match wants back."""

    content: bytes
    tag: str


class ObjectStore(Protocol):
    """An object store. All calls may raise StorageError; puts and deletions may raise StorageFullError."""

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        """Store an object whose key was never used before. Used for immutable objects only:
        a retry under the same key sends the same bytes."""

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        """Create; returns the tag. Raises ObjectExistsError."""

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        """Replace the version with that tag; returns the new tag. Raises ObjectChangedError."""

    async def get(self, key: str) -> VersionedObject:
        """Raises ObjectNotFoundError."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly the bytes [start, start + length), or fewer where the object ends before.

        Raises ObjectNotFoundError.
        """

    async def size(self, key: str) -> int:
        """Raises ObjectNotFoundError."""

    async def delete(self, key: str) -> None: ...

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        """Objects whose key starts with the prefix, in key order. Hold it in `aclosing`."""

    async def close(self) -> None: ...
