"""The file log beside the disk itself, and one journal for all containers beside one for each.

Limit of the first part: a loop that pwritevs and fdatasyncs the same bytes, in the very group sizes that the log chose
in the round before, into a zero-filled file; no checksum, no event loop, no acknowledgement. Rounds alternate A B A B;
medians are compared.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from random import Random

from benchmarks.workbench import Row, answers_in_order, median, print_rows, row
from segmentstore.contracts.identifiers import BufferView, LogAddress
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from tier1.file_log.frames import MAGIC
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import FileLogSettings
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore

LARGE = os.urandom(64 * 1024)
SMALL = b"x" * 100
IN_FLIGHT = 32
MIB = 1 << 20
JOURNAL_BYTES = 64 * MIB
ROUNDS = 5
TARGET = 0.7
TRUNCATE_EVERY_BYTES = 32 * MIB


class _MeasuredFile(SystemFile):
    """Notes the size of every frame that is written."""

    def __init__(self, descriptor: int, frames: list[int]) -> None:
        super().__init__(descriptor)
        self._frames = frames

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._note(buffers)
        super().write_at(offset, buffers)

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._note(buffers)
        super().write_synced(offset, buffers)

    def _note(self, buffers: Sequence[BufferView]) -> None:
        if bytes(buffers[0][:4]) == MAGIC:
            self._frames.append(sum(map(len, buffers)))


class _MeasuredFiles(SystemFileSystem):
    def __init__(self) -> None:
        self.frames: list[int] = []

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        flags |= os.O_EXCL if exclusive else 0
        return _MeasuredFile(os.open(path, flags, 0o644), self.frames)


async def append_rate(
    log: FileDurableDataLog | MemoryDurableDataLog, payload: bytes, count: int, in_flight: int
) -> float:
    """Entries per second, the log truncated on the way as a container does it."""
    begin = time.perf_counter()
    address = LogAddress(0)
    done = 0
    truncated_at = 0
    appends = (log.append([payload]) for _ in range(count))
    async with aclosing(answers_in_order(appends, in_flight)) as answers:
        async for address in answers:
            done += len(payload)
            if done - truncated_at >= TRUNCATE_EVERY_BYTES:
                truncated_at = done
                await log.truncate(address)
    seconds = time.perf_counter() - begin
    await log.truncate(address)
    return count / seconds


def raw_rate(path: Path, groups: Sequence[int]) -> float:
    """Bytes per second of the disk with these writes, each followed by a sync."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size < JOURNAL_BYTES:
            for at in range(0, JOURNAL_BYTES, 4 * MIB):
                os.pwrite(descriptor, bytes(4 * MIB), at)
            os.fsync(descriptor)
        position = 0
        begin = time.perf_counter()
        for length in groups:
            if position + length > JOURNAL_BYTES:
                position = 0
            whole, rest = divmod(length, len(LARGE))
            os.pwritev(descriptor, [LARGE] * whole + [LARGE[:rest]], position)
            os.fdatasync(descriptor)
            position += length
        return sum(groups) / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


async def opened(
    path: Path, files: SystemFileSystem, executor: ThreadPoolExecutor
) -> FileDurableDataLog:
    """A log whose files are all made before anything is measured."""
    settings = FileLogSettings(journal_bytes_first=JOURNAL_BYTES, spare_journals=3)
    log = FileDurableDataLog(
        str(path), files=files, executor=executor, random=Random(1), settings=settings
    )
    await log.initialize()
    while log.statistics().stored_bytes < 4 * JOURNAL_BYTES:
        await asyncio.sleep(0.05)
    return log


async def against_raw(directory: Path, executor: ThreadPoolExecutor) -> list[Row]:
    files = _MeasuredFiles()
    log = await opened(directory / "one", files, executor)
    loop = asyncio.get_running_loop()
    ours: dict[str, list[float]] = {"64 KB": [], "100 B": [], "4 KB alone": []}
    raw: dict[str, list[float]] = {name: [] for name in ours}
    for _ in range(ROUNDS):
        for name, payload, count, in_flight in (
            ("64 KB", LARGE, 4000, IN_FLIGHT),
            ("100 B", SMALL, 60_000, 2000),
            ("4 KB alone", LARGE[:3900], 400, 1),
        ):
            files.frames.clear()
            rate = await append_rate(log, payload, count, in_flight)
            ours[name].append(rate)
            written = list(files.frames)
            bytes_per_second = await loop.run_in_executor(
                executor, raw_rate, directory / "raw", written
            )
            raw[name].append(bytes_per_second / sum(written) * count)
    await log.close()
    large = row(
        "file log, 64 KB entries, 32 in flight",
        median(ours["64 KB"]) * len(LARGE) / 1e6,
        "MB/s",
        median(raw["64 KB"]) * len(LARGE) / 1e6,
    )
    return [
        large,
        row("  target: share of the raw loop", large["ratio"], "", TARGET),
        row(
            "file log, 100 B entries, 2000 in flight",
            median(ours["100 B"]),
            "1/s",
            median(raw["100 B"]),
        ),
        row(
            "file log, 4 KB entries, 1 in flight",
            median(ours["4 KB alone"]),
            "1/s",
            median(raw["4 KB alone"]),
        ),
    ]


async def shared_or_own(directory: Path, executor: ThreadPoolExecutor) -> list[Row]:
    """Four containers that append at once: into one journal, and each into its own."""
    shared = await opened(directory / "shared", SystemFileSystem(), executor)
    own = [await opened(directory / f"own{n}", SystemFileSystem(), executor) for n in range(4)]
    rows = []
    for name, payload, count, in_flight in (
        ("64 KB entries", LARGE, 1000, 8),
        ("1 KB entries", LARGE[:1024], 5000, 100),
        ("4 KB entries, 1 in flight each", LARGE[:3900], 300, 1),
    ):
        together: list[float] = []
        apart: list[float] = []
        for _ in range(ROUNDS):
            together.append(await append_rate(shared, payload, 4 * count, 4 * in_flight))
            begin = time.perf_counter()
            await asyncio.gather(*[append_rate(log, payload, count, in_flight) for log in own])
            apart.append(4 * count / (time.perf_counter() - begin))
        rows.append(
            row(f"4 journals beside 1 shared, {name}", median(apart), "1/s", median(together))
        )
    for log in (shared, *own):
        await log.close()
    return rows


async def memory_rate() -> list[Row]:
    log = MemoryDurableDataLog(MemoryLogStore(bytes(16)))
    await log.initialize()
    rates = [await append_rate(log, SMALL, 100_000, 2000) for _ in range(ROUNDS)]
    return [row("memory log, 100 B entries, 2000 in flight", median(rates), "1/s", 150_000)]


async def run() -> list[Row]:
    directory = Path(tempfile.mkdtemp(prefix="segmentstore-bench-"))
    executor = ThreadPoolExecutor(max_workers=6)
    try:
        rows = await against_raw(directory, executor)
        rows += await shared_or_own(directory, executor)
        return rows + await memory_rate()
    finally:
        executor.shutdown()
        shutil.rmtree(directory)


def main() -> list[Row]:
    rows = asyncio.run(run())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
