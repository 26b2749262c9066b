"""Rows of figures, and containers to measure: real ones, over tiers in memory or on a temporary directory."""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypedDict, TypeVar

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import BLOCK_BYTES_MAX, CacheStorage
from containers.container_settings import ContainerSettings
from containers.ownership import OnlyProcess
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from segmentstore.runtime.process import freeze_long_lived_objects, tune_for_serving
from tier1.file_log.log import FileDurableDataLog
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore
from tier2.format.chunk_format import Compression
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

STORE_ID = b"benchmark-store!"
T = TypeVar("T")


class Row(TypedDict):
    """One measured figure beside what it is held against."""

    name: str
    value: float
    unit: str
    limit: float
    """The peer or limit of the same run, in the same unit (or the target, where there is no peer)."""
    ratio: float
    """value / limit."""


def row(name: str, value: float, unit: str, limit: float) -> Row:
    return Row(
        name=name, value=value, unit=unit, limit=limit, ratio=value / limit if limit else 0.0
    )


def print_rows(rows: Sequence[Row]) -> None:
    for one in rows:
        print(
            f"  {one['name']:<58} {one['value']:>14,.1f} {one['unit']:<8} "
            f"of {one['limit']:>14,.1f}  = {one['ratio']:.2f}"
        )


def resident_bytes() -> int:
    """Memory of this process, from the kernel."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


async def seconds_of_calls(
    count: int, at_once: int, call: Callable[[int], Awaitable[object]]
) -> float:
    """What `count` calls take together: so many callers take the next number each, and call with it."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(caller())
    return time.perf_counter() - begin


async def answers_in_order(
    submitted: Iterable[asyncio.Future[T]], in_flight: int
) -> AsyncGenerator[T, None]:
    """What is submitted one after the other by going on with `submitted`, so many of them open at a time."""
    waiting: deque[asyncio.Future[T]] = deque()
    for future in submitted:
        waiting.append(future)
        if len(waiting) >= in_flight:
            yield await waiting.popleft()
    while waiting:
        yield await waiting.popleft()


class CountingFiles(SystemFileSystem):
    """The system's files, counting syncs: so many groups did the log make of its appends."""

    def __init__(self) -> None:
        self.syncs = 0

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        return CountingFile(super().open(path, create=create, exclusive=exclusive).release(), self)


class CountingFile(SystemFile):
    """One of them."""

    def __init__(self, descriptor: int, files: CountingFiles) -> None:
        super().__init__(descriptor)
        self._files = files

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._files.syncs += 1
        super().write_synced(offset, buffers)

    def sync_data(self) -> None:
        self._files.syncs += 1
        super().sync_data()


class Tiers:
    """Where a container's log and objects live; they outlive the container, not the benchmark."""

    def __init__(self, *, log_on_disk: bool, objects_on_disk: bool) -> None:
        self.directory = tempfile.mkdtemp(prefix="segmentstore-bench-")
        self.executor = ThreadPoolExecutor(max_workers=6)
        self.log_files = CountingFiles()
        self._log_on_disk = log_on_disk
        self._log_store = MemoryLogStore(log_id=b"benchmark-log-id")
        self._objects: ObjectStore
        if objects_on_disk:
            self._objects = FilesystemObjectStore(
                str(Path(self.directory) / "tier2"),
                files=SystemFileSystem(),
                executor=self.executor,
                random=Random(1),
            )
        else:
            self._objects = MemoryObjectStore()

    def log(self) -> DurableDataLog:
        if not self._log_on_disk:
            return MemoryDurableDataLog(self._log_store)
        return FileDurableDataLog(
            str(Path(self.directory) / "tier1"),
            files=self.log_files,
            executor=self.executor,
            random=Random(2),
        )

    def storage(
        self, compression: Compression, objects: ObjectStore | None = None
    ) -> TieredStorage:
        return TieredStorage(
            object_store=objects or self._objects,
            store_id=STORE_ID,
            container_id=ContainerId(0),
            container_count=1,
            settings=StorageSettings(compression=compression),
            wall_clock=SystemWallClock(),
            random=Random(3),
            executor=self.executor,
        )

    @property
    def objects(self) -> ObjectStore:
        return self._objects

    def remove(self) -> None:
        self.executor.shutdown()
        shutil.rmtree(self.directory, ignore_errors=True)


@asynccontextmanager
async def tiers(
    *, log_on_disk: bool = False, objects_on_disk: bool = False
) -> AsyncIterator[Tiers]:
    made = Tiers(log_on_disk=log_on_disk, objects_on_disk=objects_on_disk)
    if isinstance(made.objects, FilesystemObjectStore):
        await made.objects.start()
    try:
        yield made
    finally:
        await made.objects.close()
        made.remove()


def make_container(
    on: Tiers,
    *,
    cache_bytes: int,
    settings: ContainerSettings | None = None,
    compression: Compression = Compression.LZ4,
    objects: ObjectStore | None = None,
) -> tuple[StreamSegmentContainer, CacheStorage]:
    cache_storage = CacheStorage(budget_bytes=cache_bytes)
    container = StreamSegmentContainer(
        container_id=ContainerId(0),
        log=on.log(),
        storage=on.storage(compression, objects),
        cache=CacheManager(storage=cache_storage),
        wall_clock=SystemWallClock(),
        random=Random(4),
        executor=on.executor,
        settings=settings or ContainerSettings(),
        lease=OnlyProcess(),
    )
    return container, cache_storage


def _touch(cache: CacheStorage) -> None:
    """Have all of its memory made: what the first round would pay for is no part of what is measured."""
    blocks = [cache.allocate(BLOCK_BYTES_MAX) for _ in range(cache.budget_bytes // BLOCK_BYTES_MAX)]
    for block in blocks:
        cache.free(block)


@asynccontextmanager
async def running(
    on: Tiers,
    *,
    cache_bytes: int = 512 << 20,
    touch: bool = True,
    settings: ContainerSettings | None = None,
    compression: Compression = Compression.LZ4,
    objects: ObjectStore | None = None,
) -> AsyncIterator[StreamSegmentContainer]:
    container, cache_storage = make_container(
        on, cache_bytes=cache_bytes, settings=settings, compression=compression, objects=objects
    )
    if touch:
        _touch(cache_storage)
    tune_for_serving()
    await container.start()
    freeze_long_lived_objects()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(container.run())
        try:
            yield container
        finally:
            await container.close()


@asynccontextmanager
async def segments(
    container: StreamSegmentContainer, count: int
) -> AsyncIterator[list[SegmentHandle]]:
    """`count` new segments, held open."""
    async with AsyncExitStack() as stack:
        handles: list[SegmentHandle] = []
        taken = len(await container.list_segments(limit=1_000_000))
        for number in range(count):
            name = f"bench/{taken + number:06}"
            await container.create(name)
            handles.append(await stack.enter_async_context(container.open_segment(name)))
        yield handles


def without_flush() -> ContainerSettings:
    """A container that keeps everything in its log and cache."""
    settings = ContainerSettings()
    return replace(
        settings,
        writer=replace(
            settings.writer,
            flush_interval_seconds=1e9,
            prompt_age_seconds=1e9,
            flush_bytes=1 << 60,
            publication_bytes_max=1 << 60,
        ),
        throttler=replace(
            settings.throttler,
            cache_begin_fraction=0.97,
            cache_stop_fraction=0.98,
            items_begin=1 << 40,
            items_stop=1 << 41,
            log_bytes_begin=1 << 50,
            log_bytes_stop=1 << 51,
        ),
    )
