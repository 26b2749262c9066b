"""An object store whose answers go wrong in the ways that H4 and H80 name, at the moments that a test chooses."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import Enum

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject


class Fault(Enum):
    NONE = "as it should be"
    BEFORE = "an error, and nothing happens"
    AFTER = "it happens, but the answer is an error"
    DENIED = "it happens, but a retry inside the client library reports that the condition failed"
    FULL = "no space, and nothing happens"
    LATE = "an error; it happens when the test says land()"


class FaultyStore:
    """Wraps a store. `conditional`, `plain` and `reads` say what becomes of the next calls, in order."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.conditional: deque[Fault] = deque()
        self.plain: deque[Fault] = deque()
        self.reads: deque[Fault] = deque()
        self.late: list[Callable[[], Awaitable[object]]] = []
        self.damage: dict[str, Callable[[bytes], bytes]] = {}
        self.put_keys: list[str] = []
        self.deleted: list[str] = []
        self.before_put: Callable[[str], Awaitable[None]] | None = None
        self.before_conditional: Callable[[], Awaitable[None]] | None = None

    async def land(self) -> None:
        """Let everything happen that was late, in order; a late condition may fail by now."""
        late, self.late = self.late, []
        for happen in late:
            try:
                await happen()
            except (ObjectChangedError, ObjectExistsError):
                continue

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.put_keys.append(key)
        if self.before_put is not None:
            await self.before_put(key)
        joined = b"".join(content)
        fault = _next(self.plain)
        if fault is Fault.BEFORE:
            raise StorageError("injected before a put")
        if fault is Fault.LATE:
            self.late.append(lambda: self.store.put(key, [joined]))
            raise StorageError("injected, the put is late")
        await self.store.put(key, [joined])
        if fault is Fault.AFTER:
            raise StorageError("injected after a put")

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._conditional(lambda: self.store.put_if_absent(key, content))

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        if self.before_conditional is not None:
            await self.before_conditional()
        return await self._conditional(lambda: self.store.put_if_match(key, content, tag))

    async def _conditional(self, happen: Callable[[], Awaitable[str]]) -> str:
        fault = _next(self.conditional)
        if fault is Fault.BEFORE:
            raise StorageError("injected before a conditional put")
        if fault is Fault.FULL:
            raise StorageFullError("injected: no space")
        if fault is Fault.LATE:
            self.late.append(happen)
            raise StorageError("injected, the conditional put is late")
        tag = await happen()
        if fault is Fault.AFTER:
            raise StorageError("injected after a conditional put")
        if fault is Fault.DENIED:
            raise ObjectChangedError("injected: denied after it happened")
        return tag

    async def get(self, key: str) -> VersionedObject:
        if _next(self.reads) is Fault.BEFORE:
            raise StorageError("injected before a get")
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        content = await self.store.get_range(key, start, length)
        damage = self.damage.get(key)
        return content if damage is None else damage(content)

    async def size(self, key: str) -> int:
        return await self.store.size(key)

    async def delete(self, key: str) -> None:
        self.deleted.append(key)
        await self.store.delete(key)

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        return self.store.list(prefix)

    async def close(self) -> None:
        await self.store.close()


def _next(faults: deque[Fault]) -> Fault:
    return faults.popleft() if faults else Fault.NONE
