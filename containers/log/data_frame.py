"""Data frames: one entry of the durable data log is one frame, with parts of one or more records.

The records of a container (containers/operations/record_codec.py) form one stream of bytes; a frame is a slice of it.
`DataFrameBuilder` packs queued operations into frames, `RecordStream` puts the records of a log together again.

A frame, little-endian:

    u16 magic = 0x4644 ("DF")
    u8  version = 2
    u8  zero
    u32 checksum               CRC32C of the header behind this field; frames of version 1: of header and payload
    u32 payload_length
    u32 leading_bytes          bytes at the start of the payload that continue a record of earlier frames
    u64 frame_number           +1 from frame to frame within an epoch
    u64 epoch
    u64 last_started           sequence number of the last record begun in this frame or before

    payload

A record may begin in one frame, fill several and end in a later one; nothing is padded. The payload has no checksum
of its own: the log gives an entry back as it was, or says that it is damaged (L7).

Invariants (a log that breaks one of the first three is corrupt: Tier 1 vouched for its entries):
- within an epoch frame numbers have no gap from the first frame that is still there; epochs only grow;
- the first frame of an epoch has leading_bytes = 0, it continues nothing: a record that was cut by the end of its
  epoch was never acknowledged and is dropped;
- a record that is continued continues exactly where it stopped;
- operations leave the queue in order and are written completely, across as many frames as needed;
- a frame's `completed` are the operations whose last byte is in it, with the barriers between them, in order;
- a frame holds at most `operations_max` operations, so that its commit stays short.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from containers.operations.operation import (
    AppendOperation,
    Barrier,
    MapSegmentOperation,
    Operation,
    UpdateAttributesOperation,
)
from containers.operations.record_codec import (
    LENGTH_FIELD_BYTES,
    encode_append_header,
    encode_record,
)
from segmentstore.codec.vectored import LARGE_BUFFER_BYTES, join_small
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    BufferView,
    Epoch,
    LogAddress,
    SequenceNumber,
)

_UNCHECKED_HEADER = struct.Struct("<HBBI")
_CHECKED_HEADER = struct.Struct("<IIQQQ")
FRAME_HEADER_BYTES = _UNCHECKED_HEADER.size + _CHECKED_HEADER.size
_FRAME_MAGIC = 0x4644
_CHECKED_PAYLOAD_VERSION, _FRAME_VERSION = 1, 2

OPERATION_BYTES = 64
"""What an append counts in the queue beyond its data: about its header, so that tiny ones are bounded as well."""

_ORDINARY_OPERATIONS = (MapSegmentOperation, UpdateAttributesOperation)
"""Besides appends: what may not use the reserve that is kept for freeing space."""


@dataclass(slots=True)
class DataFrame:
    """A frame as read back."""

    frame_number: int
    epoch: Epoch
    last_started: SequenceNumber
    leading_bytes: int
    payload: memoryview


def encode_frame(
    payload: Sequence[BufferView],
    *,
    payload_length: int,
    leading_bytes: int,
    frame_number: int,
    epoch: Epoch,
    last_started: SequenceNumber,
) -> list[BufferView]:
    """Header and payload as buffers; the payload's buffers are not copied."""
    checked = _CHECKED_HEADER.pack(payload_length, leading_bytes, frame_number, epoch, last_started)
    return [
        _UNCHECKED_HEADER.pack(_FRAME_MAGIC, _FRAME_VERSION, 0, crc32c(checked)) + checked,
        *payload,
    ]


def decode_frame(entry: memoryview) -> DataFrame:
    """Raises DataCorruptionError: Tier 1 gave an entry that is not what we wrote."""
    if len(entry) < FRAME_HEADER_BYTES:
        raise DataCorruptionError(f"data frame is too short length={len(entry)}")
    magic, version, zero, checksum = _UNCHECKED_HEADER.unpack_from(entry)
    if (
        magic != _FRAME_MAGIC
        or version not in (_CHECKED_PAYLOAD_VERSION, _FRAME_VERSION)
        or zero != 0
    ):
        raise DataCorruptionError(f"not a data frame magic={magic:#x} version={version}")
    end = FRAME_HEADER_BYTES if version == _FRAME_VERSION else len(entry)
    if crc32c(entry[_UNCHECKED_HEADER.size : end]) != checksum:
        raise DataCorruptionError(f"data frame fails its checksum length={len(entry)}")
    length, leading, number, epoch, last_started = _CHECKED_HEADER.unpack_from(
        entry, _UNCHECKED_HEADER.size
    )
    if FRAME_HEADER_BYTES + length != len(entry) or leading > length:
        raise DataCorruptionError(
            f"data frame contradicts itself length={len(entry)} payload={length} leading={leading}"
        )
    return DataFrame(
        frame_number=number,
        epoch=Epoch(epoch),
        last_started=SequenceNumber(last_started),
        leading_bytes=leading,
        payload=entry[FRAME_HEADER_BYTES:],
    )


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
    """Turns the operation queue into frames: as full as they go, never waiting for more.

    Bodies are not copied one by one: small pieces are joined once per frame, large ones go to the log as they are.
    """

    def __init__(self, *, epoch: Epoch, entry_bytes_max: int, operations_max: int) -> None:
        assert entry_bytes_max > FRAME_HEADER_BYTES, (
            f"entries of {entry_bytes_max} bytes hold nothing"
        )
        self._epoch = epoch
        self._payload_bytes_max = entry_bytes_max - FRAME_HEADER_BYTES
        self._operations_max = operations_max
        self._next_frame_number = 1
        self._last_started: SequenceNumber = NO_SEQUENCE_NUMBER
        """What a frame is marked with: the last operation *started* in it, not the last of those completed in it."""
        self._rest: deque[BufferView] = deque()
        """What is still to be written of the operation begun last."""
        self._rest_of: Operation | None = None
        self._rest_is_internal = False
        self._completed: list[Operation] = []
        """Taken from the queue for the newest frame, until frame_taken()."""

    def taken(self) -> list[Operation]:
        """Operations that have left the queue and are in no frame that was taken, or not whole in those that were.

        Also behind a build() that failed on its way; one may still be in the queue as well then.
        """
        half_written = [] if self._rest_of is None else [self._rest_of]
        return self._completed + half_written

    def frame_taken(self) -> None:
        """What was built last is the caller's to complete from now on."""
        self._completed = []

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
        self._completed = completed
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
                self._rest_is_internal = not isinstance(operation, _ORDINARY_OPERATIONS)
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
            last_started=self._last_started,
        )
        self._next_frame_number += 1
        return FrameInFlight(
            buffers=entry,
            length=length + FRAME_HEADER_BYTES,
            completed=completed,
            last_started=self._last_started,
            internal=internal,
            queued_bytes=queued_bytes,
        )


def _take_none(_payload: memoryview, position: int) -> int:
    return position


class RecordStream:
    """Puts the records of a log together again: feed frames in order; get whole records."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._frame_number = 0
        self._seen = False
        self._partial = bytearray()
        self._wanted = 0
        """Whole length of the record in `_partial`; 0 while its length field is not complete."""
        self._skipping = False
        """The head of the present record was truncated away."""

    def records(
        self, frame: DataFrame, *, take: Callable[[memoryview, int], int] = _take_none
    ) -> Iterator[memoryview]:
        """The records that end in this frame, each as one view that is valid until the next step.

        `take` is asked before each record that begins here, with the payload and the record's position: it may make use
        of that record and any number of whole ones behind it, and gives the position behind those. They are left out.
        """
        self._follow(frame)
        payload = frame.payload
        position = frame.leading_bytes
        if frame.leading_bytes and not self._skipping:
            self._partial += payload[: frame.leading_bytes]
            self._learn_length()
            if self._wanted and len(self._partial) > self._wanted:
                raise DataCorruptionError(
                    f"record is continued too far frame={frame.frame_number} "
                    f"wanted={self._wanted} have={len(self._partial)}"
                )
            if len(self._partial) == self._wanted:
                whole, self._partial, self._wanted = self._partial, bytearray(), 0
                yield memoryview(whole)
        if self._skipping and frame.leading_bytes < len(payload):
            self._skipping = False
        if self._partial and position < len(payload):
            raise DataCorruptionError(f"record is not continued frame={frame.frame_number}")
        end = len(payload)
        while position < end:
            position = take(payload, position)
            if end - position < LENGTH_FIELD_BYTES:
                break
            length = LENGTH_FIELD_BYTES + int.from_bytes(
                payload[position : position + LENGTH_FIELD_BYTES], "little"
            )
            if position + length > end:
                break
            yield payload[position : position + length]
            position += length
        if position < end:
            self._partial = bytearray(payload[position:])
            self._wanted = 0
            self._learn_length()

    def _learn_length(self) -> None:
        if not self._wanted and len(self._partial) >= LENGTH_FIELD_BYTES:
            self._wanted = LENGTH_FIELD_BYTES + int.from_bytes(
                self._partial[:LENGTH_FIELD_BYTES], "little"
            )

    def _follow(self, frame: DataFrame) -> None:
        if not self._seen:
            self._seen = True
            self._skipping = frame.leading_bytes > 0
        elif frame.epoch > self._epoch:
            if frame.leading_bytes:
                raise DataCorruptionError(
                    f"an epoch begins in the middle of a record epoch={frame.epoch}"
                )
            self._partial = bytearray()
            self._wanted = 0
            self._skipping = False
        elif frame.epoch < self._epoch or frame.frame_number != self._frame_number + 1:
            raise DataCorruptionError(
                f"data frames have a gap epoch={self._epoch} frame={self._frame_number} "
                f"next_epoch={frame.epoch} next_frame={frame.frame_number}"
            )
        elif frame.leading_bytes and not self._partial and not self._skipping:
            raise DataCorruptionError(
                f"a record is continued that never began {frame.frame_number}"
            )
        self._epoch = frame.epoch
        self._frame_number = frame.frame_number
