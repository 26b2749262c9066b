"""A stretch of a segment that is in the cache: one block, and where its bytes belong.

Invariants:
- the bytes of [offset, end) are at the start of the block; they never change while the entry lives (H54);
- `generation` is PINNED while any of its bytes is missing in Tier 2 under its owner, and the generation of its last
  use afterwards (H56).
"""

from typing import Protocol

from containers.cache.cache_storage import CacheBlock

PINNED = 0
"""Generation of an entry that must not be evicted; evictable ones count from 1."""


class EntryOwner(Protocol):
    """The index that finds bytes through the entry, and must forget it when it is evicted."""

    def evicted(self, entry: "CacheEntry") -> None:
        """The entry's block is about to be reused. Synchronous; must not allocate."""


class CacheEntry:
    """[offset, end) of a segment in one block."""

    __slots__ = ("block", "end", "generation", "offset", "owner")

    def __init__(self, *, owner: EntryOwner, offset: int, end: int, block: CacheBlock) -> None:
        self.owner: EntryOwner | None = owner
        """None once its index has let go of it and it only waits to be released."""
        self.offset = offset
        self.end = end
        self.block: CacheBlock | None = block
        """None once released."""
        self.generation = PINNED

    @classmethod
    def empty(cls) -> "CacheEntry":
        """An entry of nothing, for where there must be one."""
        entry = cls.__new__(cls)
        entry.owner = entry.block = None
        entry.offset = entry.end = 0
        entry.generation = PINNED
        return entry

    def __repr__(self) -> str:
        size_bytes = self.block.size_bytes if self.block is not None else 0
        return (
            f"<cached [{self.offset}, {self.end}) size={size_bytes} generation={self.generation}>"
        )
