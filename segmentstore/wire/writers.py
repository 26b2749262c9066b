"""The append half of one connection: set-ups, and each writer's appends in order with what the client is told of them.

ConnectionAppends holds the writers of a connection by id, and gathers small appends that were received together. A
Writer submits each append to its segment; the container's future calls the writer back, which then acknowledges or
refuses.

- A set-up answers after everything submitted before it on that segment has committed or failed; until then the
  connection takes no appends of that writer. A set-up on a table is refused: its appends could only fail.
- A set-up in a container that is recovering here waits for it, for a while: there is no other node to ask.
- An append of a writer that was never set up here is out of order, and ends the connection.
- At most `writers_per_connection_max` writers are remembered.
- Every append carries, in one operation, its bytes, the writer's new last event number (refused unless the segment
  still has the number that this connection stored last) and the count of events.
- Outcomes are told in the order of the appends, whatever order they arrive in: what was stored before a refusal is
  acknowledged before the refusal.
- An acknowledgement says more than the one before it, or is not sent: clients drop a connection that repeats itself.
- A refusal ends the writer, once: what it sent meanwhile is dropped without a word, and it has to be set up again.
  Only a conditional append that met another length leaves it as it was.
- "Sealed" and "another length" say that the append is not stored. They are told only if the segment has the number that
  this connection stored last: an older connection may have stored the append meanwhile, which the next set-up tells.

| outcome of an append | answer | the writer |
|---|---|---|
| stored | DataAppended, together with its neighbours | goes on |
| another length than expected | ConditionalCheckFailed | goes on |
| sealed | SegmentIsSealed | ends |
| no such segment | NoSuchSegment | ends |
| another last event number, whatever else | InvalidEventNumber | the connection is closed |
| sealed, or another length, and no number in memory | none: the outcome is unknown | the connection is closed |
| (before it is submitted) a number that does not grow | none: a protocol error | the connection is closed |
| anything else | none: the outcome is unknown | the connection is closed |
"""

import asyncio
import struct
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, TypeAlias

from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.wire_protocol.appends import (
    NO_EVENT_NUMBER,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import FRAME_HEADER_BYTES
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerNotFoundError,
    NotATableError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, TABLE_KEY_LENGTH, AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType, Segment
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.handle_cache import HandleCache, PinnedHandle
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.received_appends import AppendBatch, ReceivedAppend, read_append
from segmentstore.wire.replies import OwnerAddress, SendBuffer, is_stale, reply_to_error
from segmentstore.wire.segment_commands import client_attribute_key
from segmentstore.wire.settings import OVERHEAD_BYTES, WireSettings
from segmentstore.wire.statistics import WireCounters

_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
_DATA_APPENDED: Final = struct.Struct(">ii16sqqqq")
_DATA_APPENDED_PAYLOAD_BYTES: Final = _DATA_APPENDED.size - FRAME_HEADER_BYTES

InFlightAppend: TypeAlias = "tuple[Future[int], ReceivedAppend, int]"
"""A submitted append, with the writer's last event number before it."""


class WriterState(Enum):
    """LIVE, then ENDED; nothing leads back."""

    LIVE = "live"
    ENDED = "ended"


# An attribute of an Enum costs as much as a call.
_LIVE, _ENDED = WriterState.LIVE, WriterState.ENDED


class ConnectionAppends:
    """The writers of a connection, by id; they append what it receives."""

    def __init__(
        self,
        *,
        handles: HandleCache[Segment],
        outgoing: SendBuffer,
        tasks: TaskSet,
        counters: WireCounters,
        settings: WireSettings,
        add_unacked: Callable[[int], None],
        remove_unacked: Callable[[int], None],
        fail: Callable[[str], None],
        owner_address: OwnerAddress,
        until_recovered: Callable[[str], Awaitable[None]],
    ) -> None:
        """`add_unacked` and `remove_unacked` are told of bytes that are accepted, or that are not unacknowledged any
        longer; `fail` closes the connection for this reason, after what was said before; `until_recovered` waits for a
        segment's container while it recovers."""
        self.handles = handles
        self.outgoing = outgoing
        self.counters = counters
        self.add_unacked = add_unacked
        self.remove_unacked = remove_unacked
        self.fail = fail
        self.guarded = tasks.guarded
        self.writers: dict[bytes, Writer] = {}
        self._tasks = tasks
        self._settings = settings
        self._owner_address = owner_address
        self._until_recovered = until_recovered
        self._setting_up: dict[bytes, SetupAppend] = {}
        self._groups: dict[bytes, AppendBatch] = {}
        """By writer: appends that are not submitted yet. Empty between two turns of the loop."""

    def __len__(self) -> int:
        return len(self.writers)

    # --- appends ---------------------------------------------------------------------------------

    def append(
        self, view: memoryview, *, block: tuple[int, int] | None, end: tuple[int, int]
    ) -> None:
        """An AppendBlockEnd, with the AppendBlock before it if there was one. Raises ProtocolError."""
        self.gather(read_append(view, block=block, end=end))

    def gather(self, unit: ReceivedAppend) -> None:
        """Let it wait for others of its writer, until submit(). Raises ProtocolError."""
        group = self._groups.get(unit.writer_id)
        if unit.writer_id not in self.writers:
            self.take(unit)  # which says why not
        elif group is None:
            self._groups[unit.writer_id] = AppendBatch(unit)
        elif not group.add(unit):
            self._groups[unit.writer_id] = AppendBatch(unit)
            self.take(group.joined())

    def submit(self) -> None:
        """At the end of what was received, and before anything that has to come behind the appends before it.

        Raises ProtocolError.
        """
        if not self._groups:
            return
        groups, self._groups = self._groups, {}
        failure: ProtocolError | None = None
        for group in groups.values():
            try:
                self.take(group.joined())
            except ProtocolError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def take(self, unit: ReceivedAppend) -> None:
        """Submit it by itself. Raises ProtocolError."""
        writer = self.writers.get(unit.writer_id)
        if writer is None:
            raise ProtocolError(f"append without a set-up writer={unit.writer_id.hex()}")
        writer.append(unit)

    def append_event_if(self, command: ConditionalAppend) -> None:
        """Raises ProtocolError."""
        self._append_if(command, frame_event(command.event))

    def append_bytes_if(self, command: ConditionalBlockEnd) -> None:
        """Raises ProtocolError."""
        self._append_if(command, command.data)

    def _append_if(self, command: ConditionalAppend | ConditionalBlockEnd, data: bytes) -> None:
        self.take(
            ReceivedAppend(
                command.writer_id,
                data,
                1,
                command.event_number,
                command.request_id,
                command.expected_offset,
            )
        )

    # --- set-ups ---------------------------------------------------------------------------------

    def set_up(self, command: SetupAppend) -> None:
        """Answers later. Raises ProtocolError at the limit of writers."""
        former = self.writers.pop(command.writer_id, None)
        self._setting_up[command.writer_id] = command
        if len(self.writers) + len(self._setting_up) > self._settings.writers_per_connection_max:
            raise ProtocolError(f"too many writers count={len(self.writers)}")
        if former is not None:
            former.end()
        self._tasks.start(self._set_up(command))

    def refuse(self, request_id: int, segment: str, error: SegmentStoreError) -> None:
        """Nothing was done."""
        self.outgoing.reply(
            reply_to_error(
                error,
                request_id=request_id,
                segment=segment,
                owner_address=self._owner_address,
            )
        )

    async def _set_up(self, command: SetupAppend) -> None:
        try:
            try:
                pinned, last_number = await self._open_behind_all(command)
            finally:
                # A later set-up of the same writer has taken the place of this one.
                newest = self._setting_up.get(command.writer_id) is command
                if newest:
                    del self._setting_up[command.writer_id]
        except SegmentStoreError as error:
            self.refuse(command.request_id, command.segment, error)
            return
        if newest:
            self.writers[command.writer_id] = Writer(
                owner=self,
                writer_id=command.writer_id,
                pinned=pinned,
                last_number=last_number,
                now=asyncio.get_running_loop().time(),
            )
        else:
            self.handles.release(pinned)
        self.outgoing.reply(
            AppendSetup(
                command.request_id,
                command.segment,
                command.writer_id,
                NO_EVENT_NUMBER if last_number is None else last_number,
            )
        )

    async def _open_behind_all(
        self, command: SetupAppend
    ) -> tuple[PinnedHandle[Segment], int | None]:
        """The acquired segment, and the writer's last number in it once nothing before this is under way."""
        key = client_attribute_key(command.writer_id)
        kept = self.handles.acquire_nowait(command.segment)
        if kept is not None:
            try:
                return kept, await self._last_number(kept, key)
            except SegmentStoreError as error:
                if not is_stale(error):
                    raise
        # The Rust client takes a writer to a new segment that is refused twice, without a pause, for connected.
        await self._until_recovered(command.segment)
        pinned = await self.handles.acquire(command.segment)
        return pinned, await self._last_number(pinned, key)

    async def _last_number(self, pinned: PinnedHandle[Segment], key: AttributeKey) -> int | None:
        """Keeps the handle unless it raises."""
        try:
            if TABLE_KEY_LENGTH in pinned.handle.info().core_attributes:
                raise NotATableError(
                    f"the segment is a table, which takes no appends name={pinned.name!r}"
                )
            pinned.handle.info().require_no_messages()
            await await_shielded(pinned.handle.barrier())
            number = (await pinned.handle.load_attributes([key])).get(key)
        except BaseException as error:
            if is_stale(error):
                self.handles.discard(pinned)
            self.handles.release(pinned)
            raise
        return number if isinstance(number, int) else None

    def reopen(self, writer: "Writer") -> None:
        """Open its segment again in a task, which calls reopened() or reopening_failed()."""
        self._tasks.start(self._reopen(writer))

    async def _reopen(self, writer: "Writer") -> None:
        try:
            pinned = await self.handles.acquire(writer.segment_name)
        except SegmentStoreError as error:
            writer.reopening_failed(error)
            return
        writer.reopened(pinned, asyncio.get_running_loop().time())

    # --- tick and close --------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        for writer in self.writers.values():
            writer.release_if_idle(now, self._settings.pin_idle_seconds)

    def close(self) -> None:
        """The connection is gone. What was submitted goes on."""
        for writer in self.writers.values():
            writer.end()
        self.writers.clear()

    def check(self) -> None:
        """O(writers)."""
        assert not self._groups, f"appends were left behind writers={len(self._groups)}"
        for writer_id, writer in self.writers.items():
            writer.check()
            assert writer_id not in self._setting_up, f"set up and setting up {writer_id.hex()}"


class Writer:
    """One writer of the connection. append() any number; outcomes go to the connection."""

    __slots__ = (
        "_acknowledged_number",
        "_durable_length",
        "_durable_number",
        "_durable_request_id",
        "_has_acknowledgement",
        "_in_flight",
        "_key",
        "_last_used",
        "_owner",
        "_parked",
        "_pinned",
        "_settle_callback",
        "_state",
        "_submitted_number",
        "_used",
        "_writer_id",
        "segment_name",
    )

    def __init__(
        self,
        *,
        owner: ConnectionAppends,
        writer_id: bytes,
        pinned: PinnedHandle[Segment],
        last_number: int | None,
        now: float,
    ) -> None:
        self._owner = owner
        self._writer_id = writer_id
        self._key = AttributeKey(writer_id)
        self._pinned: PinnedHandle[Segment] | None = pinned
        self.segment_name = pinned.name
        self._state = WriterState.LIVE
        self._submitted_number = NO_EVENT_NUMBER if last_number is None else last_number
        """Of the newest submitted append; the next one is compared against it."""
        self._durable_number = self._submitted_number
        """Of the newest append that is stored."""
        self._acknowledged_number = self._submitted_number
        """What the client was told last, by AppendSetup or DataAppended."""
        self._durable_length = 0
        self._durable_request_id = 0
        self._has_acknowledgement = False
        self._in_flight: deque[InFlightAppend] = deque()
        self._parked: deque[ReceivedAppend] = deque()
        self._last_used = now
        self._used = False
        """Since the last tick: the clock is not asked for every append."""
        # One bound method for all appends, instead of a new one for each.
        self._settle_callback = owner.guarded(self._settle)

    def append(self, append: ReceivedAppend) -> None:
        """Raises ProtocolError for an event number that does not grow."""
        if self._state is _ENDED:
            return  # It was told so, or is being told.
        newest = self._parked[-1].last_event_number if self._parked else self._submitted_number
        number = append.last_event_number
        if number <= newest:
            if number == newest and not append.data:
                return  # Nothing that is not acknowledged with the one before.
            raise ProtocolError(
                f"event number does not grow segment={self.segment_name!r} "
                f"last={newest} given={number}"
            )
        self._used = True
        self._owner.add_unacked(len(append.data) + OVERHEAD_BYTES)
        if self._pinned is not None:
            self._submit(self._pinned.handle, append)
            return
        self._parked.append(append)
        if len(self._parked) == 1:
            self._owner.reopen(self)

    def _submit(self, segment: Segment, append: ReceivedAppend) -> None:
        data, number, event_count = append.data, append.last_event_number, append.event_count
        previous = self._submitted_number
        updates = [
            AttributeUpdate(
                self._key,
                number,
                _REPLACE_IF_EQUALS,
                None if previous == NO_EVENT_NUMBER else previous,
            )
        ]
        if not append.is_framed:
            updates.append(
                AttributeUpdate(EVENT_COUNT, event_count, AttributeUpdateType.ACCUMULATE)
            )
        future = segment.append(
            data,
            offset=append.expected_offset,
            attribute_updates=updates,
            events=event_count if append.is_framed else None,
        )
        self._submitted_number = number
        self._in_flight.append((future, append, previous))
        counters = self._owner.counters
        counters.appends += append.unit_count
        counters.append_bytes += len(data)
        future.add_done_callback(self._settle_callback)

    # --- outcomes --------------------------------------------------------------------------------

    def _settle(self, _: "Future[int]") -> None:
        in_flight = self._in_flight
        owner = self._owner
        alone = len(owner.writers) == 1
        while in_flight and in_flight[0][0].done():
            future, append, previous = in_flight.popleft()
            error = future.exception()
            if error is None:
                if self._has_acknowledgement and (
                    append.expected_offset is not None
                    or append.request_id != self._durable_request_id
                ):
                    # Each request is answered by itself: the client waits for its very id.
                    owner.outgoing.gather_acknowledgements()
                self._durable_number = append.last_event_number
                self._durable_request_id = append.request_id
                self._durable_length = future.result()
                if not self._has_acknowledgement and self._state is _LIVE:
                    self._has_acknowledgement = True
                    owner.outgoing.acknowledge(self, flushes=alone)
            elif self._state is _LIVE:
                self._refuse(append, previous, error)
            owner.remove_unacked(len(append.data) + OVERHEAD_BYTES)
        if alone:
            # There is nothing to wait for.
            owner.outgoing.flush()
        if self._state is _ENDED and not in_flight:
            self._release()

    def take_acknowledgement(self) -> bytes:
        """DataAppended for everything stored so far."""
        assert self._acknowledged_number < self._durable_number, (
            f"acknowledged before acknowledged={self._acknowledged_number} durable={self._durable_number}"
        )
        self._has_acknowledgement = False
        previous, self._acknowledged_number = self._acknowledged_number, self._durable_number
        return _DATA_APPENDED.pack(
            DataAppended.type,
            _DATA_APPENDED_PAYLOAD_BYTES,
            self._writer_id,
            self._durable_number,
            previous,
            self._durable_request_id,
            self._durable_length,
        )

    def _refuse(self, append: ReceivedAppend, previous: int, error: BaseException) -> None:
        owner = self._owner
        owner.counters.appends_refused += 1
        number, request_id = append.first_event_number, append.request_id
        if isinstance(error, SegmentSealedError | BadOffsetError):
            # The container judges the number last, so it is looked at here.
            error = self._number_error() or error
        match error:
            case BadOffsetError() if append.expected_offset is not None:
                if self._submitted_number == append.last_event_number:
                    self._submitted_number = previous
                owner.outgoing.reply(ConditionalCheckFailed(self._writer_id, number, request_id))
                return
            case SegmentSealedError():
                owner.outgoing.reply(SegmentIsSealed(request_id, self.segment_name, "", number))
            case SegmentNotFoundError():
                owner.outgoing.reply(NoSuchSegment(request_id, self.segment_name, "", -1))
                self._forget_segment()
            case BadAttributeUpdateError() if error.key == self._key:
                owner.outgoing.reply(InvalidEventNumber(self._writer_id, request_id, "", number))
                owner.fail(f"writer appends elsewhere too segment={self.segment_name!r}")
            case ContainerNotFoundError():
                # Nothing of it was done. The writer goes elsewhere; whatever else is on the connection stays.
                owner.refuse(request_id, self.segment_name, error)
                self._forget_segment()
            case SegmentStoreError():
                self._forget_segment()
                owner.fail(f"append failed: {error}")
            case _:
                raise error
        self.end()

    def _number_error(self) -> SegmentStoreError | None:
        """Why nothing can be said of an append that has no acknowledgement."""
        assert self._pinned is not None, f"refused by no segment segment={self.segment_name!r}"
        try:
            number = self._pinned.handle.pending_attribute(self._key)
        except KeyError:
            return SegmentStoreError(f"writer's number left memory segment={self.segment_name!r}")
        if (NO_EVENT_NUMBER if number is None else number) == self._durable_number:
            return None
        return BadAttributeUpdateError(
            self.segment_name, key=self._key, current=number, why="it differs from the comparison"
        )

    # --- the end, and the segment's handle -------------------------------------------------------

    def end(self) -> None:
        """Accept nothing more; what was submitted goes on, and holds the segment until it has ended."""
        self._state = WriterState.ENDED
        while self._parked:
            self._owner.remove_unacked(len(self._parked.popleft().data) + OVERHEAD_BYTES)
        if not self._in_flight:
            self._release()

    def release_if_idle(self, now: float, idle_seconds: float) -> None:
        """Called by the tick: a silent writer keeps its number, but not its segment."""
        if self._used or self._in_flight:
            self._used = False
            self._last_used = now
        elif now - self._last_used >= idle_seconds:
            self._release()

    def reopened(self, pinned: PinnedHandle[Segment], now: float) -> None:
        """The segment is open again: what waited for it goes on. Takes over the handle."""
        assert self._pinned is None, f"opened twice segment={self.segment_name!r}"
        self._pinned = pinned
        self._last_used = now
        while self._parked:
            self._submit(pinned.handle, self._parked.popleft())
        if self._state is WriterState.ENDED and not self._in_flight:
            self._release()

    def reopening_failed(self, error: SegmentStoreError) -> None:
        """The segment is gone, or somewhere else."""
        if self._parked:
            self._refuse(self._parked[0], self._submitted_number, error)

    def check(self) -> None:
        """Numbers grow in the order acknowledged, durable, submitted. O(1)."""
        assert self._acknowledged_number <= self._durable_number <= self._submitted_number, (
            f"acknowledged={self._acknowledged_number} durable={self._durable_number} "
            f"submitted={self._submitted_number}"
        )
        assert not (self._in_flight and self._pinned is None), (
            "an append in flight holds no segment"
        )

    def _forget_segment(self) -> None:
        if self._pinned is not None:
            self._owner.handles.discard(self._pinned)

    def _release(self) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            self._owner.handles.release(pinned)
