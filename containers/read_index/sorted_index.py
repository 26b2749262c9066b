"""Items in order of their start offset: two parallel lists, searched by bisection.

Appends go to the end, evictions mostly leave at the front, and a segment has one item per block of up to 1 MiB: the
lists stay short, and moving their pointers is cheaper than any tree in Python (benchmarks/sorted_index.py).

Invariants (check()):
- the offsets strictly grow; `items[i]` is the item inserted under `offsets[i]`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class SortedIndex(Generic[Item]):
    """Start offset -> item. Search is O(log n), append O(1); insert and remove move pointers, a cheap O(n)."""

    __slots__ = ("_items", "_offsets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def items(self) -> Sequence[Item]:
        """In offset order; not to be changed, and stale after any change of the index."""
        return self._items

    def last(self) -> Item:
        """The item with the greatest offset. Raises IndexError if there is none."""
        return self._items[-1]

    def position_at_or_below(self, offset: int) -> int:
        """Position of the last item that starts at or below `offset`; -1 if all start above."""
        return bisect_right(self._offsets, offset) - 1

    def append(self, offset: int, item: Item) -> None:
        """Add an item behind all others."""
        assert not self._offsets or self._offsets[-1] < offset, (
            f"{offset} is not behind {self._offsets[-1]}"
        )
        self._offsets.append(offset)
        self._items.append(item)

    def insert(self, offset: int, item: Item) -> None:
        """Add an item anywhere."""
        position = bisect_left(self._offsets, offset)
        assert position == len(self._offsets) or self._offsets[position] != offset, (
            f"two items start at {offset}"
        )
        self._offsets.insert(position, offset)
        self._items.insert(position, item)

    def remove(self, offset: int) -> Item:
        """Take out the item that starts exactly at `offset`. Raises KeyError if there is none."""
        position = bisect_left(self._offsets, offset)
        if position == len(self._offsets) or self._offsets[position] != offset:
            raise KeyError(offset)
        del self._offsets[position]
        return self._items.pop(position)

    def remove_first(self, count: int) -> list[Item]:
        """Take out the `count` items with the smallest offsets, in order."""
        removed = self._items[:count]
        del self._items[:count]
        del self._offsets[:count]
        return removed

    def check(self) -> None:
        """Prove the invariants; O(n)."""
        assert len(self._offsets) == len(self._items), (
            f"{len(self._offsets)} offsets, {len(self._items)} items"
        )
        for lower, upper in zip(self._offsets, self._offsets[1:], strict=False):
            assert lower < upper, f"offset {upper} stands behind {lower}"
