"""What a connection says to its client: replies and acknowledgements, gathered for one turn of the loop, and refusals.

SendBuffer gathers what goes out.

- Acknowledgements stand for everything stored so far: they are written as late as possible, and yet before anything
  that is said after them.
- Replies go out in the order in which they were given.
- What the socket did not take counts for what all connections hold (`memory_bound.py`). A transport does not tell when
  the socket takes something: it is looked at behind each flush, and once a tick.

reply_to_error() chooses the command that tells a client of an error. A change whose outcome is unknown gets none of
them: `requests.py` closes its connection. So a WrongHost says that nothing was done; it names the node that has the
segment's container where that is known.

| error | command | what the client does |
|---|---|---|
| ContainerNotFoundError; ContainerStoppedError, fenced (of a question) | WrongHost | asks the controller again |
| SegmentNotFoundError | NoSuchSegment | |
| SegmentSealedError | SegmentIsSealed | goes on with the successors |
| SegmentTruncatedError, BadOffsetError | SegmentIsTruncated | goes on at the start offset |
| SegmentExistsError | SegmentAlreadyExists | |
| NotATableError | OperationUnsupported | |
| TableNotEmptyError, TableKeyNotFoundError, TableVersionError | their own commands | reads again and decides |
| BadAttributeUpdateError (of a merge: `requests.py`) | SegmentAttributeUpdated, no success | reads again and decides |
| other kinds INVALID and TOO_LARGE | ErrorMessage, illegal argument | gives up |
| everything else | ErrorMessage, unspecified | gives up, or tries again |
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import (
    ILLEGAL_ARGUMENT,
    UNSPECIFIED,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    NotATableError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableKeyNotFoundError,
    TableNotEmptyError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.guarded_callback import guarded, raise_again
from segmentstore.runtime.written_parts import write_parts
from segmentstore.wire.memory_bound import MemoryBound
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters

_BORROWED_BYTES_MIN: Final = 16 << 10
"""Less is copied and gathered with what else the turn brings: a copy is cheaper than a system call."""
LEASE_IS_OVER: Final = "this node may have lost its containers to others"
TEXT_CHARACTERS_MAX: Final = 500
"""Of the message of an error."""
NO_OFFSET: Final = -1
"""In the refusal of a request that names none."""


class AckSource(Protocol):
    """A writer that has something to acknowledge."""

    def take_acknowledgement(self) -> bytes: ...


class SendBuffer:
    """send() and acknowledge(); the socket gets it once per turn."""

    def __init__(
        self,
        *,
        transport: asyncio.Transport,
        settings: WireSettings,
        counters: WireCounters,
        memory: MemoryBound,
        on_room: Callable[[], None],
        fail: Callable[[Exception], None] = raise_again,
    ) -> None:
        """`fail` closes the connection when something cannot be sent in a turn of the loop."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._settings = settings
        self._counters = counters
        self._memory = memory
        self._on_room = on_room
        self._run_flush = guarded(self._flush_scheduled, fail)
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._unacknowledged: list[AckSource] = []
        self._scheduled = False
        self._paused = False
        self.unsent_bytes = 0
        """Of what was handed to the transport, as far as it was looked at."""
        self._handed_bytes = 0
        """To the transport, ever."""
        self._to_be_taken = 0
        """Of these, while the server is full and this client has more than its share to take."""
        self._left_ticks = 0
        self._is_closed = False
        self._descriptor = _plain_socket(transport)
        transport.set_write_buffer_limits(high=settings.send_buffer_bytes_max)

    @property
    def is_full(self) -> bool:
        """The client does not take what it is sent: no more data for it now."""
        return self._paused or (self._memory.is_full and self._has_more_than_its_share())

    @property
    def answer_bytes_max(self) -> int:
        """Data of one answer to a read."""
        bytes_max = self._settings.read_bytes_max
        return min(bytes_max, self._memory.share_bytes) if self._memory.is_full else bytes_max

    def _has_more_than_its_share(self) -> bool:
        self.count_unsent()
        return self.unsent_bytes > self._memory.share_bytes

    def count_unsent(self) -> None:
        """Look at what the transport still has."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self.unsent_bytes and not self._is_closed:
            self._memory.change(unsent - self.unsent_bytes)
            self.unsent_bytes = unsent

    def is_left_too_long(self) -> bool:
        """Asked once a tick: whether the client leaves what others need the memory of."""
        memory = self._memory
        if not self._has_more_than_its_share() or not memory.is_full:
            self._left_ticks = 0
            return False
        taken = self._handed_bytes - self.unsent_bytes
        if not self._left_ticks or taken >= self._to_be_taken:
            self._left_ticks = 1
            self._to_be_taken = self._handed_bytes - memory.share_bytes
            return False
        self._left_ticks += 1
        return self._left_ticks > memory.ticks_max

    def close(self) -> None:
        """The connection is gone, and what it did not take with it."""
        self._is_closed = True
        self._memory.change(-self.unsent_bytes)
        self.unsent_bytes = 0

    @property
    def is_backlogged(self) -> bool:
        """Even small replies have piled up."""
        return (
            self._paused
            and self._transport.get_write_buffer_size() > self._settings.send_backlog_bytes_max
        )

    def acknowledge(self, source: AckSource, *, flushes: bool = False) -> None:
        """It will be asked for its acknowledgement, once; in this turn still if the caller `flushes` itself."""
        self._unacknowledged.append(source)
        if not self._scheduled and not flushes:
            self._schedule()

    def reply(self, command: Command) -> None:
        self.send(command.encode())

    def send(self, *parts: bytes) -> None:
        """Whole frames."""
        if self._unacknowledged:
            self.gather_acknowledgements()
        self._parts += parts
        self._parts_bytes += sum(map(len, parts))
        if self._parts_bytes >= self._settings.flush_bytes:
            self.flush()
        elif not self._scheduled:
            self._schedule()

    def send_borrowed(self, *parts: BufferView) -> None:
        """A whole frame, of memory that may change as soon as this returns.

        The socket takes it from there, and only what does not fit is copied. Transports would keep it.
        """
        length = sum(map(len, parts))
        sent = 0
        if length >= _BORROWED_BYTES_MIN:
            self.flush()
            if self._takes_directly():
                # Whatever is wrong with the socket, the transport will find out.
                with suppress(OSError):
                    sent = os.writev(self._descriptor, parts)
                if sent == length:
                    return
        self.send(_joined_from(sent, parts))

    def _takes_directly(self) -> bool:
        """Whether the socket is open, and nothing else waits to be written to it."""
        transport = self._transport
        return (
            self._descriptor >= 0
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )

    def flush(self) -> None:
        """Hand everything to the socket now."""
        if self._unacknowledged:
            self.gather_acknowledgements()
        parts = self._parts
        if not parts:
            return
        byte_count = self._parts_bytes
        self._parts = []
        self._parts_bytes = 0
        if self._transport.is_closing():
            return
        self._handed_bytes += byte_count
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            write_parts(self._transport, parts)
        self.count_unsent()

    def pause(self) -> None:
        """From the transport: its buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """From the transport: its buffer has room again."""
        self._paused = False
        self._on_room()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._run_flush)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def gather_acknowledgements(self) -> None:
        """Take the acknowledgements as they stand: what is stored from now on gets others."""
        sources, self._unacknowledged = self._unacknowledged, []
        self._counters.acknowledgements += len(sources)
        for source in sources:
            acknowledgement = source.take_acknowledgement()
            self._parts.append(acknowledgement)
            self._parts_bytes += len(acknowledgement)


def _plain_socket(transport: asyncio.Transport) -> int:
    """The descriptor of a socket to which bytes can be written as they are; -1 if there is none."""
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("sslcontext") is not None:
        return -1
    descriptor: int = socket.fileno()
    return descriptor if hasattr(os, "writev") else -1


def _joined_from(start: int, parts: Sequence[BufferView]) -> bytes:
    """A copy of what comes behind the first `start` bytes of all parts together."""
    rest: list[BufferView] = []
    for part in parts:
        if start < len(part):
            rest.append(memoryview(part)[start:])
        start = max(0, start - len(part))
    return b"".join(rest)


OwnerAddress: TypeAlias = Callable[[str], str]
"""HOST:PORT of the node that has a segment, as far as that is known; "" if it is not."""


def unknown_address(_segment: str) -> str:
    """Where nothing is known of other nodes."""
    return ""


def reply_to_error(
    error: SegmentStoreError,
    *,
    request_id: int,
    segment: str,
    owner_address: OwnerAddress,
    offset: int = NO_OFFSET,
) -> Command:
    """The refusal of a request; `offset` is the one that was asked for."""
    text = ascii_text(error)
    if is_elsewhere(error):
        return WrongHost(request_id, segment, owner_address(segment), text)
    match error:
        case SegmentNotFoundError():
            return NoSuchSegment(request_id, segment, text, offset)
        case SegmentSealedError():
            return SegmentIsSealed(request_id, segment, text, offset)
        case SegmentTruncatedError():
            return SegmentIsTruncated(request_id, segment, error.start_offset, text, offset)
        case BadOffsetError():
            return SegmentIsTruncated(request_id, segment, error.expected, text, offset)
        case SegmentExistsError():
            return SegmentAlreadyExists(request_id, segment, text)
        case NotATableError():
            return OperationUnsupported(request_id, "table", text)
        case TableNotEmptyError():
            return TableSegmentNotEmpty(request_id, segment, text)
        case TableKeyNotFoundError():
            return TableKeyDoesNotExist(request_id, segment, text)
        case TableVersionError():
            return TableKeyBadVersion(request_id, segment, text)
    illegal = error.kind in (ErrorKind.INVALID, ErrorKind.TOO_LARGE)
    code = ILLEGAL_ARGUMENT if illegal else UNSPECIFIED
    return ErrorMessage(request_id, segment, text, code)


def is_elsewhere(error: SegmentStoreError) -> bool:
    """Whether the segment's container is not here, or not any more."""
    return (
        isinstance(error, ContainerNotFoundError | ContainerStoppedError)
        or error.kind is ErrorKind.FENCED
    )


def is_stale(error: BaseException) -> bool:
    """Whether a handle that was kept open may be at fault: opening it again may help."""
    return isinstance(error, SegmentStoreError) and (
        isinstance(error, SegmentNotFoundError) or is_elsewhere(error)
    )


def ascii_text(error: SegmentStoreError) -> str:
    """The message as every client can read it."""
    return str(error).encode("ascii", "backslashreplace").decode("ascii")[:TEXT_CHARACTERS_MAX]
