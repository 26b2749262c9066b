"""Bytes into Tier 2 and back: `tier2_drain` and `tier2_cold_read`.

- `tier2_drain`: large rounds of incompressible bytes into a directory, and rounds of tiny segments. The limit beside
  the bytes is a plain loop of the same run: the checksum, a new file, its sync and its directory's sync, for objects of
  the same size. Tiny segments are held against what a round may cost.
- `tier2_cold_read`: reads with every cache empty, against a plain loop over a file of the same blocks, which reads 1 MB
  blocks, checks their checksum and decompresses them: what no reader of this format can leave out. Both read what the
  page cache holds, so the difference is ours and not the disk's.
"""

import asyncio
import json
import os
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import lz4.block

from benchmarks.workbench import STORE_ID, Row, print_rows, row
from segmentstore.contracts.identifiers import ContainerId, Epoch, SegmentId, SequenceNumber
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import (
    DataPiece,
    Publication,
    SegmentPublication,
    SegmentRecord,
)
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.runtime.process import freeze_long_lived_objects, tune_for_serving
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

MEBIBYTE = 1 << 20
ROUND_BYTES = 256 * MEBIBYTE
ROUNDS = 4
RUN_BYTES = 64 << 10
OBJECT_BYTES = 64 * MEBIBYTE
TINY_SEGMENTS = 25_000
TINY_ROUNDS = 3
DRAIN_TARGET = 250.0
TINY_CPU_SECONDS_TARGET = 2.0


def publication(
    changes: list[tuple[int, str, int, DataPiece]], sequence_number: int
) -> Publication:
    """Segments as (id, name, length before, piece), all at one sequence number."""
    return Publication(
        segments=[
            SegmentPublication(
                record=SegmentRecord(
                    segment_id=SegmentId(number),
                    name=name,
                    start_offset=0,
                    length=length + sum(map(len, piece.runs)),
                    sealed=False,
                    last_modified_ms=0,
                    sequence_number=SequenceNumber(sequence_number),
                ),
                pieces=[piece],
            )
            for number, name, length, piece in changes
        ],
        highest_segment_id=SegmentId(max(number for number, _, _, _ in changes)),
        highest_sequence_number=SequenceNumber(sequence_number),
    )


async def open_storage(
    object_store: ObjectStore, executor: ThreadPoolExecutor, *, epoch: int = 1
) -> TieredStorage:
    storage = TieredStorage(
        object_store=object_store,
        store_id=STORE_ID,
        container_id=ContainerId(0),
        container_count=1,
        settings=StorageSettings(),
        wall_clock=SystemWallClock(),
        random=Random(epoch),
        executor=executor,
    )
    await storage.claim(epoch=Epoch(epoch), log_id=b"benchmark-log-id")
    return storage


def plain_write_rate(directory: str, content: bytes) -> float:
    """Bytes per second of a loop that checksums, writes and syncs one file for each object."""
    begin = time.perf_counter()
    view = memoryview(content)
    parent = os.open(directory, os.O_RDONLY)
    for number in range(ROUNDS):
        for start in range(0, len(view), OBJECT_BYTES):
            piece = view[start : start + OBJECT_BYTES]
            zlib.crc32(piece)
            path = str(Path(directory) / f"{number}-{start}")
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
            written = 0
            while written < len(piece):
                written += os.write(descriptor, piece[written:])
            os.fdatasync(descriptor)
            os.close(descriptor)
            os.fsync(parent)
    os.close(parent)
    return ROUNDS * len(content) / (time.perf_counter() - begin)


async def drain_rate(directory: str, content: bytes, executor: ThreadPoolExecutor) -> float:
    store = FilesystemObjectStore(
        directory, files=SystemFileSystem(), executor=executor, random=Random(1)
    )
    await store.start()
    storage = await open_storage(store, executor)
    rate = await publish_rate(storage, memoryview(content), ROUNDS)
    await storage.close()
    await store.close()
    return rate


async def publish_rate(storage: TieredStorage, content: memoryview, count: int) -> float:
    """Bytes per second of `count` publications, each of this content behind the one before."""
    runs = [content[at : at + RUN_BYTES] for at in range(0, len(content), RUN_BYTES)]
    begin = time.perf_counter()
    for number in range(count):
        length = number * len(content)
        await storage.publish(
            publication([(1, "scope/stream/0", length, DataPiece(length, runs))], number + 1)
        )
    return count * len(content) / (time.perf_counter() - begin)


class Pauses:
    """The longest time in which the loop did not come round."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)


async def tiny_round(executor: ThreadPoolExecutor) -> tuple[float, float, float]:
    """CPU seconds, puts and longest pause of a round over many tiny segments, the last of a few."""
    storage = await open_storage(MemoryObjectStore(), executor)
    pauses = Pauses()
    cpu_seconds, puts = 0.0, 0
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(pauses.watch())
        for number in range(TINY_ROUNDS):
            changes = [
                (n, f"scope/stream/{n}", 100 * number, DataPiece(100 * number, [os.urandom(100)]))
                for n in range(1, TINY_SEGMENTS + 1)
            ]
            tiny = publication(changes, number + 1)
            await asyncio.sleep(0.01)
            pauses.longest = 0.0
            puts_before, cpu_before = storage.statistics().puts, time.process_time()
            await storage.publish(tiny)
            cpu_seconds = time.process_time() - cpu_before
            puts = storage.statistics().puts - puts_before
        watch.cancel()
    return cpu_seconds, float(puts), pauses.longest


async def measure_drain() -> list[Row]:
    content = os.urandom(ROUND_BYTES)
    tune_for_serving()
    freeze_long_lived_objects()
    with ThreadPoolExecutor(max_workers=6) as executor:
        with tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory:
            plain_directory = str(Path(directory) / "plain")
            Path(plain_directory).mkdir()
            plain = plain_write_rate(plain_directory, content)
            drained = await drain_rate(str(Path(directory) / "tier2"), content, executor)
        cpu_seconds, puts, pause = await tiny_round(executor)
    return [
        row("tier 2 drain, incompressible", drained / MEBIBYTE, "MiB/s", plain / MEBIBYTE),
        row("the same against the target", drained / MEBIBYTE, "MiB/s", DRAIN_TARGET),
        row("round of 25,000 tiny segments, CPU", cpu_seconds, "s", TINY_CPU_SECONDS_TARGET),
        row("round of 25,000 tiny segments, puts", puts, "puts", 10),
        row("round of 25,000 tiny segments, longest pause", pause * 1000, "ms", 5),
    ]


def tier2_drain() -> list[Row]:
    rows = asyncio.run(measure_drain())
    print_rows(rows)
    return rows


CONTENT_BYTES = 256 * MEBIBYTE
SMALL_SEGMENTS = 2_000
SMALL_READ_TARGET = 1_000.0


def events(size: int) -> bytes:
    """JSON events that compress about as well as real ones."""
    random = Random(7)
    lines = [
        json.dumps(
            {"user": random.getrandbits(40), "page": f"/shop/{random.randrange(500)}", "n": n}
        )
        for n in range(20_000)
    ]
    block = ("\n".join(lines) + "\n").encode()
    return (block * (size // len(block) + 1))[:size]


def plain_read_rate(directory: str, content: bytes) -> float:
    """Uncompressed bytes per second of read, checksum, decompress."""
    path = Path(directory) / "plain"
    places: list[tuple[int, int, int]] = []
    with path.open("wb") as file:
        for start in range(0, len(content), MEBIBYTE):
            stored = lz4.block.compress(content[start : start + MEBIBYTE], store_size=False)
            places.append((file.tell(), len(stored), zlib.crc32(stored)))
            file.write(stored)
    descriptor = os.open(path, os.O_RDONLY)
    begin = time.perf_counter()
    for position, size, checksum in places:
        stored = os.pread(descriptor, size, position)
        if zlib.crc32(stored) != checksum:
            raise ValueError(f"checksum at {position}")
        lz4.block.decompress(stored, uncompressed_size=MEBIBYTE)
    rate = len(content) / (time.perf_counter() - begin)
    os.close(descriptor)
    return rate


async def cold_rates(
    directory: str, content: bytes, executor: ThreadPoolExecutor
) -> tuple[float, float]:
    """Uncompressed bytes per second in order by 1 MB, and reads of small segments per second."""
    store = FilesystemObjectStore(
        directory, files=SystemFileSystem(), executor=executor, random=Random(1)
    )
    await store.start()
    writer = await open_storage(store, executor)
    view = memoryview(content)
    runs = [view[at : at + (64 << 10)] for at in range(0, len(view), 64 << 10)]
    small = [
        (n, f"scope/small/{n}", 0, DataPiece(0, [os.urandom(1000)]))
        for n in range(2, SMALL_SEGMENTS + 2)
    ]
    await writer.publish(publication([(1, "scope/big/0", 0, DataPiece(0, runs)), *small], 1))
    reader = await open_storage(store, executor, epoch=2)
    begin = time.perf_counter()
    offset = 0
    while offset < len(content):
        found = await reader.read(SegmentId(1), offset, MEBIBYTE)
        offset = found.offset + len(found.content)
    in_order = len(content) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for n in range(2, SMALL_SEGMENTS + 2):
        await reader.read(SegmentId(n), 500, 100)
    small_reads = SMALL_SEGMENTS / (time.perf_counter() - begin)
    await store.close()
    return in_order, small_reads


async def measure_cold_read() -> list[Row]:
    content = events(CONTENT_BYTES)
    with (
        ThreadPoolExecutor(max_workers=6) as executor,
        tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory,
    ):
        plain = plain_read_rate(directory, content)
        tier2_directory = str(Path(directory) / "tier2")
        in_order, small_reads = await cold_rates(tier2_directory, content, executor)
    return [
        row("tier 2 cold read in order", in_order / MEBIBYTE, "MiB/s", plain / MEBIBYTE),
        row("tier 2 cold reads of 1 KB segments", small_reads, "1/s", SMALL_READ_TARGET),
    ]


def tier2_cold_read() -> list[Row]:
    rows = asyncio.run(measure_cold_read())
    print_rows(rows)
    return rows
