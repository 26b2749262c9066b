"""A stretch of a stream: bytes, or in JSON mode whole messages."""

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.http.json_messages import whole_lines_length
from segmentstore.http.refusals import bad_request
from segmentstore.http.segment_reads import gather
from segmentstore.http.stream_directory import OpenStream


async def check_message_boundary(stream: OpenStream, offset: int) -> None:
    """Raises Refusal (400) if the offset of a JSON stream lies inside a message."""
    if offset <= stream.properties.start_offset:
        return
    before = await gather(stream.segment, offset - 1, 1)
    if before != b"\n":
        raise bad_request(f"offset lies inside a message offset={offset}")


async def read_piece(stream: OpenStream, offset: int, bytes_max: int) -> bytes:
    """Bytes from `offset` on; in JSON mode whole lines, at least one even if it is longer.

    Raises DataCorruptionError if a JSON stream's last line is not whole.
    """
    content = await gather(stream.segment, offset, bytes_max)
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
        content += await gather(stream.segment, offset + len(content), bytes_max)
    return content
