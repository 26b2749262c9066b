"""Keepers of key-value tables."""

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import table_segment
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry
from tests.controller.random_runs.keeper import Keeper
from tests.controller.random_runs.random_world import RandomHost
from tests.controller.random_runs.stream_model import Stage
from tests.controller.random_runs.theatre import SCOPE, Theatre


class TableKeeper(Keeper):
    """One key-value table: created, filled, read, deleted. Nobody else writes to it."""

    def __init__(self, theatre: Theatre, table: str) -> None:
        super().__init__(theatre, f"keeper of table {table}")
        self.table = table
        self._partitions = 1
        self._segments: list[str] = []
        """Those of the table that exists now."""
        self._former: list[str] = []
        """Those of the table before it: clients that still know them must not find them again."""
        self._rows: dict[bytes, set[bytes | None]] = {}
        """Key -> values that it may have."""
        self._count = 0
        self._unsure = False

    async def step(self) -> None:
        if self._stage in (Stage.ABSENT, Stage.CREATING):
            await self._create()
        elif self._stage is Stage.DELETING:
            await self.delete()
        elif self.random.random() < 0.4:
            await self.look()
        elif self.random.random() < 0.85:
            await self._put()
        elif not self.theatre.calm:
            await self.delete()

    async def _create(self) -> None:
        if self._stage is Stage.ABSENT:
            self._partitions = self.random.choice((1, 2, 4))
            self._rows = {}
            self._unsure = False
        self._stage = Stage.CREATING
        self.theatre.tables.of(self.table).say(None, self.ledger.tick())
        config = api.KeyValueTableConfig(
            scope=SCOPE, kvtName=self.table, partitionCount=self._partitions, primaryKeyLength=3
        )
        unsure, self._unsure = self._unsure, True
        answer = await self.world.call("createKeyValueTable", config, api.CreateKeyValueTableStatus)
        status = api.CreateKeyValueTableStatus.Status
        if answer.status != status.SUCCESS and not (
            unsure and answer.status == status.TABLE_EXISTS
        ):
            raise self.breach(f"create: {answer}")
        info = api.KeyValueTableInfo(scope=SCOPE, kvtName=self.table)
        ranges = await self.world.call("getCurrentSegmentsKeyValueTable", info, api.SegmentRanges)
        self._segments = [
            table_segment(SCOPE, self.table, number=each.segmentId.segmentId)
            for each in ranges.segmentRanges
        ]
        if len(self._segments) != self._partitions:
            raise self.breach(f"other partitions: {self._segments}")
        if again := set(self._segments) & set(self._former):
            raise self.breach(f"names of the table before it are used again: {again}")
        self._stage = Stage.ACTIVE
        self.theatre.tables.of(self.table).say(True, self.ledger.tick())

    def _segment(self, key: bytes) -> str:
        return self._segments[key[-1] % self._partitions]

    async def _put(self) -> None:
        key = b"k%02d" % self.random.randrange(6)
        self._count += 1
        value = b"%d" % self._count
        before = self._rows.get(key, {None})
        self._rows[key] = before | {value}
        name = self._segment(key)
        new = before == {None}
        try:
            await self.world.ask(lambda host: _put(host, name, key, value, new=new))
        except SegmentNotFoundError as error:
            raise self.breach("a partition is lost", error) from error
        self._rows[key] = {value}

    async def look(self) -> None:
        """Everything in it."""
        found: dict[bytes, bytes] = {}
        for name in self._segments:
            try:
                found |= await self.world.ask(lambda host, name=name: _rows(host, name))  # type: ignore[misc]
            except SegmentNotFoundError as error:
                raise self.breach("a partition is lost", error) from error
        for key in self._rows.keys() | found.keys():
            if found.get(key) not in self._rows.get(key, {None}):
                raise self.breach(f"{key!r} is {found.get(key)!r}, not {self._rows.get(key)}")

    async def delete(self) -> None:
        again = self._stage is Stage.DELETING
        self._stage = Stage.DELETING
        self.theatre.tables.of(self.table).say(None, self.ledger.tick())
        info = api.KeyValueTableInfo(scope=SCOPE, kvtName=self.table)
        answer = await self.world.call("deleteKeyValueTable", info, api.DeleteKVTableStatus)
        status = api.DeleteKVTableStatus.Status
        if answer.status != status.SUCCESS and not again:
            raise self.breach(f"delete: {answer}")
        self._stage = Stage.ABSENT
        self._former = self._segments
        self.theatre.tables.of(self.table).say(False, self.ledger.tick())


async def _put(host: RandomHost, name: str, key: bytes, value: bytes, *, new: bool) -> None:
    async with host.segments.open_table(name) as table:
        entry = TableEntry(key, value, NOT_EXISTS) if new else TableEntry(key, value)
        await table.update([entry])


async def _rows(host: RandomHost, name: str) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    async with host.segments.open_table(name) as table:
        token = b""
        while True:
            page = await table.read_entries(count=2, token=token)
            rows |= {entry.key: entry.value for entry in page.entries}
            token = page.token
            if not token:
                return rows
