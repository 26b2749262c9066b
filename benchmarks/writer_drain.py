"""The storage writer's sustained drain: incompressible bytes through a whole container to a filesystem Tier 2.

64 KB appends keep the writer busy without a pause; what Tier 2 took per second is measured while they go on. The
effect on writers is the p99 of small appends beside a steady drain of 100 MB/s, and without it: at full speed the cache
is full by intention, and everybody is slowed to Tier 2's rate. Tier 1 is in memory: the disk is Tier 2's alone.
"""

import asyncio
import os
import time
from dataclasses import replace

from benchmarks.append import latency
from benchmarks.workbench import Row, median, print_rows, row, running, segments, tiers
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle

PIECE = os.urandom(64 * 1024)
SMALL_PER_SECOND = 1_000


async def drain(
    container: StreamSegmentContainer, handles: list[SegmentHandle], total_bytes: int
) -> float:
    """Bytes per second into Tier 2, from the first append to the end of the flush."""
    begin = time.perf_counter()

    async def write(handle: SegmentHandle) -> None:
        for _ in range(total_bytes // len(handles) // (8 * len(PIECE))):
            futures = [handle.append(PIECE) for _ in range(8)]
            for future in futures:
                await future

    async with asyncio.TaskGroup() as tasks:
        for handle in handles:
            tasks.create_task(write(handle))
    await container.flush()
    return total_bytes / (time.perf_counter() - begin)


async def steady(handles: list[SegmentHandle], *, bytes_per_second: float, seconds: float) -> None:
    """A stream of 64 KB appends at a rate that Tier 2 keeps up with."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    sent = 0
    last: asyncio.Future[int] | None = None
    while (now := loop.time()) < begin + seconds:
        while sent * len(PIECE) < (now - begin) * bytes_per_second:
            last = handles[sent % len(handles)].append(PIECE)
            sent += 1
        await asyncio.sleep(0.002)
    if last is not None:
        await last


async def run(total_bytes: int = 1 << 30, rounds: int = 3) -> list[Row]:
    settings = ContainerSettings()
    settings = replace(settings, writer=replace(settings.writer, flush_bytes=16 << 20))
    rates: list[float] = []
    quiet: list[float] = []
    busy: list[float] = []
    async with (
        tiers(objects_on_disk=True) as on,
        running(on, cache_bytes=512 << 20, settings=settings) as container,
        segments(container, 4) as handles,
        segments(container, 1) as small,
    ):
        for _ in range(rounds):
            quiet.append((await latency(small[0], per_second=SMALL_PER_SECOND, seconds=2.0))[1])
            rates.append(await drain(container, handles, total_bytes))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(steady(handles, bytes_per_second=100e6, seconds=5.0))
                await asyncio.sleep(1.0)
                busy.append((await latency(small[0], per_second=SMALL_PER_SECOND, seconds=3.0))[1])
    return [
        row(
            "storage writer drain to a filesystem, target 250 MB/s",
            median(rates) / 1e6,
            "MB/s",
            250.0,
        ),
        row(
            "append p99 beside a drain of 100 MB/s, and without", median(busy), "ms", median(quiet)
        ),
    ]


def main() -> list[Row]:
    rows = asyncio.run(run())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
