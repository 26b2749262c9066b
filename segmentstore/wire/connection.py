"""One client: bytes in, frames to what handles them, replies out.

WireConnection reads the socket into a ReceiveBuffer and looks at the frames there; only what is kept is copied. Appends
and set-ups go to ConnectionAppends, reads to ConnectionReads, everything else to ConnectionRequests.

- The first frame has to be a Hello, and our first frame is the answer to it.
- The socket is not read while the connection has too much under way; everything it was promised goes on, and so do
  all other connections.
- A frame that cannot be understood, or is out of order, ends this connection with one line in the log, and no other.
  So does a part of a frame (an AppendBlock without its end is one) that is followed by silence, while it is read.
- When the connection goes, its reads and questions end; what it appended goes on, and the transient segments that it
  made and did not merge go with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Final, TypeAlias, cast

from segmentstore.codec.wire_protocol.appends import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    OLDEST_WIRE_VERSION,
    WIRE_VERSION,
    Command,
    Hello,
    KeepAlive,
)
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.frames import check_frame_length, decode_command
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.segments import Segment, SegmentReads
from segmentstore.runtime.handle_cache import HandleCache
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.memory_bound import MemoryBound
from segmentstore.wire.reads import ConnectionReads
from segmentstore.wire.received_appends import read_whole_append
from segmentstore.wire.replies import LEASE_IS_OVER, OwnerAddress, SendBuffer
from segmentstore.wire.requests import ConnectionRequests, TokenVerifier
from segmentstore.wire.segment_commands import SegmentCommands
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.store_calls import StoreCalls
from segmentstore.wire.table_commands import TableCommands
from segmentstore.wire.writers import ConnectionAppends

_LOGGER = logging.getLogger(__name__)

WaitForRecovery: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Of the container of this segment; None if it neither recovers here nor is about to."""

_APPEND_BLOCK: Final = AppendBlock.type
_APPEND_BLOCK_END: Final = AppendBlockEnd.type
_FRAME_BYTES = 256
"""Of a command: so many more of them count as another frame of a turn. What is made of them takes as long."""
_TAIL_BYTES = 8 << 10
"""Free room below this is not worth a system call: what is received moves to the front first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionServices:
    """What all connections of a server share."""

    settings: WireSettings
    counters: WireCounters
    memory: MemoryBound
    segment_handles: HandleCache[Segment]
    reads: SegmentReads | None
    segment_commands: SegmentCommands
    table_commands: TableCommands
    store_calls: StoreCalls | None
    verify_token: TokenVerifier | None
    system_is_closed: bool
    owner_address: OwnerAddress
    has_lease: Callable[[], bool]
    """Whether no other node can have been given a container of this one."""
    wait_for_recovery: WaitForRecovery | None
    receive_memory: memoryview
    """What is received and taken in one step goes through it."""
    opened: Callable[["WireConnection"], bool]
    """Whether there is room for it."""
    closed: Callable[["WireConnection"], None]


class WireConnection(asyncio.BufferedProtocol):
    """Made by the server for every client."""

    def __init__(self, *, services: ConnectionServices) -> None:
        self._services = services
        self._settings = services.settings
        self._memory = services.memory
        self._incoming = ReceiveBuffer(
            memory=services.memory,
            shared=services.receive_memory,
            capacity_min=self._settings.receive_buffer_bytes,
            capacity_busy=self._settings.receive_buffer_busy_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._outgoing: SendBuffer
        self._tasks: TaskSet
        self._appends: ConnectionAppends
        self._reads: ConnectionReads
        self._requests: ConnectionRequests
        self._peer = "?"
        self._admitted = False
        self._greeted = False
        self._closing_since: float | None = None
        self._paused = False
        self._unacked_bytes = 0
        self._unacked_bytes_max = self._settings.unacked_bytes_max
        self._request_bytes = 0
        """Of the unacknowledged bytes those that are no appends."""
        self._recovery_waits: set[asyncio.Timeout] = set()
        """Of requests and set-ups that wait for containers that are recovering."""
        self._is_lost = False
        self._received = False
        """Something, since the last tick."""
        self._silent_ticks = 0
        """In a row, with a part of a frame here and nothing more received. Not time: this process may stand still."""
        self._silent_ticks_max = ceil(
            self._settings.frame_silence_seconds_max / self._settings.tick_seconds
        )
        self._behind = False
        """Something was received and not looked at."""
        self._is_taking = False
        """Frames in the receive buffer are looked at: it stays where it is."""
        self._work_is_due = False

    @property
    def unacked_bytes(self) -> int:
        """Appended and not yet settled."""
        return self._unacked_bytes

    @property
    def held_bytes(self) -> int:
        """Of what all connections hold (`memory_bound.py`)."""
        return self._unacked_bytes + self._incoming.capacity + self._outgoing.unsent_bytes

    @property
    def awaited_frame_bytes(self) -> int:
        """The whole length of the frame that a part was received of, as far as it is known."""
        return self._incoming.awaited_bytes

    @property
    def waiting_reads(self) -> int:
        """Reads at the end of their segments."""
        return self._reads.waiting_count

    @property
    def abandoned_transients(self) -> Sequence[str]:
        """Transient segments that go with it."""
        return self._requests.abandoned

    # --- from the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The loop calls this with the transport of a stream socket, which can read and write.
        self._transport = cast(asyncio.Transport, transport)
        self._peer = str(transport.get_extra_info("peername"))
        self._assemble()
        self._admitted = self._services.opened(self)
        if not self._admitted:
            _LOGGER.warning("peer=%s refused: too many connections", self._peer)
            self._transport.abort()

    def _assemble(self) -> None:
        settings, counters = self._settings, self._services.counters
        handles = self._services.segment_handles
        self._outgoing = SendBuffer(
            transport=self._transport,
            settings=settings,
            counters=counters,
            memory=self._memory,
            on_room=self._has_room,
            fail=self._task_failed,
        )
        self._tasks = TaskSet(on_end=self._update_reading, on_failure=self._task_failed)
        self._run_work = self._tasks.guarded(self._work_later)
        self.look_at_memory = self._tasks.guarded(self._look_at_memory)
        self._appends = ConnectionAppends(
            handles=handles,
            outgoing=self._outgoing,
            tasks=self._tasks,
            counters=counters,
            settings=settings,
            add_unacked=self._add_unacked,
            remove_unacked=self._remove_unacked,
            fail=self.fail,
            owner_address=self._services.owner_address,
            until_recovered=self._until_recovered,
        )
        self._reads = ConnectionReads(
            handles=handles,
            reads=self._services.reads,
            outgoing=self._outgoing,
            tasks=self._tasks,
            counters=counters,
            settings=settings,
            on_answered=self._update_reading,
            owner_address=self._services.owner_address,
        )
        self._requests = ConnectionRequests(
            segment_commands=self._services.segment_commands,
            table_commands=self._services.table_commands,
            store_calls=self._services.store_calls,
            verify_token=self._services.verify_token,
            system_is_closed=self._services.system_is_closed,
            outgoing=self._outgoing,
            tasks=self._tasks,
            counters=counters,
            transients_max=settings.transients_per_connection_max,
            answers_bytes_max=settings.table_answers_bytes_max,
            add_unacked=self._add_request,
            remove_unacked=self._remove_request,
            fail=self._task_failed,
            close_connection=self.fail,
            owner_address=self._services.owner_address,
            has_lease=self._services.has_lease,
            until_recovered=self._until_recovered,
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio names it
        return self._incoming.free()

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.filled(nbytes)
        self._received = True
        if not self._take_lone_append():
            self._work()
            self._incoming.keep()

    def _take_lone_append(self) -> bool:
        """Whether what was received is one append in its usual shape, as clients send that wait for each answer.

        It can make no difference but to the bytes under way, so most of what follows frames is spared.
        """
        incoming = self._incoming
        if not self._greeted or self._paused or self._closing_since is not None:
            return False
        whole = read_whole_append(incoming.view, incoming.start, incoming.end)
        if whole is None or whole[1] != incoming.end:
            return False
        incoming.consume(incoming.end)
        try:
            self._appends.take(whole[0])
        except ProtocolError as error:
            self.fail(str(error))
        if self._unacked_bytes > self._unacked_bytes_max or self._memory.is_full:
            self._update_reading()
        return True

    def _work(self) -> None:
        self._is_taking = True
        try:
            try:
                self._behind = self._take_frames()
            finally:
                self._is_taking = False
                self._appends.submit()
        except ProtocolError as error:
            self.fail(str(error))
        self._requests.submit_updates()
        if self._behind or self._paused or self._memory.is_full or self._is_over_limit():
            self._update_reading()

    def _work_later(self) -> None:
        self._work_is_due = False
        self._work()

    def pause_writing(self) -> None:
        self._outgoing.pause()

    def resume_writing(self) -> None:
        self._outgoing.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing_since is None:
            self._closing_since = self._loop.time()
        if exc is not None:
            _LOGGER.debug("peer=%s lost: %s", self._peer, exc)
        self._requests.close()
        self._tasks.cancel()
        self._reads.close()
        self._appends.close()
        # Appends that are under way go on, and count until they are settled.
        self._remove_request(self._request_bytes)
        self._is_lost = True
        self._incoming.close()
        self._outgoing.close()
        if self._admitted:
            self._services.closed(self)

    # --- frames ----------------------------------------------------------------------------------

    def _take_frames(self) -> bool:
        """Whether there may be more of them. Raises ProtocolError."""
        incoming = self._incoming
        left = frames_max = self._settings.frames_per_turn_max
        while left > 0:
            start = incoming.start
            if start == incoming.end or self._closing_since is not None:
                return False
            # Nothing is received while there is too much: the first frame needs no look.
            if left < frames_max and self._is_over_limit():
                return True
            whole = read_whole_append(incoming.view, start, incoming.end) if self._greeted else None
            if whole is not None:
                unit, end = whole
                self._appends.gather(unit)
                incoming.consume(end)
                left -= 1
            elif taken := self._take_frame(start):
                left -= taken
            else:
                return False
        return True

    def _take_frame(self, start: int) -> int:
        """For how many it counts; 0 if the first is not complete. Raises ProtocolError."""
        incoming = self._incoming
        frame = incoming.peek(start)
        if frame is None:
            return 0
        kind, begin, end = frame
        taken = 1
        if not self._greeted and kind != Hello.type:
            raise ProtocolError(f"the first frame is not a hello type={kind}")
        if kind == _APPEND_BLOCK_END:
            self._appends.append(incoming.view, block=None, end=(begin, end))
        elif kind == _APPEND_BLOCK:
            last = incoming.peek(end, only=_APPEND_BLOCK_END)
            if last is None:
                return 0
            block = begin, end
            _, begin, end = last
            self._appends.append(incoming.view, block=block, end=(begin, end))
        else:
            self._appends.submit()
            behind, count = self._requests.take_batch(kind, incoming.view, start, incoming.end)
            if count:
                end, taken = behind, count
            else:
                self._take_payload(kind, bytes(incoming.view[begin:end]))
                taken += (end - begin) // _FRAME_BYTES
        incoming.consume(end)
        return taken

    def _take_payload(self, kind: int, payload: bytes) -> None:
        self._take_command(decode_command(kind, payload))

    def _take_command(self, command: Command) -> None:
        match command:
            case KeepAlive():
                self._outgoing.reply(command)
            case Hello():
                self._greet(command)
            case ConditionalAppend():
                self._appends.append_event_if(command)
            case ConditionalBlockEnd():
                self._appends.append_bytes_if(command)
            case SetupAppend():
                if self._requests.is_allowed(command):
                    self._appends.set_up(command)
            case ReadSegment():
                if self._requests.is_allowed(command):
                    self._reads.read(command)
            case _:
                self._requests.take(command)

    async def _until_recovered(self, segment: str) -> None:
        """While the segment's container recovers here, for a while, unless that keeps the connection from being read.

        Raises ContainerNotFoundError if this process may not answer any more, InvalidRequestError for a bad name.
        """
        wait = self._services.wait_for_recovery
        waits_max = self._settings.recovery_waits_per_connection_max
        recovery: Awaitable[None] | None = None
        if wait is not None and len(self._recovery_waits) < waits_max:
            recovery = wait(segment)
        if recovery is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.recovery_seconds_max) as bound:
                    self._recovery_waits.add(bound)
                    try:
                        await recovery
                    finally:
                        self._recovery_waits.discard(bound)
        if not self._services.has_lease():
            raise ContainerNotFoundError(-1, LEASE_IS_OVER)

    def _end_recovery_waits(self) -> None:
        """What waits is refused, and what stands behind it."""
        now = self._loop.time()
        for bound in self._recovery_waits:
            if not bound.expired():
                bound.reschedule(now)

    def _greet(self, hello: Hello) -> None:
        self._greeted = True
        self._outgoing.reply(Hello(WIRE_VERSION, OLDEST_WIRE_VERSION))
        if not hello.speaks(high_version=WIRE_VERSION, low_version=OLDEST_WIRE_VERSION):
            self.fail(
                f"no common version high_version={hello.high_version} low_version={hello.low_version}"
            )

    # --- how much is under way -------------------------------------------------------------------

    def _add_unacked(self, byte_count: int) -> None:
        self._unacked_bytes += byte_count
        self._memory.change(byte_count)

    def _remove_unacked(self, byte_count: int) -> None:
        self._unacked_bytes -= byte_count
        self._memory.change(-byte_count)
        assert self._unacked_bytes >= 0, f"unacked_bytes={self._unacked_bytes}"
        if self._paused:
            self._update_reading()

    def _add_request(self, byte_count: int) -> None:
        self._request_bytes += byte_count
        self._add_unacked(byte_count)

    def _remove_request(self, byte_count: int) -> None:
        if not self._is_lost:
            self._request_bytes -= byte_count
            self._remove_unacked(byte_count)

    def _look_at_memory(self) -> None:
        self._outgoing.count_unsent()
        self._has_room()

    def _has_room(self) -> None:
        self._reads.go_on()
        self._requests.go_on()
        self._update_reading()

    def _is_over_limit(self) -> bool:
        """Whether the connection has as much under way as it may."""
        settings = self._settings
        # Half-way down again before it goes on: not a switch for every append.
        bytes_max = settings.unacked_bytes_max // (2 if self._paused else 1)
        return (
            self._unacked_bytes > bytes_max
            or len(self._tasks) + self._requests.waiting_count
            >= settings.requests_per_connection_max
            or self._reads.is_full
            or self._outgoing.is_backlogged
        )

    def _update_reading(self) -> None:
        """Go on with what was received and not looked at; read the socket, or not."""
        if self._transport.is_closing():
            return
        is_over_limit = self._is_over_limit()
        if self._behind and not is_over_limit and not self._work_is_due:
            # Not at once: a buffer full of tiny frames must not hold up the other connections.
            self._work_is_due = True
            self._loop.call_soon(self._run_work)
        if is_over_limit and self._recovery_waits:
            self._end_recovery_waits()
        blocked = is_over_limit or self._behind
        if self._memory.is_full:
            if self._is_taking:
                return  # It is looked at again behind the frames.
            blocked = self._waits_for_memory(is_blocked=blocked) or blocked
        else:
            self._incoming.ends_with_frame = False
        if blocked == self._paused:
            return
        self._paused = blocked
        if blocked:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _waits_for_memory(self, *, is_blocked: bool) -> bool:
        """While the server is full: whether this connection holds too much to be read."""
        incoming, memory = self._incoming, self._memory
        incoming.give_back()
        holds_too_much = self.held_bytes > memory.share_bytes
        # One that is not read for its own sake could not use its turn, and is not to blame for it.
        if is_blocked or incoming.is_empty or not holds_too_much:
            memory.needs_no_turn(self)
            incoming.ends_with_frame = False
            return holds_too_much
        incoming.ends_with_frame = memory.has_turn(self)
        return not incoming.ends_with_frame

    # --- the end ---------------------------------------------------------------------------------

    def give_up(self, reason: str) -> None:
        """Others wait for its memory. Not while a frame is looked at."""
        if self._closing_since is None:
            self._services.counters.connections_given_up += 1
            self.fail(reason)
            self._incoming.close()

    def fail(self, reason: str) -> None:
        """Say what was to be said before, then close. Once."""
        if self._closing_since is not None:
            return
        self._services.counters.connections_failed += 1
        _LOGGER.warning("peer=%s closed: %s", self._peer, reason)
        self.close()

    def close(self) -> None:
        """Take nothing more; send what is ready, then close."""
        if self._closing_since is None:
            self._closing_since = self._loop.time()
            self._outgoing.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close without sending anything more."""
        self._transport.abort()

    async def join(self) -> None:
        """After it is closed: returns when none of its tasks is left."""
        await self._tasks.join()

    def _task_failed(self, error: BaseException) -> None:
        _LOGGER.error("peer=%s request failed", self._peer, exc_info=error)
        try:
            self.fail(f"internal error: {error!r}")
        except Exception:  # noqa: BLE001  # the same bug once more: what is to be sent cannot be had
            self._transport.abort()

    def tick(self, now: float) -> None:
        if self._recovery_waits and self._is_over_limit():
            # They began when that was so already.
            self._end_recovery_waits()
        if self._closing_since is not None:
            if now - self._closing_since >= self._settings.drain_seconds:
                self._transport.abort()
            return
        if not self._services.has_lease():
            self._reads.refuse_waiting(ContainerNotFoundError(-1, LEASE_IS_OVER))
        self._reads.tick(now)
        self._appends.tick(now)
        if self._outgoing.is_left_too_long():
            self.give_up(
                "answers were left for too long, while all connections together hold too much"
                f" bytes={self._outgoing.unsent_bytes}"
            )
            return
        if self._is_silent_for_too_long():
            self._services.counters.connections_silent += 1
            self.fail(
                "nothing followed a part of a frame"
                f" silence_seconds_max={self._settings.frame_silence_seconds_max}"
            )
            self._incoming.close()
            return
        if self._memory.is_full:
            self._has_room()
        if not self._received:
            self._incoming.release()
        self._received = False

    def _is_silent_for_too_long(self) -> bool:
        """Asked once a tick. What is not read because of us is not silent."""
        if self._received or self._paused or self._incoming.is_empty:
            self._silent_ticks = 0
            return False
        self._silent_ticks += 1
        return self._silent_ticks >= self._silent_ticks_max

    def check(self) -> None:
        """O(writers)."""
        self._appends.check()
        self._requests.check()
        assert self._unacked_bytes >= 0, f"unacked_bytes={self._unacked_bytes}"


class ReceiveBuffer:
    """What a socket is read into, and the frames in it.

        0 .. start      consumed
        start .. end    received, not yet consumed
        end .. capacity free

    free() and filled() take bytes in; peek() and consume() take frames out; keep() ends a turn.

    - A connection that leaves nothing behind has no memory: it reads into what all connections share, and what is left
      when it gives the loop back moves to memory of its own. So clients with small frames, of which there are many,
      meet memory that is in the processor's cache. The loop has to receive and tell in one step, as those of asyncio
      and uvloop do for sockets.
    - The memory is never resized while something looks at it: growing makes a new one and copies.
    - It grows to the frame that is awaited, and not faster than bytes arrive: a length alone costs a client nothing,
      so it must cost us nothing.
    - It also grows when a client fills it in one go, up to a bound: fewer and larger steps for busy clients.
    - Its memory counts for what all connections hold. While that is too much it is no larger than it has to be, and
      takes nothing behind the frame that is awaited, where its connection says so.
    """

    __slots__ = (
        "_capacity_busy",
        "_capacity_min",
        "_filled_up",
        "_memory",
        "_needed",
        "_shared",
        "end",
        "ends_with_frame",
        "start",
        "view",
    )

    def __init__(
        self, *, memory: MemoryBound, shared: memoryview, capacity_min: int, capacity_busy: int
    ) -> None:
        self._memory = memory
        self._shared = shared
        self._capacity_min = capacity_min
        self._capacity_busy = capacity_busy
        self._filled_up = False
        self.start = 0
        """Where the next frame begins."""
        self.end = 0
        """Behind the last byte received. Both are only looked at from outside."""
        self._needed = FRAME_HEADER_BYTES
        self.view = shared
        self.ends_with_frame = False
        """Nothing is received behind the frame of which a part is here."""

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    @property
    def awaited_bytes(self) -> int:
        """What is to be here before something can be taken, from the first byte that is not consumed on."""
        return self._needed

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return 0 if self.view is self._shared else len(self.view)

    def free(self) -> memoryview:
        """Where the next bytes go; at least one."""
        capacity = len(self.view)
        if self.start == self.end:
            self.start = self.end = 0
            if self.view is self._shared or not self._filled_up:
                return self.view
        wanted = self._wanted_capacity()
        if capacity < wanted:
            # Fresh memory: views of the old may still be looked at.
            self._move_to(memoryview(bytearray(wanted)))
        elif self.start and (
            self.start + self._needed > capacity or capacity - self.end < _TAIL_BYTES
        ):
            self._move_to(self.view)
        self._filled_up = False
        if self.ends_with_frame and self.start + self._needed > self.end:
            return self.view[self.end : self.start + self._needed]
        return self.view[self.end :]

    def _wanted_capacity(self) -> int:
        capacity = len(self.view)
        if capacity < self._needed:
            return max(min(self._needed + self._capacity_min, 2 * capacity), self._capacity_min)
        if self._filled_up and not self._memory.is_full:
            return max(capacity, min(2 * capacity, self._capacity_busy))
        return capacity

    def filled(self, count: int) -> None:
        """So many bytes were written to what free() gave."""
        self.end += count
        self._filled_up = self.end == len(self.view)
        assert self.end <= len(self.view), f"end={self.end} capacity={len(self.view)}"

    def peek(self, position: int, *, only: int | None = None) -> tuple[int, int, int] | None:
        """Type, and begin and end of the payload, of the frame at `position`; None if it is not complete.

        Raises ProtocolError for an impossible length, and for another type than `only`.
        """
        if self.end - position < FRAME_HEADER_BYTES:
            self._needed = position - self.start + FRAME_HEADER_BYTES
            return None
        kind, length = FRAME_HEADER.unpack_from(self.view, position)
        if only is not None and kind != only:
            raise ProtocolError(f"another frame was expected type={kind} expected={only}")
        check_frame_length(kind, length, frame_bytes_max=FRAME_BYTES_MAX)
        begin = position + FRAME_HEADER_BYTES
        end = begin + length
        if end > self.end:
            self._needed = end - self.start
            if self._needed > FRAME_BYTES_MAX:
                raise ProtocolError(f"append is longer than a frame may be length={self._needed}")
            return None
        return kind, begin, end

    def consume(self, end: int) -> None:
        """Everything before `end` is dealt with."""
        assert self.start <= end <= self.end, f"{self.start} <= {end} <= {self.end}"
        self.start = end
        self._needed = FRAME_HEADER_BYTES

    def keep(self) -> None:
        """Others may receive now: what is not consumed goes into memory of our own."""
        if self.view is self._shared and self.start != self.end:
            wanted = max(self._capacity_min, self.end - self.start)
            self._move_to(memoryview(bytearray(wanted)))

    def release(self) -> None:
        """Give the memory back if nothing is in it."""
        if self.start == self.end:
            self._memory.change(-self.capacity)
            self.start = self.end = 0
            self.view = self._shared

    def give_back(self) -> None:
        """Give back what is not needed for what is in it."""
        length = self.end - self.start
        if not length:
            self.release()
        elif self.capacity > max(2 * length, self._capacity_min):
            self._move_to(memoryview(bytearray(max(length, self._capacity_min))))

    def close(self) -> None:
        """Nothing of it will be looked at."""
        self.start = self.end
        self.release()

    def _move_to(self, view: memoryview) -> None:
        length = self.end - self.start
        if view is not self.view:
            self._memory.change(len(view) - self.capacity)
        view[:length] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, length
