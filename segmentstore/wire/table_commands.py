"""The commands of table segments: one command in, one reply out.

Updates, removals and look-ups of what is in memory take no task: the first two reply from their future, the last at
once. begin() says whether it could do so; answer() does everything else.

A reply is one frame, so a page of large entries is read again with half the count until it fits.

The look-ups of one key each that a connection sends, answered where they stand in what was received.

A client that keeps many of them under way sends some dozens in one read of the socket. What is in memory is found at
once, so nothing of them is kept: they are read one behind the other, and their answers are one piece of what is sent.

- Taken are neighbours of one table in their usual shape. The first that is anything else, or asks for what is not in
  memory, ends the run, and takes the way of all commands.
- A run ends after `RUN_FRAMES`, or when its answers have `_RUN_BYTES`: then it is time to look at how much is under
  way.

The updates of one key each that a connection sends, gathered and submitted together.

A client that keeps many of them under way sends some dozens in one read of the socket. Each is still judged by itself
and answered by itself, but they are one operation of the table, one record of its log and one piece of what is sent.

- Gathered are neighbours: updates of one table with nothing between them that could change it. `submit()` comes before
  any other command, and at the end of what was received.
- What was gathered holds a lease of its table until it is answered.
- At most `_GROUP_BYTES` and one entry are gathered; they count as un-acknowledged from their submission on.

Table frames with a single key, read and written without going through the fields of a command.

Clients that look up and update one key at a time send them by the ten thousand, and the general codec takes longer
than the table. Only that one shape is known here; whatever looks different, damaged frames among it, is left to the
codec (None), which reads all shapes and says what is wrong. The bytes are those of `codec/wire_protocol/tables.py`:

    ReadTable             int64 request id, text segment, text token, int32 1, key
    UpdateTableEntries    the same, then the value, then int64 table offset (optional)
    TableRead             int64 request id, text segment, int32 1, key, value
    TableEntriesUpdated   int64 request id, int32 1, int64 version

    text    uint16 length, modified UTF-8
    key     int32 (4 + length + 8), int32 length, the key, int64 version
    value   int32 (4 + length), int32 length, the value
"""

import asyncio
import struct
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from segmentstore.codec.wire_protocol.command import FRAME_HEADER, FRAME_HEADER_BYTES, Command
from segmentstore.codec.wire_protocol.fields import ProtocolError, decode_text
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
from segmentstore.contracts.tables import (
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    NOT_EXISTS,
    Table,
    TableApi,
    TableEntry,
)
from segmentstore.runtime.handle_cache import HandleCache, PinnedHandle
from segmentstore.wire.replies import SendBuffer, is_stale
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters

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

    def retry_in_task(self, command: Command) -> None:
        """Answer it in a task."""


class TableCommands:
    """begin() first; answer() if that could not."""

    def __init__(
        self, *, tables: TableApi, pins: HandleCache[Table], settings: WireSettings
    ) -> None:
        self._tables = tables
        self._handles = pins
        self._page_entries_max = settings.table_page_entries_max

    @property
    def pins(self) -> HandleCache[Table]:
        """The tables that are open."""
        return self._handles

    # --- without a task --------------------------------------------------------------------------

    def begin(self, command: Command, answers: Answers) -> bool:
        """Whether it is answered, or will be, without a task."""
        if not isinstance(command, ReadTable | UpdateTableEntries | RemoveTableKeys):
            return False
        pin = self._handles.lease_nowait(command.segment)
        if pin is None:
            return False
        if isinstance(command, ReadTable):
            return self._begin_read(pin, command, answers)
        try:
            future = _submit(pin.handle, command)
        except SegmentStoreError as error:
            self._handles.release(pin)
            answers.refuse(command, error)
            return True
        future.add_done_callback(lambda _: self._changed(pin, command, future, answers))
        return True

    def _begin_read(self, pin: PinnedHandle[Table], command: ReadTable, answers: Answers) -> bool:
        try:
            found = pin.handle.get_nowait([key.key for key in command.keys])
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.forget(pin)
                return False
            answers.refuse(command, error)
            return True
        finally:
            self._handles.release(pin)
        if found is None:
            return False
        answers.reply(command, _read_reply(command, found))
        return True

    def _changed(
        self, pin: PinnedHandle[Table], command: Change, future: "TableFuture", answers: Answers
    ) -> None:
        error = future.exception()
        stale = error is not None and is_stale(error)
        if stale:
            self._handles.forget(pin)
        self._handles.release(pin)
        if error is None:
            answers.reply(command, _change_reply(command, future.result()))
        elif stale and isinstance(error, SegmentNotFoundError):
            # Nothing was stored, and the table may exist again under its name.
            answers.retry_in_task(command)
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
        kept = self._handles.lease_nowait(command.segment)
        if kept is not None:
            try:
                return await self._answer_leased(kept, command)
            except SegmentNotFoundError:
                pass  # It may exist again under its name.
        return await self._answer_leased(await self._handles.lease(command.segment), command)

    async def _answer_leased(self, pin: PinnedHandle[Table], command: OpenCommand) -> Command:
        try:
            return await self._answer_opened(pin.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.forget(pin)
            raise
        finally:
            self._handles.release(pin)

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


_READ_TABLE: Final = ReadTable.type
_REQUEST_ID_BYTES: Final = 8
_RUN_BYTES: Final = 64 * 1024


class NamedTable(NamedTuple):
    """Which table a ReadTable or UpdateTableEntries is for: the next one for it has the same bytes there."""

    content: bytes
    """Name and token with their lengths, so another name or token never begins with them."""
    name: bytes
    """The name alone, with its length."""
    segment: str
    end: int
    """Where in the payload the keys or entries begin."""

    def begins(self, payload: bytes) -> bool:
        """Whether that payload is for the same table, with the same token."""
        return payload.startswith(self.content, _REQUEST_ID_BYTES)


class TableLookupBatcher:
    """answer() any number."""

    def __init__(
        self, *, pins: HandleCache[Table], outgoing: SendBuffer, counters: WireCounters
    ) -> None:
        self._handles = pins
        self._outgoing = outgoing
        self._counters = counters
        self._named: NamedTable | None = None
        """Of the look-up before: clients go on with the same table."""

    def answer(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """(where the first frame begins that is not answered, how many were answered before it).

        `limit` is where the received bytes end. Raises ProtocolError for a name that is no text.
        """
        _, length = FRAME_HEADER.unpack_from(view, position)
        begin = position + FRAME_HEADER_BYTES
        payload = bytes(view[begin : begin + length])
        named = self._named
        if named is None or not named.begins(payload):
            named = self._named = read_named_table(payload)
            if named is None:
                return position, 0
        pin = self._handles.lease_nowait(named.segment)
        if pin is None:
            return position, 0
        try:
            return self._answer_from(pin.handle, named, view, position, limit)
        finally:
            self._handles.release(pin)

    def _answer_from(
        self, table: Table, named: NamedTable, view: memoryview, position: int, limit: int
    ) -> tuple[int, int]:
        parts: list[bytes] = []
        count = byte_count = 0
        keys_begin = named.end
        while count < RUN_FRAMES and byte_count < _RUN_BYTES:
            frame = payload_of_next(view, position, limit, kind=_READ_TABLE)
            if frame is None:
                break
            payload, end = frame
            if not named.begins(payload):
                break
            key_end = read_single_key(payload, keys_begin)
            if key_end is None:
                break
            try:
                found = table.get_nowait((payload[keys_begin + KEY_AT : key_end],))
            except SegmentStoreError:
                break  # Met again, and told, by whoever takes over.
            if found is None:
                break
            entry = found[0]
            parts += encode_single_read(
                payload[:_REQUEST_ID_BYTES], named.name, payload[keys_begin:key_end], entry
            )
            byte_count += len(payload) + (0 if entry is None else len(entry.value))
            count += 1
            position = end
        if count:
            self._counters.requests += count
            self._outgoing.send(b"".join(parts))
        return position, count


_UPDATE_TABLE: Final = UpdateTableEntries.type
_GROUP_BYTES: Final = 64 * 1024
"""A group with so many bytes of keys and values is submitted at once."""


class UpdateAnswers(Protocol):
    """Where the outcomes go."""

    def reply_frames(self, frames: bytes, *, stored_bytes: int) -> None: ...

    def refuse(self, command: Command, error: SegmentStoreError) -> None: ...

    def retry_in_task(self, command: Command) -> None: ...


class _UpdateBatch:
    """Updates of one table that came one behind the other."""

    __slots__ = ("byte_count", "entries", "key_length", "pin", "request_ids", "segment")

    def __init__(self, segment: str, pin: PinnedHandle[Table]) -> None:
        self.segment = segment
        self.pin = pin
        self.key_length = pin.handle.key_length
        self.request_ids: list[int] = []
        self.entries: list[TableEntry] = []
        self.byte_count = 0

    def command(self, number: int) -> UpdateTableEntries:
        """One of them as if it had come alone."""
        return UpdateTableEntries(
            self.request_ids[number], self.segment, "", (self.entries[number],)
        )


class SameShapeUpdates:
    """UpdateTableEntries of one table that differ in request id, key, version and value, and in no length.

    Whoever keeps many under way sends such ones: a whole run of them is read in one go, and everything else in them is
    compared with what the first one had there.
    """

    __slots__ = (
        "_behind_key",
        "_between",
        "_fields",
        "_head",
        "_tail",
        "entry_bytes",
        "frame_bytes",
    )

    def __init__(self, named: NamedTable, entry: TableEntry, payload: bytes) -> None:
        """As the update of `entry` that `payload` is, behind what names its table."""
        key_bytes, value_bytes = len(entry.key), len(entry.value)
        key_at = named.end + KEY_AT
        value_at = key_at + key_bytes + _VERSION_AND_VALUE.size
        self._head = FRAME_HEADER.pack(_UPDATE_TABLE, len(payload))
        self._between = payload[_REQUEST_ID_BYTES:key_at]
        self._behind_key = payload[value_at - 2 * _LENGTH_BYTES : value_at]
        self._tail = payload[value_at + value_bytes :]
        self._fields = struct.Struct(
            f">{len(self._head)}sq{len(self._between)}s{key_bytes}sq{len(self._behind_key)}s"
            f"{value_bytes}s{len(self._tail)}s"
        )
        self.frame_bytes = self._fields.size
        self.entry_bytes = key_bytes + value_bytes

    def read(
        self, view: memoryview, position: int, limit: int, *, count: int
    ) -> tuple[list[int], list[TableEntry]]:
        """Request ids and entries of up to `count` that are whole before `limit`, from `position` on."""
        request_ids: list[int] = []
        entries: list[TableEntry] = []
        head, between = self._head, self._between
        behind_key, end = self._behind_key, self._tail
        count = min(count, (limit - position) // self.frame_bytes)
        if count <= 0 or view[position : position + len(head)] != head:
            return request_ids, entries
        run = view[position : position + count * self.frame_bytes]
        for start, request_id, name, key, version, lengths, value, tail in self._fields.iter_unpack(
            run
        ):
            if start != head or name != between or lengths != behind_key or tail != end:
                break
            request_ids.append(request_id)
            entries.append(TableEntry(key, value, version))
        return request_ids, entries


class TableUpdateBatcher:
    """add() any number, then submit()."""

    def __init__(
        self,
        *,
        pins: HandleCache[Table],
        answers: UpdateAnswers,
        counters: WireCounters,
        charge: Callable[[int], None],
    ) -> None:
        self._handles = pins
        self._answers = answers
        self._counters = counters
        self._charge = charge
        self._named: NamedTable | None = None
        """Of the update before: clients go on with the same table."""
        self._alike: SameShapeUpdates | None = None
        """The last two of the same length, in that table: clients go on with such ones."""
        self._length_before = 0
        self._group: _UpdateBatch | None = None

    def gather(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """Gather the UpdateTableEntries from `position` on; `limit` is where the received bytes end.

        (where it stopped, how many were gathered). It stops before one that takes the way of all commands, behind one
        that made the group full, and after `RUN_FRAMES`: then it is time to look at how much is under way. Raises
        ProtocolError for a name that is no text.
        """
        count = 0
        while True:
            alike = self._alike
            if alike is not None:
                taken = self._add_alike(alike, view, position, limit, RUN_FRAMES - count)
                position += taken * alike.frame_bytes
                count += taken
                if taken and (self._group is None or count == RUN_FRAMES):
                    break
            frame = payload_of_next(view, position, limit, kind=_UPDATE_TABLE)
            if frame is None or not self._add(frame[0]):
                break
            position = frame[1]
            count += 1
            if self._group is None or count == RUN_FRAMES:
                break
        return position, count

    def _add_alike(
        self, alike: SameShapeUpdates, view: memoryview, position: int, limit: int, count: int
    ) -> int:
        """How many were gathered, of those that differ from the last one in no length."""
        group = self._group
        room = _GROUP_BYTES - (group.byte_count if group is not None else 0)
        # Up to the one that makes the group full.
        count = min(count, -(-room // alike.entry_bytes))
        request_ids, entries = alike.read(view, position, limit, count=count)
        if not entries:
            return 0
        if group is None:
            assert self._named is not None, "alike with what was never named"
            pin = self._handles.lease_nowait(self._named.segment)
            if pin is None:
                return 0
            group = self._group = _UpdateBatch(self._named.segment, pin)
        if group.key_length not in (0, len(entries[0].key)):
            return 0
        group.request_ids += request_ids
        group.entries += entries
        group.byte_count += len(entries) * alike.entry_bytes
        if group.byte_count >= _GROUP_BYTES:
            self.submit()
        return len(entries)

    def _add(self, payload: bytes) -> bool:
        """Whether it is gathered."""
        named = self._named
        if named is None or not named.begins(payload):
            self.submit()
            self._alike = None
            named = self._named = read_named_table(payload)
            if named is None:
                return False
        entry = read_single_update(payload, named.end)
        if entry is None:
            return False
        group = self._group
        if group is None:
            pin = self._handles.lease_nowait(named.segment)
            if pin is None:
                return False
            group = self._group = _UpdateBatch(named.segment, pin)
        key_bytes = len(entry.key)
        byte_count = key_bytes + len(entry.value)
        key_length = group.key_length
        if (
            key_bytes > KEY_BYTES_MAX
            or byte_count > ENTRY_BYTES_MAX
            or (key_length and key_bytes != key_length)
        ):
            return False  # Refused by itself: it must not take the others along.
        if len(payload) == self._length_before:
            self._alike = SameShapeUpdates(named, entry, payload)
        self._length_before = len(payload)
        group.request_ids.append(read_request_id(payload))
        group.entries.append(entry)
        group.byte_count += byte_count
        if group.byte_count >= _GROUP_BYTES:
            self.submit()
        return True

    def submit(self) -> None:
        """Hand over what was gathered."""
        group = self._group
        if group is None:
            return
        self._group = None
        if not group.entries:
            self._handles.release(group.pin)
            return
        self._counters.requests += len(group.entries)
        self._charge(group.byte_count)
        try:
            future = group.pin.handle.update_each(group.entries)
        except SegmentStoreError as error:
            self._failed(group, error)
        else:
            future.add_done_callback(lambda done: self._settled(group, done))

    def _settled(
        self, group: _UpdateBatch, done: "Future[Sequence[int | SegmentStoreError]]"
    ) -> None:
        error = done.exception()
        if isinstance(error, SegmentStoreError):
            self._failed(group, error)
            return
        self._handles.release(group.pin)
        if error is not None:
            raise error
        request_ids: list[int] = []
        versions: list[int] = []
        stored_bytes = group.byte_count
        for number, outcome in enumerate(done.result()):
            if isinstance(outcome, int):
                request_ids.append(group.request_ids[number])
                versions.append(outcome)
            else:
                entry = group.entries[number]
                stored_bytes -= len(entry.key) + len(entry.value)
                self._answers.refuse(group.command(number), outcome)
        self._answers.reply_frames(
            encode_single_updates(request_ids, versions), stored_bytes=stored_bytes
        )

    def _failed(self, group: _UpdateBatch, error: SegmentStoreError) -> None:
        stale = is_stale(error)
        if stale:
            self._handles.forget(group.pin)
        self._handles.release(group.pin)
        for number in range(len(group.entries)):
            if stale and isinstance(error, SegmentNotFoundError):
                # Nothing was stored, and the table may exist again under its name.
                self._answers.retry_in_task(group.command(number))
            else:
                self._answers.refuse(group.command(number), error)


_REQUEST_AND_LENGTH: Final = struct.Struct(">qH")
_UINT16: Final = struct.Struct(">H")
_COUNT_AND_KEY: Final = struct.Struct(">iii")
_VERSION: Final = struct.Struct(">q")
_VERSION_AND_VALUE: Final = struct.Struct(">qii")
_UPDATED: Final = struct.Struct(">iiqiq")
_UPDATED_BYTES: Final = _UPDATED.size - FRAME_HEADER_BYTES
_LENGTH_BYTES: Final = 4


_NO_OFFSET: Final = _VERSION.pack(NO_TABLE_OFFSET)


_READ_HEAD: Final = struct.Struct(">ii8s")
_READ_BYTES: Final = _REQUEST_ID_BYTES + _VERSION_AND_VALUE.size
"""A TableRead without its name, its key and its value."""
KEY_AT: Final = _COUNT_AND_KEY.size
"""Where a single key begins, counted from the count of keys."""
_KEY_OVERHEAD_BYTES: Final = 12
"""What the outer length of a key counts beyond the key."""
RUN_FRAMES: Final = 64
"""Neighbouring frames that are taken at once at most: then it is time to look at how much is under way."""


def payload_of_next(
    view: memoryview, position: int, limit: int, *, kind: int
) -> tuple[bytes, int] | None:
    """The payload of the frame at `position` and where it ends, if it is of that kind and whole before `limit`."""
    begin = position + FRAME_HEADER_BYTES
    if begin > limit:
        return None
    found, length = FRAME_HEADER.unpack_from(view, position)
    end = begin + length
    if found != kind or end > limit:
        return None
    return bytes(view[begin:end]), end


def read_named_table(payload: bytes) -> NamedTable | None:
    """Raises ProtocolError if the name is no text."""
    try:
        _, name_bytes = _REQUEST_AND_LENGTH.unpack_from(payload)
        name_end = _REQUEST_AND_LENGTH.size + name_bytes
        (token_bytes,) = _UINT16.unpack_from(payload, name_end)
    except struct.error:
        return None
    end = name_end + _UINT16.size + token_bytes
    if end > len(payload):
        return None
    segment = decode_text(payload[_REQUEST_AND_LENGTH.size : name_end])
    return NamedTable(
        payload[_REQUEST_ID_BYTES:end], payload[_REQUEST_ID_BYTES:name_end], segment, end
    )


def read_request_id(payload: bytes) -> int:
    """What any of these payloads begins with."""
    request_id: int = _VERSION.unpack_from(payload)[0]
    return request_id


def read_single_update(payload: bytes, begin: int) -> TableEntry | None:
    """The one entry of an UpdateTableEntries from `begin` on; None also for one with a table offset."""
    try:
        count, outer, key_bytes = _COUNT_AND_KEY.unpack_from(payload, begin)
        if count != 1 or key_bytes <= 0 or outer != key_bytes + _KEY_OVERHEAD_BYTES:
            return None
        key_at = begin + _COUNT_AND_KEY.size
        key_end = key_at + key_bytes
        version, outer, value_bytes = _VERSION_AND_VALUE.unpack_from(payload, key_end)
    except struct.error:
        return None
    value_at = key_end + _VERSION_AND_VALUE.size
    value_end = value_at + value_bytes
    if value_bytes < 0 or outer != 4 + value_bytes or value_end > len(payload):
        return None
    if value_end < len(payload) and payload[value_end:] != _NO_OFFSET:
        return None
    return TableEntry(payload[key_at:key_end], payload[value_at:value_end], version)


def read_single_key(payload: bytes, begin: int) -> int | None:
    """Where the one key of a ReadTable ends that begins `KEY_AT` behind `begin`."""
    try:
        count, outer, key_bytes = _COUNT_AND_KEY.unpack_from(payload, begin)
    except struct.error:
        return None
    end: int = begin + KEY_AT + key_bytes
    if (
        count != 1
        or key_bytes <= 0
        or outer != key_bytes + _KEY_OVERHEAD_BYTES
        or len(payload) < end + _VERSION.size
    ):
        return None
    return end


def encode_single_read(
    request_id: bytes, name: bytes, asked: bytes, found: TableEntry | None
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The parts of a TableRead. `request_id`, the `name` with its length, and what was `asked` for, from the count
    of keys to the end of the key, are the bytes of the ReadTable."""
    version, value = (NOT_EXISTS, b"") if found is None else (found.version, found.value)
    value_bytes = len(value)
    length = _READ_BYTES + len(name) + len(asked) + value_bytes
    return (
        _READ_HEAD.pack(TableRead.type, length, request_id),
        name,
        asked,
        _VERSION_AND_VALUE.pack(version, 4 + value_bytes, value_bytes),
        value,
    )


def encode_single_updates(request_ids: Sequence[int], versions: Sequence[int]) -> bytes:
    """A TableEntriesUpdated for each."""
    pack, kind, length = _UPDATED.pack, TableEntriesUpdated.type, _UPDATED_BYTES
    return b"".join(
        [
            pack(kind, length, request_id, 1, version)
            for request_id, version in zip(request_ids, versions, strict=True)
        ]
    )
