"""Packs queued operations into data frames: as full as they go, never waiting for more.

Invariants:
- operations leave the queue in order and are written completely, across as many frames as needed;
- a frame's `completed` are the operations whose last byte is in it, with the barriers between them, in order;
- a frame holds at most `operations_max` operations, so that its commit stays short (H23).

Bodies are not copied one by one: small pieces are joined once per frame, large ones go to the log as they are.
"""

from collections import deque

from containers.log.data_frame import FRAME_HEADER_BYTES, encode_frame
from containers.operations.operation import (
    AppendOperation,
    Barrier,
    MapSegmentOperation,
    Operation,
    UpdateAttributesOperation,
)
from containers.operations.record_codec import encode_append_header, encode_record
from segmentstore.codec.vectored import LARGE_BUFFER_BYTES, join_small
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    BufferView,
    Epoch,
    LogAddress,
    SequenceNumber,
)

OPERATION_BYTES = 64
"""What an append counts in the queue beyond its data: about its header, so that tiny ones are bounded as well."""

_ORDINARY = (MapSegmentOperation, UpdateAttributesOperation)
"""Besides appends: what may not use the reserve that is kept for freeing space (H52)."""


class FrameInFlight:
    """A frame on its way through Tier 1, with what has to be done when it is durable."""

    __slots__ = (
        "address",
        "buffers",
        "completed",
        "internal",
        "last_started",
        "length",
        "queued_bytes",
    )

    def __init__(
        self,
        *,
        buffers: list[BufferView],
        length: int,
        completed: list[Operation],
        last_started: SequenceNumber,
        internal: bool,
        queued_bytes: int,
    ) -> None:
        self.buffers = buffers
        self.length = length
        self.completed = completed
        self.last_started = last_started
        self.internal = internal
        """Holds only operations that may use the log's reserve."""
        self.queued_bytes = queued_bytes
        """What its operations, those begun in it, counted in the queue."""
        self.address: LogAddress | None = None


class DataFrameBuilder:
    """Turns the operation queue into frames."""

    def __init__(self, *, epoch: Epoch, entry_bytes_max: int, operations_max: int) -> None:
        assert entry_bytes_max > FRAME_HEADER_BYTES, (
            f"entries of {entry_bytes_max} bytes hold nothing"
        )
        self._epoch = epoch
        self._payload_bytes_max = entry_bytes_max - FRAME_HEADER_BYTES
        self._operations_max = operations_max
        self._next_frame_number = 1
        self._last_started: SequenceNumber = NO_SEQUENCE_NUMBER
        self._rest: deque[BufferView] = deque()
        """What is still to be written of the operation begun last."""
        self._rest_of: Operation | None = None
        self._rest_is_internal = False

    @property
    def half_written(self) -> Operation | None:
        """The operation whose head is in a frame and whose end is not."""
        return self._rest_of

    @property
    def has_rest(self) -> bool:
        """An operation is half written: the next frame must go on with it."""
        return self._rest_of is not None

    def build(self, queue: deque[Operation]) -> FrameInFlight | None:
        """The next frame, or None if the queue holds nothing to be logged.

        Barriers at the head of an otherwise empty queue stay there: the caller knows what they wait for.
        """
        payload: list[BufferView] = []
        completed: list[Operation] = []
        room = self._payload_bytes_max
        leading = 0
        internal = True
        large = False
        if self._rest_of is not None:
            leading = self._write_rest(payload, room)
            room -= leading
            internal = self._rest_is_internal
            large = True
            if not self._rest:
                completed.append(self._rest_of)
                self._rest_of = None
        count_max = self._operations_max
        count = 0
        queued_bytes = 0
        while queue and room > 0 and count < count_max and self._rest_of is None:
            operation = queue[0]
            if operation.__class__ is AppendOperation:
                assert isinstance(operation, AppendOperation)
                header = encode_append_header(operation)
                length = len(header) + operation.length
                queued_bytes += operation.length + OPERATION_BYTES
                internal = False
                if length <= room:
                    payload.append(header)
                    payload.append(operation.data)
                    room -= length
                    large = large or length >= LARGE_BUFFER_BYTES
                    completed.append(operation)
                else:
                    room = self._begin(operation, [header, operation.data], payload, room)
                    self._rest_is_internal = False
                    large = True
                self._last_started = operation.sequence_number
            elif operation.__class__ is Barrier:
                if not payload:
                    break
                completed.append(operation)
            else:
                room = self._begin(operation, encode_record(operation), payload, room)
                self._rest_is_internal = not isinstance(operation, _ORDINARY)
                large = True
                internal = internal and self._rest_is_internal
                if self._rest_of is None:
                    completed.append(operation)
                self._last_started = operation.sequence_number
            queue.popleft()
            count += 1
        if not payload:
            return None
        buffers: list[BufferView] = join_small(payload) if large else [b"".join(payload)]
        return self._seal(
            buffers,
            leading=leading,
            completed=completed,
            internal=internal,
            queued_bytes=queued_bytes,
        )

    def _begin(
        self, operation: Operation, buffers: list[BufferView], payload: list[BufferView], room: int
    ) -> int:
        """Write as much of an operation as fits; the room that is left."""
        self._rest.extend(buffer for buffer in buffers if len(buffer))
        written = self._write_rest(payload, room)
        self._rest_of = operation if self._rest else None
        return room - written

    def _write_rest(self, payload: list[BufferView], room: int) -> int:
        written = 0
        rest = self._rest
        while rest and written < room:
            buffer = rest.popleft()
            if len(buffer) > room - written:
                view = memoryview(buffer)
                rest.appendleft(view[room - written :])
                buffer = view[: room - written]
            payload.append(buffer)
            written += len(buffer)
        return written

    def _seal(
        self,
        buffers: list[BufferView],
        *,
        leading: int,
        completed: list[Operation],
        internal: bool,
        queued_bytes: int,
    ) -> FrameInFlight:
        length = sum(len(buffer) for buffer in buffers)
        entry = encode_frame(
            buffers,
            payload_length=length,
            leading_bytes=leading,
            frame_number=self._next_frame_number,
            epoch=self._epoch,
            last_started=self._marker(completed),
        )
        self._next_frame_number += 1
        return FrameInFlight(
            buffers=entry,
            length=length + FRAME_HEADER_BYTES,
            completed=completed,
            last_started=self._marker(completed),
            internal=internal,
            queued_bytes=queued_bytes,
        )

    def _marker(self, completed: list[Operation]) -> SequenceNumber:
        """The frame's marker: the last operation *started* in it, not the last completed one (H30)."""
        del completed
        return self._last_started
