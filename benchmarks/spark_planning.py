"""What Spark's driver and one executor do without Spark: planning 10,000 chunks, and parsing blocks into batches.

Requests are counted at the door of the object store. Planning is held against its target of five seconds; parsing
against copying the same bytes once, and against a walk of slices and views in plain Python (1.3 million rows/s).
"""

import asyncio
import struct
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from random import Random

from benchmarks.workbench import Row, print_rows, row
from segmentstore.contracts.identifiers import (
    BufferView,
    ContainerId,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.object_store import ObjectInfo
from segmentstore.contracts.storage import (
    DataPiece,
    Publication,
    RunEvents,
    SegmentPublication,
    SegmentRecord,
)
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.arrow_batches import EventBatchBuilder
from segmentstore.spark.scan.block_reader import Block, BlockInfo
from segmentstore.spark.scan.partitions import BlockRange
from segmentstore.spark.scan.scan_planner import NO_BOUNDS, plan_scan
from segmentstore.spark.schema import EVENT_COLUMNS
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.tier2_access import Tier2Reader
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

CHUNKS = 10_000
EVENT_BYTES = 1 << 10
SEGMENT = "bench/stream/0.#epoch.0"
PLANNING_TARGET_SECONDS = 5.0
PARSED_BYTES = 512 << 20
BLOCK_BYTES = 4 << 20


class CountedStore(FilesystemObjectStore):
    """Counts what planning asks for."""

    reads = 0
    listings = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += 1
        return await super().get_range(key, start, length)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        self.listings += 1
        async with aclosing(super().list(prefix)) as found:
            async for info in found:
                yield info


def frame(content: bytes) -> bytes:
    return struct.pack(">ii", 0, len(content)) + content


async def publish(store: FilesystemObjectStore, executor: ThreadPoolExecutor) -> None:
    """One segment of as many chunks as it has events."""
    owner = TieredStorage(
        object_store=store,
        store_id=b"benchmark-store!",
        container_id=ContainerId(0),
        container_count=1,
        settings=StorageSettings(chunk_bytes_max=EVENT_BYTES),
        wall_clock=SystemWallClock(),
        random=Random(1),
        executor=executor,
    )
    await owner.claim(epoch=Epoch(1), log_id=b"benchmark")
    runs: list[BufferView] = [frame(bytes(EVENT_BYTES)) for _ in range(CHUNKS)]
    said = [RunEvents(number, number, number) for number in range(CHUNKS)]
    record = SegmentRecord(
        SegmentId(1), SEGMENT, 0, sum(map(len, runs)), False, 0, SequenceNumber(1)
    )
    await owner.publish(
        Publication(
            [SegmentPublication(record, [DataPiece(0, runs, said)])],
            SegmentId(1),
            SequenceNumber(1),
        )
    )
    await owner.close()


async def plan(directory: str, executor: ThreadPoolExecutor) -> Sequence[Row]:
    random = Random(2)
    files = SystemFileSystem()
    owned = FilesystemObjectStore(directory, files=files, executor=executor, random=random)
    await owned.start()
    await publish(owned, executor)
    await owned.close()
    options = parse_options({"tier2": directory, "segment": SEGMENT, "maxBytesPerPartition": "64k"})
    store = CountedStore(directory, files=files, executor=executor, random=random)
    began = time.perf_counter()
    view = Tier2Reader(store=store, executor=executor)
    await view.open()
    source = StreamSource(options=options, view=view, store=None, served=None)
    parts = await plan_scan(source, options, NO_BOUNDS)
    seconds = time.perf_counter() - began
    name = f"planning {CHUNKS} chunks as {len(parts)} ranges"
    return [
        row(f"{name}: wall time", seconds, "s", PLANNING_TARGET_SECONDS),
        row(f"{name}: ranged reads", store.reads, "reads", CHUNKS),
        row(f"{name}: listings", store.listings, "lists", 1),
    ]


def parse(event_bytes: int, columns: Sequence[str]) -> tuple[float, float]:
    """CPU-seconds for PARSED_BYTES, and how many rows that is."""
    event = frame(Random(3).randbytes(event_bytes))
    count = BLOCK_BYTES // len(event)
    content = event * count
    part = BlockRange("bench", "stream", 0, SEGMENT, 0, 0, 1 << 60)
    batches = EventBatchBuilder(part, columns)
    rows = 0
    began = time.process_time()
    for number in range(PARSED_BYTES // BLOCK_BYTES):
        facts = BlockInfo(
            offset=number * len(content),
            first_event_offset=number * len(content),
            event_number=number * count,
            lowest_time_ms=1,
        )
        rows += sum(batch.num_rows for batch in batches.add([Block(facts, content)]))
    return time.process_time() - began, rows


def copy_seconds() -> float:
    """CPU-seconds to copy PARSED_BYTES once, as one copy of the values has to."""
    content = bytes(BLOCK_BYTES)
    began = time.process_time()
    for _ in range(PARSED_BYTES // BLOCK_BYTES):
        bytearray(content)
    return time.process_time() - began


def parsing() -> Sequence[Row]:
    copied = PARSED_BYTES / copy_seconds() / 1e6
    rows: list[Row] = []
    for event_bytes in (100, EVENT_BYTES):
        for what, columns in (("all columns", EVENT_COLUMNS), ("offset only", ("offset",))):
            seconds, count = parse(event_bytes, columns)
            name = f"parsing events of {event_bytes} B, {what}"
            rows.append(
                row(f"{name}: per CPU-second", PARSED_BYTES / seconds / 1e6, "MB/s", copied)
            )
            rows.append(row(f"{name}: per CPU-second", count / seconds / 1e3, "krows/s", 1300.0))
    return rows


def main() -> Sequence[Row]:
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as executor:
        rows = [*asyncio.run(plan(str(Path(directory) / "tier2"), executor)), *parsing()]
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
