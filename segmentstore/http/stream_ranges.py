"""From an offset that a client asked for to bytes: whole messages in JSON mode, what is there now, or waiting for more.

Bytes that come out are owned by the caller; at most about the asked length is held.
"""

from contextlib import aclosing

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.segments import ReadOnlySegment, SegmentProperties, read_available
from segmentstore.http.json_messages import whole_lines_length
from segmentstore.http.offsets import OffsetPlace, RequestedOffset, is_of_incarnation
from segmentstore.http.responses import bad_request, gone
from segmentstore.http.stream_attributes import StreamConfiguration
from segmentstore.http.stream_directory import OpenStream


def byte_offset(
    requested: RequestedOffset,
    properties: SegmentProperties,
    configuration: StreamConfiguration,
) -> int:
    """Where the requested offset lies in the stream.

    Raises Refusal: 410 (an earlier stream of that name, or truncated bytes), 400 (past the end); ContainerNotFoundError
    where only a container could say so that is down.
    """
    match requested.place:
        case OffsetPlace.START:
            return properties.start_offset
        case OffsetPlace.NOW:
            if properties.may_have_more:
                properties.require_container()
            return properties.length
        case OffsetPlace.TOKEN:
            pass
    offset = requested.offset
    if not is_of_incarnation(requested, properties.segment_id):
        origin = configuration.fork_origin
        if origin is None or not any(
            is_of_incarnation(requested, ancestor) and offset <= shared
            for ancestor, shared in origin.ancestors
        ):
            # The container may know of a later stream of that name.
            properties.require_container()
            raise gone("offset belongs to another stream, perhaps an earlier one of this name")
    if offset >= properties.length and properties.may_have_more:
        properties.require_container()
    if offset > properties.length:
        raise bad_request(f"offset lies past the end offset={offset} length={properties.length}")
    if offset < properties.start_offset:
        raise gone(
            "bytes before the earliest retained one are gone"
            f" offset={offset} start_offset={properties.start_offset}"
        )
    return offset


async def check_message_boundary(stream: OpenStream, offset: int) -> None:
    """Raises Refusal (400) if the offset of a JSON stream lies inside a message."""
    if offset <= stream.properties.start_offset:
        return
    before = await read_available(stream.segment, offset - 1, 1)
    if before != b"\n":
        raise bad_request(f"offset lies inside a message offset={offset}")


async def read_piece(stream: OpenStream, offset: int, bytes_max: int) -> bytes:
    """Bytes from `offset` on; in JSON mode whole lines, at least one even if it is longer.

    Raises DataCorruptionError if a JSON stream's last line is not whole.
    """
    content = await read_available(stream.segment, offset, bytes_max)
    if not stream.configuration.is_json:
        return content
    while content:
        whole = whole_lines_length(content)
        if whole:
            return content[:whole]
        if offset + len(content) >= stream.segment.info().length:
            raise DataCorruptionError(
                f"last message is not whole name={stream.properties.name!r} offset={offset}"
            )
        content += await read_available(stream.segment, offset + len(content), bytes_max)
    return content


async def wait_for_bytes(segment: ReadOnlySegment, offset: int, length_max: int) -> bytes:
    """At least one byte at `offset`, waiting for it if need be; b"" if the segment is sealed there.

    Put a deadline around it. Raises what read_available() raises; SegmentNotFoundError if it is deleted meanwhile.
    """
    async with aclosing(segment.read(offset, length_max)) as entries:
        async for entry in entries:
            content = await entry.content()
            return content if len(content) <= length_max else content[:length_max]
    raise AssertionError(f"a read without a first entry name={segment.name!r} offset={offset}")
