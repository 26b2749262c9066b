"""A connection's bytes, received into the memory that its frames are read from.

    free() -> the socket writes there -> filled() -> whole frames, without a copy if they are long -> give_back()

Short frames come through memory that all connections share, and are copied out of it. A frame that is not whole gets
memory of its own, into which the rest of it is received. A connection that has sent a long frame gets memory for the
next one before its first byte is read, as long as not too many connections wait with such memory.

Invariants:

- frame: int32 length of what follows, so many bytes. What is given is without the length, and in the order received.
- Memory is taken for what has arrived: `_AHEAD` times as much at most, a page, or a frame as long as this client has
  sent of late.
- Memory is used again only when nothing looks at it any more: a frame that is still read somewhere keeps its own.
- What is kept to be used again has a bound, and so has what waits for the first byte of a frame, each for all
  connections together: connections that send nothing take next to nothing.
"""

import struct
from typing import Final

from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import LENGTH_BYTES

SHARED_BYTES: Final = 256 << 10
"""Of the memory through which short frames come: several at once."""
_SHORT_BYTES_MAX: Final = 64 << 10
_OWN_BYTES_MIN: Final = 4 << 10
_OWN_BYTES_USUAL: Final = 64 << 10
"""For the rest of a frame, and what comes behind it."""
_AHEAD: Final = 16
_USUAL_BYTES_MAX: Final = 1 << 20
"""No connection gets more before a byte of its frame has come."""
_ROUNDED_TO_BYTES: Final = 16 << 10
_SLACK: Final = 2
"""Memory that is more than so many times too large is kept for others."""

_LENGTH: Final = struct.Struct(">i")


class FrameMemories:
    """What was a frame and may become another, of all connections."""

    def __init__(self, *, kept_bytes_max: int, ahead_bytes_max: int) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        """What is received and taken in one step may go through it."""
        self._kept_bytes_max = kept_bytes_max
        self._ahead_bytes_max = ahead_bytes_max
        self.ahead_bytes = 0
        """Of memory that connections have for frames of which no byte has come."""
        self._kept: list[bytearray] = []
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def take_ahead(self, length: int) -> bytearray | None:
        """As take(), for a frame of which no byte has come; None if others have enough of such memory. The length of
        what is given goes into `ahead_bytes`, until the first byte comes."""
        if self.ahead_bytes + length > self._ahead_bytes_max:
            return None
        memory = self.take(length)
        self.ahead_bytes += len(memory)
        return memory

    def take(self, length: int) -> bytearray:
        """At least so many bytes; what is in them is undefined. O(memories kept)."""
        for number in range(len(self._kept) - 1, -1, -1):
            if length <= len(self._kept[number]) <= _SLACK * length:
                memory = self._kept.pop(number)
                self._kept_bytes -= len(memory)
                return memory
        return bytearray(length)

    def give_back(self, memory: bytearray) -> None:
        """To be used again, unless it is being looked at, or enough is kept."""
        if not _OWN_BYTES_USUAL <= len(memory) <= self._kept_bytes_max - self._kept_bytes:
            return
        try:
            # A bytearray of which there is a view does not let its length be changed.
            memory.append(memory.pop())
        except BufferError:
            return
        self._kept.append(memory)
        self._kept_bytes += len(memory)


class ReceivedFrames:
    """Those of one connection: free(), filled(), and give_back() for each frame that was given; then close()."""

    def __init__(self, *, memories: FrameMemories, frame_bytes_max: int) -> None:
        self._memories = memories
        self._frame_bytes_max = frame_bytes_max
        self._own: bytearray | None = None
        """None: the next frame has not begun, or is short and comes through what is shared."""
        self._ahead_bytes = 0
        """Of that memory, if no byte of its frame has come."""
        self._gathered = 0
        """Of the frame that is not whole yet; it begins where its memory does."""
        self._usual_bytes = 0
        """What is taken for a frame before its length is known."""

    @property
    def gathered_bytes(self) -> int:
        """Of the frame that is not whole yet."""
        return self._gathered

    def free(self) -> memoryview:
        """Where the next bytes go; at least one. Nothing else may be received into it before filled() was called."""
        if self._own is None:
            if self._usual_bytes > _SHORT_BYTES_MAX:
                self._own = self._memories.take_ahead(self._usual_room())
            if self._own is None:
                return self._memories.shared
            self._ahead_bytes = len(self._own)
        return memoryview(self._own)[self._gathered :]

    def filled(self, count: int) -> list[memoryview]:
        """So many bytes were written to what free() gave: the frames that are whole now, without their lengths.

        Raises KafkaProtocolError for a length that no frame has; what came before it is lost with the connection.
        """
        own = self._own
        self._note_begun()
        end = self._gathered + count
        # Out of what is shared: one copy, of all of them.
        received = memoryview(bytes(self._memories.shared[:end]) if own is None else own)
        assert end <= len(received), f"end={end} capacity={len(received)}"
        frames: list[memoryview] = []
        at, whole = 0, self._length_at(received, 0, end)
        while whole is not None and whole <= end - at:
            frames.append(received[at + LENGTH_BYTES : at + whole])
            if whole > self._usual_bytes or self._usual_bytes > _OWN_BYTES_MIN:
                self._note(whole)
            at += whole
            whole = self._length_at(received, at, end) if at < end else None
        self._gathered = end - at
        if at or own is None:
            # The memory belongs to the frames that were in it, or to all connections.
            self._own = None
            if self._gathered:
                self._continue_in(received[at:end], whole)
        elif end == len(received):
            self._continue_in(received, whole)
            received.release()
            self._memories.give_back(own)
        return frames

    def close(self) -> None:
        """Nothing more is received. Idempotent."""
        self._note_begun()
        self._own = None

    def _note_begun(self) -> None:
        self._memories.ahead_bytes -= self._ahead_bytes
        self._ahead_bytes = 0

    def give_back(self, frame: memoryview) -> None:
        """It has been dealt with; whatever still looks at it keeps it."""
        memory = frame.obj
        if isinstance(memory, bytearray):
            frame.release()
            self._memories.give_back(memory)

    def _length_at(self, received: memoryview, at: int, end: int) -> int | None:
        """Of the frame there, with its length; None if that has not come."""
        if end - at < LENGTH_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(received, at)
        if not 0 <= length <= self._frame_bytes_max:
            raise KafkaProtocolError(
                f"no frame has this length length={length} length_max={self._frame_bytes_max}"
            )
        whole: int = LENGTH_BYTES + length
        return whole

    def _note(self, whole: int) -> None:
        """What frames are like: the longest of late."""
        self._usual_bytes = min(max(whole, self._usual_bytes * 7 // 8), _USUAL_BYTES_MAX)

    def _usual_room(self) -> int:
        """A little more than is usual, as a frame that is a little longer would be copied as a whole; or several."""
        rounded = -(-self._usual_bytes // _ROUNDED_TO_BYTES) * _ROUNDED_TO_BYTES
        return max(rounded, _OWN_BYTES_USUAL)

    def _continue_in(self, begun: memoryview, whole: int | None) -> None:
        """Memory for the frame whose first bytes are these."""
        length = max(_OWN_BYTES_MIN, _AHEAD * len(begun))
        if whole is not None and whole <= length:
            length = whole
        if self._usual_bytes > _OWN_BYTES_MIN:
            length = max(length, self._usual_room())
        own = self._memories.take(length)
        own[: len(begun)] = begun
        self._own = own
