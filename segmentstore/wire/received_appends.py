"""Appends as they were received: their two frames become one append, and small neighbours become one.

read_append() puts together what a client appended: an AppendBlock and its AppendBlockEnd are one append.

    block    writer id (16), then n bytes
    end      writer id (16), int32 W, blob tail, int32 events, int64 last event number, int64 request id (optional)

| the n bytes | tail | appended |
|---|---|---|
| W bytes of whole events, W = n | empty | the n bytes |
| W bytes, int32 -2, int32 k, k bytes, W + 8 + k = n | any | the W bytes, the k bytes, the tail |
| W bytes, int32 -1, int32 k, k zero bytes, W + 8 + k = n | empty | the W bytes |
| no block at all | W bytes | the tail |

The first row (Pravega's Java client) and the last (its Rust client, and what is built on it) are what clients send
nearly always, and have a short reader of their own, read_whole_append().

The bytes are copied once, out of the receive buffer, into the object that the segment keeps by reference.

AppendBatch joins appends of one writer that were received together into one append. A client with little on its way
sends many small blocks, and each append costs the container the same whatever its length. Joined, they are stored and
told as one: an acknowledgement names the last, which stands for all, and a refusal names the first. Only neighbours are
joined whose outcome can be told together: the same request, event numbers that grow, no expected offset; and of one
kind, so that bytes that only look like events are never counted as events.
"""

import struct
from typing import Final

from segmentstore.codec.event_frame import EVENT_HEADER, EVENT_HEADER_BYTES
from segmentstore.codec.wire_protocol.appends import AppendBlock, AppendBlockEnd
from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Padding,
    PartialEvent,
)
from segmentstore.codec.wire_protocol.fields import ProtocolError

_WRITER_BYTES: Final = 16
_END: Final = struct.Struct(">16sii")
_TRAILER: Final = struct.Struct(">iqq")
_SHORT_TRAILER: Final = struct.Struct(">iq")

_BLOCK: Final = AppendBlock.type
_BLOCK_END: Final = AppendBlockEnd.type
_BLOCK_HEAD: Final = struct.Struct(">ii16s")
"""The header of an AppendBlock and its writer id."""
_BLOCK_HEAD_BYTES: Final = _BLOCK_HEAD.size
_END_HEAD: Final = struct.Struct(">ii16sii")
"""The header of an AppendBlockEnd, its writer id, and the lengths of both kinds of data."""
_END_HEAD_BYTES: Final = _END_HEAD.size
_BARE_END: Final = struct.Struct(">ii16siiiqq")
"""A whole AppendBlockEnd without data."""
_BARE_END_BYTES: Final = _BARE_END.size
_BARE_END_PAYLOAD_BYTES: Final = _BARE_END_BYTES - FRAME_HEADER_BYTES

_JOINED_BYTES_MAX: Final = 64 * 1024
"""Longer appends gain nothing: they would only be copied once more."""


class ReceivedAppend:
    """One append, ready to be stored."""

    __slots__ = (
        "data",
        "event_count",
        "expected_offset",
        "first_event_number",
        "is_framed",
        "last_event_number",
        "request_id",
        "unit_count",
        "writer_id",
    )

    def __init__(
        self,
        writer_id: bytes,
        data: bytes,
        event_count: int,
        last_event_number: int,
        request_id: int,
        expected_offset: int | None = None,
    ) -> None:
        self.writer_id = writer_id
        self.data = data
        self.event_count = event_count
        self.last_event_number = last_event_number
        self.request_id = request_id
        self.expected_offset = expected_offset
        """How long the segment has to be; None: however long."""
        self.is_framed = bool(data) and is_event_framed(data, event_count)
        """Whether the data are events with their headers, as is_event_framed() judges."""
        self.unit_count = 1
        """How many appends of the client it stands for."""
        self.first_event_number = last_event_number
        """The number of the first of them, which is what a refusal names."""


def read_whole_append(
    view: memoryview, position: int, limit: int
) -> tuple[ReceivedAppend, int] | None:
    """A block of whole events and its bare end, or an end with all data, and where it ends.

    `limit` is where the received bytes end. None for whatever else is there, also for what is wrong: that is
    read_append()'s to say.
    """
    if limit - position < _BARE_END_BYTES:
        return None
    kind, length, writer_id = _BLOCK_HEAD.unpack_from(view, position)
    end = position + FRAME_HEADER_BYTES + length
    if kind == _BLOCK_END:
        return _read_lone_end(view, position, end) if end <= limit else None
    if limit - position < _BLOCK_HEAD_BYTES + _BARE_END_BYTES:
        return None
    behind = end + _BARE_END_BYTES
    if kind != _BLOCK or length < _WRITER_BYTES or behind > limit:
        return None
    if behind - position > FRAME_BYTES_MAX:
        return None
    kind, length, ender, whole_bytes, tail_bytes, event_count, number, request_id = (
        _BARE_END.unpack_from(view, end)
    )
    begin = position + _BLOCK_HEAD_BYTES
    if (
        kind != _BLOCK_END
        or length != _BARE_END_PAYLOAD_BYTES
        or ender != writer_id
        or whole_bytes != end - begin
        or tail_bytes
        or event_count <= 0
    ):
        return None
    return ReceivedAppend(
        writer_id, bytes(view[begin:end]), event_count, number, request_id
    ), behind


def _read_lone_end(view: memoryview, position: int, end: int) -> tuple[ReceivedAppend, int] | None:
    begin = position + _END_HEAD_BYTES
    trailer = end - _TRAILER.size
    if trailer <= begin or end - position > FRAME_BYTES_MAX:
        return None
    _, _, writer_id, whole_bytes, tail_bytes = _END_HEAD.unpack_from(view, position)
    event_count, number, request_id = _TRAILER.unpack_from(view, trailer)
    if whole_bytes != tail_bytes or tail_bytes != trailer - begin or event_count <= 0:
        return None
    return ReceivedAppend(
        writer_id, bytes(view[begin:trailer]), event_count, number, request_id
    ), end


def read_append(
    view: memoryview, *, block: tuple[int, int] | None, end: tuple[int, int]
) -> ReceivedAppend:
    """The append of two payloads in `view`, each given by where it begins and ends. Raises ProtocolError."""
    begin, stop = end
    if stop - begin < _END.size + _SHORT_TRAILER.size:
        raise ProtocolError(f"end of an append is too short length={stop - begin}")
    writer_id, whole_bytes, tail_bytes = _END.unpack_from(view, begin)
    tail = begin + _END.size
    trailer = tail + tail_bytes
    if tail_bytes < 0 or stop - trailer < _SHORT_TRAILER.size:
        raise ProtocolError(f"end of an append does not fit its frame data={tail_bytes}")
    if stop - trailer >= _TRAILER.size:
        event_count, last_event_number, request_id = _TRAILER.unpack_from(view, trailer)
    else:
        event_count, last_event_number = _SHORT_TRAILER.unpack_from(view, trailer)
        request_id = 0
    if event_count <= 0:
        raise ProtocolError(f"append has no events event_count={event_count}")
    if block is None:
        if whole_bytes != tail_bytes:
            raise ProtocolError(f"whole events are not the data {whole_bytes} != {tail_bytes}")
        data = bytes(view[tail:trailer])
    else:
        data = _join_block_and_tail(view, block, writer_id, whole_bytes, (tail, trailer))
    return ReceivedAppend(writer_id, data, event_count, last_event_number, request_id)


def _join_block_and_tail(
    view: memoryview,
    block: tuple[int, int],
    writer_id: bytes,
    whole_bytes: int,
    tail: tuple[int, int],
) -> bytes:
    begin, stop = block
    if stop - begin < _WRITER_BYTES or view[begin : begin + _WRITER_BYTES] != writer_id:
        raise ProtocolError("an append block is ended by another writer")
    begin += _WRITER_BYTES
    whole_end = begin + whole_bytes
    if not begin <= whole_end <= stop:
        raise ProtocolError(f"whole events exceed the block {whole_bytes} > {stop - begin}")
    tail_bytes = tail[1] - tail[0]
    if whole_end == stop:
        if tail_bytes:
            raise ProtocolError(f"data behind a block of whole events length={tail_bytes}")
        return bytes(view[begin:stop])
    if stop - whole_end < FRAME_HEADER_BYTES:
        raise ProtocolError(f"block ends inside a header remaining={stop - whole_end}")
    kind, length = FRAME_HEADER.unpack_from(view, whole_end)
    inner = whole_end + FRAME_HEADER_BYTES
    if length != stop - inner:
        raise ProtocolError(f"rest of a block has another length {length} != {stop - inner}")
    if kind == PartialEvent.type:
        return b"".join((view[begin:whole_end], view[inner:stop], view[tail[0] : tail[1]]))
    if kind != Padding.type or tail_bytes:
        raise ProtocolError(f"neither padding nor part of an event type={kind} tail={tail_bytes}")
    return bytes(view[begin:whole_end])


def is_event_framed(data: bytes, event_count: int) -> bool:
    """Whether the bytes look like so many events, each behind int32 0 and int32 length. O(1).

    Only the first header is looked at, and for a single event also that it fills the data: byte streams are told
    apart by it, and a client that counts its own events wrongly harms only its own index.
    """
    length = len(data)
    if length < event_count * EVENT_HEADER_BYTES:
        return False
    kind, first = EVENT_HEADER.unpack_from(data)
    rest = length - EVENT_HEADER_BYTES - int(first)
    if kind != 0 or first < 0:
        return False
    if event_count == 1:
        return rest == 0
    return rest >= (event_count - 1) * EVENT_HEADER_BYTES


class AppendBatch:
    """add() while it takes more, then joined()."""

    __slots__ = ("_byte_count", "_event_count", "_units")

    def __init__(self, first: ReceivedAppend) -> None:
        self._units = [first]
        self._byte_count = len(first.data)
        self._event_count = first.event_count

    def add(self, unit: ReceivedAppend) -> bool:
        """Whether it can be told together with those before it. O(1)."""
        last = self._units[-1]
        byte_count = self._byte_count + len(unit.data)
        if (
            byte_count > _JOINED_BYTES_MAX
            or unit.request_id != last.request_id
            or unit.last_event_number <= last.last_event_number
            or unit.is_framed != last.is_framed
            or unit.expected_offset is not None
            or last.expected_offset is not None
        ):
            return False
        self._units.append(unit)
        self._byte_count = byte_count
        self._event_count += unit.event_count
        return True

    def joined(self) -> ReceivedAppend:
        """All of them as one append."""
        units = self._units
        last = units[-1]
        if len(units) == 1:
            return last
        joined = ReceivedAppend(
            last.writer_id,
            b"".join([unit.data for unit in units]),
            self._event_count,
            last.last_event_number,
            last.request_id,
        )
        joined.is_framed = last.is_framed
        joined.unit_count = len(units)
        joined.first_event_number = units[0].first_event_number
        return joined
