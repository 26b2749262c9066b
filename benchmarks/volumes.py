"""The embedded object store beside plain files: 16 callers, everything synced before it is answered.

Limits of the same run: one file per object, written, synced, renamed and its directory synced (small objects), and one
file that is written and synced in order (large ones). `run_billion` puts a million small objects and draws the straight
line to a billion: by name only, or with --all.
"""

import asyncio
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from benchmarks.workbench import Row, print_rows, row
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.runtime.interpreter import tune_for_serving
from tier2.volumes.lmdb_index import LmdbIndex
from tier2.volumes.opening import OpenEngine, open_engine
from tier2.volumes.settings import VolumeSettings

CALLERS = 16
SIZES = ((1000, 6000, "1 KB"), (100_000, 1000, "100 KB"), (8 << 20, 48, "8 MB"))
MEGA = 1e6


async def opened(directory: Path, executor: ThreadPoolExecutor) -> OpenEngine:
    return await open_engine(
        str(directory),
        files=SystemFileSystem(),
        open_index=LmdbIndex,
        executor=executor,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=VolumeSettings(compaction_interval_seconds=1e9),
    )


async def by_callers(count: int, call: Callable[[int], Awaitable[object]]) -> float:
    """Calls per second of CALLERS callers side by side."""

    async def caller(first: int) -> None:
        for number in range(first, count, CALLERS):
            await call(number)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for first in range(CALLERS):
            tasks.create_task(caller(first))
    return count / (time.perf_counter() - begin)


def contents(size: int, count: int) -> list[list[BufferView]]:
    """All different, sharing their memory but for the first 16 bytes."""
    rest = memoryview(os.urandom(size - 16))
    return [[number.to_bytes(16, "big"), rest] for number in range(count)]


def write_plain(directory: Path, number: int, content: list[BufferView]) -> None:
    path = directory / f"{number}.new"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.writev(descriptor, content)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    path.rename(directory / f"{number}")
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_in_order(path: Path, puts: list[list[BufferView]], group: int) -> float:
    """Puts per second of a loop that does nothing but write `group` contents and sync."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        offset = 0
        begin = time.perf_counter()
        for first in range(0, len(puts), group):
            for content in puts[first : first + group]:
                offset += os.pwritev(descriptor, content, offset)
            os.fdatasync(descriptor)
        return len(puts) / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()


async def measure_size(
    base: Path, executor: ThreadPoolExecutor, size: int, count: int, name: str
) -> list[Row]:
    loop = asyncio.get_running_loop()
    puts = contents(size, count)
    plain_files = base / f"plain-{size}"
    plain_files.mkdir()
    plain_count = min(count, 1000)
    plain = await by_callers(
        plain_count,
        lambda number: loop.run_in_executor(
            executor, write_plain, plain_files, number, puts[number]
        ),
    )
    raw = write_in_order(base / "raw", puts, 4 if size >= 1 << 20 else CALLERS)
    store = await opened(base / f"engine-{size}", executor)
    put = await by_callers(count, lambda number: store.engine.put(b"key/%d" % number, puts[number]))
    raw = max(raw, write_in_order(base / "raw", puts, 4 if size >= 1 << 20 else CALLERS))

    def read_plain(number: int) -> bytes:
        return (plain_files / str(number)).read_bytes()

    plain_get = await by_callers(
        plain_count, lambda number: loop.run_in_executor(executor, read_plain, number)
    )
    get = await by_callers(count, lambda number: store.engine.get(b"key/%d" % number))
    await store.close()
    shutil.rmtree(plain_files)
    return [
        row(f"put {name}, beside a file each", put, "/s", plain),
        row(f"put {name}, beside raw write+sync", put * size / MEGA, "MB/s", raw * size / MEGA),
        row(f"get {name}, beside a file each", get, "/s", plain_get),
    ]


async def measure_rebuild(
    base: Path, executor: ThreadPoolExecutor, size: int, name: str, target: float
) -> Row:
    directory = base / f"engine-{size}"
    shutil.rmtree(directory / "index")
    volume_bytes = sum(path.stat().st_size for path in (directory / "volumes").iterdir())
    begin = time.perf_counter()
    store = await opened(directory, executor)
    seconds = time.perf_counter() - begin
    assert store.replay.rebuilt, "the index was there"
    await store.close()
    shutil.rmtree(directory)
    return row(
        f"rebuild of the index, objects of {name}", volume_bytes / seconds / MEGA, "MB/s", target
    )


async def run() -> list[Row]:
    rows: list[Row] = []
    base = Path(tempfile.mkdtemp(prefix="segmentstore-bench-"))
    tune_for_serving()
    try:
        with ThreadPoolExecutor(6) as executor:
            for size, count, name in SIZES:
                rows += await measure_size(base, executor, size, count, name)
            rows.append(await measure_rebuild(base, executor, 8 << 20, "8 MB", 500.0))
            rows.append(await measure_rebuild(base, executor, 1000, "1 KB", 30.0))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return rows


async def run_billion(count: int = 1_000_000) -> list[Row]:
    """Small objects by the million: files, bytes, memory, latency; and what a billion would be."""
    base = Path(tempfile.mkdtemp(prefix="segmentstore-bench-"))
    tune_for_serving()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with ThreadPoolExecutor(6) as executor:
            store = await opened(base / "engine", executor)
            filler = os.urandom(84)

            async def put_some(first: int) -> None:
                for number in range(first, count, 256):
                    await store.engine.put(
                        b"bucket/%09d" % number, [number.to_bytes(16, "big"), filler]
                    )

            begin = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for first in range(256):
                    tasks.create_task(put_some(first))
            rate = count / (time.perf_counter() - begin)
            random, waits = Random(1), []
            for _ in range(20_000):
                begin = time.perf_counter()
                await store.engine.get(b"bucket/%09d" % random.randrange(count))
                waits.append(time.perf_counter() - begin)
            memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            await store.close()
        files = [path for path in (base / "engine").rglob("*") if path.is_file()]
        used = sum(path.stat().st_blocks * 512 for path in files if "reserve" not in path.name)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    billion = 1_000_000_000 / count
    return [
        row("a million objects of 100 B: puts, 256 callers", rate, "/s", 20_000),
        row("a million objects: files on disk", len(files), "files", 20),
        row("a million objects: bytes on disk for each", used / count, "B", 1000),
        row("a million objects: memory (mapped index included)", memory / MEGA, "MB", 1000),
        row("a million objects: p99 of a get", sorted(waits)[-200] * 1e6, "us", 2000),
        row(
            "a billion, drawn as a line: files",
            len(files) - 5 + billion * used / (1 << 30),
            "files",
            2000,
        ),
        row("a billion, drawn as a line: disk", billion * used / 1e12, "TB", 1),
    ]


def main() -> list[Row]:
    rows = asyncio.run(run())
    if "--all" in sys.argv:
        rows += asyncio.run(run_billion())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
