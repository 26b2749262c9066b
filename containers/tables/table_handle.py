"""One table as a server uses it: see contracts.tables.Table.

What it reads is told once the container is known to be the owner still (containers/ownership.py).
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import TypeVar

from containers.attributes.attribute_updates import TABLE_INDEX_END, TABLE_INDEX_PREFIX
from containers.attributes.extended_attributes import AttributeFetches
from containers.container_settings import TableSettings
from containers.held_changes import HeldChanges
from containers.log.operation_processor import OperationProcessor
from containers.metadata.segment_metadata import SegmentMetadata
from containers.ownership import Ownership
from containers.tables.table_batch import (
    IndependentUpdateBatch,
    RemovalBatch,
    TableBatch,
    UpdateBatch,
    counter,
    validate_entries,
    validate_keys,
)
from containers.tables.table_index import (
    IndexScan,
    Place,
    key_length_of,
)
from containers.tables.table_reader import TableReader, read_delta
from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
    TooManyWaitersError,
)
from segmentstore.contracts.identifiers import TABLE_ENTRY_COUNT, AttributeKey
from segmentstore.contracts.tables import (
    TableDelta,
    TableEntry,
    TableEntryPage,
    TableInfo,
    TableKey,
    TableKeyPage,
)

Outcome = TypeVar("Outcome")


class TableHandle:
    """Its segment is pinned while the caller holds it; the context manager that made the handle unpins."""

    __slots__ = (
        "_fetches",
        "_held",
        "_loop",
        "_ownership",
        "_processor",
        "_reader",
        "_scan",
        "_segment",
        "_settings",
        "key_length",
    )

    def __init__(
        self,
        *,
        segment: SegmentMetadata,
        processor: OperationProcessor,
        ownership: Ownership,
        held: HeldChanges,
        fetches: AttributeFetches,
        reader: TableReader,
        scan: Callable[[], IndexScan],
        settings: TableSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._segment = segment
        self._processor = processor
        self._ownership = ownership
        self._held = held
        self._fetches = fetches
        self._reader = reader
        self._scan = scan
        self._settings = settings
        self.key_length = key_length_of(segment)

    @property
    def name(self) -> str:
        return self._segment.name

    async def confirm(self) -> None:
        """See contracts.tables.Table.confirm."""
        await self._ownership.confirm()

    def info(self) -> TableInfo:
        """Raises SegmentNotFoundError if it was deleted meanwhile."""
        segment = self._segment
        self._ownership.is_sure()
        self._raise_if_gone()
        return TableInfo(
            name=segment.name,
            key_length=self.key_length,
            start_offset=segment.start_offset,
            length=segment.length,
            entry_count=counter(segment.attributes.committed_value(TABLE_ENTRY_COUNT)),
        )

    # --- changes ---------------------------------------------------------------------------------

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        try:
            validate_entries(entries, self.key_length)
        except InvalidRequestError as error:
            return self._refused(error)
        batch = UpdateBatch(entries)
        return self._submit(batch, offset, lambda done: batch.new_versions(done.result()))

    def update_each(
        self, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int | SegmentStoreError]]":
        try:
            validate_entries(entries, self.key_length)
        except InvalidRequestError as error:
            return self._refused(error)
        group = IndependentUpdateBatch(entries)
        return self._submit(group, None, group.outcomes_of)

    def remove(self, keys: Sequence[TableKey], *, offset: int | None = None) -> "Future[None]":
        try:
            validate_keys(keys, self.key_length)
        except InvalidRequestError as error:
            return self._refused(error)
        return self._submit(RemovalBatch(keys), offset, _raise_if_failed)

    def _submit(
        self,
        batch: TableBatch,
        offset: int | None,
        outcome_of: "Callable[[Future[int]], Outcome]",
    ) -> "Future[Outcome]":
        segment = self._segment
        outcome: Future[Outcome] = self._loop.create_future()

        def appended(done: "Future[int]") -> None:
            try:
                result = outcome_of(done)  # takes the exception also if the caller is gone
            except Exception as error:  # noqa: BLE001  # whatever it is, it is for the caller
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(result)

        def submit() -> None:
            if outcome.done():
                # It was held, and its caller has left.
                return
            self._processor.append(
                segment, batch.data, offset=offset, attribute_updates=batch.evaluate
            ).add_done_callback(appended)
            if segment.waiting_requests:
                # It waits, perhaps for what the index lacks: asked for together with what others wait for.
                unknown = [key for key in batch.index_keys if not segment.attributes.is_known(key)]
                if unknown:
                    _ = self._fetches.want(segment, unknown)

        try:
            is_held = self._held.keep(segment, submit)
        except TooManyWaitersError as error:
            return self._refused(error)
        if not is_held:
            submit()
        return outcome

    def _refused(self, error: Exception) -> "Future[Outcome]":
        outcome: Future[Outcome] = self._loop.create_future()
        outcome.set_exception(error)
        return outcome

    # --- reads -----------------------------------------------------------------------------------

    def get_nowait(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None] | None:
        return self._reader.get_nowait(keys) if self._ownership.is_sure() else None

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        async with self._ownership.confirming():
            return await self._reader.get(keys)

    async def read_keys(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableKeyPage:
        async with self._ownership.confirming():
            found, more = await self._page(count=count, token=token, first=first, last=last)
        keys = [TableKey(key, place.version) for key, place in found]
        return TableKeyPage(keys, keys[-1].key if more else b"")

    async def read_entries(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableEntryPage:
        async with self._ownership.confirming():
            return await self._entry_page(count=count, token=token, first=first, last=last)

    async def _entry_page(
        self, *, count: int, token: bytes, first: bytes | None, last: bytes | None
    ) -> TableEntryPage:
        while True:
            found, more = await self._page(count=count, token=token, first=first, last=last)
            fitting = self._fitting(found)
            more = more or len(fitting) < len(found)
            entries = await self._reader.entries_at(fitting)
            if entries or not more:
                entries.sort(key=lambda entry: entry.key)
                return TableEntryPage(entries, fitting[-1][0] if more else b"")
            token = fitting[-1][0]  # all of them were removed while they were read

    def _fitting(self, found: list[tuple[bytes, Place]]) -> list[tuple[bytes, Place]]:
        """As many as fit into a page, yet at least one."""
        total = 0
        for number, (_, place) in enumerate(found):
            total += place.length
            if total > self._settings.page_bytes_max and number:
                return found[:number]
        return found

    async def _page(
        self, *, count: int, token: bytes, first: bytes | None, last: bytes | None
    ) -> tuple[list[tuple[bytes, Place]], bool]:
        if count < 1:
            raise InvalidRequestError(f"a page has at least one key count={count}")
        if not self.key_length and (first is not None or last is not None):
            raise InvalidRequestError(f"only a fixed key length gives ranges name={self.name!r}")
        self._raise_if_gone()
        start = TABLE_INDEX_PREFIX + (token + b"\0" if token else b"")
        if first is not None:
            start = max(start, TABLE_INDEX_PREFIX + first)
        end = TABLE_INDEX_END if last is None else TABLE_INDEX_PREFIX + last + b"\0"
        return await self._scan().page(
            start=AttributeKey(start),
            end=AttributeKey(end),
            count=min(count, self._settings.page_count_max),
            begins=not token,
        )

    async def read_delta(self, *, position: int, count: int) -> TableDelta:
        if self.key_length:
            raise InvalidRequestError(
                f"a table with a fixed key length has no deltas name={self.name!r}"
            )
        if count < 1 or position < 0:
            raise InvalidRequestError(
                f"changes are asked for from a position on position={position} count={count}"
            )
        async with self._ownership.confirming():
            self._raise_if_gone()
            return await read_delta(
                self._reader,
                self._segment,
                self._settings,
                position=position,
                count=min(count, self._settings.page_count_max),
            )

    def _raise_if_gone(self) -> None:
        if self._segment.is_gone():
            raise SegmentNotFoundError(self._segment.name)


def _raise_if_failed(done: "Future[int]") -> None:
    done.result()
