"""Why the read index keeps its entries in two lists: list + bisect beside sortedcontainers.SortedDict.

The operations are those of the read path and of eviction, at the sizes a segment has: one item per block of up to
1 MiB, so 64 items are a busy segment, 4,096 a cache of 4 GiB that belongs to one segment alone.

    python -m benchmarks.sorted_index
"""

import time
from collections.abc import Callable
from random import Random

from sortedcontainers import SortedDict

from benchmarks.workbench import Row, print_rows, row
from containers.read_index.sorted_index import SortedIndex

ROUNDS = 5


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


def main() -> list[Row]:
    """Measure, print and return the rows; the limit of each is SortedDict's figure."""
    random = Random(1)
    rows: list[Row] = []
    for size in (1, 64, 4_096):
        wanted = [random.randrange(size * 1000) for _ in range(20_000)]
        rolls = 5_000
        pairs = (
            ("find", search_lists(size, wanted), search_sorted_dict(size, wanted), len(wanted)),
            ("append + evict", roll_lists(size, rolls), roll_sorted_dict(size, rolls), rolls),
        )
        for what, lists, sorted_dict, count in pairs:
            value, limit = nanoseconds(lists, count), nanoseconds(sorted_dict, count)
            rows.append(row(f"{what}, {size} items, beside SortedDict", value, "ns", limit))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
