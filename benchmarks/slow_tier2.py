"""4 GB written while Tier 2 takes 20 MB/s, with a cache budget of 256 MB: a matter of minutes.

What must hold: resident memory stays below the budget + 300 MB, writers are slowed and none fails, and reads go on.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from benchmarks.workbench import Row, print_rows, resident_bytes, row, running, segments, tiers
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from tier2.format.chunk_format import Compression

CACHE_BYTES = 256 << 20
BYTES_PER_SECOND = 20e6
PIECE = 64 * 1024


class SlowObjectStore:
    """An object store behind a slow line; everything else is the real one's."""

    def __init__(self, inner: ObjectStore, *, bytes_per_second: float) -> None:
        self._inner = inner
        self._bytes_per_second = bytes_per_second
        self._line = asyncio.Lock()

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        length = sum(len(part) for part in content)
        async with self._line:
            await asyncio.sleep(length / self._bytes_per_second)
        await self._inner.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._inner.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        return await self._inner.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get_range(key, start, length)

    async def size(self, key: str) -> int:
        return await self._inner.size(key)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        return self._inner.list(prefix)

    async def close(self) -> None:
        await self._inner.close()


async def run(total_bytes: int) -> list[Row]:
    piece = os.urandom(PIECE)
    resident: list[int] = []
    slowest_read = 0.0
    reads = 0
    async with tiers(log_on_disk=True, objects_on_disk=True) as on:
        slow = SlowObjectStore(on.objects, bytes_per_second=BYTES_PER_SECOND)
        before = resident_bytes()
        async with (
            running(
                on, cache_bytes=CACHE_BYTES, touch=False, objects=slow, compression=Compression.NONE
            ) as container,
            segments(container, 8) as handles,
        ):
            written = 0
            begin = time.perf_counter()

            async def write(lane: int) -> None:
                nonlocal written
                while written < total_bytes:
                    written += PIECE * 4
                    futures = [handles[lane].append(piece) for _ in range(4)]
                    for future in futures:
                        await future

            async def watch() -> None:
                nonlocal slowest_read, reads
                while True:
                    await asyncio.sleep(0.5)
                    resident.append(resident_bytes())
                    started = time.perf_counter()
                    offset = max(0, handles[reads % 8].info().length // 2)
                    async with aclosing(handles[reads % 8].read(offset, 1000)) as entries:
                        await (await anext(aiter(entries))).content()
                    slowest_read = max(slowest_read, time.perf_counter() - started)
                    reads += 1

            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(watch())
                async with asyncio.TaskGroup() as writers:
                    for lane in range(8):
                        writers.create_task(write(lane))
                watcher.cancel()
            seconds = time.perf_counter() - begin
            throttled = container.health().throttle
    print(
        f"  written {written / 1e9:.2f} GB in {seconds:.0f} s, last throttle reason {throttled!r}, {reads} reads"
    )
    return [
        row(
            "slow Tier 2: peak resident memory, limit budget + 300 MB",
            (max(resident) - before) / 1e6,
            "MB",
            (CACHE_BYTES + 300e6) / 1e6,
        ),
        row(
            "slow Tier 2: rate of the writers beside Tier 2's",
            written / seconds / 1e6,
            "MB/s",
            BYTES_PER_SECOND / 1e6,
        ),
        row("slow Tier 2: slowest read meanwhile", slowest_read, "s", 1.0),
    ]


def main(total_bytes: int = 4_000_000_000) -> list[Row]:
    rows = asyncio.run(run(total_bytes))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
