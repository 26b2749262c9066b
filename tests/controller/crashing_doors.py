"""Doors that count what comes through and, at a given count, let the process die before or after the call took effect.

A crash is an exception that no handler of ours may take for an answer: it derives from BaseException. Everything that
comes through the doors after it dies too: the process is gone.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, Segment, SegmentProperties
from segmentstore.contracts.tables import (
    Table,
    TableApi,
    TableDelta,
    TableEntry,
    TableEntryPage,
    TableInfo,
    TableKey,
    TableKeyPage,
)
from tests.http.memory_segments import MemorySegments

Outcome = TypeVar("Outcome")


class ProcessDiedError(BaseException):
    """The process is gone."""


class CrashPlan:
    """Dies at the `die_at`-th call (from 1): before its effect, or behind it."""

    def __init__(self, *, die_at: int = 0, behind: bool = False) -> None:
        self.die_at = die_at
        self.behind = behind
        self.count = 0
        self.dead = False
        self.keys_read = 0

    def arm(self, *, die_at: int, behind: bool) -> None:
        self.die_at, self.behind, self.count = die_at, behind, 0

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        if self.dead:
            raise ProcessDiedError
        self.count += 1
        dies = self.count == self.die_at
        if dies and not self.behind:
            self.dead = True
            raise ProcessDiedError
        try:
            return await call()
        finally:
            # Also instead of a refusal: nobody lived to hear it.
            if dies:
                self.dead = True
                raise ProcessDiedError


class CrashingSegments:
    """The part of SegmentApi that the controller uses; everything else goes straight through."""

    def __init__(self, segments: MemorySegments, plan: CrashPlan) -> None:
        self._segments = segments
        self._plan = plan

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return self._segments.open_segment(name)

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        return await self._plan.through(lambda: self._segments.create(name, attributes))

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self._plan.through(lambda: self._segments.update_attributes(name, updates))

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._plan.through(lambda: self._segments.attributes(name, keys))

    async def seal(self, name: str) -> int:
        return await self._plan.through(lambda: self._segments.seal(name))

    async def truncate(self, name: str, offset: int) -> None:
        await self._plan.through(lambda: self._segments.truncate(name, offset))

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        return await self._plan.through(
            lambda: self._segments.merge(
                target, source, attribute_updates=attribute_updates, seal_source=seal_source
            )
        )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        # One after the other: the process may die between two of them.
        return [await self.merge(target, source, seal_source=seal_sources) for source in sources]

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        await self._plan.through(lambda: self._segments.forget_merged(target, sources))

    async def delete(self, name: str) -> None:
        await self._plan.through(lambda: self._segments.delete(name))

    async def info(self, name: str) -> SegmentProperties:
        return await self._plan.through(lambda: self._segments.info(name))

    async def flush(self, name: str | None = None) -> None:
        await self._plan.through(lambda: self._segments.flush(name))

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        return await self._plan.through(
            lambda: self._segments.list_segments(prefix, start_after, limit)
        )


class CrashingTables:
    """TableApi whose batches and table verbs may be the last thing that the process did."""

    def __init__(self, tables: TableApi, plan: CrashPlan) -> None:
        self._tables = tables
        self._plan = plan

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open(name)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        async with self._tables.open_table(name) as table:
            yield CrashingTable(table, self._plan)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self._plan.through(lambda: self._tables.create_table(name, key_length=key_length))

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await self._plan.through(
            lambda: self._tables.delete_table(name, must_be_empty=must_be_empty)
        )


class CrashingTable:
    """One table behind the plan; reads are not counted, they change nothing."""

    def __init__(self, table: Table, plan: CrashPlan) -> None:
        self._table = table
        self._plan = plan

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def key_length(self) -> int:
        return self._table.key_length

    async def confirm(self) -> None:
        await self._table.confirm()

    def info(self) -> TableInfo:
        return self._table.info()

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        async def submit() -> Sequence[int]:
            return await self._table.update(entries, offset=offset)

        return _owned(asyncio.ensure_future(self._plan.through(submit)))

    def update_each(
        self, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int | SegmentStoreError]]":
        async def submit() -> Sequence[int | SegmentStoreError]:
            return await self._table.update_each(entries)

        return _owned(asyncio.ensure_future(self._plan.through(submit)))

    def remove(self, keys: Sequence[TableKey], *, offset: int | None = None) -> "Future[None]":
        async def submit() -> None:
            await self._table.remove(keys, offset=offset)

        return _owned(asyncio.ensure_future(self._plan.through(submit)))

    def get_nowait(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None] | None:
        return None

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        if self._plan.dead:
            raise ProcessDiedError
        self._plan.keys_read += len(keys)
        return await self._table.get(keys)

    async def read_keys(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableKeyPage:
        return await self._table.read_keys(count=count, token=token, first=first, last=last)

    async def read_entries(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableEntryPage:
        return await self._table.read_entries(count=count, token=token, first=first, last=last)

    async def read_delta(self, *, position: int, count: int) -> TableDelta:
        return await self._table.read_delta(position=position, count=count)


def _owned(future: "Future[Outcome]") -> "Future[Outcome]":
    # The log owns its futures: an outcome that no caller waits for any more is nobody's fault.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
