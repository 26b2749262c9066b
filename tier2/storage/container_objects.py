"""The immutable objects of one container: writes them under names used once, reads them, and counts both.

- A put is repeated under the same key only with the same bytes (H2). It is an immutable object, so an attempt that
  lands late changes nothing.
"""

from collections.abc import Sequence

from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectStore
from tier2.storage.counters import StorageCounters
from tier2.storage.object_names import ObjectIdentity, ObjectKind, ObjectNames


class ContainerObjects:
    """Objects of one container by kind and identity."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        names: ObjectNames,
        counters: StorageCounters,
        put_attempts_max: int,
    ) -> None:
        self._store = object_store
        self._names = names
        self._counters = counters
        self._put_attempts_max = put_attempts_max

    async def put(
        self, kind: ObjectKind, identity: ObjectIdentity, buffers: Sequence[BufferView]
    ) -> None:
        """Raises StorageError after the last attempt, StorageFullError at once."""
        key = self._names.key(kind, identity)
        for attempt in range(1, self._put_attempts_max + 1):
            self._counters.puts += 1
            try:
                await self._store.put(key, buffers)
            except StorageError:
                if attempt == self._put_attempts_max:
                    raise
            else:
                break
        self._counters.put_bytes += sum(map(len, buffers))

    async def get_range(
        self, kind: ObjectKind, identity: ObjectIdentity, start: int, length: int
    ) -> bytes:
        """The bytes [start, start + length) or fewer. Raises ObjectNotFoundError, StorageError."""
        self._counters.gets += 1
        content = await self._store.get_range(self._names.key(kind, identity), start, length)
        self._counters.get_bytes += len(content)
        return content

    async def size(self, kind: ObjectKind, identity: ObjectIdentity) -> int:
        """Raises ObjectNotFoundError, StorageError."""
        return await self._store.size(self._names.key(kind, identity))

    async def delete(self, kind: ObjectKind, identity: ObjectIdentity) -> None:
        await self._store.delete(self._names.key(kind, identity))
