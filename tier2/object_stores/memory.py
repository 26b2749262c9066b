"""Objects in a dictionary: for tests, for the simulation (behind a store that injects faults), and as the model of the
conformance suite.

Invariants:

- Every call takes effect at once and whole, with no await inside, so it is as atomic as a store can be.
- As strict as the strictest store: a key that is a path prefix of another is refused.
- A tag is never used twice, not even for equal bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedDict

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from tier2.object_stores.object_key import check_key, check_prefix, check_range


@dataclass(frozen=True, slots=True)
class _Version:
    content: bytes
    tag: str


class MemoryObjectStore:
    """An ObjectStore that forgets everything with the process. It needs no start; close() changes nothing."""

    def __init__(self) -> None:
        self._objects: SortedDict[str, _Version] = SortedDict()
        self._versions_made = 0

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        joined = b"".join(content)
        current = self._objects.get(key)
        if current is None:
            self._create(key, joined)
        elif current.content != joined:
            raise ObjectExistsError(f"the key holds other bytes key={key}")

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        if key in self._objects:
            raise ObjectExistsError(f"object exists already key={key}")
        return self._create(key, bytes(content))

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        current = self._objects.get(key)
        if current is None or current.tag != tag:
            found = None if current is None else current.tag
            raise ObjectChangedError(f"object has another version {key=!s} {tag=!s} {found=!s}")
        return self._store(key, bytes(content))

    async def get(self, key: str) -> VersionedObject:
        current = self._find(key)
        return VersionedObject(content=current.content, tag=current.tag)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self._find(key).content[start : start + length]

    async def size(self, key: str) -> int:
        return len(self._find(key).content)

    async def delete(self, key: str) -> None:
        check_key(key)
        self._objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        found = [
            ObjectInfo(key=key, size=len(self._objects[key].content))
            for key in self._objects.irange(prefix, prefix + "\x7f")
        ]
        for info in found:
            yield info

    async def close(self) -> None:
        """Nothing to release."""

    def check(self) -> None:
        """Prove the key rules of every object. Complexity: O(objects)."""
        for key in self._objects:
            check_key(key)
            self._refuse_path_prefix(key)

    def _find(self, key: str) -> _Version:
        check_key(key)
        current: _Version | None = self._objects.get(key)
        if current is None:
            raise ObjectNotFoundError(f"object does not exist key={key}")
        return current

    def _create(self, key: str, content: bytes) -> str:
        self._refuse_path_prefix(key)
        return self._store(key, content)

    def _store(self, key: str, content: bytes) -> str:
        self._versions_made += 1
        tag = str(self._versions_made)
        self._objects[key] = _Version(content=content, tag=tag)
        return tag

    def _refuse_path_prefix(self, key: str) -> None:
        end = key.find("/")
        while end >= 0:
            if key[:end] in self._objects:
                raise InvalidRequestError(f"key lies below another key={key} other={key[:end]}")
            end = key.find("/", end + 1)
        for other in self._objects.irange(key + "/", key + "0", inclusive=(True, False)):
            raise InvalidRequestError(f"key is a path prefix of another key={key} other={other}")
