"""100,000 segments in one container, and 25,000 un-flushed one-byte segments in a 256 MB budget.

What must hold: active segments and memory stay bounded, creating and the first read after eviction work, a restart
takes under 10 s, and writers are not stopped for ever by bytes that occupy more than they are.
"""

import asyncio
import gc
import time
from contextlib import aclosing
from dataclasses import replace

from benchmarks.workbench import (
    Row,
    make_container,
    print_rows,
    resident_bytes,
    row,
    running,
    seconds_of_calls,
    tiers,
    without_flush,
)
from containers.container_settings import ContainerSettings

CREATORS = 200
CACHE_BYTES = 256 << 20


async def create_all(count: int) -> list[Row]:
    gc.collect()
    before = resident_bytes()
    async with tiers(log_on_disk=True, objects_on_disk=True) as on:
        peak_active = 0
        async with running(on, cache_bytes=CACHE_BYTES, touch=False) as container:

            async def create(number: int) -> None:
                nonlocal peak_active
                name = f"many/{number:06}"
                await container.create(name)
                async with container.open_segment(name) as segment:
                    await segment.append(b"%06d" % number)
                peak_active = max(peak_active, container.health().active_segments)

            seconds = await seconds_of_calls(count, CREATORS, create)
            await container.flush()
            for number in range(0, count, count // 100):
                async with container.open_segment(f"many/{number:06}") as segment:
                    async with aclosing(segment.read(0, 6)) as entries:
                        content = await (await anext(aiter(entries))).content()
                assert content == b"%06d" % number, (number, content)
            grown = resident_bytes() - before
        again, _ = make_container(on, cache_bytes=CACHE_BYTES)
        begin = time.perf_counter()
        await again.start()
        restart = time.perf_counter() - begin
        await again.close()
    limit = ContainerSettings().mapper.active_segments_max
    return [
        row(f"creating and first append of {count:,} segments", count / seconds, "/s", 1.0),
        row("most active segments at a time, limit", peak_active, "", limit),
        row("memory grown, limit budget + 300 MB", grown / 1e6, "MB", (CACHE_BYTES + 300e6) / 1e6),
        row("restart, limit 10 s", restart, "s", 10.0),
    ]


async def one_byte_each(count: int) -> list[Row]:
    settings = without_flush()
    settings = replace(settings, mapper=replace(settings.mapper, active_segments_max=count + 10))
    async with (
        tiers() as on,
        running(on, cache_bytes=CACHE_BYTES, touch=False, settings=settings) as container,
    ):

        async def create(number: int) -> None:
            await container.create(f"tiny/{number:06}")
            async with container.open_segment(f"tiny/{number:06}") as segment:
                await segment.append(b"x")

        await seconds_of_calls(count, CREATORS, create)
        occupied = container.health().unflushed_bytes
        async with container.open_segment("tiny/000000") as segment:
            assert await segment.append(b"y") == 2
    return [
        row(
            f"cache held by {count:,} un-flushed one-byte segments",
            occupied / 1e6,
            "MB",
            CACHE_BYTES / 1e6,
        )
    ]


def main(count: int = 100_000) -> list[Row]:
    rows = asyncio.run(create_all(count)) + asyncio.run(one_byte_each(25_000))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
