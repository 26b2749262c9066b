"""VolumeObjectStore: the volumes as a container's object store; the default on one machine.

Invariants:

- Keys live under one prefix of the engine, so that buckets of the S3 endpoint and containers do not meet.
- A part of an object comes as the disk gives it, as from every other store: its blocks have checksums, and who reads
  them looks. A whole object is checked here.
- The tag of an object is its sequence number: it never comes back, whatever the bytes (H4).

The engine is shared: whoever opened it closes it.
"""

from collections.abc import AsyncGenerator, Sequence

from segmentstore.contracts.errors import ObjectChangedError, ObjectExistsError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from tier2.object_stores.object_key import check_key, check_prefix, check_range
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.mutations import Condition

_PAGE_OBJECTS = 1000


class VolumeObjectStore:
    """An ObjectStore over an open engine."""

    def __init__(self, *, engine: VolumeEngine, prefix: str = "") -> None:
        """`prefix` goes before every key, as it is: end it with a slash."""
        self._engine = engine
        self._prefix = prefix

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        try:
            await self._engine.put(
                self._key(key), content, condition=Condition(absent=True), unique=True
            )
        except ObjectExistsError:
            found = await self._engine.get(self._key(key))
            if found.content != b"".join(content):
                raise ObjectExistsError(f"the key holds other bytes key={key}") from None

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        record = await self._engine.put(self._key(key), [content], condition=Condition(absent=True))
        return str(record.sequence)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        if not tag.isdecimal():
            raise ObjectChangedError(f"object has another version {key=!s} {tag=!s}")
        record = await self._engine.put(
            self._key(key), [content], condition=Condition(sequence=int(tag))
        )
        return str(record.sequence)

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        found = await self._engine.get(self._key(key))
        return VersionedObject(content=found.content, tag=str(found.record.sequence))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        found = await self._engine.get_range(self._key(key), start, length, checked=False)
        return found.content

    async def size(self, key: str) -> int:
        check_key(key)
        return (await self._engine.head(self._key(key))).size

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._engine.delete(self._key(key))

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        cut, after = len(self._prefix), b""
        while True:
            page = await self._engine.list(
                self._key(prefix), start_after=after, limit=_PAGE_OBJECTS
            )
            for listed in page:
                yield ObjectInfo(key=listed.key.decode()[cut:], size=listed.record.size)
            if len(page) < _PAGE_OBJECTS:
                return
            after = page[-1].key

    async def close(self) -> None:
        """Nothing of its own."""

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()
