"""Appends inside one container: `container_append` over a log in memory, `file_append` over the file log.

- `container_append`, on one core: how many a second, how late, and whether many segments slow them down. The storage
  writer runs throughout and writes to a memory Tier 2. The limit beside the rate is a bare loop of the steps that no
  design can leave out in Python: a future, a packed header, a copy of the bytes, one join and checksum per frame, and
  the future's completion.
- `file_append`: 64 KB appends, 32 in flight, beside the disk itself, and over many segments. The limit is a raw loop
  that writes and fdatasyncs the same bytes, in groups as large as the log's frames were, into a zero-filled file.
  Rounds alternate, and which goes first in them does; medians are compared. Tier 2 is in memory, so that the disk is
  the log's alone.
"""

import asyncio
import os
import struct
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path

from crc32c import crc32c

from benchmarks.workbench import (
    Row,
    Tiers,
    answers_in_order,
    median,
    print_rows,
    row,
    running,
    segments,
    tiers,
    without_flush,
)
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle

SMALL = b"x" * 100
BATCH = 250
BATCHES_IN_FLIGHT = 8
TURNS = 5
"""One segment and many take short turns: what else the machine does meets both."""


async def append_rate(handles: list[SegmentHandle], data: bytes, count: int) -> float:
    """Appends per second, round robin over the segments, a bounded number in flight."""
    width = len(handles)

    def last_of_batch(turn: int) -> asyncio.Future[int]:
        return [handles[(turn + step) % width].append(data) for step in range(BATCH)][-1]

    begin = time.perf_counter()
    batches = (last_of_batch(turn) for turn in range(0, count // BATCH * BATCH, BATCH))
    async with aclosing(answers_in_order(batches, BATCHES_IN_FLIGHT)) as answers:
        async for _ in answers:
            pass
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


async def measure_memory_log(
    container: StreamSegmentContainer, *, count: int, rounds: int
) -> list[Row]:
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


async def run_memory_log(*, count: int = 200_000, rounds: int = 3) -> list[Row]:
    async with tiers() as on, running(on, cache_bytes=1 << 30) as container:
        return await measure_memory_log(container, count=count, rounds=rounds)


def container_append() -> list[Row]:
    rows = asyncio.run(run_memory_log())
    print_rows(rows)
    return rows


LARGE = os.urandom(64 * 1024)
IN_FLIGHT = 32


async def large_rate(handles: list[SegmentHandle], count: int) -> float:
    """Bytes per second of 64 KB appends, round robin, 32 in flight."""
    begin = time.perf_counter()
    appends = (handles[number % len(handles)].append(LARGE) for number in range(count))
    async with aclosing(answers_in_order(appends, IN_FLIGHT)) as answers:
        async for _ in answers:
            pass
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


async def measure_file_log(on: Tiers, *, count: int, rounds: int) -> list[Row]:
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
    """The one that goes first finds the disk rested, so each goes first in every other round."""
    return [second, first] if number % 2 else [first, second]


async def run_file_log(*, count: int = 4000, rounds: int = 9) -> list[Row]:
    async with tiers(log_on_disk=True) as on:
        return await measure_file_log(on, count=count, rounds=rounds)


def file_append() -> list[Row]:
    rows = asyncio.run(run_file_log())
    print_rows(rows)
    return rows
