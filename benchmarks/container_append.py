"""Appends inside one container on one core: how many a second, how late, and whether many segments slow them down.

The storage writer runs throughout and writes to a memory Tier 2. The limit beside the rate is a bare loop of the steps
that no design can leave out in Python: a future, a packed header, a copy of the bytes, one join and checksum per frame,
and the future's completion.
"""

import asyncio
import struct
import time
from collections import deque
from functools import partial

from crc32c import crc32c

from benchmarks.workbench import Row, median, print_rows, row, running, segments, tiers
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle

SMALL = b"x" * 100
BATCH = 250
BATCHES_IN_FLIGHT = 8
TURNS = 5
"""One segment and many take short turns: what else the machine does meets both."""


async def append_rate(handles: list[SegmentHandle], data: bytes, count: int) -> float:
    """Appends per second, round robin over the segments, a bounded number in flight."""
    begin = time.perf_counter()
    waiting: deque[asyncio.Future[int]] = deque()
    turn = 0
    width = len(handles)
    for _ in range(count // BATCH):
        futures = [handles[(turn + step) % width].append(data) for step in range(BATCH)]
        turn += BATCH
        waiting.append(futures[-1])
        if len(waiting) >= BATCHES_IN_FLIGHT:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()
    return count / (time.perf_counter() - begin)


async def bare_rate(data: bytes, count: int) -> float:
    """The same steps without a store around them."""
    loop = asyncio.get_running_loop()
    header = struct.Struct("<IBBHQQQqI")
    cache = bytearray(64 << 20)
    view = memoryview(cache)
    position = 0
    begin = time.perf_counter()
    for first in range(0, count, BATCH):
        futures: list[asyncio.Future[int]] = []
        parts: list[bytes] = []
        for number in range(first, first + BATCH):
            future: asyncio.Future[int] = loop.create_future()
            if position + len(data) > len(view):
                position = 0
            view[position : position + len(data)] = data
            parts.append(header.pack(140, 1, 0, 0, number, 1, position, 0, len(data)))
            parts.append(data)
            position += len(data)
            futures.append(future)
        crc32c(b"".join(parts))
        for future in futures:
            future.set_result(0)
        await asyncio.sleep(0)
    return count / (time.perf_counter() - begin)


async def latency(
    handle: SegmentHandle, *, per_second: int, seconds: float, punctual: bool = False
) -> tuple[float, float]:
    """p50 and p99 in milliseconds of appends that arrive evenly, whatever the answers do.

    The loop's timers round up to a millisecond, so a caller that sleeps until its append is due is late by half of one,
    and by 1.1 ms at the 99th percentile, without a store. A `punctual` one does not sleep.
    """
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def note(due: float, _future: "asyncio.Future[int]") -> None:
        times.append(loop.time() - due)

    tick = 0.001
    each = int(per_second * tick)
    begin = loop.time()
    for number in range(int(seconds / tick)):
        due = begin + number * tick
        while (pause := due - loop.time()) > 0:
            await asyncio.sleep(0 if punctual else pause)
        for _ in range(each):
            # Counted from when it was due: a late loop is late for its callers too.
            handle.append(SMALL).add_done_callback(partial(note, due))
    await handle.barrier()
    times.sort()
    return times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000


async def measure(container: StreamSegmentContainer, *, count: int, rounds: int) -> list[Row]:
    one: list[float] = []
    many: list[float] = []
    bare: list[float] = []
    tails: list[float] = []
    async with segments(container, 1) as single, segments(container, 1000) as thousand:
        await append_rate(single, SMALL, count // 4)
        for _ in range(rounds):
            bare.append(await bare_rate(SMALL, count))
            for _ in range(TURNS):
                one.append(await append_rate(single, SMALL, count // TURNS))
                many.append(await append_rate(thousand, SMALL, count // TURNS))
            paced = await latency(single[0], per_second=50_000, seconds=2.0, punctual=True)
            tails.append(paced[1])
    return [
        row("appends of 100 B, one segment, target 150,000", median(one), "/s", 150_000),
        row("the same beside a bare loop of the same steps", median(one), "/s", median(bare)),
        row("appends of 100 B over 1,000 segments beside one", median(many), "/s", median(one)),
        row("append p99 at 50,000/s, limit 2 ms", median(tails), "ms", 2.0),
    ]


async def run(*, count: int = 200_000, rounds: int = 3) -> list[Row]:
    async with tiers() as on, running(on, cache_bytes=1 << 30) as container:
        return await measure(container, count=count, rounds=rounds)


def main() -> list[Row]:
    rows = asyncio.run(run())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
