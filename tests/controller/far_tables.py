"""Tables on other nodes: a look takes a while, and a change, which waits for the log, takes longer."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from segmentstore.contracts.tables import Table, TableEntry
from tests.reference.memory_tables import MemoryTable, MemoryTables


class FarTable(MemoryTable):
    """One open table."""

    def __init__(self, store: "FarTables", table: MemoryTable) -> None:
        super().__init__(store, table._state)
        self._random = store.random

    def get_nowait(self, keys: Sequence[bytes]) -> None:
        return None

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        await turns(self._random.randint(1, 8))
        found = await super().get(keys)
        await turns(self._random.randint(1, 4))
        return found

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        async def later() -> Sequence[int]:
            await turns(self._random.randint(4, 20))
            return await super(FarTable, self).update(entries, offset=offset)

        return asyncio.ensure_future(later())


class FarTables(MemoryTables):
    """Tables of one store; how far they are differs from call to call."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        async with super()._open(name) as table:
            assert isinstance(table, MemoryTable)
            yield FarTable(self, table)


async def turns(count: int) -> None:
    """So many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
