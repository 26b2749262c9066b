"""Appends to one segment: pipelined, in order, each exactly once, through any number of lost connections.

Invariants of `SegmentAppender`:

- Events carry numbers 1, 2, 3, ... under a writer id that no other appender uses. `_in_flight` then `_waiting`, read as
  one list, are all events that are not acknowledged, in the order of their numbers. Events that were framed together
  stay together: they are sent, acknowledged and sent again as one.
- On a new connection the server says the number of the last event it stored under the writer id. Events up to it are
  acknowledged, those above it are sent again: nothing is lost and nothing is stored twice.
- A block is sent in the turn of the loop in which its first event came, or when it is full, whichever is first;
  no time is spent waiting for more. With `blocks_in_flight_max` blocks under way events gather meanwhile.
- Where the segment is, also behind a refusal by a node that has it no more (WrongHost), `segment_calls.py` finds out.
- What was sent and not acknowledged (`_in_flight`) may be stored. Only the server can say that it is not: by the number
  that a set-up tells, or by refusing an append, because acknowledgements come before a refusal. Until then it is sent
  again to this segment alone, never to another, and callers that wait hear OutcomeUnknownError.
- A refusal says nothing of what was sent over an earlier connection as well (up to `_sent_before`): that one may have
  been stored from between the set-up and the seal. The number is asked for once more, which a sealed segment keeps.
- A sealed segment keeps what it acknowledged; once it is certain that it has none of the rest, the owner takes that, in
  order, to the successors.

An event too large for one append (`append_large_event`) is collected in a transient segment, piece by piece, then
merged in as a whole. Invariants:

- Readers see all of the event or nothing: the merge is atomic.
- Pieces are conditional on the length before them, so a repeated piece is refused instead of stored twice.
- A merge whose answer was lost is asked for again: the target remembers what was merged into it. Where no answer can be
  had any more (source or target is gone), the outcome is unknown, and nothing is written elsewhere.
- Whatever breaks before the merge, also a source that is gone although no merge of it was sent, the next attempt begins
  with a new transient segment: nothing is half there.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from segmentstore.client.connection import WireConnection
from segmentstore.client.errors import (
    ClientError,
    ConnectionLostError,
    DeadlineExceededError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    error_from_reply,
    outcome_unknown,
)
from segmentstore.client.segment_calls import MovePauses, SegmentCalls
from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
    InvalidEventNumber,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import GetStreamSegmentInfo, StreamSegmentInfo
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.codec.wire_protocol.segments import MergeSegments, SegmentCreated, SegmentsMerged
from segmentstore.contracts.errors import (
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done
from segmentstore.runtime.guarded_callback import guarded

_LARGE_EVENT_PIECE_BYTES: Final = 4 << 20
_LARGE_EVENT_ATTEMPTS_MAX: Final = 5


class PendingEvent:
    """Bytes on their way into a segment: one event, or several that were framed together."""

    __slots__ = ("acknowledged", "content", "events", "number", "position")

    def __init__(
        self,
        content: bytes,
        *,
        events: int = 1,
        position: float = 0.0,
        acknowledged: asyncio.Future[None] | None = None,
    ) -> None:
        self.content = content
        self.events = events
        self.position = position
        """Of its routing key, for when it has to find another segment."""
        self.number = 0
        """Of the last event in it."""
        self.acknowledged = acknowledged


class AppenderOwner(Protocol):
    """What an appender tells its writer."""

    def released(self, events: int, length: int) -> None:
        """So many pieces that were appended, and their bytes, were acknowledged."""

    async def segment_ended(self, appender: "SegmentAppender", error: SegmentStoreError) -> None:
        """The segment is sealed or gone, and has nothing of what the appender holds: take `appender.take_unsent()`
        elsewhere, or fail."""

    def failed(self, error: SegmentStoreError) -> None:
        """The appender gave up."""


class SegmentAppender:
    """`append` is synchronous; `run` is its owner's task."""

    def __init__(
        self, *, segment: str, writer_id: bytes, calls: SegmentCalls, owner: AppenderOwner
    ) -> None:
        self.segment = segment
        self._writer_id = writer_id
        self._calls = calls
        self._settings = calls.settings
        self._owner = owner
        self._run_send = guarded(self._send_scheduled, self._crashed)
        self._in_flight: deque[PendingEvent] = deque()
        self._waiting: deque[PendingEvent] = deque()
        self._waiting_bytes = 0
        self._block_ends: deque[int] = deque()
        """Numbers of the last events of the blocks in flight."""
        self._last_number = 0
        self._sent_number = 0
        self._sent_before = 0
        """Of the last event that was sent when the present session was set up."""
        self._refusal: SegmentStoreError | None = None
        """Of the segment that ended, while the number of the last event in it is asked for."""
        self._acknowledged_number = 0
        self._has_work = asyncio.Event()
        self._session: _AppendSession | None = None
        self._is_send_scheduled = False
        self._is_over = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """The number of an event, and the future of the caller that waits for its acknowledgement."""

    @property
    def unacknowledged(self) -> int:
        """How many times `append` was called for it."""
        return len(self._in_flight) + len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many of these were sent and may be stored."""
        return len(self._in_flight)

    @property
    def last_number(self) -> int:
        """Of the event that was appended last."""
        return self._last_number

    def append(self, event: PendingEvent) -> None:
        """Take an event behind all others."""
        self._last_number += event.events
        event.number = self._last_number
        self._waiting.append(event)
        self._waiting_bytes += len(event.content)
        if self._session is None:
            self._has_work.set()
        elif self._waiting_bytes >= self._settings.block_bytes_max:
            self._send()
        elif not self._is_send_scheduled:
            self._is_send_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_send)

    async def stored(self, number: int) -> bool:
        """Wait until the events up to a number are acknowledged; False if that will not happen here."""
        while self._acknowledged_number < number and not self._is_over:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (number, waiter)
            self._waiters.append(entry)
            try:
                await waiter
            finally:
                self._waiters.remove(entry)
        return self._acknowledged_number >= number

    def take_unsent(self) -> Sequence[PendingEvent]:
        """Every event that is not acknowledged, in order: the segment has none of them. The appender takes no more."""
        assert not self._in_flight, f"what may be stored is sent elsewhere segment={self.segment!r}"
        events = list(self._waiting)
        self._end()
        return events

    def give_up(self, reason: SegmentStoreError) -> None:
        """Send nothing more. Futures get the reason, those of events that may be stored OutcomeUnknownError."""
        for event in self._in_flight:
            _fail_event(event, outcome_unknown(reason))
        for event in self._waiting:
            _fail_event(event, reason)
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._in_flight.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._block_ends.clear()
        self._wake()

    async def run(self) -> None:
        """Connect when there is something to append, and again after each loss, until the segment ends."""
        pauses = MovePauses(self._calls, self.segment)
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            progress, progress_at = self._acknowledged_number, loop.time()
            while self.unacknowledged:
                error = await self._append_until_lost(pauses)
                if isinstance(error, SegmentSealedError | SegmentNotFoundError):
                    if self._in_flight and error is self._refusal:
                        continue
                    if self._in_flight:
                        # It ended before a set-up could tell what it has.
                        self._owner.failed(outcome_unknown(error))
                    else:
                        await self._owner.segment_ended(self, error)
                    return
                if not isinstance(
                    error, ConnectionLostError | ServiceUnavailableError | DeadlineExceededError
                ):
                    self._owner.failed(error)
                    return
                if self._acknowledged_number != progress:
                    progress, progress_at = self._acknowledged_number, loop.time()
                    pauses.reset()
                elif loop.time() - progress_at > self._settings.append_seconds:
                    self._owner.failed(
                        OutcomeUnknownError(f"gave up appending segment={self.segment!r}: {error}")
                    )
                    return
                await pauses.before_next_attempt()
            self._has_work.clear()

    def check(self) -> None:
        """O(unacknowledged)."""
        events = [*self._in_flight, *self._waiting]
        following = self._last_number
        for event in reversed(events):
            assert event.number == following, f"numbers have a gap {event.number} != {following}"
            following -= event.events
        waiting_bytes = sum(len(event.content) for event in self._waiting)
        assert self._waiting_bytes == waiting_bytes, f"{self._waiting_bytes} != {waiting_bytes}"

    async def _append_until_lost(self, pauses: MovePauses) -> SegmentStoreError:
        """One session; why it ended."""
        try:
            await pauses.begin_attempt()
            connection = await self._calls.connection(self.segment)
            session = _AppendSession(self, connection)
            try:
                last_number = await session.set_up(
                    segment=self.segment,
                    writer_id=self._writer_id,
                    seconds=self._settings.request_seconds,
                )
                self._resume(session, last_number)
                return await self._watch(session)
            finally:
                self._session = None
                session.close()
        except SegmentStoreError as error:
            return error

    async def _watch(self, session: "_AppendSession") -> SegmentStoreError:
        """Wait for the session's end; end it if acknowledgements stay away."""
        while True:
            seen = self._acknowledged_number
            try:
                async with asyncio.timeout(self._settings.acknowledge_seconds):
                    return await asyncio.shield(session.ended)
            except TimeoutError:
                if self._in_flight and self._acknowledged_number == seen:
                    session.connection.abort()
                    return DeadlineExceededError(
                        f"no acknowledgement in time segment={self.segment!r}"
                    )

    def _resume(self, session: "_AppendSession", last_number: int) -> None:
        """Go on behind what is stored. Raises ClientError if that is more than was ever sent, and the refusal of a
        segment that had ended before the session."""
        _check_stored(self.segment, stored=last_number, sent=self._sent_number)
        self._take_back(0)
        self._sent_before = self._sent_number
        self._session = session
        stored: list[PendingEvent] = []
        while self._waiting and self._waiting[0].number <= last_number:
            event = self._waiting.popleft()
            self._waiting_bytes -= len(event.content)
            stored.append(event)
        self._acknowledge(stored)
        if self._refusal is not None:
            raise self._refusal
        self._send()

    def appended(self, session: "_AppendSession", number: int) -> None:
        """Everything up to the number is stored."""
        if session is not self._session:
            return
        stored: list[PendingEvent] = []
        while self._in_flight and self._in_flight[0].number <= number:
            stored.append(self._in_flight.popleft())
        while self._block_ends and self._block_ends[0] <= number:
            self._block_ends.popleft()
        self._acknowledge(stored)
        self._send()

    def refused(self, session: "_AppendSession", error: SegmentStoreError) -> None:
        """The segment took nothing in this session that is not acknowledged: what it took is acknowledged before a
        refusal."""
        if session is self._session:
            self._take_back(self._sent_before)
            if self._in_flight:
                self._refusal = error

    def _take_back(self, above: int) -> None:
        """What is in flight with higher numbers is known to be not stored, or is told from what is by its numbers."""
        while self._in_flight and self._in_flight[-1].number > above:
            event = self._in_flight.pop()
            self._waiting.appendleft(event)
            self._waiting_bytes += len(event.content)
        self._block_ends.clear()

    def session_ended(self, session: "_AppendSession") -> None:
        """Nothing more can be sent in it."""
        if session is self._session:
            self._session = None

    def _acknowledge(self, events: Sequence[PendingEvent]) -> None:
        if not events:
            return
        self._acknowledged_number = events[-1].number
        if self._waiters:
            self._wake()
        length = 0
        for event in events:
            length += len(event.content)
            if event.acknowledged is not None and not event.acknowledged.done():
                event.acknowledged.set_result(None)
        self._owner.released(len(events), length)

    def _wake(self) -> None:
        for number, waiter in self._waiters:
            if self._is_over or number <= self._acknowledged_number:
                complete_unless_done(waiter, None)

    def _send_scheduled(self) -> None:
        self._is_send_scheduled = False
        self._send()

    def _crashed(self, bug: Exception) -> None:
        """What was to be sent in a turn of the loop was not, or not all of it."""
        error = OutcomeUnknownError(f"appending failed segment={self.segment!r}: {bug!r}")
        error.__cause__ = bug
        self._owner.failed(error)

    def _send(self) -> None:
        session = self._session
        while (
            session is not None
            and self._waiting
            and len(self._block_ends) < self._settings.blocks_in_flight_max
        ):
            block = [self._waiting.popleft()]
            length = len(block[0].content)
            while (
                self._waiting
                and length + len(self._waiting[0].content) <= self._settings.block_bytes_max
            ):
                event = self._waiting.popleft()
                length += len(event.content)
                block.append(event)
            self._waiting_bytes -= length
            self._in_flight.extend(block)
            self._block_ends.append(block[-1].number)
            self._sent_number = max(self._sent_number, block[-1].number)
            session.send(
                self._writer_id,
                b"".join([event.content for event in block])
                if len(block) > 1
                else block[0].content,
                events=sum(event.events for event in block),
                last_number=block[-1].number,
            )
            session = self._session


def _fail_event(event: PendingEvent, error: SegmentStoreError) -> None:
    # The failure is told by flush and by every call; a future that is not awaited need not tell it again.
    if event.acknowledged is not None:
        fail_unless_done(event.acknowledged, error)


class _AppendSession:
    """A writer id on one connection, from set-up to the first trouble."""

    def __init__(self, appender: SegmentAppender, connection: WireConnection) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.ended: asyncio.Future[SegmentStoreError] = loop.create_future()
        self._appender = appender
        self._request_id = connection.next_request_id()
        self._last_number: asyncio.Future[int] = loop.create_future()

    async def set_up(self, *, segment: str, writer_id: bytes, seconds: float) -> int:
        """The number of the last stored event, or lower than any if there is none. Raises the refusal."""
        self.connection.subscribe(self._request_id, self)
        self.connection.send(SetupAppend(self._request_id, writer_id, segment, ""))
        try:
            async with asyncio.timeout(seconds):
                return await self._last_number
        except TimeoutError as error:
            self.connection.abort()
            raise DeadlineExceededError(
                f"writer is not set up in time segment={segment!r}"
            ) from error

    def send(self, writer_id: bytes, data: bytes, *, events: int, last_number: int) -> None:
        try:
            self.connection.send(
                AppendBlockEnd(writer_id, len(data), data, events, last_number, self._request_id)
            )
        except ConnectionLostError as error:
            self._end(error)

    def received(self, reply: Command) -> None:
        match reply:
            case DataAppended(event_number=number):
                self._appender.appended(self, number)
            case AppendSetup(last_event_number=number):
                if not self._last_number.done():
                    self._last_number.set_result(number)
            case InvalidEventNumber():
                # Our own older connection may still be stored from; the next set-up tells.
                self.connection.abort()
                self._end(ConnectionLostError("writer's events are stored over another connection"))
            case SegmentIsSealed() | NoSuchSegment():
                error = error_from_reply(reply)
                self._appender.refused(self, error)
                self._end(error)
            case _:
                self._end(error_from_reply(reply))

    def lost(self, error: ConnectionLostError) -> None:
        self._end(error)

    def close(self) -> None:
        self.connection.unsubscribe(self._request_id)
        self._last_number.cancel()

    def _end(self, error: SegmentStoreError) -> None:
        self._appender.session_ended(self)
        if not self._last_number.done():
            self._last_number.set_exception(error)
        if not self.ended.done():
            self.ended.set_result(error)


async def set_up_append(
    connection: WireConnection, segment: str, writer_id: bytes, *, sent_number: int
) -> int:
    """Have the connection take appends; the number of the writer's last event that is stored, if it has any.

    For appends with one answer each. `sent_number`: the highest that was ever sent. Raises the refusal,
    ConnectionLostError, and ClientError if another writer has the same id.
    """
    reply = await connection.request(
        lambda request_id: SetupAppend(request_id, writer_id, segment, "")
    )
    if not isinstance(reply, AppendSetup):
        raise error_from_reply(reply)
    _check_stored(segment, stored=reply.last_event_number, sent=sent_number)
    return reply.last_event_number


def _check_stored(segment: str, *, stored: int, sent: int) -> None:
    if stored > sent:
        # Taking another writer's events for ours would acknowledge events that are nowhere.
        raise ClientError(
            f"another writer has the same id segment={segment!r} stored={stored} sent={sent}"
        )


async def append_large_event(calls: SegmentCalls, segment: str, content: bytes) -> None:
    """Append framed bytes of any length as one event.

    Raises SegmentSealedError and SegmentNotFoundError of `segment` (nothing was stored: go to a successor),
    OutcomeUnknownError, and whatever SegmentCalls raises.
    """
    for _ in range(_LARGE_EVENT_ATTEMPTS_MAX):
        transient = await calls.retried(
            segment,
            partial(_collect_pieces, calls, segment, content),
            seconds=calls.settings.append_seconds,
        )
        if await _merge_transient(calls, segment, transient):
            return
    raise ServiceUnavailableError(
        f"what is collected of a large event goes again and again segment={segment!r}"
    )


async def _collect_pieces(calls: SegmentCalls, segment: str, content: bytes) -> str:
    """The transient segment that has them all. Raises ServiceUnavailableError if the server dropped it meanwhile."""
    writer_id = calls.random.randbytes(16)
    created = await calls.ask(
        segment,
        lambda request_id: CreateTransientSegment(request_id, writer_id, segment, ""),
        SegmentCreated,
    )
    connection = await calls.connection(segment)
    transient = created.segment
    try:
        await set_up_append(connection, transient, writer_id, sent_number=0)
        starts = range(0, len(content), _LARGE_EVENT_PIECE_BYTES)
        for number, start in enumerate(starts, start=1):
            piece = content[start : start + _LARGE_EVENT_PIECE_BYTES]
            reply = await connection.request(
                partial(ConditionalBlockEnd, writer_id, number, start, piece)
            )
            if not isinstance(reply, DataAppended):
                raise error_from_reply(reply)
    except SegmentNotFoundError as error:
        if error.name != transient:
            raise
        # A server may drop a transient segment with the connection that made it.
        raise ServiceUnavailableError(
            f"what is collected of a large event is gone segment={segment!r}"
        ) from error
    return transient


async def _merge_transient(calls: SegmentCalls, segment: str, transient: str) -> bool:
    """Whether it was merged; False if it is gone, and certainly was not."""
    backoff = calls.settings.backoff(calls.random)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + calls.settings.append_seconds
    is_open = False
    """Whether a merge was sent whose answer was lost."""
    while True:
        try:
            await calls.ask(
                segment,
                lambda request_id: MergeSegments(request_id, segment, transient, ""),
                SegmentsMerged,
                repeatable=False,
            )
        except OutcomeUnknownError:
            is_open = True
            if loop.time() >= deadline:
                raise
        except SegmentNotFoundError as error:
            if is_open:
                raise outcome_unknown(error) from error
            if error.name != transient:
                raise
            return False
        except ClientError as error:
            # What ends the attempts says nothing of one whose answer was lost.
            if is_open:
                raise outcome_unknown(error) from error
            raise
        except SegmentSealedError as error:
            # Not merged if its bytes are still apart; a seal keeps it so.
            if is_open and not await _is_there(calls, transient):
                raise outcome_unknown(error) from error
            raise
        else:
            return True
        await asyncio.sleep(backoff.next_seconds())


async def _is_there(calls: SegmentCalls, segment: str) -> bool:
    """Whether it certainly is."""
    try:
        found = await calls.ask(
            segment,
            lambda request_id: GetStreamSegmentInfo(request_id, segment, ""),
            StreamSegmentInfo,
        )
    except (SegmentNotFoundError, ClientError):
        return False
    return found.exists and not found.is_deleted
