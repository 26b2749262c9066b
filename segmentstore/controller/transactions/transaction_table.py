"""How the records of all transactions, and the fences of applications that commit stages, are changed.

One table for all scopes: it is read as a whole when a controller starts, and never listed afterwards. The tables of
scopes would do as well for single records, but their indexes let only one batch pass at a time, and every transaction
would change one twice.

Invariants:

- A record is replaced only by a controller that has read it: another one's change is met as a MetadataConflictError.
- Changes of several transactions are one batch: all of it or nothing. A fence moves in the batch of its commit.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.record_keys import REMOVED, TRANSACTIONS_TABLE
from segmentstore.codec.controller_records.transaction_records import (
    CommitFenceRecord,
    TransactionRecord,
)
from segmentstore.contracts.errors import CorruptedDataError, SegmentExistsError
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.errors import MetadataConflictError
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.metadata.ownership_proof import note_read


@dataclass(frozen=True, slots=True)
class TransactionName:
    """A transaction in its stream."""

    scope: str
    stream: str
    transaction_id: int


@dataclass(frozen=True, slots=True)
class FenceName:
    """An application that commits to a stream."""

    scope: str
    stream: str
    application_id: str


TransactionChange = tuple[TransactionRecord | None, TransactionRecord | None]
"""The record that is to be replaced (None: there is none), and what replaces it (None: nothing)."""


@dataclass(frozen=True, slots=True)
class LoadedFence:
    """A fence as found when the controller started."""

    name: FenceName
    record: CommitFenceRecord


@dataclass(frozen=True, slots=True)
class LoadedTransaction:
    """A transaction as found when the controller started."""

    name: TransactionName
    record: TransactionRecord


class TransactionTable:
    """Reads and conditional changes. Raises what the interface of tables raises, and MetadataConflictError."""

    def __init__(self, *, tables: TableApi) -> None:
        self._tables = tables
        self._table = MetadataTable(tables=tables, name=TRANSACTIONS_TABLE)

    async def create(self) -> None:
        """Once per store; creating it again is fine."""
        try:
            await self._tables.create_table(TRANSACTIONS_TABLE)
        except SegmentExistsError:
            return

    async def load(
        self, *, page_entries: int
    ) -> AsyncGenerator[LoadedTransaction | LoadedFence, None]:
        """Everything in the table, in no particular order. Hold it in `aclosing`."""
        async with self._tables.open_table(TRANSACTIONS_TABLE) as table:
            token = b""
            while True:
                page = await table.read_entries(count=page_entries, token=token)
                for entry in page.entries:
                    if entry.value != REMOVED:
                        yield _loaded(entry.key, entry.value)
                token = page.token
                if not token:
                    return

    def require_settled(self) -> None:
        """Raises RetryLaterError while a change is under way whose caller has left."""
        self._table.require_settled()

    def note_read(self) -> None:
        """The call of the moment reads what is remembered of the table."""
        note_read(self._table.proof)

    async def prove_since(self, moment: float) -> None:
        """Returns once the table is known to have been this process's own at that moment of the loop's clock, or later.

        Raises what OwnershipProof.wait raises.
        """
        await self._table.proof.wait_unless_since(moment)

    async def read(self, name: TransactionName) -> TransactionRecord | None:
        """One transaction as it stands now."""
        return (await self._table.read(_transaction_key(name))).record

    async def add(self, name: TransactionName, record: TransactionRecord) -> None:
        """A transaction that did not exist."""
        key = _transaction_key(name)
        batch = Batch()
        batch.put(key, record, await self._table.read(key))
        await self._table.commit(batch)

    async def remove(self, names: Sequence[TransactionName]) -> None:
        """Transactions that no caller decides any more, as far as they are there: all of them or none."""
        keys = [_transaction_key(name) for name in names]
        batch = Batch()
        for key, versioned in zip(keys, await self._table.read_many(keys), strict=True):
            batch.remove(key, versioned)
        if batch.changes:
            await self._table.commit(batch)

    async def read_fence(self, name: FenceName) -> CommitFenceRecord | None:
        """What an application committed last."""
        return (await self._table.read(_fence_key(name))).record

    async def remove_fence(self, name: FenceName) -> None:
        """Forget what an application committed last."""
        key = _fence_key(name)
        batch = Batch()
        batch.remove(key, await self._table.read(key))
        if batch.changes:
            await self._table.commit(batch)

    async def replace(
        self,
        changes: Mapping[TransactionName, TransactionChange],
        *,
        fence: tuple[FenceName, CommitFenceRecord | None, CommitFenceRecord] | None = None,
    ) -> None:
        """Replace the first record of each pair by the second, and a fence with them, all of them or none.

        Raises MetadataConflictError if a record is not the one that is to be replaced.
        """
        names = list(changes)
        keys = [_transaction_key(name) for name in names]
        found = await self._table.read_many(keys)
        batch = Batch()
        for name, key, versioned in zip(names, keys, found, strict=True):
            before, after = changes[name]
            if versioned.record != before:
                raise MetadataConflictError(
                    f"a transaction changed meanwhile stream={name.scope!r}/{name.stream!r}"
                    f" transaction={name.transaction_id:032x}"
                )
            if after is None:
                batch.remove(key, versioned)
            else:
                batch.put(key, after, versioned)
        if fence is not None:
            fence_name, fence_before, fence_after = fence
            fence_key = _fence_key(fence_name)
            found_fence = await self._table.read(fence_key)
            if found_fence.record != fence_before:
                raise MetadataConflictError(f"a commit fence changed meanwhile {fence_name}")
            batch.put(fence_key, fence_after, found_fence)
        if batch.changes:
            await self._table.commit(batch)


def _transaction_key(name: TransactionName) -> RecordKey[TransactionRecord]:
    key = record_keys.transaction(name.scope, name.stream, name.transaction_id)
    return RecordKey(key, TransactionRecord.decode)


def _fence_key(name: FenceName) -> RecordKey[CommitFenceRecord]:
    key = record_keys.commit_fence(name.scope, name.stream, name.application_id)
    return RecordKey(key, CommitFenceRecord.decode)


def _loaded(key: bytes, value: bytes) -> LoadedTransaction | LoadedFence:
    match key.decode(errors="replace").split("/"):
        case [kind, scope, stream, _] if f"{kind}/" == record_keys.FENCE_PREFIX:
            record = CommitFenceRecord.decode(value)
            return LoadedFence(FenceName(scope, stream, record.application_id), record)
        case [kind, scope, stream, digits] if (
            f"{kind}/" == record_keys.TRANSACTION_PREFIX and len(digits) == 32
        ):
            return LoadedTransaction(
                TransactionName(scope, stream, int(digits, 16)), TransactionRecord.decode(value)
            )
    raise CorruptedDataError(f"table of transactions has a foreign key key={key!r}")
