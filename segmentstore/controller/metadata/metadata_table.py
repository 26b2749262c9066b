"""One table segment of records: typed reads, atomic conditional batches, listings.

Invariants:

- A batch is written as one update of the table: after a crash all of it is there or nothing.
- A conflict on a record is the caller's to resolve (MetadataConflictError); a conflict on an index alone is resolved
  here by reading it again, because adding and removing names commute.
- A page of an index is believed if the root that named it is still the root behind the look at the page: in between it
  may have been split, also by a batch whose caller has left.
- Batches that change the same index follow one another: they would only refuse each other.
- The log owns its futures: a caller that gives up does not take back what it submitted. It may take place later than
  the next look at the records: the task that finishes an interrupted operation asks `require_settled` first, and one
  that holds a stream waits for what changes its state (`wait_until_settled`).
- What a batch removed is taken out of the table by its caller or, if that has left, by the next one that writes. What
  a crash leaves reads as absent.
- Nothing is cached: the table answers from memory what is in its cache, and another controller may write too.
- A batch that finds its names as it wants them writes nothing, so no version holds off a removal that is on its way
  behind it: it is refused while a batch is under way whose caller has left.
- What a call reads is noted with it (ownership_proof.py): its answer may have to wait for `proof` that it was not old.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from segmentstore.codec.controller_records.record_keys import REMOVED
from segmentstore.codec.controller_records.scope_records import IndexPage, IndexRoot
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentStoreError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.tables import Table, TableApi, TableEntry, TableKey
from segmentstore.controller.errors import (
    IndexClosedError,
    IndexNotEmptyError,
    MetadataConflictError,
    RetryLaterError,
    too_many_waiters,
)
from segmentstore.controller.metadata.batch import (
    Batch,
    RecordChange,
    RecordKey,
    RecordType,
    Versioned,
)
from segmentstore.controller.metadata.name_index import (
    IndexChange,
    change_names,
    page_key,
    page_of,
    pages_of,
    root_key,
)
from segmentstore.controller.metadata.ownership_proof import OwnershipProof, note_read, note_written
from segmentstore.runtime.cancellation import retrieve_exception
from segmentstore.runtime.keyed_locks import KeyedLocks

_LOG = logging.getLogger(__name__)

INDEX_ATTEMPTS_MAX = 16
"""Only another controller can get between us and an index: it gives up or takes over long before."""
COMMIT_ATTEMPTS_MAX = 64
"""Of several batches that change one record side by side one is written at each attempt."""
INDEX_WAITERS_MAX = 1000
"""Batches of one table that wait to change the same index."""
LEFT_BATCHES_MAX = 1000
"""Batches of callers that have left and whose empty records are remembered; those of the oldest stay."""
LEFT_AT_ONCE_MAX = 8
"""Of these, whose records one caller takes out behind its own batch: it waits for each, and can leave but one."""


@dataclass(frozen=True, slots=True)
class NamePage:
    """Some names of an index, in order."""

    names: Sequence[str]
    more: bool
    """Names follow behind the last one."""


class MetadataTable:
    """The records of one table segment.

    Every method raises what the interface of tables raises; SegmentNotFoundError says that the table is gone.
    """

    def __init__(self, *, tables: TableApi, name: str) -> None:
        self._tables = tables
        self._name = name
        self._index_locks = KeyedLocks[str](waiters_max=INDEX_WAITERS_MAX, refusal=too_many_waiters)
        self._abandoned: dict[Future[Sequence[int]], frozenset[bytes]] = {}
        """Batches on their way into the log whose callers have left, and what they change."""
        self._left: dict[Future[Sequence[int]], Sequence[TableEntry]] = {}
        """Such batches, on their way or not, whose empty records are to be taken out; oldest first."""
        self.proof = OwnershipProof(tables=tables, name=name)

    @property
    def name(self) -> str:
        return self._name

    def require_settled(self) -> None:
        """Raises RetryLaterError while a batch is under way whose caller has left."""
        if self._abandoned:
            raise RetryLaterError(f"an earlier batch is on its way table={self._name!r}")

    async def wait_until_settled(self, key: RecordKey[RecordType]) -> None:
        """Until each batch that changes the record, is under way now and whose caller has left has its outcome."""
        batches = [batch for batch, keys in self._abandoned.items() if key.content in keys]
        if batches:
            await asyncio.gather(*map(asyncio.shield, batches), return_exceptions=True)

    async def read(self, key: RecordKey[RecordType]) -> Versioned[RecordType]:
        """One record with its version. Raises CorruptedDataError."""
        return (await self.read_many([key]))[0]

    async def read_many(
        self, keys: Sequence[RecordKey[RecordType]]
    ) -> Sequence[Versioned[RecordType]]:
        """Records in the order of the keys, all as of one moment."""
        note_read(self.proof)
        return await self._read_many(keys)

    async def peek(self, key: RecordKey[RecordType]) -> Versioned[RecordType]:
        """As `read`, for a caller that proves in another way that the record is not old."""
        return (await self._read_many([key]))[0]

    async def commit(self, batch: Batch) -> None:
        """Write all of it. Nothing is written if it raises.

        Raises MetadataConflictError, IndexClosedError, IndexNotEmptyError, RetryLaterError (an index keeps changing).
        """
        note_read(self.proof)
        async with AsyncExitStack() as held:
            # In order of name: two batches that share two indexes cannot wait for each other.
            for index in batch.indexes():
                await held.enter_async_context(self._index_locks.held(index))
            table = await held.enter_async_context(self._tables.open_table(self._name))
            for _ in range(INDEX_ATTEMPTS_MAX):
                # Before the look: what changes these indexes from now on waits for us.
                settled = not self._abandoned
                changes = [*batch.changes, *await _index_changes(table, batch)]
                if not changes and settled:
                    return
                if not changes:
                    raise RetryLaterError(f"an earlier batch is on its way table={self._name!r}")
                if await self._written(table, batch, changes):
                    return
        raise RetryLaterError(f"an index keeps changing table={self._name!r}")

    async def commit_built(self, build: Callable[[], Awaitable[Batch]]) -> None:
        """Commit what `build` makes of the records as they are; made anew if one of them changes meanwhile.

        For a batch with a record that others change side by side, as the numbers of a scope. Raises as `commit`.
        """
        for _ in range(COMMIT_ATTEMPTS_MAX - 1):
            try:
                await self.commit(await build())
            except MetadataConflictError:
                continue
            return
        await self.commit(await build())

    async def all_names(self, index: str, *, per_read: int) -> AsyncGenerator[str, None]:
        """Every name, in order, so many in a read. Hold it in `aclosing`. Raises as `names`.

        What reads the records of a page's names together, or begins anew when the table changes, pages by itself.
        """
        after, more = "", True
        while more:
            page = await self.names(index, after=after, count=per_read)
            for name in page.names:
                yield name
                after = name
            more = page.more

    async def names(self, index: str, *, after: str = "", count: int) -> NamePage:
        """Up to `count` names behind `after`, in order. Raises RetryLaterError if the index keeps changing."""
        note_read(self.proof)
        found: list[str] = []
        async with self._tables.open_table(self._name) as table:
            root = (await _read(table, [root_key(index)]))[0]
            for _ in range(INDEX_ATTEMPTS_MAX):
                before = root.record or IndexRoot()
                place = page_of(before, found[-1] if found else after) or 0
                changed = False
                for _, number in before.pages[place:]:
                    now, pages = await _read_pages(table, index, [number])
                    if now.version != root.version:
                        # Names of this page may stand in others by now: the new root says in which.
                        root, changed = now, True
                        break
                    names = _content_of(pages[number], index).names
                    found += [name for name in names if name > (found[-1] if found else after)]
                    if len(found) > count:
                        return NamePage(found[:count], more=True)
                if not changed:
                    return NamePage(found, more=False)
        raise RetryLaterError(f"an index keeps changing table={self._name!r} index={index!r}")

    async def _read_many(
        self, keys: Sequence[RecordKey[RecordType]]
    ) -> Sequence[Versioned[RecordType]]:
        async with self._tables.open_table(self._name) as table:
            return await _read(table, keys)

    async def _written(self, table: Table, batch: Batch, changes: Sequence[RecordChange]) -> bool:
        """Whether the batch is written; False if only an index was in the way."""
        entries = [
            TableEntry(change.key, change.value, change.expected_version) for change in changes
        ]
        since = asyncio.get_running_loop().time()
        try:
            versions = await self._submitted(table.update(entries), entries)
        except (TableVersionError, TableKeyNotFoundError) as error:
            if any(change.key == error.key for change in batch.changes):
                raise MetadataConflictError(
                    f"a record changed meanwhile table={self._name!r} key={error.key!r}"
                ) from error
            return False
        note_written()
        self.proof.note_write(since=since)
        await self._take_out(table, _removed(entries, versions))
        await self._take_out_left(table)
        return True

    async def _submitted(
        self, batch: "Future[Sequence[int]]", entries: Sequence[TableEntry]
    ) -> Sequence[int]:
        # It takes place also if the caller leaves: then no task looks at its refusal.
        batch.add_done_callback(retrieve_exception)
        try:
            return await asyncio.shield(batch)
        except asyncio.CancelledError:
            if not batch.done():
                self._abandoned[batch] = frozenset(entry.key for entry in entries)
                batch.add_done_callback(self._abandoned.pop)
            if any(entry.value == REMOVED for entry in entries):
                self._left[batch] = entries
                if len(self._left) > LEFT_BATCHES_MAX:
                    del self._left[next(iter(self._left))]
            raise

    async def _take_out_left(self, table: Table) -> None:
        for batch in [each for each in self._left if each.done()][:LEFT_AT_ONCE_MAX]:
            # One by one: this caller may leave as well, and the next one finds the rest.
            entries = self._left.pop(batch, ())
            if entries and not batch.cancelled() and batch.exception() is None:
                # Batch by batch: where a record was written again, those of its batch are refused together.
                await self._take_out(table, _removed(entries, batch.result()))

    async def _take_out(self, table: Table, keys: Sequence[TableKey]) -> None:
        if not keys:
            return
        try:
            removal = table.remove(keys)
            removal.add_done_callback(retrieve_exception)
            await asyncio.shield(removal)
        except SegmentStoreError as error:
            # The batch itself is durable. An empty value that stays reads as absent and is written over by the next.
            _LOG.info("empty records stay table=%r count=%d why=%s", self._name, len(keys), error)


def _removed(entries: Sequence[TableEntry], versions: Sequence[int]) -> list[TableKey]:
    """What a batch left empty."""
    return [
        TableKey(entry.key, version)
        for entry, version in zip(entries, versions, strict=True)
        if entry.value == REMOVED
    ]


async def _read(
    table: Table, keys: Sequence[RecordKey[RecordType]]
) -> Sequence[Versioned[RecordType]]:
    entries = await _entries(table, [key.content for key in keys])
    return [_versioned(key, entry) for key, entry in zip(keys, entries, strict=True)]


async def _entries(table: Table, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
    entries = table.get_nowait(keys)
    return await table.get(keys) if entries is None else entries


def _versioned(key: RecordKey[RecordType], entry: TableEntry | None) -> Versioned[RecordType]:
    if entry is None:
        return Versioned()
    return Versioned(None if entry.value == REMOVED else key.decode(entry.value), entry.version)


async def _read_pages(
    table: Table, index: str, numbers: Sequence[int]
) -> tuple[Versioned[IndexRoot], dict[int, Versioned[IndexPage]]]:
    """Some pages of an index, and its root, read at the same moment or behind them.

    If it is the root that named the pages, no page was split or went away in between.
    """
    keys = [page_key(index, number) for number in numbers]
    wanted = [root_key(index).content, *(key.content for key in keys)]
    entries = table.get_nowait(wanted)
    if entries is None:
        # One request for both could bring a root that is older than the pages: a part of it may come from Tier 2.
        pages = await table.get(wanted[1:])
        entries = [*await _entries(table, wanted[:1]), *pages]
    root, *pages = entries
    return _versioned(root_key(index), root), {
        number: _versioned(key, page)
        for number, key, page in zip(numbers, keys, pages, strict=True)
    }


def _content_of(page: Versioned[IndexPage], index: str) -> IndexPage:
    if page.record is None:
        raise CorruptedDataError(f"the root of an index names a page that is gone index={index!r}")
    return page.record


async def _read_index(
    table: Table, index: str, names: Sequence[str]
) -> tuple[Versioned[IndexRoot], dict[int, Versioned[IndexPage]]]:
    """The root, and the pages that a change of these names touches. Raises RetryLaterError (it keeps changing)."""
    root = (await _read(table, [root_key(index)]))[0]
    for _ in range(INDEX_ATTEMPTS_MAX):
        numbers = pages_of(root.record or IndexRoot(), names)
        if not numbers:
            return root, {}
        # A page that was split behind the look at the root has fewer names than that root says, under a version that a
        # batch would replace: so the root is read once more.
        now, pages = await _read_pages(table, index, numbers)
        if now.version == root.version:
            return root, pages
        root = now
    raise RetryLaterError(f"an index keeps changing index={index!r}")


async def _index_changes(table: Table, batch: Batch) -> list[RecordChange]:
    changes = Batch()
    empty: dict[str, Versioned[IndexRoot]] = {}
    for index in batch.indexes():
        added = batch.added_names.get(index, ())
        removed = batch.removed_names.get(index, ())
        if index in batch.closed_indexes:
            root = (await _read(table, [root_key(index)]))[0]
            _close(changes, index, root, root.record or IndexRoot())
            continue
        if index in batch.empty_indexes:
            empty[index] = (await _read(table, [root_key(index)]))[0]
            _require_empty(index, empty[index].record or IndexRoot())
            continue
        root, read = await _read_index(table, index, [*added, *removed])
        before = root.record or IndexRoot()
        if before.closed:
            if added:
                raise IndexClosedError(f"index takes no names any more index={index!r}")
            continue
        pages = {number: _content_of(page, index) for number, page in read.items()}
        change = change_names(before, pages, added=added, removed=removed)
        _put_index(changes, index, root, read, change)
    if batch.changes or changes.changes:
        for index, root in empty.items():
            # Written as it is: a first name changes the root too, and only one of the two batches finds it as it was.
            changes.put(root_key(index), root.record or IndexRoot(), root)
    return changes.changes


def _close(changes: Batch, index: str, root: Versioned[IndexRoot], before: IndexRoot) -> None:
    _require_empty(index, before)
    if not before.closed:
        changes.put(root_key(index), IndexRoot((), before.next_page_number, closed=True), root)


def _require_empty(index: str, root: IndexRoot) -> None:
    if root.pages:
        raise IndexNotEmptyError(f"index holds names index={index!r}")


def _put_index(
    changes: Batch,
    index: str,
    root: Versioned[IndexRoot],
    read: dict[int, Versioned[IndexPage]],
    change: IndexChange,
) -> None:
    if change.root is not None:
        changes.put(root_key(index), change.root, root)
    for number, page in change.pages.items():
        replaced = read.get(number, Versioned())
        if page is None:
            changes.remove(page_key(index, number), replaced)
        else:
            changes.put(page_key(index, number), page, replaced)
