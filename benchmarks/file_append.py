"""64 KB appends through a container on the file log, 32 in flight: beside the disk itself, and over many segments.

The limit is a raw loop that writes and fdatasyncs the same bytes, in groups as large as the log's frames were, into a
zero-filled file. Rounds alternate, and who goes first in them does; medians are compared. Tier 2 is in memory, so that
the disk is the log's alone.
"""

import asyncio
import os
import time
from collections import deque
from pathlib import Path

from benchmarks.container_append import append_rate
from benchmarks.workbench import (
    Row,
    Tiers,
    median,
    print_rows,
    row,
    running,
    segments,
    tiers,
    without_flush,
)
from containers.segments.segment_handle import SegmentHandle

LARGE = os.urandom(64 * 1024)
SMALL = b"x" * 100
IN_FLIGHT = 32


async def large_rate(handles: list[SegmentHandle], count: int) -> float:
    """Bytes per second of 64 KB appends, round robin, 32 in flight."""
    begin = time.perf_counter()
    waiting: deque[asyncio.Future[int]] = deque()
    for number in range(count):
        waiting.append(handles[number % len(handles)].append(LARGE))
        if len(waiting) >= IN_FLIGHT:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()
    return count * len(LARGE) / (time.perf_counter() - begin)


def raw_rate(path: Path, *, count: int, group: int) -> float:
    """Bytes per second of a loop that does nothing but write `group` pieces and sync."""
    size = 64 << 20
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for at in range(0, size, 4 << 20):
            os.pwrite(descriptor, bytes(4 << 20), at)
        os.fsync(descriptor)
        position = 0
        begin = time.perf_counter()
        for first in range(0, count, group):
            pieces = [LARGE] * min(group, count - first)
            length = len(LARGE) * len(pieces)
            if position + length > size:
                position = 0
            os.pwritev(descriptor, pieces, position)
            os.fdatasync(descriptor)
            position += length
        return count * len(LARGE) / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()


async def measure(on: Tiers, *, count: int, rounds: int) -> list[Row]:
    large: dict[int, list[float]] = {1: [], 1000: []}
    small: dict[int, list[float]] = {1: [], 1000: []}
    raw: list[float] = []
    async with running(on, cache_bytes=1 << 30, settings=without_flush()) as container:
        async with segments(container, 1) as single, segments(container, 1000) as thousand:
            await large_rate(single, count)
            for number in range(rounds):
                group = 1
                for handles in in_turn(single, thousand, number):
                    await container.flush()
                    syncs = on.log_files.syncs
                    large[len(handles)].append(await large_rate(handles, count))
                    if handles is single:
                        group = max(1, round(count / (on.log_files.syncs - syncs)))
                await container.flush()
                raw.append(
                    await asyncio.to_thread(
                        raw_rate, Path(on.directory) / "raw", count=count, group=group
                    )
                )
            for number in range(rounds):
                for handles in in_turn(single, thousand, number):
                    small[len(handles)].append(await append_rate(handles, SMALL, 50_000))
                    await container.flush()
    mega = 1e6
    return [
        row(
            "file log, 64 KB, 32 in flight, beside raw write+sync",
            median(large[1]) / mega,
            "MB/s",
            median(raw) / mega,
        ),
        row(
            "file log, 64 KB over 1,000 segments beside one",
            median(large[1000]) / mega,
            "MB/s",
            median(large[1]) / mega,
        ),
        row(
            "file log, 100 B over 1,000 segments beside one",
            median(small[1000]),
            "/s",
            median(small[1]),
        ),
    ]


def in_turn(
    first: list[SegmentHandle], second: list[SegmentHandle], number: int
) -> list[list[SegmentHandle]]:
    """Whoever goes first finds the disk rested: each does in every other round."""
    return [second, first] if number % 2 else [first, second]


async def run(*, count: int = 4000, rounds: int = 9) -> list[Row]:
    async with tiers(log_on_disk=True) as on:
        return await measure(on, count=count, rounds=rounds)


def main() -> list[Row]:
    rows = asyncio.run(run())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
