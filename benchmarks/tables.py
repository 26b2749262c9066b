"""A large table inside one container on one core: rates of gets and puts, memory, and how long a restart takes.

Loading writes a million keys through batches; then single keys are got and put with a bounded number in flight, among
a few hot ones (their index and bytes in memory) and among all of them (mostly neither). Both tiers are on a temporary
directory, so the growth of memory is the container's. Targets leave room for the wire, with 200 in flight.
"""

import asyncio
import gc
import sys
import time
from random import Random

from benchmarks.workbench import Row, print_rows, resident_bytes, row, running, tiers
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.tables import Table, TableEntry

KEYS = 1_000_000
IN_FLIGHT = 200
TABLE = "scope/table"


def key_of(number: int) -> bytes:
    return b"key-%012d" % number


async def load(table: Table, count: int) -> float:
    """Entries per second, a thousand a batch."""
    begin = time.perf_counter()
    waiting: list[asyncio.Future[object]] = []
    for first in range(0, count, 1000):
        entries = [TableEntry(key_of(n), b"v" * 64) for n in range(first, min(first + 1000, count))]
        waiting.append(asyncio.ensure_future(table.update(entries)))
        if len(waiting) >= 8:
            await waiting.pop(0)
    await asyncio.gather(*waiting)
    return count / (time.perf_counter() - begin)


async def get_rate(table: Table, keys: list[bytes]) -> float:
    """Gets per second, one key each, so many at a time."""

    async def reader(some: list[bytes]) -> None:
        for number, key in enumerate(some):
            found = table.get_nowait([key])
            if found is None:
                found = await table.get([key])
            assert found[0] is not None, f"key is missing {key!r}"
            if number % 50 == 0:
                await asyncio.sleep(0)

    begin = time.perf_counter()
    await asyncio.gather(*(reader(keys[first::IN_FLIGHT]) for first in range(IN_FLIGHT)))
    return len(keys) / (time.perf_counter() - begin)


async def put_rate(table: Table, keys: list[bytes]) -> float:
    """Puts per second, one key each, so many at a time."""

    async def writer(some: list[bytes]) -> None:
        for key in some:
            await table.update([TableEntry(key, b"w" * 64)])

    begin = time.perf_counter()
    await asyncio.gather(*(writer(keys[first::IN_FLIGHT]) for first in range(IN_FLIGHT)))
    return len(keys) / (time.perf_counter() - begin)


async def measure(count: int) -> list[Row]:
    random = Random(1)
    rows: list[Row] = []
    hot = [key_of(n) for n in random.sample(range(count), min(count, 2_000))]
    everywhere = [key_of(random.randrange(count)) for _ in range(20_000)]
    async with tiers(log_on_disk=True, objects_on_disk=True) as places:
        async with running(places) as container:
            await container.create_table(TABLE)
            async with container.open_table(TABLE) as table:
                gc.collect()
                before = resident_bytes()
                rows.append(row("load, batches of 1000", await load(table, count), "keys/s", 1e5))
                await container.flush()
                await asyncio.sleep(1.0)
                rows.append(row("attributes held", _held(container) / 2**20, "MiB", 32.0))
                rows.append(
                    row("growth of memory", (resident_bytes() - before) / 2**20, "MiB", 512)
                )
                await get_rate(table, hot)
                rows.append(row("gets, hot keys", await get_rate(table, hot * 20), "keys/s", 1e5))
                rows.append(row("gets, any key", await get_rate(table, everywhere), "keys/s", 1e4))
                rows.append(row("puts, hot keys", await put_rate(table, hot * 10), "keys/s", 25e3))
                rows.append(row("puts, any key", await put_rate(table, everywhere), "keys/s", 1e4))
                assert table.info().entry_count == count, table.info()
            await container.flush()
            await asyncio.sleep(
                2.0
            )  # for the checkpoint of an idle container, and the end of its log
        begin = time.perf_counter()
        async with running(places) as container:
            rows.append(row("restart", time.perf_counter() - begin, "s", 5.0))
            await asyncio.sleep(0.1)
            async with container.open_table(TABLE) as table:
                gets = container.metrics()["tier2_get_bytes_total"]
                await table.get(everywhere[:1])
                fetched = container.metrics()["tier2_get_bytes_total"] - gets
                rows.append(row("read for the first key", fetched / 2**20, "MiB", 4.0))
                assert table.info().entry_count == count, table.info()
    return rows


def _held(container: StreamSegmentContainer) -> int:
    return container.container_metadata.attribute_ledger.held_bytes


def main() -> list[Row]:
    count = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else KEYS
    rows = asyncio.run(measure(count))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
