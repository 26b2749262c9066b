"""What a socket is read into, and the frames in it.

    0 .. start      consumed
    start .. end    received, not yet consumed
    end .. capacity free

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
    """free() and filled() take bytes in; peek() and consume() take frames out."""

    __slots__ = (
        "_capacity_busy",
        "_capacity_min",
        "_end",
        "_filled_up",
        "_needed",
        "_start",
        "view",
    )

    def __init__(self, *, capacity_min: int, capacity_busy: int) -> None:
        self._capacity_min = capacity_min
        self._capacity_busy = capacity_busy
        self._filled_up = False
        self._start = 0
        self._end = 0
        self._needed = FRAME_HEADER_BYTES
        self.view = memoryview(b"")

    @property
    def start(self) -> int:
        """Where the next frame begins."""
        return self._start

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return len(self.view)

    def free(self) -> memoryview:
        """Where the next bytes go; at least one."""
        if self._start == self._end:
            self._start = self._end = 0
        capacity = len(self.view)
        wanted = self._wanted_capacity()
        if capacity < wanted:
            # Fresh memory: views of the old may still be looked at.
            self._move_to(memoryview(bytearray(wanted)))
        elif self._start and (
            self._start + self._needed > capacity or capacity - self._end < _TAIL_BYTES
        ):
            self._move_to(self.view)
        self._filled_up = False
        return self.view[self._end :]

    def _wanted_capacity(self) -> int:
        capacity = len(self.view)
        if capacity < self._needed:
            return max(min(self._needed + self._capacity_min, 2 * capacity), self._capacity_min)
        if self._filled_up:
            return max(capacity, min(2 * capacity, self._capacity_busy))
        return capacity

    def filled(self, count: int) -> None:
        """So many bytes were written to what free() gave."""
        self._end += count
        self._filled_up = self._end == len(self.view)
        assert self._end <= len(self.view), f"end={self._end} capacity={len(self.view)}"

    def peek(self, position: int, *, only: int | None = None) -> tuple[int, int, int] | None:
        """Type, and begin and end of the payload, of the frame at `position`; None if it is not complete.

        Raises ProtocolError for an impossible length, and for another type than `only`.
        """
        if self._end - position < FRAME_HEADER_BYTES:
            self._needed = position - self._start + FRAME_HEADER_BYTES
            return None
        kind, length = FRAME_HEADER.unpack_from(self.view, position)
        if only is not None and kind != only:
            raise ProtocolError(f"another frame was expected type={kind} expected={only}")
        check_frame_length(kind, length, frame_bytes_max=FRAME_BYTES_MAX)
        begin = position + FRAME_HEADER_BYTES
        end = begin + length
        if end > self._end:
            self._needed = end - self._start
            if self._needed > FRAME_BYTES_MAX:
                raise ProtocolError(f"append is longer than a frame may be length={self._needed}")
            return None
        return kind, begin, end

    def consume(self, end: int) -> None:
        """Everything before `end` is dealt with."""
        assert self._start <= end <= self._end, f"{self._start} <= {end} <= {self._end}"
        self._start = end
        self._needed = FRAME_HEADER_BYTES

    def release(self) -> None:
        """Give the memory back if nothing is in it."""
        if self._start == self._end:
            self._start = self._end = 0
            self.view = memoryview(b"")

    def _move_to(self, view: memoryview) -> None:
        length = self._end - self._start
        view[:length] = self.view[self._start : self._end]
        self.view = view
        self._start, self._end = 0, length
