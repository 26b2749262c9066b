"""Creates, describes, lists and deletes key-value tables.

    record `table/<name>` in the scope's table, index `tables`; index `unfinished-tables` while segments come or go
    table segments `<scope>/<name>_kvtable/<n>.#epoch.0`, n from 1 or higher, each with an equal part of the key space

Number 0 is left to clients: without asking the controller they keep the state of a reader group in a segment of that
number. Tables that an earlier version of the store made begin with it; what has keys of another length is not theirs.

Invariants, beside those of `scope_items.py`:

- A number is used once: those of a table that is created again go on behind the one before, as those of streams do. So
  a client that knows the former table finds none of its segments, and a late step of an old owner hits none of the new.
- A table never takes over a segment that was there before it, and deletes none that is not its own.
- A table is shown once all of its segments exist. One whose segments cannot be made is taken back.
"""

import asyncio
import dataclasses
from contextlib import suppress
from typing import Final

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.key_value_table_record import (
    KeyValueTableRecord,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.codec.stream_names import is_user_name, table_segment, table_stream
from segmentstore.contracts.errors import (
    InvalidRequestError,
    NotATableError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from segmentstore.contracts.tables import KEY_BYTES_MAX, TableApi
from segmentstore.controller.errors import (
    IndexClosedError,
    PreconditionError,
    ScopeNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.scope_items import ScopeItems
from segmentstore.controller.settings import KeyValueTableSettings
from segmentstore.controller.streams.stream_history import number_behind_deleted, use_up_numbers
from segmentstore.runtime.waiting import gather_all

TABLES_INDEX: Final = "tables"
"""In a scope's table: every key-value table, also one that is being created or deleted."""
UNFINISHED_TABLES_INDEX: Final = "unfinished-tables"

_FIRST_NUMBER: Final = 1
"""Number 0 is the state of a reader group that the controller never hears of."""
_NUMBER_MAX: Final = (1 << 31) - 1
_FREE_NUMBER_ATTEMPTS_MAX: Final = 64

CreateStatus = api.CreateKeyValueTableStatus
DeleteStatus = api.DeleteKVTableStatus


class KeyValueTables:
    """The controller's verbs of key-value tables."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        tables: TableApi,
        segment_name_length_max: int,
        settings: KeyValueTableSettings,
    ) -> None:
        self._store = store
        self._tables = tables
        self._segment_name_length_max = segment_name_length_max
        self._settings = settings
        self.items = ScopeItems(
            kind="table",
            store=store,
            parts=self,
            key=_key,
            index=TABLES_INDEX,
            unfinished_index=UNFINISHED_TABLES_INDEX,
            waiters_max=settings.waiters_per_table_max,
            names_per_read=settings.listed_per_page,
        )
        """Deletes all tables of a scope, and finishes what was broken off."""

    async def create(self, config: api.KeyValueTableConfig) -> api.CreateKeyValueTableStatus:
        """Raises InvalidRequestError for sizes that no table can have, PreconditionError (no numbers are free)."""
        if not is_user_name(config.kvtName):
            return CreateStatus(status=CreateStatus.Status.INVALID_TABLE_NAME)
        wanted = self._record_of(config)
        longest = table_segment(config.scope, config.kvtName, number=_NUMBER_MAX)
        if len(longest) > self._segment_name_length_max:
            raise InvalidRequestError(
                f"scope and table name are too long together scope={config.scope!r} table={config.kvtName!r}"
                f" excess={len(longest) - self._segment_name_length_max}"
            )
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
                    minKey=place / count,
                    maxKey=(place + 1) / count,
                )
                for place, number in enumerate(record.numbers)
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
                if versioned.record is not None and versioned.record.state is ScopeItemState.ACTIVE
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
        async with self.items.held(scope, name):
            deleted = await self.items.delete(table, scope, name)
        return DeleteStatus(
            status=DeleteStatus.Status.SUCCESS if deleted else DeleteStatus.Status.TABLE_NOT_FOUND
        )

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
            state=ScopeItemState.CREATING,
            partition_count=config.partitionCount,
            primary_key_bytes=config.primaryKeyLength,
            secondary_key_bytes=config.secondaryKeyLength,
            rollover_bytes=config.rolloverSizeBytes,
        )

    async def _create(self, scope: str, name: str, wanted: KeyValueTableRecord) -> bool:
        """Whether the table was created by this call (or by one that died and is finished now)."""
        table = await self._store.scope_table(scope)
        async with self.items.held(scope, name):
            finished = await self.items.finish(table, scope, name)
            versioned = await table.read(_key(name))
            record = versioned.record
            if record is not None:
                # What an attempt began that died is this one, if it is alike.
                alike = dataclasses.replace(
                    record, state=wanted.state, first_number=wanted.first_number
                )
                return finished and alike == wanted
            first = await self._first_free_number(table, scope, name, wanted)
            wanted = dataclasses.replace(wanted, first_number=first)
            await self.items.create(table, scope, name, wanted, versioned)
            return True

    async def _first_free_number(
        self, table: MetadataTable, scope: str, name: str, wanted: KeyValueTableRecord
    ) -> int:
        """Above every number of earlier tables of that name; no segment has it or one of those behind it.

        After a recovery from Tier 2 alone there may be segments that no record knows.
        """
        first = max(
            _FIRST_NUMBER,
            await self._store.first_segment_number(scope),
            await number_behind_deleted(table, table_stream(name)),
        )
        for _ in range(_FREE_NUMBER_ATTEMPTS_MAX):
            numbers = range(first, first + wanted.partition_count)
            if numbers.stop > _NUMBER_MAX:
                break
            taken = await asyncio.gather(
                *(self._exists(table_segment(scope, name, number=number)) for number in numbers)
            )
            if not any(taken):
                return first
            first = 1 + max(
                number for number, is_taken in zip(numbers, taken, strict=True) if is_taken
            )
        raise PreconditionError(
            f"too many segments have the names of the table's: choose another name table={scope!r}/{name!r}"
        )

    async def _exists(self, segment: str) -> bool:
        try:
            async with self._tables.open_table(segment):
                return True
        except SegmentNotFoundError:
            return False
        except NotATableError:
            return True

    async def create_parts(self, scope: str, name: str, record: KeyValueTableRecord) -> None:
        """All partitions exist."""
        await gather_all(
            self._create_partition(table_segment(scope, name, number=number), record.key_bytes)
            for number in record.numbers
        )

    async def delete_parts(self, scope: str, name: str, record: KeyValueTableRecord) -> None:
        """No partition exists."""
        await gather_all(
            self._delete_partition(table_segment(scope, name, number=number), record.key_bytes)
            for number in record.numbers
        )

    async def add_removal(
        self, table: MetadataTable, batch: Batch, name: str, record: KeyValueTableRecord
    ) -> None:
        """The numbers of the segments are used up."""
        await use_up_numbers(table, batch, table_stream(name), record.numbers.stop)

    async def _create_partition(self, segment: str, key_bytes: int) -> None:
        try:
            await self._tables.create_table(segment, key_length=key_bytes)
        except SegmentExistsError as error:
            # Of an earlier attempt, since the number was free at the intent and is given to no other table.
            if not await self._has_keys_of(segment, key_bytes):
                raise NotATableError(
                    f"the name is taken by another table name={segment!r}"
                ) from error

    async def _has_keys_of(self, segment: str, key_bytes: int) -> bool:
        """Whether there is such a table segment. Tables that clients make themselves have keys of any length."""
        try:
            async with self._tables.open_table(segment) as opened:
                return opened.key_length == key_bytes
        except (SegmentNotFoundError, NotATableError):
            return False

    async def _delete_partition(self, segment: str, key_bytes: int) -> None:
        if await self._has_keys_of(segment, key_bytes):
            with suppress(SegmentNotFoundError):
                await self._tables.delete_table(segment, must_be_empty=False)

    async def _active(self, scope: str, name: str) -> KeyValueTableRecord | None:
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return None
        record = (await table.read(_key(name))).record
        if record is None or record.state is not ScopeItemState.ACTIVE:
            return None
        return record


def _key(name: str) -> RecordKey[KeyValueTableRecord]:
    return RecordKey(record_keys.key_value_table(name), KeyValueTableRecord.decode)
