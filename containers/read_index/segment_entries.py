"""What one segment's read index knows besides Tier 2, in offset order: cache entries, and stretches read elsewhere.

Invariants (check()):
- items do not overlap, none is empty;
- every cache entry has a block that holds all of it.
"""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from containers.cache.cache_entry import CacheEntry
from containers.cache.cache_manager import CacheManager
from containers.read_index.sorted_index import SortedIndex


class Stretch(Protocol):
    """[offset, end) of a segment whose bytes are read elsewhere: a merge redirect."""

    offset: int
    end: int


IndexItem: TypeAlias = CacheEntry | Stretch


class SegmentEntries(SortedIndex[IndexItem]):
    """The ordered items of one segment. An open entry's end grows in place, without touching the order."""

    __slots__ = ()

    def __iter__(self) -> Iterator[IndexItem]:
        return iter(self._items)

    def add_last(self, entry: CacheEntry) -> None:
        """Add an entry behind all others."""
        self.append(entry.offset, entry)

    def add(self, item: IndexItem) -> None:
        """Add an item into a gap."""
        self.insert(item.offset, item)

    def take_out(self, item: IndexItem) -> None:
        """Take out an item that is in; eviction takes the first most of the time."""
        if self._items[0] is item:
            del self._items[0], self._offsets[0]
            return
        removed = self.remove(item.offset)
        assert removed is item, f"{removed!r} stands where {item!r} should be"

    def remove_below(self, limit: int) -> list[CacheEntry]:
        """Take out, from the front, the cache entries that end at or below `limit`; stops at a redirect."""
        removed: list[CacheEntry] = []
        for item in self._items:
            if item.end > limit or not isinstance(item, CacheEntry):
                break
            removed.append(item)
        self.remove_first(len(removed))
        return removed

    def item_at(self, offset: int) -> IndexItem | None:
        """The item that has the byte at `offset`."""
        position = self.position_at_or_below(offset)
        if position < 0:
            return None
        item = self._items[position]
        return item if offset < item.end else None

    def next_start(self, offset: int) -> int | None:
        """Where the first item behind `offset` begins."""
        position = self.position_at_or_below(offset) + 1
        return self._items[position].offset if position < len(self._items) else None

    def cached_between(self, begin: int, end: int) -> list[CacheEntry]:
        """Cache entries with a byte at or above `begin` that end at or below `end`."""
        items = self._items
        entries: list[CacheEntry] = []
        for position in range(max(0, self.position_at_or_below(begin)), len(items)):
            item = items[position]
            if item.end > end:
                break
            if isinstance(item, CacheEntry) and item.end > begin:
                entries.append(item)
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
        items = self._items
        first = self.position_at_or_below(offset)
        if first < 0:
            return offset
        for position in range(first, len(items)):
            item = items[position]
            if not item.offset <= offset < item.end or not isinstance(item, CacheEntry):
                break
            assert item.block is not None, f"{item!r} was released"
            stop = min(item.end, end)
            views.append(item.view(offset, stop))
            if item.generation != cache.generation:
                cache.touch(item)
            offset = stop
            if offset == end:
                break
        return offset

    def check(self) -> None:
        """Prove the invariants; O(items)."""
        super().check()
        end = 0
        for item in self._items:
            assert end <= item.offset < item.end, f"{item!r} overlaps or is empty, behind {end}"
            end = item.end
            if isinstance(item, CacheEntry):
                assert item.block is not None, f"{item!r} was released"
                assert item.end - item.offset <= item.block.size_bytes, f"{item!r} is too long"
