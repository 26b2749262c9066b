"""What a socket is read into, and the frames in it.

    0 .. start      consumed
    start .. end    received, not yet consumed
    end .. capacity free

- A connection that leaves nothing behind has no memory: it reads into what all connections share, and what is left when
  it gives the loop back moves to memory of its own. So clients with small frames, of which there are many, meet
  memory that is in the processor's cache. The loop has to receive and tell in one step, as those of asyncio and
  uvloop do for sockets.
- The memory is never resized while somebody looks at it: growing makes a new one and copies.
- It grows to the frame that is awaited, and not faster than bytes arrive: a length alone costs a client nothing, so
  it must cost us nothing.
- It also grows when a client fills it in one go, up to a bound: fewer and larger steps for busy clients.
"""

from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
)
from segmentstore.codec.wire_protocol.frame_splitter import check_frame_length
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError

_TAIL_BYTES = 8 << 10
"""Free room below this is not worth a system call: what is received moves to the front first."""


class ReceiveBuffer:
    """free() and filled() take bytes in; peek() and consume() take frames out; keep() ends a turn."""

    __slots__ = (
        "_capacity_busy",
        "_capacity_min",
        "_filled_up",
        "_needed",
        "_shared",
        "end",
        "start",
        "view",
    )

    def __init__(self, *, shared: memoryview, capacity_min: int, capacity_busy: int) -> None:
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
        return self.view[self.end :]

    def _wanted_capacity(self) -> int:
        capacity = len(self.view)
        if capacity < self._needed:
            return max(min(self._needed + self._capacity_min, 2 * capacity), self._capacity_min)
        if self._filled_up:
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
            self.start = self.end = 0
            self.view = self._shared

    def _move_to(self, view: memoryview) -> None:
        length = self.end - self.start
        view[:length] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, length
