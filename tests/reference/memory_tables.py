"""A TableApi in memory: what the door of tables promises, in the fewest lines.

A table is a log of records (an update or a removal each) and an index from key to the newest record. Offsets are those
of the real layout (17 bytes of header per record), so that versions grow as they do there. Batches are judged against
everything submitted before them and become visible in order, one turn of the loop later.
"""

import asyncio
import bisect
from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadOffsetError,
    ContainerStoppedError,
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    TableKeyNotFoundError,
    TableNotEmptyError,
    TableVersionError,
)
from segmentstore.contracts.tables import (
    BATCH_BYTES_MAX,
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    NO_VERSION,
    NOT_EXISTS,
    Table,
    TableDelta,
    TableEntry,
    TableEntryPage,
    TableInfo,
    TableKey,
    TableKeyPage,
)

_RECORD_HEADER_BYTES = 17

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a table's log; `value` is None for a removal."""

    offset: int
    length: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class TableState:
    """One table: what is committed, and the versions that everything submitted will leave behind."""

    name: str
    key_length: int
    start_offset: int = 0
    length: int = 0
    pending_length: int = 0
    deleted: bool = False
    log: list[Record] = field(default_factory=list)
    entries: dict[bytes, TableEntry] = field(default_factory=dict)
    pending_versions: dict[bytes, int] = field(default_factory=dict)

    def check(self) -> None:
        """The committed entries are what the log says, newest record first; O(n)."""
        expected: dict[bytes, TableEntry] = {}
        for record in self.log:
            expected.pop(record.key, None)
            if record.value is not None:
                expected[record.key] = TableEntry(record.key, record.value, record.offset)
        assert expected == self.entries, f"index and log differ name={self.name!r}"


class MemoryTables:
    """All tables of one store. `stop()` makes every later verb fail, as a container that went away would."""

    def __init__(self) -> None:
        self._tables: dict[str, TableState] = {}
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def restarted(self) -> "MemoryTables":
        """The same committed tables in a new process; what was under way and not committed is gone."""
        other = MemoryTables()
        for name, state in self._tables.items():
            other._tables[name] = TableState(
                name,
                state.key_length,
                state.start_offset,
                state.length,
                state.length,
                log=list(state.log),
                entries=dict(state.entries),
                pending_versions={key: entry.version for key, entry in state.entries.items()},
            )
        return other

    def names(self) -> list[str]:
        return sorted(self._tables)

    def check(self) -> None:
        for state in self._tables.values():
            state.check()

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open(name)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        await asyncio.sleep(0)
        yield MemoryTable(self, self._find(name))

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await asyncio.sleep(0)
        self.require_running()
        if not 0 <= key_length <= KEY_BYTES_MAX:
            raise InvalidRequestError(f"key length is out of range key_length={key_length}")
        if name in self._tables:
            raise SegmentExistsError(name)
        self._tables[name] = TableState(name, key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await asyncio.sleep(0)
        state = self._find(name)
        if must_be_empty and state.pending_versions:
            raise TableNotEmptyError(name)
        state.deleted = True
        del self._tables[name]

    def compact(self, name: str) -> None:
        """Drop records that are no longer the newest of their key from the front of the log."""
        state = self._find(name)
        live = {entry.version for entry in state.entries.values()}
        while state.log and state.log[0].offset not in live:
            dropped = state.log.pop(0)
            state.start_offset = dropped.offset + dropped.length

    def require_running(self) -> None:
        if self._stopped:
            raise ContainerStoppedError("container stopped")

    def _find(self, name: str) -> TableState:
        self.require_running()
        if name not in self._tables:
            raise SegmentNotFoundError(name)
        return self._tables[name]


class MemoryTable:
    """One open table."""

    def __init__(self, store: MemoryTables, state: TableState) -> None:
        self._store = store
        self._state = state

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def key_length(self) -> int:
        return self._state.key_length

    async def confirm(self) -> None:
        return

    def info(self) -> TableInfo:
        state = self._state
        return TableInfo(
            state.name, state.key_length, state.start_offset, state.length, len(state.entries)
        )

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        future: Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        try:
            for entry in entries:
                self._require_size(entry.key, entry.value)
            if sum(len(entry.key) + len(entry.value) for entry in entries) > BATCH_BYTES_MAX:
                raise InvalidRequestError("batch is too large")
            records = self._submit(
                [(entry.key, entry.value, entry.version) for entry in entries], offset
            )
        except SegmentStoreError as error:
            self._later(future, error)
        else:
            asyncio.get_running_loop().call_soon(
                self._commit, records, future, [record.offset for record in records]
            )
        return future

    def update_each(
        self, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int | SegmentStoreError]]":
        future: Future[Sequence[int | SegmentStoreError]] = (
            asyncio.get_running_loop().create_future()
        )
        outcomes: list[int | SegmentStoreError] = []
        records: list[Record] = []
        try:
            for entry in entries:
                self._require_size(entry.key, entry.value)
            for entry in entries:
                try:
                    records += self._submit([(entry.key, entry.value, entry.version)], None)
                except (TableVersionError, TableKeyNotFoundError) as refusal:
                    outcomes.append(refusal)
                else:
                    outcomes.append(records[-1].offset)
        except SegmentStoreError as error:
            self._later(future, error)
        else:
            asyncio.get_running_loop().call_soon(self._commit, records, future, outcomes)
        return future

    def remove(self, keys: Sequence[TableKey], *, offset: int | None = None) -> "Future[None]":
        future: Future[None] = asyncio.get_running_loop().create_future()
        try:
            for key in keys:
                self._require_size(key.key, b"")
            records = self._submit([(key.key, None, key.version) for key in keys], offset)
        except SegmentStoreError as error:
            self._later(future, error)
        else:
            asyncio.get_running_loop().call_soon(self._commit, records, future, None)
        return future

    def get_nowait(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None] | None:
        self._require_alive()
        return [self._state.entries.get(key) for key in keys]

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        await asyncio.sleep(0)
        self._require_alive()
        return [self._state.entries.get(key) for key in keys]

    async def read_keys(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableKeyPage:
        page = await self.read_entries(count=count, token=token, first=first, last=last)
        return TableKeyPage(
            [TableKey(entry.key, entry.version) for entry in page.entries], page.token
        )

    async def read_entries(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableEntryPage:
        await asyncio.sleep(0)
        self._require_alive()
        if count < 1:
            raise InvalidRequestError(f"count must be positive count={count}")
        if not self._state.key_length and (first is not None or last is not None):
            raise InvalidRequestError("ranges need the fixed layout")
        # A token is the last key delivered; sorted order stands in for the hash order of the real layout.
        keys = sorted(self._state.entries)
        start = bisect.bisect_right(keys, token) if token else 0
        if first is not None:
            start = max(start, bisect.bisect_left(keys, first))
        end = len(keys) if last is None else bisect.bisect_right(keys, last)
        chosen = keys[start : min(start + count, end)]
        more = start + len(chosen) < end
        return TableEntryPage(
            [self._state.entries[key] for key in chosen], chosen[-1] if more else b""
        )

    async def read_delta(self, *, position: int, count: int) -> TableDelta:
        await asyncio.sleep(0)
        self._require_alive()
        state = self._state
        if state.key_length:
            raise InvalidRequestError(f"the fixed layout has no deltas name={state.name!r}")
        changed: dict[bytes, TableEntry] = {}
        should_clear = not state.start_offset <= position <= state.length
        last = position = state.start_offset if should_clear else position
        reached_end = True
        for record in state.log:
            if record.offset < position:
                continue
            if record.key not in changed and len(changed) >= count:
                reached_end = False
                break
            changed.pop(record.key, None)
            if record.value is not None:
                changed[record.key] = TableEntry(record.key, record.value, record.offset)
            last = record.offset + record.length
        return TableDelta(list(changed.values()), should_clear, reached_end, last)

    def _submit(
        self, changes: Sequence[tuple[bytes, bytes | None, int]], offset: int | None
    ) -> list[Record]:
        self._require_alive()
        state = self._state
        if offset is not None and offset != state.pending_length:
            raise BadOffsetError(state.name, expected=state.pending_length, given=offset)
        for key, _, expected in changes:
            self._require_version(key, expected)
        records = []
        for key, value, _ in changes:
            if value is None and key not in state.pending_versions:
                continue
            length = _RECORD_HEADER_BYTES + len(key) + len(value or b"")
            records.append(Record(state.pending_length, length, key, value))
            if value is None:
                del state.pending_versions[key]
            else:
                state.pending_versions[key] = state.pending_length
            state.pending_length += length
        return records

    def _require_version(self, key: bytes, expected: int) -> None:
        if expected == NO_VERSION:
            return
        name = self._state.name
        current = self._state.pending_versions.get(key, NOT_EXISTS)
        if current == NOT_EXISTS and expected != NOT_EXISTS:
            raise TableKeyNotFoundError(name, key=key)
        if current != expected:
            raise TableVersionError(name, key=key, expected=expected, current=current)

    def _commit(
        self, records: Sequence[Record], future: "Future[Outcome]", outcome: Outcome
    ) -> None:
        state = self._state
        for record in records:
            state.log.append(record)
            state.entries.pop(record.key, None)
            if record.value is not None:
                state.entries[record.key] = TableEntry(record.key, record.value, record.offset)
            state.length = record.offset + record.length
        if not future.done():
            future.set_result(outcome)

    def _later(self, future: "Future[Outcome]", error: SegmentStoreError) -> None:
        def refuse() -> None:
            if not future.done():
                future.set_exception(error)

        asyncio.get_running_loop().call_soon(refuse)

    def _require_size(self, key: bytes, value: bytes) -> None:
        state = self._state
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise InvalidRequestError(f"key length is out of range length={len(key)}")
        if state.key_length and len(key) != state.key_length:
            raise InvalidRequestError(
                f"key has another length length={len(key)} key_length={state.key_length}"
            )
        if len(key) + len(value) > ENTRY_BYTES_MAX:
            raise AppendTooLargeError(length=len(key) + len(value), length_max=ENTRY_BYTES_MAX)

    def _require_alive(self) -> None:
        self._store.require_running()
        if self._state.deleted:
            raise SegmentNotFoundError(self._state.name)
