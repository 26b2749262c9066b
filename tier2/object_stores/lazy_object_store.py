"""An object store that need not be there when the process starts.

The store behind it is started by the first call that reaches it. Until that succeeds every call raises StorageError,
which containers understand as "Tier 2 does not answer": they recover from their logs, serve what they have, try again.

Invariants:

- The store behind is started at most once at a time, and no call reaches it before it is started.
- Once started, a call costs one comparison more.
- It is never started again behind close(): a call that comes late raises StorageUnavailableError.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from segmentstore.contracts.errors import StorageUnavailableError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject


class StartableObjectStore(ObjectStore, Protocol):
    """An object store with something to do before its first call."""

    async def start(self) -> int:
        """Raises StorageError; may be called again then."""


class LazyObjectStore:
    """ObjectStore over one that is started when it is first needed."""

    def __init__(self, store: StartableObjectStore) -> None:
        self._store = store
        self._started = False
        self._closed = False
        self._starting = asyncio.Lock()

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await self._ensure_started()
        await self._store.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        await self._ensure_started()
        return await self._store.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        await self._ensure_started()
        return await self._store.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        await self._ensure_started()
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._ensure_started()
        return await self._store.get_range(key, start, length)

    async def size(self, key: str) -> int:
        await self._ensure_started()
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        await self._ensure_started()
        await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        await self._ensure_started()
        # The interface says that a listing is held in `aclosing`; its type only says that it iterates.
        listing = self._store.list(prefix)
        async with aclosing(listing) as objects:
            async for info in objects:
                yield info

    async def close(self) -> None:
        """Close what was started. Idempotent."""
        async with self._starting:
            self._closed = True
            if self._started:
                self._started = False
                await self._store.close()

    async def _ensure_started(self) -> None:
        if self._started:
            return
        async with self._starting:
            if self._closed:
                raise StorageUnavailableError("Tier 2 is closed", state="closed")
            if not self._started:
                await self._store.start()
                self._started = True
