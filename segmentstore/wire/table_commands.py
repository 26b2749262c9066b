"""The commands of table segments: one command in, one reply out.

Updates, removals and look-ups of what is in memory take no task: the first two reply from their future, the last at
once. begin() says whether it could do so; answer() does everything else.

A reply is one frame, so a page of large entries is read again with half the count until it fits.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError
from segmentstore.codec.wire_protocol.refusals import OperationUnsupported
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    NO_TABLE_OFFSET,
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.tables import NOT_EXISTS, Table, TableApi, TableEntry
from segmentstore.wire.error_replies import is_stale
from segmentstore.wire.handle_pins import HandlePins, Pin
from segmentstore.wire.settings import WireSettings

Change: TypeAlias = UpdateTableEntries | RemoveTableKeys
OpenCommand: TypeAlias = (
    Change
    | ReadTable
    | ReadTableKeys
    | ReadTableEntries
    | ReadTableEntriesDelta
    | GetTableSegmentInfo
)


class Answers(Protocol):
    """Where the outcome of a request goes."""

    def reply(self, command: Command, reply: Command) -> None: ...

    def refuse(self, command: Command, error: SegmentStoreError) -> None: ...

    def start_over(self, command: Command) -> None:
        """Answer it in a task."""


class TableCommands:
    """begin() first; answer() if that could not."""

    def __init__(
        self, *, tables: TableApi, pins: HandlePins[Table], settings: WireSettings
    ) -> None:
        self._tables = tables
        self._pins = pins
        self._page_entries_max = settings.table_page_entries_max

    @property
    def pins(self) -> HandlePins[Table]:
        """The tables that are open."""
        return self._pins

    # --- without a task --------------------------------------------------------------------------

    def begin(self, command: Command, answers: Answers) -> bool:
        """Whether it is answered, or will be, without a task."""
        if not isinstance(command, ReadTable | UpdateTableEntries | RemoveTableKeys):
            return False
        pin = self._pins.lease_nowait(command.segment)
        if pin is None:
            return False
        if isinstance(command, ReadTable):
            return self._begin_read(pin, command, answers)
        try:
            future = _submit(pin.handle, command)
        except SegmentStoreError as error:
            self._pins.release(pin)
            answers.refuse(command, error)
            return True
        future.add_done_callback(lambda _: self._changed(pin, command, future, answers))
        return True

    def _begin_read(self, pin: Pin[Table], command: ReadTable, answers: Answers) -> bool:
        try:
            found = pin.handle.get_nowait([key.key for key in command.keys])
        except SegmentStoreError as error:
            if is_stale(error):
                self._pins.forget(pin)
                return False
            answers.refuse(command, error)
            return True
        finally:
            self._pins.release(pin)
        if found is None:
            return False
        answers.reply(command, _read_reply(command, found))
        return True

    def _changed(
        self, pin: Pin[Table], command: Change, future: "TableFuture", answers: Answers
    ) -> None:
        error = future.exception()
        stale = error is not None and is_stale(error)
        if stale:
            self._pins.forget(pin)
        self._pins.release(pin)
        if error is None:
            answers.reply(command, _change_reply(command, future.result()))
        elif stale and isinstance(error, SegmentNotFoundError):
            # Nothing was stored, and the table may exist again under its name.
            answers.start_over(command)
        elif isinstance(error, SegmentStoreError):
            answers.refuse(command, error)
        else:
            raise error

    # --- with one --------------------------------------------------------------------------------

    async def answer(self, command: Command) -> Command | None:
        """The reply; None for a command that is not of this kind. Raises SegmentStoreError."""
        match command:
            case CreateTableSegment(request_id, segment):
                await self._tables.create_table(segment, key_length=command.key_length)
                return SegmentCreated(request_id, segment)
            case DeleteTableSegment(request_id, segment, must_be_empty):
                await self._tables.delete_table(segment, must_be_empty=must_be_empty)
                return SegmentDeleted(request_id, segment)
            case (
                UpdateTableEntries()
                | RemoveTableKeys()
                | ReadTable()
                | ReadTableKeys()
                | ReadTableEntries()
                | ReadTableEntriesDelta()
                | GetTableSegmentInfo()
            ):
                return await self._answer_with_table(command)
        return None

    async def _answer_with_table(self, command: OpenCommand) -> Command:
        kept = self._pins.lease_nowait(command.segment)
        if kept is not None:
            try:
                return await self._answer_leased(kept, command)
            except SegmentNotFoundError:
                pass  # It may exist again under its name.
        return await self._answer_leased(await self._pins.lease(command.segment), command)

    async def _answer_leased(self, pin: Pin[Table], command: OpenCommand) -> Command:
        try:
            return await self._answer_opened(pin.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._pins.forget(pin)
            raise
        finally:
            self._pins.release(pin)

    async def _answer_opened(self, table: Table, command: OpenCommand) -> Command:
        match command:
            case UpdateTableEntries() | RemoveTableKeys():
                return _change_reply(command, await asyncio.shield(_submit(table, command)))
            case ReadTable():
                found = await table.get([key.key for key in command.keys])
                return _read_reply(command, found)
            case ReadTableKeys() | ReadTableEntries() | ReadTableEntriesDelta():
                return await self._page(table, command)
            case GetTableSegmentInfo(request_id, segment):
                info = table.info()
                return TableSegmentInfo(
                    request_id,
                    segment,
                    start_offset=info.start_offset,
                    length=info.length,
                    entry_count=info.entry_count,
                    key_length=info.key_length,
                )

    async def _page(
        self, table: Table, command: ReadTableKeys | ReadTableEntries | ReadTableEntriesDelta
    ) -> Command:
        read: Callable[[int], Awaitable[Command]]
        match command:
            case ReadTableKeys():
                read = lambda count: _read_keys(table, command, count)  # noqa: E731
            case ReadTableEntries():
                read = lambda count: _read_entries(table, command, count)  # noqa: E731
            case ReadTableEntriesDelta():
                if table.key_length:
                    return OperationUnsupported(command.request_id, "readTableEntriesDelta")
                read = lambda count: _read_delta(table, command, count)  # noqa: E731
        count = min(max(command.suggested_count, 1), self._page_entries_max)
        while True:
            reply = await read(count)
            try:
                reply.encode()
            except ProtocolError:
                if count == 1:
                    raise
                count //= 2
            else:
                return reply


TableFuture: TypeAlias = "Future[Sequence[int]] | Future[None]"


def _submit(table: Table, command: Change) -> TableFuture:
    offset = None if command.table_offset == NO_TABLE_OFFSET else command.table_offset
    if isinstance(command, UpdateTableEntries):
        return table.update(command.entries, offset=offset)
    return table.remove(command.keys, offset=offset)


def _change_reply(command: Change, versions: Sequence[int] | None) -> Command:
    if versions is None:
        return TableKeysRemoved(command.request_id, command.segment)
    return TableEntriesUpdated(command.request_id, versions)


def _read_reply(command: ReadTable, found: Sequence[TableEntry | None]) -> Command:
    entries = [
        entry or TableEntry(key.key, b"", NOT_EXISTS)
        for key, entry in zip(command.keys, found, strict=True)
    ]
    return TableRead(command.request_id, command.segment, entries)


async def _read_keys(table: Table, command: ReadTableKeys, count: int) -> Command:
    bounds = command.iterator
    page = await table.read_keys(
        count=count,
        token=bounds.token,
        first=bounds.first_key or None,
        last=bounds.last_key or None,
    )
    return TableKeysRead(command.request_id, command.segment, page.keys, page.token)


async def _read_entries(table: Table, command: ReadTableEntries, count: int) -> Command:
    bounds = command.iterator
    page = await table.read_entries(
        count=count,
        token=bounds.token,
        first=bounds.first_key or None,
        last=bounds.last_key or None,
    )
    return TableEntriesRead(command.request_id, command.segment, page.entries, page.token)


async def _read_delta(table: Table, command: ReadTableEntriesDelta, count: int) -> Command:
    delta = await table.read_delta(position=command.from_position, count=count)
    return TableEntriesDeltaRead(
        command.request_id,
        command.segment,
        delta.entries,
        delta.should_clear,
        delta.reached_end,
        delta.last_position,
    )
