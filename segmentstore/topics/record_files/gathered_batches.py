"""The oldest batches of a partition's segment, as many as become one file.

Invariants:

- Whole batches, one behind the other, all durable; at least one if there is any.
- All have the times of their producers or all those of the append: a file says so once.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.record_batch import TimestampType
from segmentstore.contracts.segments import Segment
from segmentstore.topics.batch_positions import Place, read_some, walk_batches

_READ_BYTES: Final = 256 * 1024
_HEADERS_AT_ONCE: Final = 250
"""Between two turns of the loop: about a millisecond."""


@dataclass(frozen=True, slots=True)
class GatheredBatches:
    """Copied: the segment may be truncated meanwhile."""

    content: memoryview
    begin: Place
    end: Place
    log_append_time: bool


async def gather_batches(
    segment: Segment, begin: Place, end_position: int, *, bytes_max: int, before_offset: int | None
) -> GatheredBatches | None:
    """From `begin` on, at most `bytes_max` but one batch, none at or behind `before_offset`; None if there is none.

    Raises what reading raises. Memory: what is gathered.
    """
    end = begin
    kind: TimestampType | None = None
    count = 0
    async with aclosing(walk_batches(segment, begin, end_position)) as batches:
        async for place, header in batches:
            count += 1
            if count % _HEADERS_AT_ONCE == 0:
                await asyncio.sleep(0)
            behind = place.position + header.size
            if kind is not None and (
                behind - begin.position > bytes_max or header.timestamp_type is not kind
            ):
                break
            if before_offset is not None and place.offset >= before_offset:
                break
            kind = header.timestamp_type
            highest_ms = max(place.highest_ms, header.max_timestamp)
            end = Place(behind, header.next_offset, highest_ms)
    if kind is None:
        return None
    content = bytearray(end.position - begin.position)
    at = 0
    while at < len(content):
        most = min(_READ_BYTES, len(content) - at)
        piece = await read_some(segment, begin.position + at, least=1, most=most)
        content[at : at + len(piece)] = piece
        at += len(piece)
        await asyncio.sleep(0)  # from the cache it comes without a turn of the loop
    return GatheredBatches(
        memoryview(content).toreadonly(), begin, end, kind is TimestampType.LOG_APPEND_TIME
    )
