"""The peer of `AvlIndex` in tests and benchmarks: two parallel lists, searched by bisection.

Invariants (check()):
- the offsets strictly grow; `items[i]` is the item inserted under `offsets[i]`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class SortedLists(Generic[Item]):
    """As `AvlIndex`. Search is O(log n), insert at the end O(1), elsewhere it moves pointers, a cheap O(n)."""

    __slots__ = ("_items", "_offsets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Item]:
        """In offset order. The index must not change meanwhile."""
        return iter(self._items)

    def floor(self, offset: int) -> Item | None:
        """The last item that starts at or below `offset`."""
        position = bisect_right(self._offsets, offset)
        return self._items[position - 1] if position else None

    def ceiling(self, offset: int) -> Item | None:
        """The first item that starts at or above `offset`."""
        position = bisect_left(self._offsets, offset)
        return self._items[position] if position < len(self._items) else None

    def insert(self, offset: int, item: Item) -> None:
        """Add an item where none starts."""
        if not self._offsets or self._offsets[-1] < offset:
            self._offsets.append(offset)
            self._items.append(item)
            return
        position = bisect_left(self._offsets, offset)
        assert self._offsets[position] != offset, f"two items start at {offset}"
        self._offsets.insert(position, offset)
        self._items.insert(position, item)

    def remove(self, offset: int) -> Item:
        """Take out the item that starts exactly at `offset`. Raises KeyError if there is none."""
        position = bisect_left(self._offsets, offset)
        if position == len(self._offsets) or self._offsets[position] != offset:
            raise KeyError(offset)
        del self._offsets[position]
        return self._items.pop(position)

    def remove_first(self, count: int) -> None:
        """Take out the `count` items with the smallest offsets."""
        del self._items[:count], self._offsets[:count]

    def check(self) -> None:
        """Prove the invariants; O(n)."""
        assert len(self._offsets) == len(self._items), (
            f"{len(self._offsets)} offsets, {len(self._items)} items"
        )
        for lower, upper in zip(self._offsets, self._offsets[1:], strict=False):
            assert lower < upper, f"offset {upper} stands behind {lower}"
