"""Writes events to a stream, or to a transaction: by routing key, pipelined, exactly once, through scales.

A scale, as a writer sees it: a block is refused because its segment is sealed; the appender holds what was not
acknowledged and all that comes after; the controller names the successors; in one stretch without an await the key
space is changed and the held events are handed to the successors' appenders, in order.

Invariants:

- Events with one routing key are stored in the order in which they were written, also while segments are sealed and
  replaced: the events that a sealed segment did not take go to its successors before any newer event of their keys.
- An event is stored once, however often connections break, or the writer fails and says that the outcome is unknown:
  what was sent to a segment and not acknowledged is not sent to another before the first one has refused it.
- A failure says of each event what is known: OutcomeUnknownError if it was sent and not acknowledged, the reason itself
  if it was not sent or was refused. The writer's own failure is the former if there is any such event.
- Outstanding events and bytes stay within `unacknowledged_events_max` and `unacknowledged_bytes_max` (`AppendWindow`),
  except that one event larger than the bound is let in alone.
- Everything let in is released exactly once: acknowledged, or given up with the whole writer.
- A failure is final: every waiter and every later call gets it, and so does the end of the `async with`. Closing is a
  failure for what is written later.
- `flush`, and a large event, wait for what was written before them and for nothing that comes later.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import lru_cache
from types import TracebackType
from typing import Final, Protocol, Self

from segmentstore.client.errors import (
    ClientError,
    ClosedError,
    StreamSealedError,
    WriterFullError,
    outcome_unknown,
)
from segmentstore.client.segment_appender import PendingEvent, SegmentAppender, append_large_event
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.client.stream_segments import KeySpace, SegmentRange, Successor
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, frame_event
from segmentstore.codec.routing_hash import event_position
from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.runtime.task_set import TaskSet

_key_position: Final = lru_cache(maxsize=10_000)(event_position)
"""Hashing a key takes longer than all the rest of a write."""


class WriteTarget(Protocol):
    """What a writer writes to: a stream, or a transaction."""

    @property
    def name(self) -> str:
        """For messages."""

    async def ranges(self) -> Sequence[SegmentRange]:
        """The segments at the beginning."""

    def segment_name(self, segment_id: int) -> str:
        """Qualified."""

    async def successors(self, segment_id: int, error: SegmentStoreError) -> Sequence[Successor]:
        """What follows an ended segment; nothing if the target is sealed. May raise why nothing can follow."""


class EventWriter:
    """Hold it in `async with`: its end waits until everything is stored.

    ```python
    async with stream.writer() as writer:
        for reading in readings:
            await writer.write(reading.encode(), key=reading.sensor)
    ```
    """

    def __init__(self, *, target: WriteTarget, calls: SegmentCalls) -> None:
        """`calls` are the writer's own: it closes their connections."""
        self._target = target
        self._calls = calls
        self._settings = calls.settings
        self._window = AppendWindow(calls.settings)
        self._tasks = TaskSet(on_failure=self._crashed)
        self._key_space = KeySpace([SegmentRange(0, 0.0, 1.0)])
        self._appenders: dict[int, SegmentAppender] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    async def open(self) -> None:
        """Learn the segments; `async with` does it. Raises NotFoundError, StreamSealedError."""
        ranges = await self._target.ranges()
        if not ranges:
            raise StreamSealedError(self._target.name)
        self._key_space = KeySpace(ranges)
        for segment_id in self._key_space.segment_ids:
            self._appender(segment_id)

    async def close(self) -> None:
        """Stop at once: what is not acknowledged by now may or may not be stored. Closing twice is fine."""
        self.failed(ClientError(f"writer is closed name={self._target.name!r}"))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._calls.close)
            stack.push_async_callback(self._tasks.close)

    async def write(self, event: bytes, *, key: str | None = None) -> None:
        """Let an event in behind all others of its key; it is stored some time before `flush` returns.

        Waits only for room. Events without a key are spread at random. An event larger than `event_bytes_max` is
        stored when this returns. Raises the writer's failure.
        """
        await self.write_block(frame_event(event), events=1, position=self._position(key))

    async def write_block(self, block: bytes, *, events: int, position: float) -> None:
        """As `write`, for whole events that were framed before and belong to one segment: that of the position.

        Several events may have `event_bytes_max` together; a single event may have any length.
        """
        if len(block) > self._settings.event_bytes_max + EVENT_HEADER_BYTES:
            assert events == 1, f"a block is too large bytes={len(block)} events={events}"
            await self._write_large(block, position)
            return
        await self._window.room(len(block))
        self._accept(PendingEvent(block, events=events, position=position))

    async def write_and_wait(self, event: bytes, *, key: str | None = None) -> None:
        """As `write`, and wait until the event is stored. Other tasks' events travel along in the same blocks."""
        if len(event) > self._settings.event_bytes_max:
            await self.write(event, key=key)
            return
        await self._window.room(len(event) + EVENT_HEADER_BYTES)
        await self.write_nowait(event, key=key)

    def write_nowait(self, event: bytes, *, key: str | None = None) -> asyncio.Future[None]:
        """As `write` without waiting; the future completes when the event is stored.

        Cancelling the future changes nothing for the event. Raises WriterFullError, the writer's failure, and
        InvalidRequestError for an event larger than `event_bytes_max`.
        """
        if len(event) > self._settings.event_bytes_max:
            raise InvalidRequestError(
                f"event is too large for write_nowait; await write() length={len(event)} "
                f"length_max={self._settings.event_bytes_max}"
            )
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accept(
            PendingEvent(
                frame_event(event), position=self._position(key), acknowledged=acknowledged
            )
        )
        return acknowledged

    async def flush(self) -> None:
        """Wait until everything written before this call is stored. Raises the writer's failure."""
        await self._window.stored(self._appenders.values)

    def released(self, events: int, length: int) -> None:
        """An appender's acknowledgement."""
        self._window.release(events, length)

    def failed(self, error: SegmentStoreError) -> None:
        """An appender gave up, or the writer as a whole."""
        self._window.fail(error, self._appenders.values())

    async def segment_ended(self, appender: SegmentAppender, error: SegmentStoreError) -> None:
        """Move on to the successors."""
        found = [each for each, known in self._appenders.items() if known is appender]
        try:
            for segment_id in found:
                await self._follow(segment_id, error)
        except SegmentStoreError as failure:
            self.failed(failure)

    def check(self) -> None:
        """O(unacknowledged)."""
        self._key_space.check()
        for appender in self._appenders.values():
            appender.check()
        held = sum(appender.unacknowledged for appender in self._appenders.values())
        assert self._window.failure or held == self._window.events, (
            f"{held} events are held, {self._window.events} are outstanding"
        )

    def _accept(self, event: PendingEvent) -> None:
        self._window.admit(len(event.content))
        self._appenders[self._key_space.segment_of(event.position)].append(event)

    def _position(self, key: str | None) -> float:
        if key is None:
            return self._calls.random.random()
        return _key_position(key)

    def _appender(self, segment_id: int) -> SegmentAppender:
        appender = self._appenders.get(segment_id)
        if appender is None:
            appender = SegmentAppender(
                segment=self._target.segment_name(segment_id),
                writer_id=self._calls.random.randbytes(16),
                calls=self._calls,
                owner=self,
            )
            self._appenders[segment_id] = appender
            self._tasks.start(appender.run(), name=f"append to {appender.segment}")
        return appender

    async def _follow(self, segment_id: int, error: SegmentStoreError) -> None:
        successors = await self._target.successors(segment_id, error)
        if self._window.failure is not None:
            raise self._window.failure  # it failed or was closed meanwhile, and goes nowhere
        appender = self._appenders.get(segment_id)
        if appender is None or appender.in_flight:
            # A large event met the end of the segment at the same time as its appender, or in front of it.
            return
        if not successors:
            raise StreamSealedError(self._target.name)
        # From here to the end without an await: an event written in between could overtake those that are moved.
        self._key_space.replace(segment_id, [each.range for each in successors])
        for following in self._key_space.segment_ids:
            self._appender(following)
        del self._appenders[segment_id]
        for event in appender.take_unsent():
            self._appenders[self._key_space.segment_of(event.position)].append(event)

    async def _write_large(self, content: bytes, position: float) -> None:
        while True:
            # Everything of its key has to be stored before, because a large event takes another way.
            await self._window.stored(lambda: [self._appender_of(position)])
            segment_id = self._key_space.segment_of(position)
            appender = self._appenders[segment_id]
            try:
                await append_large_event(self._calls, appender.segment, content)
            except (SegmentSealedError, SegmentNotFoundError) as error:
                await self._leave(segment_id, appender, error)
            except ClosedError as error:
                raise self._window.failure or error from error
            else:
                return

    async def _leave(
        self, segment_id: int, appender: SegmentAppender, error: SegmentStoreError
    ) -> None:
        """Go on with the successors of a segment whose end a large event met."""
        while self._appenders.get(segment_id) is appender:
            if appender.in_flight:
                # The appender will meet the end itself, behind what the segment took of these events.
                await self._window.stored(lambda: [appender])
            else:
                await self._follow(segment_id, error)

    def _appender_of(self, position: float) -> SegmentAppender:
        return self._appenders[self._key_space.segment_of(position)]

    def _crashed(self, error: BaseException) -> None:
        self.failed(ClientError(f"writer failed name={self._target.name!r}: {error!r}"))


class _RoomWaiter:
    """A task that waits for room, at its place in the queue until it leaves."""

    __slots__ = ("length", "woken")

    def __init__(self, length: int) -> None:
        self.length = length
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class AppendWindow:
    """Of one writer, over all of its segments. Room is given in the order in which it was asked for."""

    def __init__(self, settings: ClientSettings) -> None:
        self._bytes_max = settings.unacknowledged_bytes_max
        self._events_max = settings.unacknowledged_events_max
        self._bytes = 0
        self._events = 0
        self._failure: SegmentStoreError | None = None
        self._waiters: deque[_RoomWaiter] = deque()
        self._wakes_soon = False

    @property
    def events(self) -> int:
        """Not acknowledged yet."""
        return self._events

    @property
    def failure(self) -> SegmentStoreError | None:
        return self._failure

    def has_room(self, length: int) -> bool:
        """Whether an event of so many bytes may be let in now."""
        return self._fits(length, events=self._events, held_bytes=self._bytes)

    def _fits(self, length: int, *, events: int, held_bytes: int) -> bool:
        return events == 0 or (events < self._events_max and held_bytes + length <= self._bytes_max)

    def admit(self, length: int) -> None:
        """Let an event in. Raises WriterFullError, and the failure."""
        if self._failure is not None:
            raise self._failure
        if not self.has_room(length):
            raise WriterFullError(
                f"too much is waiting for acknowledgement events={self._events} bytes={self._bytes}"
            )
        self._events += 1
        self._bytes += length

    def release(self, events: int, length: int) -> None:
        """So much was acknowledged, or given up."""
        self._events -= events
        self._bytes -= length
        assert self._events >= 0, f"released more events than were let in {self._events}"
        assert self._bytes >= 0, f"released more bytes than were let in {self._bytes}"
        self._wake()

    def fail(self, error: SegmentStoreError, appenders: Iterable[SegmentAppender]) -> None:
        """Give up what the appenders hold. The first failure stays."""
        given_up = list(appenders)
        if self._failure is None:
            is_open = any(appender.in_flight for appender in given_up)
            self._failure = outcome_unknown(error) if is_open else error
        for appender in given_up:
            appender.give_up(error)
        for waiter in self._waiters:
            waiter.wake()

    async def room(self, length: int) -> None:
        """Wait until an event of so many bytes may be let in. Raises the failure."""
        if self._waiters or not self.has_room(length):
            await self._wait_for_room(length)
        if self._failure is not None:
            raise self._failure

    async def stored(self, appenders: Callable[[], Iterable[SegmentAppender]]) -> None:
        """Wait until everything that these appenders hold now is stored, by them or by those it goes to from them.

        Raises the failure. What is let in later is not waited for, so a task that writes without a pause does not hold
        this up.
        """
        while self._failure is None:
            held = [(each, each.last_number) for each in appenders() if each.unacknowledged]
            for appender, number in held:
                if not await appender.stored(number):
                    break  # its events are with others now
            else:
                break
        if self._failure is not None:
            raise self._failure

    async def _wait_for_room(self, length: int) -> None:
        """Returns behind a failure too."""
        waiter = _RoomWaiter(length)
        self._waiters.append(waiter)
        try:
            while self._failure is None:
                await waiter.woken
                if self._waiters[0] is waiter and self.has_room(length):
                    break
                # What was written without waiting has taken the room.
                waiter.woken = asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self._waiters.remove(waiter)
            self._wake_soon()
            raise
        self._waiters.remove(waiter)

    def _wake(self) -> None:
        """Those that there is room for. O(waiters that are woken)."""
        if self._failure is not None:
            return  # which has woken all
        events, held_bytes = self._events, self._bytes
        for waiter in self._waiters:
            if not self._fits(waiter.length, events=events, held_bytes=held_bytes):
                return
            events += 1
            held_bytes += waiter.length
            waiter.wake()
            self._wake_soon()

    def _wake_soon(self) -> None:
        """Again when those that were woken have left, which may have let nothing in."""
        if not self._wakes_soon:
            self._wakes_soon = True
            asyncio.get_running_loop().call_soon(self._wake_again)

    def _wake_again(self) -> None:
        self._wakes_soon = False
        self._wake()
