"""The reading half of one connection: from memory, from Tier 2, and at the end of a segment.

- What is in memory is answered in the turn in which it is asked, without a task.
- What is only in Tier 2 takes a task; at most `cold_reads_per_connection_max` at a time, the others wait in a queue.
- At the end of an open segment a read waits, with one callback and no task. It ends exactly once: by bytes, by the
  end of the segment (sealed, deleted, moved away), after `long_poll_seconds` without data, or with the connection.
- A client that does not take what it asked for makes its own reads wait, and nothing else.
- What Tier 2 has of a container that stays down is read too; where only the container could answer it is refused.
- Every answer carries the offset that was asked for: clients find their request by it.
- Behind each answer to a read that waited the connection looks whether it may be read again.
"""

import asyncio
import struct
from asyncio import Future
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from segmentstore.codec.wire_protocol.command import FRAME_HEADER_BYTES
from segmentstore.codec.wire_protocol.fields import encode_text
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead
from segmentstore.codec.wire_protocol.refusals import ILLEGAL_ARGUMENT, ErrorMessage
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    SegmentStoreError,
    TooManyWaitersError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.segments import (
    ReadOnlySegment,
    ReadResultEntryKind,
    Segment,
    SegmentReads,
)
from segmentstore.runtime.handle_cache import HandleCache, PinnedHandle
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.replies import OwnerAddress, SendBuffer, is_stale, reply_to_error
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters

_READ_BYTES_MIN: Final = 8
_REQUEST_ID: Final = struct.Struct(">q")
_SEGMENT_READ_HEAD: Final = struct.Struct(">iiH")
_SEGMENT_READ_FIELDS: Final = struct.Struct(">q??i")


class WaitingRead:
    """A read at the end of its segment; without a future it only waits for its deadline."""

    __slots__ = ("command", "deadline", "future")

    def __init__(
        self, command: ReadSegment, deadline: float, future: "Future[None] | None"
    ) -> None:
        self.command = command
        self.deadline = deadline
        self.future = future


class ConnectionReads:
    """read() any number; each is answered once."""

    def __init__(
        self,
        *,
        handles: HandleCache[Segment],
        reads: SegmentReads | None,
        outgoing: SendBuffer,
        tasks: TaskSet,
        counters: WireCounters,
        settings: WireSettings,
        on_answered: Callable[[], None],
        owner_address: OwnerAddress,
    ) -> None:
        self._owner_address = owner_address
        self._loop = asyncio.get_running_loop()
        self._handles = handles
        self._reads_of_down = reads
        self._outgoing = outgoing
        self._tasks = tasks
        self._counters = counters
        self._settings = settings
        self._on_answered = on_answered
        self._deferred: deque[ReadSegment] = deque()
        """Wait for the client to take what it was sent."""
        self._cold_queue: deque[ReadSegment] = deque()
        self._cold_count = 0
        self._next_number = 0
        self._waiting: dict[int, WaitingRead] = {}
        """In the order of their deadlines."""
        self._retrying: dict[int, WaitingRead] = {}
        """Found no room among the waiters; in the order of their deadlines."""
        self._closed = False

    @property
    def waiting_count(self) -> int:
        """Reads at the end of their segments."""
        return len(self._waiting) + len(self._retrying)

    @property
    def is_full(self) -> bool:
        """No more reads now."""
        pending = (
            len(self._waiting) + len(self._retrying) + len(self._deferred) + len(self._cold_queue)
        )
        return pending + self._cold_count >= self._settings.reads_per_connection_max

    def read(self, command: ReadSegment) -> None:
        self._counters.reads += 1
        if command.offset < 0:
            text = f"offset is negative offset={command.offset}"
            self._outgoing.reply(
                ErrorMessage(command.request_id, command.segment, text, ILLEGAL_ARGUMENT)
            )
            return
        if self._deferred or self._outgoing.is_full:
            self._deferred.append(command)
            return
        self._look(command)

    def go_on(self) -> None:
        """The client has taken what it was sent."""
        while self._deferred and not self._outgoing.is_full:
            self._look(self._deferred.popleft())

    def tick(self, now: float) -> None:
        """End or repeat what has waited long enough."""
        for waiting in _take_expired(self._waiting, now):
            if waiting.future is not None:
                waiting.future.cancel()
            self._answer(waiting.command, at_tail=True)
        for waiting in _take_expired(self._retrying, now):
            self._look_when_room(waiting.command)

    def refuse_waiting(self, error: SegmentStoreError) -> None:
        """End all that wait at the ends of their segments."""
        for waiting_reads in (self._waiting, self._retrying):
            waiting = list(waiting_reads.values())
            waiting_reads.clear()
            for read in waiting:
                if read.future is not None:
                    read.future.cancel()
                self._refuse(read.command, error)

    def close(self) -> None:
        """The connection is gone: its reads wait no more."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for read in waiting.values():
            if read.future is not None:
                read.future.cancel()
        self._retrying.clear()
        self._deferred.clear()
        self._cold_queue.clear()

    # --- in memory -------------------------------------------------------------------------------

    def _look_when_room(self, command: ReadSegment) -> None:
        if self._outgoing.is_full:
            self._deferred.append(command)
        else:
            self._look(command)

    def _look(self, command: ReadSegment) -> None:
        pinned = self._handles.acquire_nowait(command.segment)
        if pinned is not None:
            try:
                if self._look_in_memory(pinned.handle, command):
                    return
            except SegmentStoreError as error:
                if not is_stale(error):
                    self._refuse(command, error)
                    return
                self._handles.discard(pinned)
            finally:
                self._handles.release(pinned)
        self._cold_queue.append(command)
        self._start_cold()

    def _look_in_memory(
        self, segment: ReadOnlySegment, command: ReadSegment, *, is_confirmed: bool = False
    ) -> bool:
        """Answer it, or let it wait at the end; False if its bytes are in Tier 2, or its end has to be confirmed.

        Raises what reading raises.
        """
        offset = command.offset
        length_max = self._length_max(command)
        try:
            views = segment.views_nowait(offset, length_max)
        except BadOffsetError:
            views = ()  # Beyond the end: wait, unless nothing can come.
        info = segment.info()
        if views:
            self._answer(command, *views, at_tail=offset + sum(map(len, views)) >= info.length)
            return True
        if offset < info.length or not (is_confirmed or segment.is_sure()):
            return False
        if not info.sealed:
            self._wait(segment, command)
        elif offset == info.length:
            self._answer(command, end_of_segment=True)
        else:
            text = f"offset lies past the end of a sealed segment length={info.length}"
            self._outgoing.reply(
                ErrorMessage(command.request_id, command.segment, text, ILLEGAL_ARGUMENT)
            )
            self._on_answered()
        return True

    def _length_max(self, command: ReadSegment) -> int:
        return max(_READ_BYTES_MIN, min(command.suggested_length, self._outgoing.answer_bytes_max))

    # --- at the end ------------------------------------------------------------------------------

    def _wait(self, segment: ReadOnlySegment, command: ReadSegment) -> None:
        number = self._next_number
        self._next_number += 1
        now = self._loop.time()
        try:
            future = segment.readable(command.offset)
        except TooManyWaitersError:
            deadline = now + self._settings.waiter_retry_seconds
            self._retrying[number] = WaitingRead(command, deadline, None)
            return
        deadline = now + self._settings.long_poll_seconds
        self._waiting[number] = WaitingRead(command, deadline, future)
        future.add_done_callback(self._tasks.guarded(lambda future: self._woken(number, future)))

    def _woken(self, number: int, future: "Future[None]") -> None:
        if not future.cancelled():
            # Whatever it says, a look at the segment says more.
            future.exception()
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not self._closed:
            self._look_when_room(waiting.command)

    # --- from Tier 2 -----------------------------------------------------------------------------

    def _start_cold(self) -> None:
        while self._cold_queue and self._cold_count < self._settings.cold_reads_per_connection_max:
            self._cold_count += 1
            self._tasks.start(self._read_cold(self._cold_queue.popleft()))

    async def _read_cold(self, command: ReadSegment) -> None:
        try:
            try:
                pinned = await self._handles.acquire(command.segment)
            except ContainerNotFoundError:
                if self._reads_of_down is None:
                    raise
                async with self._reads_of_down.open_segment(command.segment) as segment:
                    segment.info().require_created()
                    await self._read_opened(segment, command)
            else:
                await self._read_acquired(pinned, command)
        except SegmentStoreError as error:
            self._refuse(command, error)
        finally:
            self._cold_count -= 1
            self._start_cold()

    async def _read_acquired(self, pinned: PinnedHandle[Segment], command: ReadSegment) -> None:
        try:
            await self._read_opened(pinned.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.discard(pinned)
            raise
        finally:
            self._handles.release(pinned)

    async def _read_opened(self, segment: ReadOnlySegment, command: ReadSegment) -> None:
        if self._look_in_memory(segment, command):
            return
        if command.offset >= segment.info().length:
            await segment.confirm()
            if self._look_in_memory(segment, command, is_confirmed=True):
                return
        length_max = self._length_max(command)
        async with aclosing(segment.read(command.offset, length_max)) as entries:
            async for entry in entries:
                if entry.kind in (ReadResultEntryKind.FUTURE, ReadResultEntryKind.END_OF_SEGMENT):
                    break
                # One entry will do: the client asks again for what follows.
                data = await entry.content()
                at_tail = segment.info().is_end(command.offset + len(data))
                self._answer(command, data, at_tail=at_tail)
                return
        # It was truncated, sealed or merged while we looked.
        self._look_when_room(command)

    # --- answers ---------------------------------------------------------------------------------

    def _answer(
        self,
        command: ReadSegment,
        *data: BufferView,
        at_tail: bool = False,
        end_of_segment: bool = False,
    ) -> None:
        """`data` is looked at before this returns, and not afterwards."""
        name = encode_text(command.segment)
        size = sum(map(len, data))
        fields = _SEGMENT_READ_FIELDS.pack(command.offset, at_tail, end_of_segment, size)
        length = _SEGMENT_READ_HEAD.size - FRAME_HEADER_BYTES + len(name) + len(fields) + size + 8
        header = _SEGMENT_READ_HEAD.pack(SegmentRead.type, length, len(name)) + name + fields
        self._counters.read_bytes += size
        self._outgoing.send_borrowed(header, *data, _REQUEST_ID.pack(command.request_id))
        self._on_answered()

    def _refuse(self, command: ReadSegment, error: SegmentStoreError) -> None:
        self._outgoing.reply(
            reply_to_error(
                error,
                request_id=command.request_id,
                segment=command.segment,
                owner_address=self._owner_address,
                offset=command.offset,
            )
        )
        self._on_answered()


def _take_expired(reads: dict[int, WaitingRead], now: float) -> list[WaitingRead]:
    expired: list[WaitingRead] = []
    while reads:
        number, waiting = next(iter(reads.items()))
        if waiting.deadline > now:
            break
        expired.append(reads.pop(number))
    return expired
