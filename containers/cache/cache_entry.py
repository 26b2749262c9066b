"""A stretch of a segment that is in the cache: one block, and where its bytes belong.

Invariants:
- the bytes of [offset, end) are at the start of the block; they never change while the entry lives;
- `generation` is PINNED while any of its bytes is missing in Tier 2 under its owner, and the generation of its last
  use afterwards.
- it grows at its end alone, and never beyond its block.
"""

from typing import Protocol

from containers.cache.cache_storage import CacheBlock
from segmentstore.contracts.identifiers import BufferView

PINNED = 0
"""Generation of an entry that must not be evicted; evictable ones count from 1."""

NO_ROOM = -1
"""The answer of an entry that does not grow."""

_NO_VIEW = memoryview(b"")


class EntryOwner(Protocol):
    """The index that finds bytes through the entry, and must forget it when it is evicted."""

    def evicted(self, entry: "CacheEntry") -> None:
        """The entry's block is about to be reused. Synchronous; must not allocate."""


class _AppendFields:
    """What an append meets of the entry that it goes to: first in memory, so that it is one cache line or two."""

    __slots__ = ("end", "limit", "shift", "slab")


class CacheEntry(_AppendFields):
    """[offset, end) of a segment in one block."""

    __slots__ = ("block", "generation", "offset", "owner")

    def __init__(self, owner: EntryOwner, offset: int, block: CacheBlock) -> None:
        """Of no bytes yet."""
        self.owner: EntryOwner | None = owner
        """None once its index has let go of it and it only waits to be released."""
        self.offset = offset
        self.end = offset
        self.limit = offset + block.size_bytes
        """Where its block ends; NO_ROOM when it has none."""
        self.shift = block.start - offset
        """What is added to an offset to find its byte in the slab. The block's own view is one object per segment
        more to be met by every append."""
        self.slab = block.slab
        self.block: CacheBlock | None = block
        """None once released."""
        self.generation = PINNED

    @classmethod
    def empty(cls) -> "CacheEntry":
        """An entry of nothing, for where there must be one."""
        entry = cls.__new__(cls)
        entry.owner = entry.block = None
        entry.offset = entry.end = entry.shift = 0
        entry.limit = NO_ROOM
        entry.slab = _NO_VIEW
        entry.generation = PINNED
        return entry

    def forget_block(self) -> None:
        """Its memory is about to be another entry's."""
        self.generation = PINNED
        self.block = self.owner = None
        self.limit = NO_ROOM
        self.slab = _NO_VIEW

    def add(self, offset: int, data: BufferView) -> int:
        """Put bytes behind those that are here, if `offset` is the end and they fit; their end then, or NO_ROOM."""
        end = offset + len(data)
        if offset == self.end and end <= self.limit:
            shift = self.shift
            self.slab[offset + shift : end + shift] = data
            self.end = end
            return end
        return NO_ROOM

    def view(self, begin: int, end: int) -> memoryview:
        """Bytes of it, by their offsets."""
        shift = self.shift
        return self.slab[begin + shift : end + shift]

    def __repr__(self) -> str:
        size_bytes = self.block.size_bytes if self.block is not None else 0
        return (
            f"<cached [{self.offset}, {self.end}) size={size_bytes} generation={self.generation}>"
        )
