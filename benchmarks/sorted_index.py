"""Why the read index keeps its entries in two lists: list + bisect beside sortedcontainers.SortedDict.

The operations are those of the read path and of eviction, at the sizes a segment has: one item per block of up to
1 MiB, so 64 items are a busy segment, 4,096 a cache of 4 GiB that belongs to one segment alone.
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from random import Random
from typing import TypedDict

from sortedcontainers import SortedDict

from containers.reading.sorted_index import SortedIndex

ROUNDS = 5


class Row(TypedDict):
    """One measurement; `limit` is what it is compared with, `ratio` value / limit."""

    name: str
    value: float
    unit: str
    limit: float | None
    ratio: float | None


def nanoseconds(work: Callable[[], object], count: int) -> float:
    """Best of a few rounds, per operation."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best / count * 1e9


def search_lists(size: int, wanted: list[int]) -> Callable[[], object]:
    index: SortedIndex[int] = SortedIndex()
    for offset in range(size):
        index.append(offset * 1000, offset)

    def work() -> None:
        for offset in wanted:
            index.items[index.position_at_or_below(offset)]

    return work


def search_sorted_dict(size: int, wanted: list[int]) -> Callable[[], object]:
    index = SortedDict((offset * 1000, offset) for offset in range(size))

    def work() -> None:
        for offset in wanted:
            index.peekitem(index.bisect_right(offset) - 1)

    return work


def roll_lists(size: int, count: int) -> Callable[[], object]:
    def work() -> None:
        index: SortedIndex[int] = SortedIndex()
        for offset in range(size):
            index.append(offset, offset)
        for offset in range(size, size + count):
            index.append(offset, offset)
            index.remove(offset - size)

    return work


def roll_sorted_dict(size: int, count: int) -> Callable[[], object]:
    def work() -> None:
        index = SortedDict((offset, offset) for offset in range(size))
        for offset in range(size, size + count):
            index[offset] = offset
            del index[offset - size]

    return work


def bare_bisect(size: int, wanted: list[int]) -> Callable[[], object]:
    offsets = [offset * 1000 for offset in range(size)]

    def work() -> None:
        for offset in wanted:
            bisect_right(offsets, offset)

    return work


def main() -> list[Row]:
    """Measure, print and return the rows; the limit of a row is SortedDict's figure."""
    random = Random(1)
    rows: list[Row] = []
    for size in (1, 64, 4_096):
        wanted = [random.randrange(size * 1000) for _ in range(20_000)]
        floor = nanoseconds(bare_bisect(size, wanted), len(wanted))
        pairs = (
            ("find", search_lists(size, wanted), search_sorted_dict(size, wanted), len(wanted)),
            (
                "append + evict oldest",
                roll_lists(size, 5_000),
                roll_sorted_dict(size, 5_000),
                5_000,
            ),
        )
        for what, lists, sorted_dict, count in pairs:
            value = nanoseconds(lists, count)
            limit = nanoseconds(sorted_dict, count)
            name = f"sorted index: {what}, {size} items"
            rows.append(Row(name=name, value=value, unit="ns", limit=limit, ratio=value / limit))
        print(f"bare bisect in {size:5} items: {floor:8.0f} ns")
    for row in rows:
        print(f"{row['name']:52} {row['value']:8.0f} ns   SortedDict {row['limit']:8.0f} ns")
    return rows


if __name__ == "__main__":
    main()
