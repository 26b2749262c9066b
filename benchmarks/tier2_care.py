"""What the care of Tier 2 costs: requests and dollars, an idle hour, recovery per GB, compaction beside appends.

Requests are counted at the door of the object store and priced as S3 Standard bills them. Each limit is a target, but
for the append latency: there it is the same run without compaction.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.append import latency
from benchmarks.tier2 import publication
from benchmarks.workbench import STORE_ID, Row, Tiers, print_rows, row, running, segments, tiers
from segmentstore.contracts.identifiers import BufferView, ContainerId, Epoch, SegmentId
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from segmentstore.contracts.storage import DataPiece
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.runtime.thread_pool import FairThreadPool
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.s3.settings import RequestPrices
from tier2.offline.container_copy import copy_container
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.opening import OpenEngine, open_engine
from tier2.volumes.settings import VolumeSettings

MEBIBYTE = 1 << 20
SMALL_SEGMENTS = 10_000
SMALL_BYTES = 1 << 10
LARGE_BYTES = 1 << 30
ROUND_BYTES = 64 * MEBIBYTE
IDLE_LOOKS = 360
"""Rounds of maintenance in an hour: one every ten seconds."""
CARED_SEGMENTS = 32
CARED_CHUNKS = 24
CARED_BYTES = 256 << 10
DISTANT_BYTES_MIN = 2 << 30
VOLUME_OBJECTS = 60_000
VOLUME_OBJECT_BYTES = 1000
VOLUME_BYTES = 8 << 20
CALLERS = 256
APPENDS_PER_SECOND = 2_000
SECONDS = 6.0
DOLLARS_SMALL_TARGET = 0.0001
DOLLARS_LARGE_TARGET = 0.001
RECOVERY_TARGET = 100.0
TIER2_THREADS = 4
TIER2_NICENESS = 10
"""Both as in the service."""


class BilledObjectStore:
    """An object store that counts what would be billed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests: Counter[str] = Counter()

    @property
    def dollars(self) -> float:
        prices = RequestPrices()
        return (
            self.requests["write"] * prices.write_usd
            + self.requests["read"] * prices.read_usd
            + self.requests["delete"] * prices.delete_usd
        )

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.requests["write"] += 1
        await self._store.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self.requests["write"] += 1
        return await self._store.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        self.requests["write"] += 1
        return await self._store.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        self.requests["read"] += 1
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.requests["read"] += 1
        return await self._store.get_range(key, start, length)

    async def size(self, key: str) -> int:
        self.requests["read"] += 1
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        await self._store.delete(key)

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        self.requests["write"] += 1  # a listing is billed as a put
        return self._store.list(prefix)

    async def close(self) -> None:
        await self._store.close()


async def claimed(
    store: ObjectStore, executor: Executor, settings: StorageSettings, *, epoch: int = 1
) -> TieredStorage:
    storage = TieredStorage(
        object_store=store,
        store_id=STORE_ID,
        container_id=ContainerId(0),
        container_count=1,
        settings=settings,
        wall_clock=SystemWallClock(),
        random=Random(epoch),
        executor=executor,
    )
    await storage.claim(epoch=Epoch(epoch), log_id=b"benchmark-log-id")
    return storage


async def small_segments(executor: ThreadPoolExecutor) -> list[Row]:
    """One flush of many small segments, and then an hour in which nothing happens."""
    store = BilledObjectStore(MemoryObjectStore())
    settings = replace(StorageSettings(), garbage_grace_seconds=0.0, cold_seconds=0.0)
    storage = await claimed(store, executor, settings)
    store.requests.clear()
    random = Random(5)
    changes = [
        (n, f"scope/stream/{n}", 0, DataPiece(0, [random.randbytes(SMALL_BYTES)]))
        for n in range(1, SMALL_SEGMENTS + 1)
    ]
    await storage.publish(publication(changes, 1))
    puts, dollars = store.requests["write"], store.dollars
    while await storage.maintain() or await storage.collect_garbage():
        pass
    store.requests.clear()
    for _ in range(IDLE_LOOKS):
        await storage.maintain()
        await storage.collect_garbage()
        await storage.scrub(lambda *_: None)
    idle = store.requests.total()
    return [
        row("flush of 10,000 segments of 1 KB", puts, "puts", 10),
        row("the same in S3 requests", dollars * 1e6, "USD/1e6", DOLLARS_SMALL_TARGET * 1e6),
        row("an idle hour afterwards", idle, "requests", 0),
    ]


async def large_segment(executor: ThreadPoolExecutor) -> list[Row]:
    """A gigabyte into one segment, and its way back from Tier 2 alone."""
    store = BilledObjectStore(MemoryObjectStore())
    storage = await claimed(store, executor, StorageSettings())
    store.requests.clear()
    block = os.urandom(MEBIBYTE)
    for number in range(LARGE_BYTES // ROUND_BYTES):
        length = number * ROUND_BYTES
        piece = DataPiece(length, [block] * (ROUND_BYTES // MEBIBYTE))
        await storage.publish(publication([(1, "scope/stream/0", length, piece)], number + 1))
        if number % 16 == 15:
            await storage.maintain()
    puts, dollars = store.requests["write"], store.dollars
    reader = ContainerReader(
        object_store=store,
        container_id=ContainerId(0),
        settings=StorageSettings(),
        executor=executor,
    )
    await reader.refresh()
    with tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory:
        target = FilesystemObjectStore(
            str(Path(directory) / "tier2"),
            files=SystemFileSystem(),
            executor=executor,
            random=Random(1),
        )
        await target.start()
        begin = time.perf_counter()
        report = await copy_container(reader.manifest, reader.components, target)
        rate = report.bytes_copied / (time.perf_counter() - begin)
        await target.close()
    begin = time.perf_counter()
    again = await claimed(store, executor, StorageSettings(), epoch=2)
    assert (await again.load([SegmentId(1)]))[SegmentId(1)].length == LARGE_BYTES
    seconds = time.perf_counter() - begin
    return [
        row("1 GiB into one segment", puts, "puts", 64),
        row("the same in S3 requests", dollars * 1e6, "USD/1e6", DOLLARS_LARGE_TARGET * 1e6),
        row("recovery by copy, to synced files", rate / MEBIBYTE, "MiB/s", RECOVERY_TARGET),
        row("recovery in place, of 1 GiB", seconds * 1000, "ms", 1000),
    ]


@contextmanager
def tier2_threads() -> Iterator[Executor]:
    """Behind those of the log, as in the service."""
    threads = FairThreadPool(thread_count=TIER2_THREADS, name="tier2", niceness=TIER2_NICENESS)
    try:
        yield threads.lane()
    finally:
        threads.close()


def distant_directory() -> str | None:
    """For a store that is no part of the process: in memory if there is enough, else on the disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free >= DISTANT_BYTES_MIN:
        return str(memory)
    return None


async def in_pieces(store: ObjectStore, executor: Executor, *, epoch: int) -> TieredStorage:
    """A Tier 2 of many small chunks, with compaction as fast as it goes."""
    settings = replace(
        StorageSettings(),
        compaction_chunks_min=CARED_CHUNKS,
        garbage_grace_seconds=0.0,
    )
    storage = await claimed(store, executor, settings, epoch=epoch)
    content = os.urandom(CARED_BYTES)
    for number in range(CARED_CHUNKS):
        length = number * CARED_BYTES
        changes = [
            (n, f"s/{n}", length, DataPiece(length, [content]))
            for n in range(1, CARED_SEGMENTS + 1)
        ]
        await storage.publish(publication(changes, number + 1))
    return storage


@asynccontextmanager
async def distant_pieces(executor: Executor) -> AsyncIterator[TieredStorage]:
    with tempfile.TemporaryDirectory(
        prefix="segmentstore-bench-", dir=distant_directory()
    ) as directory:
        store = FilesystemObjectStore(
            directory, files=SystemFileSystem(), executor=executor, random=Random(1)
        )
        await store.start()
        try:
            yield await in_pieces(store, executor, epoch=1)
        finally:
            await store.close()


async def beside_appends(threads: Executor) -> list[Row]:
    """p99 of appends while a compaction works in the same process, against the same without.

    Its objects are reached by system calls, as they always are: a MemoryObjectStore would copy 6 MB at a time on the
    loop, and that would be the largest part of what is measured.
    """
    async with AsyncExitStack() as stack:
        storages = [await stack.enter_async_context(distant_pieces(threads)) for _ in range(2)]
        return await joined_beside_appends(storages)


async def joined_beside_appends(storages: Sequence[TieredStorage]) -> list[Row]:
    async with (
        tiers(log_on_disk=True) as on,
        running(on, touch=False) as container,
        segments(container, 1) as handles,
    ):
        await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=3.0)
        _, alone = await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=SECONDS)

        async def compact() -> None:
            for storage in storages:
                while True:
                    await storage.maintain()
                    await storage.collect_garbage()
                    if storage.statistics().joined_chunks >= CARED_SEGMENTS * CARED_CHUNKS:
                        break
                    await asyncio.sleep(0.2)

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            compacting = group.create_task(compact())
            _, beside = await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=SECONDS)
            compacting.cancel()
        seconds = time.perf_counter() - begin
        joined = sum(storage.statistics().joined_bytes for storage in storages)
    return [
        row("compaction beside appends", joined / seconds / MEBIBYTE, "MiB/s", 16),
        row("p99 of appends beside compaction", beside, "ms", alone),
    ]


async def opened_volumes(
    on: Tiers, executor: Executor, *, compaction_interval_seconds: float
) -> OpenEngine:
    return await open_engine(
        str(Path(on.directory) / "volumes"),
        files=SystemFileSystem(),
        open_index=LmdbIndex,
        executor=executor,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=replace(
            VolumeSettings(),
            volume_bytes_max=VOLUME_BYTES,
            compaction_interval_seconds=compaction_interval_seconds,
        ),
    )


async def half_deleted_volumes(on: Tiers, executor: Executor) -> None:
    """Small objects, which cost compaction the most for their bytes."""
    store = await opened_volumes(on, executor, compaction_interval_seconds=1e9)
    rest = os.urandom(VOLUME_OBJECT_BYTES - 16)

    async def put_some(first: int) -> None:
        for number in range(first, VOLUME_OBJECTS, CALLERS):
            await store.engine.put(b"key/%09d" % number, [number.to_bytes(16, "big"), rest])

    async def delete_some(first: int) -> None:
        for number in range(2 * first, VOLUME_OBJECTS, 2 * CALLERS):
            await store.engine.delete(b"key/%09d" % number)

    for verb in (put_some, delete_some):
        async with asyncio.TaskGroup() as group:
            for first in range(CALLERS):
                group.create_task(verb(first))
    await store.close()


async def volumes_beside_appends(threads: Executor) -> list[Row]:
    """The same while the volumes are compacted, at the pace that they take by themselves."""
    async with (
        tiers(log_on_disk=True) as on,
        running(on, touch=False) as container,
        segments(container, 1) as handles,
    ):
        await half_deleted_volumes(on, threads)
        files = Path(on.directory) / "volumes" / "volumes"
        before = {path.name: path.stat().st_size for path in files.iterdir()}
        await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=3.0)
        _, alone = await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=SECONDS)
        store = await opened_volumes(on, threads, compaction_interval_seconds=0.1)
        _, beside = await latency(handles[0], per_second=APPENDS_PER_SECOND, seconds=SECONDS)
        after = {path.name for path in files.iterdir()}
        removed = sum(size for name, size in before.items() if name not in after)
        await store.close()
    return [
        row("volumes removed by compaction beside appends", removed / SECONDS / 1e6, "MB/s", 1),
        row("p99 of appends beside compaction of volumes", beside, "ms", alone),
    ]


async def measure() -> list[Row]:
    with ThreadPoolExecutor(max_workers=4) as executor, tier2_threads() as threads:
        return [
            *await small_segments(executor),
            *await large_segment(executor),
            *await beside_appends(threads),
            *await volumes_beside_appends(threads),
        ]


def main() -> list[Row]:
    rows = asyncio.run(measure())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
