"""Creates, describes, lists and deletes key-value tables.

    record `table/<name>` in the scope's table, index `tables`; index `unfinished-tables` while segments come or go
    table segments `<scope>/<name>_kvtable/<n>.#epoch.0`, n from 0 on, each with an equal part of the key space

Invariants:

- The record comes first and goes last: whatever happens in between, the next attempt finds out what to finish, and a
  table that is created again never meets the entries of the one before.
- A table is shown once all of its segments exist.
- What one name undergoes happens one thing after the other.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.key_value_table_record import (
    KeyValueTableRecord,
    KeyValueTableState,
)
from segmentstore.codec.stream_names import is_user_name, table_segment
from segmentstore.contracts.errors import (
    InvalidRequestError,
    NotATableError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from segmentstore.contracts.tables import KEY_BYTES_MAX, TableApi
from segmentstore.controller.errors import IndexClosedError, ScopeNotFoundError
from segmentstore.controller.keyed_locks import KeyedLocks
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.retry_queue import ResourceName, RetryQueue
from segmentstore.controller.settings import KeyValueTableSettings

TABLES_INDEX: Final = "tables"
"""In a scope's table: every key-value table, also one that is being created or deleted."""
UNFINISHED_TABLES_INDEX: Final = "unfinished-tables"

CreateStatus = api.CreateKeyValueTableStatus
DeleteStatus = api.DeleteKVTableStatus


class KeyValueTables:
    """The controller's verbs of key-value tables."""

    def __init__(
        self, *, store: MetadataStore, tables: TableApi, settings: KeyValueTableSettings
    ) -> None:
        self._store = store
        self._tables = tables
        self._settings = settings
        self._locks = KeyedLocks(waiters_max=settings.waiters_per_table_max)
        self._retry_queue = RetryQueue(resume=self._resume)

    async def create(self, config: api.KeyValueTableConfig) -> api.CreateKeyValueTableStatus:
        """Raises InvalidRequestError for sizes that no table can have."""
        if not is_user_name(config.kvtName):
            return CreateStatus(status=CreateStatus.Status.INVALID_TABLE_NAME)
        wanted = self._record_of(config)
        try:
            created = await self._create(config.scope, config.kvtName, wanted)
        except (ScopeNotFoundError, IndexClosedError):
            return CreateStatus(status=CreateStatus.Status.SCOPE_NOT_FOUND)
        return CreateStatus(
            status=CreateStatus.Status.SUCCESS if created else CreateStatus.Status.TABLE_EXISTS
        )

    async def current_segments(self, info: api.KeyValueTableInfo) -> api.SegmentRanges:
        """The partitions with their even parts of the key space. Raises SegmentNotFoundError."""
        record = await self._active(info.scope, info.kvtName)
        if record is None:
            raise SegmentNotFoundError(table_segment(info.scope, info.kvtName))
        count = record.partition_count
        stream = api.StreamInfo(scope=info.scope, stream=info.kvtName)
        return api.SegmentRanges(
            segmentRanges=[
                api.SegmentRange(
                    segmentId=api.SegmentId(streamInfo=stream, segmentId=number),
                    minKey=number / count,
                    maxKey=(number + 1) / count,
                )
                for number in range(count)
            ]
        )

    async def configuration(self, info: api.KeyValueTableInfo) -> api.KeyValueTableConfigResponse:
        record = await self._active(info.scope, info.kvtName)
        response = api.KeyValueTableConfigResponse
        if record is None:
            return response(status=response.Status.TABLE_NOT_FOUND)
        return response(
            status=response.Status.SUCCESS,
            config=api.KeyValueTableConfig(
                scope=info.scope,
                kvtName=info.kvtName,
                partitionCount=record.partition_count,
                primaryKeyLength=record.primary_key_bytes,
                secondaryKeyLength=record.secondary_key_bytes,
                rolloverSizeBytes=record.rollover_bytes,
            ),
        )

    async def list_in_scope(
        self, request: api.KVTablesInScopeRequest
    ) -> api.KVTablesInScopeResponse:
        """A page behind the token; the last page is empty."""
        response = api.KVTablesInScopeResponse
        scope, after = request.scope.scope, request.continuationToken.token
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return response(
                status=response.Status.SCOPE_NOT_FOUND, continuationToken=request.continuationToken
            )
        shown: list[str] = []
        more = True
        while more and not shown:
            page = await table.names(
                TABLES_INDEX, after=after, count=self._settings.listed_per_page
            )
            found = await table.read_many([_key(name) for name in page.names])
            shown = [
                name
                for name, versioned in zip(page.names, found, strict=True)
                if versioned.record is not None
                and versioned.record.state is KeyValueTableState.ACTIVE
            ]
            after = page.names[-1] if page.names else after
            more = page.more
        return response(
            status=response.Status.SUCCESS,
            kvtables=[api.KeyValueTableInfo(scope=scope, kvtName=name) for name in shown],
            continuationToken=api.ContinuationToken(token=after),
        )

    async def delete(self, info: api.KeyValueTableInfo) -> api.DeleteKVTableStatus:
        scope, name = info.scope, info.kvtName
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return DeleteStatus(status=DeleteStatus.Status.TABLE_NOT_FOUND)
        async with self._locks.held(f"{scope}/{name}"):
            with self._retry_queue.queued_on_failure(scope, name):
                deleted = await self._delete(table, scope, name)
        return DeleteStatus(
            status=DeleteStatus.Status.SUCCESS if deleted else DeleteStatus.Status.TABLE_NOT_FOUND
        )

    async def delete_all(self, scope: str) -> None:
        """Every table of a scope that is to be deleted with all it holds. Raises ScopeNotFoundError."""
        await self._each(scope, TABLES_INDEX, self._delete)

    async def resume(self, scope: str) -> None:
        """Finish what a controller that is gone began in the scope. Raises ScopeNotFoundError."""
        await self._each(scope, UNFINISHED_TABLES_INDEX, self._finish)

    async def run(self) -> None:
        """Finish what was broken off, until cancelled."""
        await self._retry_queue.run()

    # --- creating and deleting -----------------------------------------------------------------

    def _record_of(self, config: api.KeyValueTableConfig) -> KeyValueTableRecord:
        keys = config.primaryKeyLength + config.secondaryKeyLength
        if not 1 <= config.partitionCount <= self._settings.partitions_max:
            raise InvalidRequestError(
                f"partition count is out of range partition_count={config.partitionCount}"
            )
        if config.primaryKeyLength < 1 or config.secondaryKeyLength < 0 or keys > KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"key lengths are out of range primary={config.primaryKeyLength}"
                f" secondary={config.secondaryKeyLength}"
            )
        return KeyValueTableRecord(
            state=KeyValueTableState.CREATING,
            partition_count=config.partitionCount,
            primary_key_bytes=config.primaryKeyLength,
            secondary_key_bytes=config.secondaryKeyLength,
            rollover_bytes=config.rolloverSizeBytes,
        )

    async def _create(self, scope: str, name: str, wanted: KeyValueTableRecord) -> bool:
        """Whether the table was created by this call (or by one that died and is finished now)."""
        table = await self._store.scope_table(scope)
        async with self._locks.held(f"{scope}/{name}"):
            finished = await self._finish(table, scope, name)
            versioned = await table.read(_key(name))
            record = versioned.record
            if record is not None:
                # What an attempt began that died is this one, if it is alike.
                return finished and dataclasses.replace(record, state=wanted.state) == wanted
            batch = Batch()
            batch.put(_key(name), wanted, versioned)
            batch.list_name(TABLES_INDEX, name)
            batch.list_name(UNFINISHED_TABLES_INDEX, name)
            with self._retry_queue.queued_on_failure(scope, name):
                await table.commit(batch)
                await self._finish_creating(table, scope, name, wanted)
            return True

    async def _each(
        self,
        scope: str,
        index: str,
        step: Callable[[MetadataTable, str, str], Awaitable[bool]],
    ) -> None:
        table = await self._store.scope_table(scope)
        after, more = "", True
        while more:
            page = await table.names(index, after=after, count=self._settings.listed_per_page)
            for name in page.names:
                async with self._locks.held(f"{scope}/{name}"):
                    await step(table, scope, name)
                after = name
            more = page.more

    async def _delete(self, table: MetadataTable, scope: str, name: str) -> bool:
        """Whether there was a table. The caller holds its name."""
        versioned = await table.read(_key(name))
        record = versioned.record
        if record is None:
            return False
        if record.state is not KeyValueTableState.DELETING:
            record = dataclasses.replace(record, state=KeyValueTableState.DELETING)
            batch = Batch()
            batch.put(_key(name), record, versioned)
            batch.list_name(UNFINISHED_TABLES_INDEX, name)
            await table.commit(batch)
        await self._finish_deleting(table, scope, name, record)
        return True

    async def _resume(self, place: ResourceName) -> None:
        scope, name = place
        table = await self._store.scope_table(scope)
        async with self._locks.held(f"{scope}/{name}"):
            # What was broken off may be the intent itself, still on its way.
            table.require_settled()
            await self._finish(table, scope, name)

    async def _finish(self, table: MetadataTable, scope: str, name: str) -> bool:
        """Whether there was something to finish. The caller holds the name."""
        record = (await table.read(_key(name))).record
        if record is None or record.state is KeyValueTableState.ACTIVE:
            return False
        if record.state is KeyValueTableState.CREATING:
            await self._finish_creating(table, scope, name, record)
        else:
            await self._finish_deleting(table, scope, name, record)
        return True

    async def _finish_creating(
        self, table: MetadataTable, scope: str, name: str, record: KeyValueTableRecord
    ) -> None:
        await _all_of(
            self._create_partition(table_segment(scope, name, number=number), record.key_bytes)
            for number in range(record.partition_count)
        )
        batch = Batch()
        batch.put(
            _key(name),
            dataclasses.replace(record, state=KeyValueTableState.ACTIVE),
            await table.read(_key(name)),
        )
        batch.unlist_name(UNFINISHED_TABLES_INDEX, name)
        await table.commit(batch)

    async def _create_partition(self, segment: str, key_bytes: int) -> None:
        try:
            await self._tables.create_table(segment, key_length=key_bytes)
        except SegmentExistsError as error:
            async with self._tables.open_table(segment) as opened:
                if opened.key_length != key_bytes:
                    # Clients create such segments themselves, for groups that the controller never hears of.
                    raise NotATableError(
                        f"the name is taken by another table name={segment!r}"
                    ) from error

    async def _finish_deleting(
        self, table: MetadataTable, scope: str, name: str, record: KeyValueTableRecord
    ) -> None:
        await _all_of(
            self._delete_partition(table_segment(scope, name, number=number))
            for number in range(record.partition_count)
        )
        batch = Batch()
        batch.remove(_key(name), await table.read(_key(name)))
        batch.unlist_name(TABLES_INDEX, name)
        batch.unlist_name(UNFINISHED_TABLES_INDEX, name)
        await table.commit(batch)

    async def _delete_partition(self, segment: str) -> None:
        try:
            await self._tables.delete_table(segment, must_be_empty=False)
        except SegmentNotFoundError:
            return

    async def _active(self, scope: str, name: str) -> KeyValueTableRecord | None:
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return None
        record = (await table.read(_key(name))).record
        if record is None or record.state is not KeyValueTableState.ACTIVE:
            return None
        return record


async def _all_of(steps: Iterable[Awaitable[None]]) -> None:
    """Do all steps side by side; every one ends before the first failure is raised."""
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _key(name: str) -> RecordKey[KeyValueTableRecord]:
    return RecordKey(f"table/{name}", KeyValueTableRecord.decode)
