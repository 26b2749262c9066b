"""Frames and their headers, both directions.

    frame             int32 length of what follows, header, body
    request header    int16 API key, int16 version, int32 correlation id, nullable string client id
    response header   int32 correlation id

The header of a flexible version goes on with tagged fields (`compact_fields.py`); but not of an answer to ApiVersions,
which is read before versions are agreed on. Behind a request of a flexible version bytes may
follow, which are not read, as in Kafka: librdkafka 2.16 leaves some behind Metadata.
"""

import struct
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.kafka_protocol.api_table import (
    API_OF_REQUEST,
    APIS,
    Api,
    ApiKey,
)
from segmentstore.codec.kafka_protocol.cluster import ApiVersionsResponse
from segmentstore.codec.kafka_protocol.compact_fields import (
    skip_tagged_fields,
    write_no_tagged_fields,
)
from segmentstore.codec.kafka_protocol.fields import (
    NULLABLE_STRING,
    Buffer,
    KafkaProtocolError,
    MessageReader,
    MessageWriter,
)
from segmentstore.codec.kafka_protocol.structure import (
    Structure,
    StructureType,
    decode_structure,
    is_flexible,
    write_structure,
)

FRAME_BYTES_MAX: Final = 100 << 20
"""Of what follows the length. Kafka refuses longer requests too."""

REQUEST_ITEMS_MAX: Final = 250_000
"""Of all lists of one request together, which is decoded in one stretch: 1.5 us each, or 2 to 4 us with an id or in a
flexible version. A frame could hold 30 million."""

GROUP_REQUEST_ITEMS_MAX: Final = 50_000
"""The same of what is asked of groups and coordinators, whose answers have an item for each: 20,000 topics with a
partition each fit."""

LEAVING_MEMBERS_MAX: Final = 10_000
"""Of a LeaveGroup. Each takes 4 us, and no group has so many members."""

_ITEMS_MAX: Final[dict[int, int]] = {
    ApiKey.OFFSET_COMMIT: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.OFFSET_FETCH: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.DESCRIBE_GROUPS: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.DELETE_GROUPS: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.OFFSET_DELETE: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.FIND_COORDINATOR: GROUP_REQUEST_ITEMS_MAX,
    ApiKey.LEAVE_GROUP: LEAVING_MEMBERS_MAX,
}
"""Of the APIs that have a lower bound."""

_LENGTH = struct.Struct(">i")
_REQUEST_START = struct.Struct(">hhi")
LENGTH_BYTES: Final = _LENGTH.size


@dataclass(slots=True)
class RequestHeader:
    """What stands before the body of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int
    """Where in the frame the body begins."""


class FrameCutter:
    """Bytes as they come from a socket, to whole frames. Memory is taken for what has arrived, not for what was
    announced."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[Buffer] = []
        self._gathered_bytes = 0
        self._wanted_bytes = LENGTH_BYTES
        """Up to here a look at what was gathered is pointless."""

    @property
    def gathered_bytes(self) -> int:
        """Of the frame that is not whole yet."""
        return self._gathered_bytes

    def feed(self, content: bytes) -> list[memoryview]:
        """The frames that are whole now, without their lengths. Raises KafkaProtocolError for a length that no frame
        has; what came before it in the same content is lost with the connection."""
        self._gathered_bytes += len(content)
        if self._gathered_bytes < self._wanted_bytes:
            self._pieces.append(content)
            return []
        if self._pieces:
            content = b"".join((*self._pieces, content))
            self._pieces.clear()
        view = memoryview(content)
        frames: list[memoryview] = []
        at = 0
        while len(view) - at >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(view, at)
            if not 0 <= length <= self._frame_bytes_max:
                raise KafkaProtocolError(
                    f"no frame has this length length={length} length_max={self._frame_bytes_max}"
                )
            if len(view) - at - LENGTH_BYTES < length:
                self._wanted_bytes = LENGTH_BYTES + length
                break
            frames.append(view[at + LENGTH_BYTES : at + LENGTH_BYTES + length])
            at += LENGTH_BYTES + length
        else:
            self._wanted_bytes = LENGTH_BYTES
        self._gathered_bytes = len(view) - at
        if at < len(view):
            # A copy: a view would hold on to the frames before it.
            self._pieces.append(bytes(view[at:]))
        return frames


def read_request_header(frame: Buffer) -> RequestHeader:
    """Of a frame without its length. Raises KafkaProtocolError."""
    if len(frame) < _REQUEST_START.size:
        raise KafkaProtocolError(f"frame ends inside its header length={len(frame)}")
    api_key, api_version, correlation_id = _REQUEST_START.unpack_from(frame)
    reader = MessageReader(frame, _REQUEST_START.size)
    client_id = NULLABLE_STRING.read(reader)
    assert client_id is None or isinstance(client_id, str), f"no string {client_id!r}"
    return RequestHeader(api_key, api_version, correlation_id, client_id, reader.offset)


def decode_request(header: RequestHeader, frame: Buffer) -> Structure:
    """The body of a request. Raises KafkaProtocolError, also for an API or a version that is not spoken, and for more
    items in its lists than REQUEST_ITEMS_MAX, or than its API may have."""
    api = APIS.get(header.api_key)
    if api is None or not api.speaks(header.api_version):
        raise KafkaProtocolError(
            f"request is not spoken here api_key={header.api_key} version={header.api_version}"
        )
    return _decode_body(
        api.request,
        frame,
        header.api_version,
        offset=header.body_offset,
        items_max=_ITEMS_MAX.get(header.api_key, REQUEST_ITEMS_MAX),
        may_go_on=is_flexible(api.request, header.api_version),
    )


def encode_response(correlation_id: int, message: Structure, version: int) -> list[Buffer]:
    """A frame with its length, in parts, to be written one behind the other. Raises KafkaProtocolError."""
    return _frame(_LENGTH.pack(correlation_id), message, version)


def encode_request(
    message: Structure, version: int, *, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """As encode_response(), for clients."""
    api = api_of(message)
    head = MessageWriter()
    head.write(_REQUEST_START.pack(api.key, version, correlation_id))
    NULLABLE_STRING.write(head, client_id)
    return _frame(head.parts[0], message, version)


def decode_response(
    kind: type[StructureType], frame: Buffer, version: int, *, correlation_id: int
) -> StructureType:
    """For clients. Raises KafkaProtocolError, also if the frame answers another request."""
    if len(frame) < LENGTH_BYTES:
        raise KafkaProtocolError(f"frame ends inside its header length={len(frame)}")
    (found,) = _LENGTH.unpack_from(frame)
    if found != correlation_id:
        raise KafkaProtocolError(f"answer to another request expected={correlation_id} id={found}")
    return _decode_body(kind, frame, version, offset=LENGTH_BYTES)


def api_of(request: Structure) -> Api:
    """The row of a request's API."""
    return API_OF_REQUEST[type(request)]


def _has_tagged_header(kind: type[Structure], version: int) -> bool:
    return is_flexible(kind, version) and kind is not ApiVersionsResponse


def _decode_body(
    kind: type[StructureType],
    frame: Buffer,
    version: int,
    *,
    offset: int,
    items_max: int | None = None,
    may_go_on: bool = False,
) -> StructureType:
    """Behind the fields of its header."""
    if _has_tagged_header(kind, version):
        reader = MessageReader(frame, offset, items_max=items_max)
        skip_tagged_fields(reader)
        offset = reader.offset
    return decode_structure(
        kind, frame, version, offset=offset, items_max=items_max, may_go_on=may_go_on
    )


def _frame(head: Buffer, message: Structure, version: int) -> list[Buffer]:
    writer = MessageWriter()
    first = writer.parts[0]
    assert isinstance(first, bytearray), "a writer gathers in a bytearray"
    first += bytes(LENGTH_BYTES)
    first += head
    if _has_tagged_header(type(message), version):
        write_no_tagged_fields(writer)
    write_structure(writer, message, version)
    length = sum(map(len, writer.parts)) - LENGTH_BYTES
    if length > 0x7FFFFFFF:
        raise KafkaProtocolError(f"frame is too long length={length}")
    _LENGTH.pack_into(first, 0, length)
    return writer.parts
