"""Commands about tables: one command in, one reply out.

TableCommands answers them; `table_order.py` says when each may begin, and submits changes. A reply is one frame, so a
page of large entries is read again with half the count until it fits. What was encoded to see whether it fits is what
is sent.

Clients that look up or update one key at a time keep many such commands under way, and send some dozens in one read of
the socket. Those are taken in batches, straight from the received bytes (their layout is in `single_key_frames.py`);
TableCommands gets what no batch takes.

- A batch holds neighbours of one table in their usual shape. The first frame that is anything else ends it, and is
  decoded and answered like all other commands.
- A batch ends after `BATCH_FRAMES_MAX`: then it is time to look at how much is under way.
- Look-ups (TableLookupBatcher) are answered where they stand: what is in memory is found at once, so nothing of them
  is kept. They are read one behind the other, and their answers are one piece of what is sent. A key that is not in
  memory ends the batch, and so do answers of `_LOOKUP_BATCH_BYTES`.
- Updates (TableUpdateBatcher) are gathered and submitted together. Each is still judged by itself and answered by
  itself, but they are one operation of the table, one record of its log and one piece of what is sent.
- Nothing that could change the table stands between the updates of a batch: `submit()` comes before any other command,
  and at the end of what was received.
- A batch of updates keeps its table acquired until it is answered.
- A batch overtakes nothing: where a request before it of the same table is under way in a manner that forbids it,
  there is no batch, and the frame becomes a command that waits.
- At most `_UPDATE_BATCH_BYTES` and one entry are gathered; they count as un-acknowledged from their submission on.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Command,
)
from segmentstore.codec.wire_protocol.fields import ProtocolError
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
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.handle_cache import HandleCache, PinnedHandle
from segmentstore.wire.held_bytes import held_bytes
from segmentstore.wire.replies import SendBuffer, is_stale
from segmentstore.wire.settings import OVERHEAD_BYTES, WireSettings
from segmentstore.wire.single_key_frames import (
    KEY_AT,
    REQUEST_ID_BYTES,
    NamedTable,
    SameShapeUpdates,
    encode_single_read,
    encode_single_updates,
    payload_of_next,
    read_named_table,
    read_request_id,
    read_single_key,
    read_single_update,
)
from segmentstore.wire.statistics import WireCounters

_READ_TABLE: Final = ReadTable.type
_UPDATE_TABLE: Final = UpdateTableEntries.type
BATCH_FRAMES_MAX: Final = 64
"""Neighbouring frames that are taken at once at most: then it is time to look at how much is under way."""
_LOOKUP_BATCH_BYTES: Final = 64 * 1024
"""A batch of look-ups ends when its keys and values have so many bytes: answers that a client does not take stay
bounded."""
_UPDATE_BATCH_BYTES: Final = 64 * 1024
"""A batch of updates with so many bytes of keys and values is submitted at once."""
_LOOKED_UP_AT_ONCE: Final = 16
"""Keys of one command that are looked up together: many values are more than the frame of an answer holds."""
ITEMS_AT_ONCE_MAX: Final = 1_000
"""Of one command in a turn of the loop: a change of more has a turn of its own, a look-up of more has several."""

Change: TypeAlias = UpdateTableEntries | RemoveTableKeys
OpenCommand: TypeAlias = (
    ReadTable | ReadTableKeys | ReadTableEntries | ReadTableEntriesDelta | GetTableSegmentInfo
)
WholeTableCommand: TypeAlias = CreateTableSegment | DeleteTableSegment
TableFuture: TypeAlias = "Future[Sequence[int]] | Future[None]"


class Answers(Protocol):
    """Where the outcomes of commands go."""

    def reply(self, command: Command, reply: Command) -> None: ...

    def reply_frames(self, frames: bytes, *, released_bytes: int) -> None:
        """Replies that are encoded, to commands that together held so much."""

    def refuse(self, command: Command, error: SegmentStoreError) -> None: ...

    def fail(self, error: Exception) -> None:
        """Nothing can be answered any more: the connection ends."""


class BatchOrder(Protocol):
    """What batches ask and tell of the requests beside them: TableOrder."""

    def may_look_up(self, segment: str) -> bool: ...

    def may_change(self, segment: str) -> bool: ...

    def change_begins(self, segment: str) -> None: ...

    def change_ends(self, segment: str) -> None: ...

    def retry(self, command: UpdateTableEntries) -> None: ...


class TableCommands:
    """answer() in a task; begin_read() first for what may be in memory."""

    def __init__(
        self, *, tables: TableApi, handles: HandleCache[Table], settings: WireSettings
    ) -> None:
        self._tables = tables
        self._handles = handles
        self._page_entries_max = settings.table_page_entries_max

    @property
    def handles(self) -> HandleCache[Table]:
        """The tables that are open."""
        return self._handles

    def begin_read(self, command: ReadTable, answers: Answers) -> bool:
        """Whether it is answered: all of it was in memory, and it is not too much for one turn of the loop."""
        if len(command.keys) > ITEMS_AT_ONCE_MAX:
            return False
        pinned = self._handles.acquire_nowait(command.segment)
        if pinned is None:
            return False
        try:
            found = _found_in_memory(pinned.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.discard(pinned)
                return False
            answers.refuse(command, error)
            return True
        finally:
            self._handles.release(pinned)
        if found is None:
            return False
        answers.reply(command, TableRead(command.request_id, command.segment, found))
        return True

    async def answer(self, command: OpenCommand | WholeTableCommand) -> bytes:
        """The frame of the reply. Raises SegmentStoreError: ProtocolError for values that no frame holds."""
        match command:
            case CreateTableSegment(request_id, segment):
                # Pravega takes a negative one so, too.
                await self._tables.create_table(segment, key_length=max(command.key_length, 0))
                return SegmentCreated(request_id, segment).encode()
            case DeleteTableSegment(request_id, segment, must_be_empty):
                await self._tables.delete_table(segment, must_be_empty=must_be_empty)
                return SegmentDeleted(request_id, segment).encode()
            case _:
                return await self._answer_with_table(command)

    async def _answer_with_table(self, command: OpenCommand) -> bytes:
        kept = self._handles.acquire_nowait(command.segment)
        if kept is not None:
            try:
                return await self._answer_acquired(kept, command)
            except SegmentNotFoundError:
                pass  # It may exist again under its name.
        return await self._answer_acquired(await self._handles.acquire(command.segment), command)

    async def _answer_acquired(self, pinned: PinnedHandle[Table], command: OpenCommand) -> bytes:
        try:
            return await self._answer_opened(pinned.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.discard(pinned)
            raise
        finally:
            self._handles.release(pinned)

    async def _answer_opened(self, table: Table, command: OpenCommand) -> bytes:
        match command:
            case ReadTable():
                found = await _found(table, command)
                return TableRead(command.request_id, command.segment, found).encode()
            case ReadTableKeys() | ReadTableEntries() | ReadTableEntriesDelta():
                return await self._page(table, command)
            case GetTableSegmentInfo(request_id, segment):
                info = table.info()
                await table.confirm()
                return TableSegmentInfo(
                    request_id,
                    segment,
                    start_offset=info.start_offset,
                    length=info.length,
                    entry_count=info.entry_count,
                    key_length=info.key_length,
                ).encode()

    async def _page(
        self, table: Table, command: ReadTableKeys | ReadTableEntries | ReadTableEntriesDelta
    ) -> bytes:
        read: Callable[[int], Awaitable[Command]]
        match command:
            case ReadTableKeys():
                read = lambda count: _read_keys(table, command, count)  # noqa: E731
            case ReadTableEntries():
                read = lambda count: _read_entries(table, command, count)  # noqa: E731
            case ReadTableEntriesDelta():
                if table.key_length:
                    refusal = OperationUnsupported(command.request_id, "readTableEntriesDelta")
                    return refusal.encode()
                read = lambda count: _read_delta(table, command, count)  # noqa: E731
        count = min(max(command.suggested_count, 1), self._page_entries_max)
        while True:
            reply = await read(count)
            try:
                return reply.encode()
            except ProtocolError:
                if count == 1:
                    raise
                count //= 2


def answer_bytes_max(command: OpenCommand) -> int:
    """What its answer may have while it is made; a page has one entry more than what a table puts into a page."""
    match command:
        case ReadTable():
            return ENTRY_BYTES_MAX * min(max(len(command.keys), 1), _LOOKED_UP_AT_ONCE)
        case GetTableSegmentInfo():
            return 0
    return 2 * ENTRY_BYTES_MAX


def item_count(command: Change) -> int:
    """How many keys it changes."""
    return len(command.entries if isinstance(command, UpdateTableEntries) else command.keys)


def submit_change(table: Table, command: Change) -> TableFuture:
    """Of one command; raises what cannot be submitted at all."""
    offset = None if command.table_offset == NO_TABLE_OFFSET else command.table_offset
    if isinstance(command, UpdateTableEntries):
        return table.update(command.entries, offset=offset)
    return table.remove(command.keys, offset=offset)


def change_reply(command: Change, versions: Sequence[int] | None) -> Command:
    """To one that is made."""
    if versions is None:
        return TableKeysRemoved(command.request_id, command.segment)
    return TableEntriesUpdated(command.request_id, versions)


def _found_in_memory(table: Table, command: ReadTable) -> list[TableEntry] | None:
    """An entry for every key. Raises ProtocolError as soon as it is more than a frame holds."""
    entries: list[TableEntry] = []
    byte_count = 0
    for keys in _some_at_a_time(command):
        found = table.get_nowait(keys)
        if found is None:
            return None
        entries += _entries_of(keys, found)
        byte_count = _added_up(byte_count, found)
    return entries


async def _found(table: Table, command: ReadTable) -> list[TableEntry]:
    """As _found_in_memory(), from wherever it is. Of many keys others have their turn meanwhile, and behind them."""
    entries: list[TableEntry] = []
    byte_count = turn_begins = 0
    for keys in _some_at_a_time(command):
        found = await table.get(keys)
        entries += _entries_of(keys, found)
        byte_count = _added_up(byte_count, found)
        if len(entries) - turn_begins >= ITEMS_AT_ONCE_MAX:
            turn_begins = len(entries)
            await asyncio.sleep(0)
    if turn_begins:
        await asyncio.sleep(0)  # The answer is made next.
    return entries


def _entries_of(keys: Sequence[bytes], found: Sequence[TableEntry | None]) -> list[TableEntry]:
    return [
        entry or TableEntry(key, b"", NOT_EXISTS) for key, entry in zip(keys, found, strict=True)
    ]


def _some_at_a_time(command: ReadTable) -> Iterator[Sequence[bytes]]:
    keys = [each.key for each in command.keys]
    for start in range(0, len(keys), _LOOKED_UP_AT_ONCE):
        yield keys[start : start + _LOOKED_UP_AT_ONCE]


def _added_up(byte_count: int, found: Sequence[TableEntry | None]) -> int:
    byte_count += sum(len(entry.value) for entry in found if entry is not None)
    if byte_count > FRAME_BYTES_MAX:
        raise ProtocolError(f"the values of these keys do not fit a frame length={byte_count}")
    return byte_count


async def _read_keys(table: Table, command: ReadTableKeys, count: int) -> Command:
    bounds = command.iterator
    page = await table.read_keys(
        count=count,
        token=bounds.token,
        first=bounds.first_key or None,
        last=bounds.last_key or None,
    )
    last_key = page.keys[-1].key if page.keys else b""
    token = _continuation(table, page.token, last_key, bounds.token)
    return TableKeysRead(command.request_id, command.segment, page.keys, token)


async def _read_entries(table: Table, command: ReadTableEntries, count: int) -> Command:
    bounds = command.iterator
    page = await table.read_entries(
        count=count,
        token=bounds.token,
        first=bounds.first_key or None,
        last=bounds.last_key or None,
    )
    last_key = page.entries[-1].key if page.entries else b""
    token = _continuation(table, page.token, last_key, bounds.token)
    return TableEntriesRead(command.request_id, command.segment, page.entries, token)


def _continuation(table: Table, token: bytes, last_key: bytes, asked: bytes) -> bytes:
    """The token behind a page: in the hash layout never empty where there is a page.

    Pravega's controller asks until a page is empty, and an empty token begins anew: with one behind the last page it
    would go round for ever. So the last page has the token of its last key, and an empty page the token that it was
    asked with. Readers of a fixed key length go on by ranges, and want no token behind the last page.
    """
    if token or table.key_length:
        return token
    return last_key or asked


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


class TableLookupBatcher:
    """The look-ups of one key each that a connection sends. answer() any number."""

    def __init__(
        self,
        *,
        handles: HandleCache[Table],
        order: BatchOrder,
        outgoing: SendBuffer,
        counters: WireCounters,
    ) -> None:
        self._handles = handles
        self._order = order
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
        if not self._order.may_look_up(named.segment):
            return position, 0
        pinned = self._handles.acquire_nowait(named.segment)
        if pinned is None:
            return position, 0
        try:
            return self._answer_from(pinned.handle, named, view, position, limit)
        finally:
            self._handles.release(pinned)

    def _answer_from(
        self, table: Table, named: NamedTable, view: memoryview, position: int, limit: int
    ) -> tuple[int, int]:
        parts: list[bytes] = []
        count = byte_count = 0
        keys_begin = named.end
        while count < BATCH_FRAMES_MAX and byte_count < _LOOKUP_BATCH_BYTES:
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
                break  # The general codec meets it again, and says so.
            if found is None:
                break
            entry = found[0]
            parts += encode_single_read(
                payload[:REQUEST_ID_BYTES], named.name, payload[keys_begin:key_end], entry
            )
            byte_count += len(payload) + (0 if entry is None else len(entry.value))
            count += 1
            position = end
        if count:
            self._counters.requests += count
            self._outgoing.send(b"".join(parts))
        return position, count


class _UpdateBatch:
    """Updates of one table that came one behind the other."""

    __slots__ = ("byte_count", "entries", "key_length", "pinned", "request_ids", "segment")

    def __init__(self, segment: str, pinned: PinnedHandle[Table]) -> None:
        self.segment = segment
        self.pinned = pinned
        self.key_length = pinned.handle.key_length
        self.request_ids: list[int] = []
        self.entries: list[TableEntry] = []
        self.byte_count = 0

    @property
    def held_bytes(self) -> int:
        """Of all its commands together."""
        return self.byte_count + OVERHEAD_BYTES * len(self.entries)

    def command(self, number: int) -> UpdateTableEntries:
        """One of them as if it had come alone."""
        return UpdateTableEntries(
            self.request_ids[number], self.segment, "", (self.entries[number],)
        )


class TableUpdateBatcher:
    """The updates of one key each that a connection sends. gather() any number, then submit()."""

    def __init__(
        self,
        *,
        handles: HandleCache[Table],
        order: BatchOrder,
        answers: Answers,
        counters: WireCounters,
        add_unacked: Callable[[int], None],
    ) -> None:
        self._handles = handles
        self._order = order
        self._answers = answers
        self._counters = counters
        self._add_unacked = add_unacked
        self._named: NamedTable | None = None
        """Of the update before: clients go on with the same table."""
        self._alike: SameShapeUpdates | None = None
        """The last two of the same length, in that table: clients go on with such ones."""
        self._length_before = 0
        self._batch: _UpdateBatch | None = None

    def gather(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """Gather the UpdateTableEntries from `position` on; `limit` is where the received bytes end.

        (where it stopped, how many were gathered). It stops before one that takes the way of all commands, behind one
        that made the batch full, and after `BATCH_FRAMES_MAX`: then it is time to look at how much is under way. Raises
        ProtocolError for a name that is no text.
        """
        count = 0
        while True:
            alike = self._alike
            if alike is not None:
                taken = self._add_alike(alike, view, position, limit, BATCH_FRAMES_MAX - count)
                position += taken * alike.frame_bytes
                count += taken
                if taken and (self._batch is None or count == BATCH_FRAMES_MAX):
                    break
            frame = payload_of_next(view, position, limit, kind=_UPDATE_TABLE)
            if frame is None or not self._add(frame[0]):
                break
            position = frame[1]
            count += 1
            if self._batch is None or count == BATCH_FRAMES_MAX:
                break
        return position, count

    def _add_alike(
        self, alike: SameShapeUpdates, view: memoryview, position: int, limit: int, count: int
    ) -> int:
        """How many were gathered, of those that differ from the last one in no length."""
        batch = self._batch
        room = _UPDATE_BATCH_BYTES - (batch.byte_count if batch is not None else 0)
        # Up to the one that makes the batch full.
        count = min(count, -(-room // alike.entry_bytes))
        request_ids, entries = alike.read(view, position, limit, count=count)
        if not entries:
            return 0
        if batch is None:
            assert self._named is not None, "alike with what was never named"
            batch = self._begin_batch(self._named.segment)
            if batch is None:
                return 0
        if batch.key_length not in (0, len(entries[0].key)):
            return 0
        batch.request_ids += request_ids
        batch.entries += entries
        batch.byte_count += len(entries) * alike.entry_bytes
        if batch.byte_count >= _UPDATE_BATCH_BYTES:
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
        batch = self._batch
        if batch is None:
            batch = self._begin_batch(named.segment)
            if batch is None:
                return False
        key_bytes = len(entry.key)
        byte_count = key_bytes + len(entry.value)
        key_length = batch.key_length
        if (
            key_bytes > KEY_BYTES_MAX
            or byte_count > ENTRY_BYTES_MAX
            or (key_length and key_bytes != key_length)
        ):
            return False  # Refused by itself: it must not take the others along.
        if len(payload) == self._length_before:
            self._alike = SameShapeUpdates(named, entry, payload)
        self._length_before = len(payload)
        batch.request_ids.append(read_request_id(payload))
        batch.entries.append(entry)
        batch.byte_count += byte_count
        if batch.byte_count >= _UPDATE_BATCH_BYTES:
            self.submit()
        return True

    def _begin_batch(self, segment: str) -> _UpdateBatch | None:
        """None if the table is not open, or if updates of it have to wait."""
        if not self._order.may_change(segment):
            return None
        pinned = self._handles.acquire_nowait(segment)
        if pinned is None:
            return None
        self._batch = _UpdateBatch(segment, pinned)
        return self._batch

    def submit(self) -> None:
        """Hand over what was gathered."""
        batch = self._batch
        if batch is None:
            return
        self._batch = None
        if not batch.entries:
            self._handles.release(batch.pinned)
            return
        self._counters.requests += len(batch.entries)
        self._add_unacked(batch.held_bytes)
        self._order.change_begins(batch.segment)
        try:
            future = batch.pinned.handle.update_each(batch.entries)
        except SegmentStoreError as error:
            self._failed(batch, error)
        else:
            future.add_done_callback(
                guarded(lambda done: self._settled(batch, done), self._answers.fail)
            )

    def _settled(
        self, batch: _UpdateBatch, done: "Future[Sequence[int | SegmentStoreError]]"
    ) -> None:
        error = done.exception()
        if isinstance(error, SegmentStoreError):
            self._failed(batch, error)
            return
        self._handles.release(batch.pinned)
        try:
            if error is not None:
                raise error
            self._answer_each(batch, done.result())
        finally:
            self._order.change_ends(batch.segment)

    def _answer_each(
        self, batch: _UpdateBatch, outcomes: Sequence[int | SegmentStoreError]
    ) -> None:
        request_ids: list[int] = []
        versions: list[int] = []
        released_bytes = batch.held_bytes
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, int):
                request_ids.append(batch.request_ids[number])
                versions.append(outcome)
            else:
                command = batch.command(number)
                released_bytes -= held_bytes(command)
                self._answers.refuse(command, outcome)
        self._answers.reply_frames(
            encode_single_updates(request_ids, versions), released_bytes=released_bytes
        )

    def _failed(self, batch: _UpdateBatch, error: SegmentStoreError) -> None:
        if is_stale(error):
            self._handles.discard(batch.pinned)
        self._handles.release(batch.pinned)
        for number in range(len(batch.entries)):
            if isinstance(error, SegmentNotFoundError):
                # Nothing was stored, and the table may exist again under its name.
                self._order.retry(batch.command(number))
            else:
                self._answers.refuse(batch.command(number), error)
        self._order.change_ends(batch.segment)
