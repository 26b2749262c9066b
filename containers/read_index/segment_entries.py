"""What one segment's read index knows besides Tier 2, in offset order: cache entries, and stretches read elsewhere.

Invariants (check()):
- items do not overlap, none is empty;
- every cache entry has a block that holds all of it.
"""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from containers.cache.cache_entry import CacheEntry
from containers.cache.cache_manager import CacheManager
from containers.read_index.avl_index import AvlIndex


class Stretch(Protocol):
    """[offset, end) of a segment whose bytes are read elsewhere: a merge redirect."""

    offset: int
    end: int


IndexItem: TypeAlias = CacheEntry | Stretch


class SegmentEntries:
    """The ordered items of one segment. An open entry's end grows in place, without touching the order."""

    __slots__ = ("_index",)

    def __init__(self) -> None:
        self._index: AvlIndex[IndexItem] = AvlIndex()

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[IndexItem]:
        """In offset order. Nothing may be added or taken out meanwhile."""
        return iter(self._index)

    def add(self, item: IndexItem) -> None:
        """Add an item behind all others or into a gap."""
        self._index.insert(item.offset, item)

    def take_out(self, item: IndexItem) -> None:
        """Take out an item that is in."""
        removed = self._index.remove(item.offset)
        assert removed is item, f"{removed!r} stands where {item!r} should be"

    def remove_below(self, limit: int) -> list[CacheEntry]:
        """Take out, from the front, the cache entries that end at or below `limit`; stops at a redirect."""
        removed: list[CacheEntry] = []
        for item in self._index:
            if item.end > limit or not isinstance(item, CacheEntry):
                break
            removed.append(item)
        self._index.remove_first(len(removed))
        return removed

    def item_at(self, offset: int) -> IndexItem | None:
        """The item that has the byte at `offset`."""
        item = self._index.floor(offset)
        return item if item is not None and offset < item.end else None

    def next_start(self, offset: int) -> int | None:
        """Where the first item begins that starts at or behind `offset`."""
        item = self._index.ceiling(offset)
        return None if item is None else item.offset

    def cached_between(self, begin: int, end: int) -> list[CacheEntry]:
        """Cache entries with a byte at or above `begin` that end at or below `end`."""
        entries: list[CacheEntry] = []
        item = self.item_at(begin) or self._index.ceiling(begin)
        while item is not None and item.end <= end:
            if isinstance(item, CacheEntry):
                entries.append(item)
            item = self._index.ceiling(item.end)
        return entries

    def first_missing(self, begin: int, end: int) -> int | None:
        """The first offset of [begin, end) that no item covers."""
        while begin < end:
            item = self.item_at(begin)
            if item is None:
                return begin
            begin = item.end
        return None

    def gather(self, offset: int, end: int, cache: CacheManager, views: list[memoryview]) -> int:
        """Add views of the cached bytes of [offset, end), up to the first that is missing or redirected: its offset."""
        while offset < end:
            item = self._index.floor(offset)
            if item is None or offset >= item.end or not isinstance(item, CacheEntry):
                break
            assert item.block is not None, f"{item!r} was released"
            stop = min(item.end, end)
            views.append(item.view(offset, stop))
            if item.generation != cache.generation:
                cache.touch(item)
            offset = stop
        return offset

    def check(self) -> None:
        """Prove the invariants; O(items)."""
        self._index.check()
        end = 0
        for item in self._index:
            assert end <= item.offset < item.end, f"{item!r} overlaps or is empty, behind {end}"
            end = item.end
            if isinstance(item, CacheEntry):
                assert item.block is not None, f"{item!r} was released"
                assert item.end - item.offset <= item.block.size_bytes, f"{item!r} is too long"
