"""Reader groups and key-value tables are made and deleted in the same way, and what is broken off is finished.

    record of the item in the scope's table, its name in the index of its kind; in the index of unfinished items while
    its parts (streams, segments) come or go

| | intent (one batch) | steps | completion (one batch) |
|---|---|---|---|
| create | CREATING, name in both indexes | parts | ACTIVE, out of `unfinished` |
| delete | DELETING, name in `unfinished` | parts | record and name gone |

Invariants:

- The record comes first and goes last: whatever happens in between, the next attempt finds out what to finish.
- An item whose parts are refused for good is taken back.
- One operation at a time works on an item: each holds its name.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Generic, Protocol, Self, TypeVar

from segmentstore.codec.controller_records.record_fields import Record
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import MetadataConflictError, too_many_waiters
from segmentstore.controller.metadata.batch import Batch, RecordKey, Versioned
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.retry_queue import ResourceName, RetryQueue, is_refusal
from segmentstore.runtime.keyed_locks import KeyedLocks

_LOG = logging.getLogger(__name__)


class ItemRecord(Record, Protocol):
    """A record with the state of its item."""

    @property
    def state(self) -> ScopeItemState: ...

    def with_state(self, state: ScopeItemState) -> Self: ...


ItemType = TypeVar("ItemType", bound=ItemRecord)
_PartsOf = TypeVar("_PartsOf", bound=ItemRecord, contravariant=True)


class ItemParts(Protocol[_PartsOf]):
    """What an item consists of beside its record. Each step may be repeated."""

    async def create_parts(self, scope: str, name: str, record: _PartsOf) -> None: ...

    async def delete_parts(self, scope: str, name: str, record: _PartsOf) -> None: ...

    async def add_removal(
        self, table: MetadataTable, batch: Batch, name: str, record: _PartsOf
    ) -> None:
        """Put into the batch that removes the record what changes with it."""


class ScopeItems(Generic[ItemType]):
    """The items of one kind."""

    def __init__(
        self,
        *,
        kind: str,
        store: MetadataStore,
        parts: ItemParts[ItemType],
        key: Callable[[str], RecordKey[ItemType]],
        index: str,
        unfinished_index: str,
        waiters_max: int,
        names_per_read: int,
    ) -> None:
        self._kind = kind
        self._store = store
        self._parts = parts
        self._key = key
        self._index = index
        self._unfinished_index = unfinished_index
        self._names_per_read = names_per_read
        self._locks = KeyedLocks[str](waiters_max=waiters_max, refusal=too_many_waiters)
        self._retry_queue = RetryQueue(resume=self._resume)

    def held(self, scope: str, name: str) -> AbstractAsyncContextManager[None]:
        """No other operation works on the item inside."""
        return self._locks.held(f"{scope}/{name}")

    async def create(
        self,
        table: MetadataTable,
        scope: str,
        name: str,
        record: ItemType,
        known: Versioned[ItemType],
    ) -> ItemType:
        """Make an item of which there is no record. The caller holds the name."""
        batch = Batch()
        batch.put(self._key(name), record, known)
        batch.list_name(self._index, name)
        batch.list_name(self._unfinished_index, name)
        with self._retry_queue.queued_on_failure(scope, name):
            await table.commit(batch)
            return await self._make(table, scope, name, record)

    async def delete(self, table: MetadataTable, scope: str, name: str) -> bool:
        """Whether there was an item. The caller holds the name."""
        with self._retry_queue.queued_on_failure(scope, name):
            return await self._delete(table, scope, name)

    async def finish(self, table: MetadataTable, scope: str, name: str) -> bool:
        """Whether there was something to finish. The caller holds the name."""
        record = (await table.read(self._key(name))).record
        if record is None or record.state is ScopeItemState.ACTIVE:
            return False
        if record.state is ScopeItemState.DELETING:
            await self._finish_deleting(table, scope, name, record)
            return True
        try:
            await self._make(table, scope, name, record)
        except SegmentStoreError as error:
            if not is_refusal(error):
                raise
            _LOG.warning(
                "%s=%s/%s cannot be made and was taken back: %s", self._kind, scope, name, error
            )
        return True

    async def delete_all(self, scope: str) -> None:
        """Every item of a scope that is to be deleted with all it holds. Raises ScopeNotFoundError."""
        table = await self._store.scope_table(scope)
        async with aclosing(self._names(table, self._index)) as names:
            async for name in names:
                async with self.held(scope, name):
                    await self._delete(table, scope, name)

    async def resume(self, scope: str) -> None:
        """Finish what a controller that is gone began in the scope; what cannot be finished now stays with `run`.

        Raises ScopeNotFoundError, and what the scope's own table raises.
        """
        table = await self._store.scope_table(scope)
        async with aclosing(self._names(table, self._unfinished_index)) as names:
            async for name in names:
                await self._retry_queue.attempt((scope, name))

    async def run(self) -> None:
        """Finish what was broken off, until cancelled."""
        await self._retry_queue.run()

    def complaints(self) -> Mapping[ResourceName, str]:
        """Items that could be neither finished nor taken back, and why."""
        return self._retry_queue.complaints()

    def _names(self, table: MetadataTable, index: str) -> AsyncGenerator[str, None]:
        return table.all_names(index, per_read=self._names_per_read)

    async def _resume(self, place: ResourceName) -> None:
        scope, name = place
        table = await self._store.scope_table(scope)
        async with self.held(scope, name):
            # What was broken off may be the intent itself, still on its way.
            table.require_settled()
            await self.finish(table, scope, name)

    async def _make(
        self, table: MetadataTable, scope: str, name: str, record: ItemType
    ) -> ItemType:
        """Finish an item whose record says CREATING. If that is refused for good, nothing of it stays."""
        try:
            return await self._finish_creating(table, scope, name, record)
        except SegmentStoreError as refusal:
            if is_refusal(refusal):
                try:
                    await self._delete(table, scope, name)
                except SegmentStoreError as error:
                    self._retry_queue.note_failure((scope, name), error)
            raise

    async def _finish_creating(
        self, table: MetadataTable, scope: str, name: str, record: ItemType
    ) -> ItemType:
        await self._parts.create_parts(scope, name, record)
        active = record.with_state(ScopeItemState.ACTIVE)
        batch = Batch()
        batch.put(self._key(name), active, await table.read(self._key(name)))
        batch.unlist_name(self._unfinished_index, name)
        await table.commit(batch)
        return active

    async def _delete(self, table: MetadataTable, scope: str, name: str) -> bool:
        known = await table.read(self._key(name))
        if known.record is None:
            return False
        record = known.record.with_state(ScopeItemState.DELETING)
        if known.record.state is not ScopeItemState.DELETING:
            batch = Batch()
            batch.put(self._key(name), record, known)
            batch.list_name(self._unfinished_index, name)
            await table.commit(batch)
        try:
            await self._finish_deleting(table, scope, name, record)
        except SegmentStoreError as error:
            # Whatever it is: the item is half deleted, and has to go.
            self._retry_queue.note_failure((scope, name), error)
            raise
        return True

    async def _finish_deleting(
        self, table: MetadataTable, scope: str, name: str, record: ItemType
    ) -> None:
        await self._parts.delete_parts(scope, name, record)

        async def removal() -> Batch:
            known = await table.read(self._key(name))
            if known.record != record:
                raise MetadataConflictError(
                    f"{self._kind} is another one meanwhile {self._kind}={scope}/{name}"
                )
            batch = Batch()
            batch.remove(self._key(name), known)
            batch.unlist_name(self._index, name)
            batch.unlist_name(self._unfinished_index, name)
            await self._parts.add_removal(table, batch, name, record)
            return batch

        await table.commit_built(removal)
