"""How fast a container comes back: replay of a log that Tier 2 knows nothing of.

1 GB of 64 KB appends (cache budget 2 GB) must be ready in under 10 s, at 300 MB/s or more; 100 B appends at 300,000
operations/s or more. The log is a file log; the page cache is warm, as after a kill.
"""

import asyncio
import os
import time

from benchmarks.append import BATCH
from benchmarks.workbench import (
    Row,
    make_container,
    print_rows,
    row,
    running,
    segments,
    tiers,
    without_flush,
)


async def recover(*, size: int, count: int, segment_count: int) -> tuple[float, int]:
    """Seconds from start() to ready, and the bytes that came back."""
    data = os.urandom(size)
    async with tiers(log_on_disk=True) as on:
        async with running(
            on, cache_bytes=2 << 30, touch=False, settings=without_flush()
        ) as container:
            async with segments(container, segment_count) as handles:
                for first in range(0, count, BATCH):
                    futures = [
                        handles[number % segment_count].append(data)
                        for number in range(first, min(count, first + BATCH))
                    ]
                    await futures[-1]
        again, cache = make_container(on, cache_bytes=2 << 30, settings=without_flush())
        begin = time.perf_counter()
        await again.start()
        seconds = time.perf_counter() - begin
        assert again.recovery_summary is not None
        assert again.recovery_summary.data_bytes == size * count, again.recovery_summary
        await again.close()
        del cache
        return seconds, again.recovery_summary.data_bytes


def main() -> list[Row]:
    large, large_bytes = asyncio.run(recover(size=64 * 1024, count=16_000, segment_count=10))
    small, _ = asyncio.run(recover(size=100, count=1_000_000, segment_count=10))
    rows = [
        row("recovery of 64 KB appends, target 300 MB/s", large_bytes / large / 1e6, "MB/s", 300.0),
        row("ready after 1 GB un-flushed, limit 10 s", large, "s", 10.0),
        row("recovery of 100 B appends, target 300,000/s", 1_000_000 / small, "/s", 300_000.0),
    ]
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
