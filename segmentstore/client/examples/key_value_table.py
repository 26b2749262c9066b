"""A counter that many tasks increase at once without losing a step: optimistic updates by version."""

# ruff: noqa: T201 (an example shows what it does)

import asyncio
import sys
from contextlib import aclosing, suppress

from segmentstore.client import Table, connect
from segmentstore.client.errors import AlreadyExistsError, TableConditionError

_KEY = b"counter1"


async def _increase(table: Table) -> None:
    while True:
        entry = await table.get(_KEY)
        assert entry is not None, "the counter exists"
        try:
            await table.replace(_KEY, b"%d" % (int(entry.value) + 1), version=entry.version)
        except TableConditionError:
            continue  # another process was faster: look again
        return


async def main(controller: str) -> None:
    """Ten tasks, one counter."""
    async with connect(controller) as store:
        table = store.table("examples/counters")
        with suppress(AlreadyExistsError):
            await store.scope("examples").create()
        with suppress(AlreadyExistsError):
            await table.create(key_length=8)
        await table.put(_KEY, b"0")
        await asyncio.gather(*(_increase(table) for _ in range(10)))
        async with aclosing(table.entries()) as entries:
            async for entry in entries:
                print(entry.key.decode(), "=", entry.value.decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090"))
