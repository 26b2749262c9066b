"""Where everything that the controller knows stands: one table of scopes, and one table per scope.

    _system/_tables/scopes                    record `scope/<scope>` per scope; indexes `scopes`, `pending`;
                                              what deleted scopes have used up
    _system/_tables/<scope>/<incarnation>     everything of the scope: streams, groups, tables, transactions

Invariants:

- All records of a stream stand in one table, so a transition of a stream is one atomic batch.
- The table of a scope exists before the scope does, and goes before the name is free again.
"""

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import ScopeRecord, ScopeState
from segmentstore.contracts.errors import SegmentExistsError
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.errors import RetryLaterError, ScopeNotFoundError
from segmentstore.controller.metadata.batch import RecordKey
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.metadata.ownership_proof import note_read

SCOPES_INDEX = "scopes"
"""In the table of scopes: every scope that exists."""
PENDING_INDEX = "pending"
"""In the table of scopes: scopes that are being deleted. In a scope's table: streams with an unfinished operation."""


def scope_key(scope: str) -> RecordKey[ScopeRecord]:
    """Where the record of a scope stands, in the table of scopes."""
    return RecordKey(record_keys.scope(scope), ScopeRecord.decode)


def deleted_scopes_key(scope: str) -> RecordKey[ScopeRecord]:
    """What deleted scopes have used up whose names share a hash with this one, in the table of scopes."""
    return RecordKey(record_keys.deleted_scopes(scope), ScopeRecord.decode)


class MetadataStore:
    """The tables of the controller."""

    def __init__(self, *, tables: TableApi) -> None:
        self._tables = tables
        self._scopes = MetadataTable(tables=tables, name=record_keys.SCOPES_TABLE)
        self._opened: dict[str, MetadataTable] = {}

    @property
    def scopes(self) -> MetadataTable:
        """The table of scopes."""
        return self._scopes

    async def start(self) -> None:
        """Create the table of scopes if this store never had a controller."""
        await self._create(record_keys.SCOPES_TABLE)

    def table_names(self) -> list[str]:
        """The tables that were asked for so far, of scopes that are not known to be gone."""
        return [self._scopes.name, *(table.name for table in self._opened.values())]

    def require_settled(self) -> None:
        """Raises RetryLaterError while a batch is under way whose caller has left."""
        for table in [self._scopes, *self._opened.values()]:
            table.require_settled()

    async def scope_table(self, scope: str) -> MetadataTable:
        """The table of an existing scope. Raises ScopeNotFoundError, RetryLaterError (it is being deleted)."""
        record = (await self._scopes.peek(scope_key(scope))).record
        if record is None or record.state is ScopeState.DELETED:
            note_read(self._scopes.proof)
            self._opened.pop(scope, None)
            raise ScopeNotFoundError(scope)
        if record.state is ScopeState.DELETING:
            raise RetryLaterError(f"scope is being deleted scope={scope!r}")
        table = self.table_of(scope, record.incarnation)
        # It goes before the scope does: a process that can write to it knows that there is this scope.
        note_read(table.proof)
        return table

    async def first_segment_number(self, scope: str) -> int:
        """Above every number that streams of the scope's earlier incarnations used. Raises ScopeNotFoundError."""
        record = (await self._scopes.read(scope_key(scope))).record
        if record is None:
            raise ScopeNotFoundError(scope)
        return record.first_segment_number

    def table_of(self, scope: str, incarnation: int) -> MetadataTable:
        """The table of one incarnation of a scope, whether or not it exists."""
        name = record_keys.scope_table(scope, incarnation)
        table = self._opened.get(scope)
        if table is None or table.name != name:
            table = self._opened[scope] = MetadataTable(tables=self._tables, name=name)
        return table

    async def create_scope_table(self, scope: str, incarnation: int) -> bool:
        """Creating it twice is fine. Whether it was not there."""
        return await self._create(record_keys.scope_table(scope, incarnation))

    async def delete_scope_table(self, scope: str, incarnation: int) -> None:
        """Deleting it twice raises SegmentNotFoundError."""
        self._opened.pop(scope, None)
        await self._tables.delete_table(
            record_keys.scope_table(scope, incarnation), must_be_empty=False
        )

    async def _create(self, name: str) -> bool:
        try:
            await self._tables.create_table(name)
        except SegmentExistsError:
            return False
        return True
