"""An object store that is read as its disk gives it, by tools: a damaged object comes too, and can be told about.

Volumes refuse a whole object of which one byte is damaged, also where nothing refers to that byte; parts of it they
give as they are. A copy would end there, and a verification would name no segment. Whoever reads here looks
at the checksums that the bytes carry (runs, chunks).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject


class BytesAsTheyAre:
    """An ObjectStore over another, whose owner closes it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await self._store.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._store.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        return await self._store.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return await self._store.get_range(key, start, length)
        except CorruptedDataError:
            # Two parts, neither of them the whole object.
            length = min(length, await self._store.size(key) - start)
            half = length // 2
            first = await self._store.get_range(key, start, half)
            return first + await self._store.get_range(key, start + half, length - half)

    async def size(self, key: str) -> int:
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        async with aclosing(self._store.list(prefix)) as objects:
            async for info in objects:
                yield info

    async def close(self) -> None:
        """Nothing of its own."""
