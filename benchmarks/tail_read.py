"""Tail reads and staging: what the cache adds to a bare copy.

Goal: reads of 1 MB from the cache at 2 GB/s or more, beside a bare copy in the same run; staging of 100 bytes at
250,000/s or more, beside a bare slice assignment. The copies rotate through memory larger than the processor's caches.

    python -m benchmarks.tail_read
"""

import time
from collections.abc import Callable

from benchmarks.workbench import Row, print_rows, row
from containers.cache.cache_entry import NO_ROOM
from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.metadata.segment_metadata import SegmentMetadata
from containers.read_index.container_read_index import ContainerReadIndex
from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.identifiers import SegmentId
from tests.containers.reading.memory_tier2 import MemoryTier2
from tests.containers.reading.read_index_bench import metadata_of

MB = 10**6
MIB = 1024 * 1024
ROUNDS = 5
BUDGET_BYTES = 512 * MIB
READ_BYTES = MB
READ_COUNT = 200
STAGE_BYTES = 100
STAGE_COUNT = 200_000


def best_seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def open_index() -> SegmentReadIndex:
    storage = CacheStorage(budget_bytes=BUDGET_BYTES)
    container = ContainerReadIndex(cache=CacheManager(storage=storage), storage=MemoryTier2())
    return container.open(SegmentMetadata(segment_id=SegmentId(1), name="segment"))


def commit(index: SegmentReadIndex) -> None:
    metadata_of(index).set_length(index.metadata.pending_length)
    index.appended()


def flush(index: SegmentReadIndex) -> None:
    commit(index)
    metadata_of(index).set_storage_length(index.metadata.length)
    index.storage_advanced(index.metadata.length)


def tail_read_rows() -> list[Row]:
    index = open_index()
    piece = bytes(range(256)) * 256
    while index.metadata.pending_length < (READ_COUNT + 2) * READ_BYTES:
        index.stage(piece)
        index.metadata.pending_length += len(piece)
    commit(index)
    source = memoryview(bytearray((READ_COUNT + 2) * READ_BYTES))

    def read() -> None:
        for number in range(READ_COUNT):
            content = index.read_cached(number * READ_BYTES + 12_345, READ_BYTES)
            assert content is not None
            assert len(content) == READ_BYTES

    def copy() -> None:
        for number in range(READ_COUNT):
            begin = number * READ_BYTES + 12_345
            bytes(source[begin : begin + READ_BYTES])

    total = READ_COUNT * READ_BYTES / MB
    value = total / best_seconds(read)
    limit = total / best_seconds(copy)
    return [row("tail read of 1 MB from the cache, beside a bare copy", value, "MB/s", limit)]


def stage_rows() -> list[Row]:
    index = open_index()
    metadata = index.metadata
    data = bytes(STAGE_BYTES)
    view = memoryview(bytearray(MIB))

    def stage() -> None:
        for _ in range(STAGE_COUNT):
            # As an append is accepted: the open entry first.
            if metadata.open_entry.add(metadata.pending_length, data) == NO_ROOM:
                index.stage(data)
            metadata.pending_length += STAGE_BYTES
        flush(index)

    def assign() -> None:
        position = 0
        for _ in range(STAGE_COUNT):
            view[position : position + STAGE_BYTES] = data
            position = (position + STAGE_BYTES) % (MIB - STAGE_BYTES)

    def appended() -> None:
        for _ in range(STAGE_COUNT):
            index.appended()

    def nothing() -> None:
        for _ in range(STAGE_COUNT):
            view.__len__()

    def nanoseconds(work: Callable[[], object]) -> float:
        return best_seconds(work) / STAGE_COUNT * 1e9

    return [
        row(
            "stage 100 B, beside a slice assignment", nanoseconds(stage), "ns", nanoseconds(assign)
        ),
        row(
            "appended() with no waiters, beside a call",
            nanoseconds(appended),
            "ns",
            nanoseconds(nothing),
        ),
    ]


def main() -> list[Row]:
    """Measure, print and return the rows."""
    rows = tail_read_rows() + stage_rows()
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
