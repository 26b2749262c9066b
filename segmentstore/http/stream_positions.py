"""From what a client asked for to a byte offset of a stream."""

from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http.offsets import OffsetPlace, RequestedOffset, is_of_incarnation
from segmentstore.http.refusals import bad_request, gone
from segmentstore.http.stream_attributes import StreamConfiguration


def byte_offset(
    requested: RequestedOffset,
    properties: SegmentProperties,
    configuration: StreamConfiguration,
) -> int:
    """Raises Refusal: 410 (an earlier stream of that name, or truncated bytes), 400 (past the end)."""
    match requested.place:
        case OffsetPlace.START:
            return properties.start_offset
        case OffsetPlace.NOW:
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
            raise gone("offset belongs to another stream, perhaps an earlier one of this name")
    if offset > properties.length:
        raise bad_request(f"offset lies past the end offset={offset} length={properties.length}")
    if offset < properties.start_offset:
        raise gone(
            "bytes before the earliest retained one are gone"
            f" offset={offset} start_offset={properties.start_offset}"
        )
    return offset
