"""What the ordered index of a segment costs: the AVL tree beside two bisected lists and sortedcontainers.SortedDict.

The operations are those of the read path, of appends and of eviction, at the sizes a segment has: one item per block of
up to 1 MiB, so 64 items are a busy segment, 4,096 a cache of 4 GiB that belongs to one segment alone.

    python -m benchmarks.sorted_index
"""

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from sortedcontainers import SortedDict

from benchmarks.workbench import Row, print_rows, row
from containers.read_index.avl_index import AvlIndex
from tests.containers.reading.sorted_lists import SortedLists

ROUNDS = 5
SEARCHES = 20_000
ROLLS = 5_000
ITEM_BYTES = 1000


class Index(Protocol):
    """What is measured of each."""

    def floor(self, offset: int) -> int | None: ...

    def insert(self, offset: int, item: int) -> None: ...

    def remove(self, offset: int) -> int: ...


class SortedDictIndex:
    """SortedDict with the same verbs."""

    def __init__(self) -> None:
        self._items = SortedDict()
        self.insert = self._items.__setitem__
        self.remove = self._items.pop

    def floor(self, offset: int) -> int | None:
        position = self._items.bisect_right(offset)
        return self._items.peekitem(position - 1)[1] if position else None


def nanoseconds(work: Callable[[], object], count: int) -> float:
    """Best of a few rounds, per operation."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best / count * 1e9


def search(make: Callable[[], Index], size: int, wanted: list[int]) -> float:
    """A look for each of `wanted` among `size` items."""
    index = make()
    for offset in range(size):
        index.insert(offset * ITEM_BYTES, offset)

    def work() -> None:
        for offset in wanted:
            index.floor(offset)

    return nanoseconds(work, len(wanted))


def roll(make: Callable[[], Index], size: int) -> float:
    """One comes at the end, the oldest of `size` leaves."""
    index = make()
    for offset in range(size):
        index.insert(offset, offset)
    begin = 0

    def work() -> None:
        nonlocal begin
        for offset in range(begin, begin + ROLLS):
            index.insert(offset + size, offset)
            index.remove(offset)
        begin += ROLLS

    return nanoseconds(work, ROLLS)


def main() -> list[Row]:
    """Measure, print and return the rows: the tree's figures, each with that of the two others as its limit."""
    random = Random(1)
    peers: tuple[tuple[str, Callable[[], Index]], ...] = (
        ("two lists", SortedLists),
        ("SortedDict", SortedDictIndex),
    )
    rows: list[Row] = []
    for size in (1, 64, 4_096):
        anywhere = [random.randrange(size * ITEM_BYTES) for _ in range(SEARCHES)]
        in_the_last = [(size - 1) * ITEM_BYTES + offset % ITEM_BYTES for offset in anywhere]
        measures: tuple[tuple[str, Callable[[Callable[[], Index]], float]], ...] = (
            ("find", partial(search, size=size, wanted=anywhere)),
            ("find the last", partial(search, size=size, wanted=in_the_last)),
            ("append + evict", partial(roll, size=size)),
        )
        for what, measure in measures:
            value = measure(AvlIndex)
            rows.extend(
                row(f"AVL tree: {what}, {size} items, beside {peer}", value, "ns", measure(make))
                for peer, make in peers
            )
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
