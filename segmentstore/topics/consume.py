"""What a partition gives, for the servers that speak of records: how far it reaches, and its records, beside the loop.

Invariants:

- On the loop only what is short by its headers is decoded: a batch of some bytes may come to millions of records.
- One answer tells of records that take about TOLD_BYTES_MAX in memory, one record more at most, and says where the next
  one goes on. (One batch is decompressed as a whole, DECODED_BYTES_MAX at most.)
"""

from collections.abc import Awaitable, Callable
from typing import Final

from segmentstore.codec.record_batch import Compression, Record, decode_batches, parse_header
from segmentstore.topics.record_files.record_ranks import first_not_older

TOLD_BYTES_MAX: Final = 32 << 20
"""What may be fetched at once comes to less, if it is not compressed and its records have 100 bytes."""
_INLINE_BYTES_MAX: Final = 16 << 10
_INLINE_RECORDS_MAX: Final = 256
"""What is decoded on the loop."""
_INLINE_CODECS: Final = frozenset({Compression.NONE, Compression.SNAPPY, Compression.LZ4})
"""Of these a byte comes to 255 at most; of others to tens of thousands."""


def next_offset_of(content: bytes, offset: int) -> int:
    """The offset behind the last batch, without a look at records."""
    at = 0
    with memoryview(content) as view:
        while at < len(view):
            header = parse_header(view, at)
            offset = header.next_offset
            at += header.size
    return offset


async def first_not_older_between(
    start: int, end: int, time_ms: int, fetch: Callable[[int], Awaitable[bytes]]
) -> tuple[int, int] | None:
    """Offset and time of the first record [start, end) that is not older, in whole batches that are fetched in turn.

    For times before 1970, by which Kafka's protocol cannot ask: all records before the first one of 1970 or later are
    looked at. Raises BatchError for what is no batch, and what `fetch` raises.
    """
    while start < end:
        content = await fetch(start)
        if not content:
            break
        found = await first_not_older(content, time_ms, start)
        if found is not None:
            return found if found[0] < end else None
        start = next_offset_of(content, start)
    return None


def is_short(content: bytes) -> bool:
    """Whether all of its batches are decoded and shown within a turn of the loop: by what they say of themselves."""
    if len(content) > _INLINE_BYTES_MAX:
        return False
    at = count = 0
    while at < len(content):
        header = parse_header(content, at)
        if header.compression not in _INLINE_CODECS:
            return False
        count += header.record_count
        at += header.size
    return count <= _INLINE_RECORDS_MAX


def told_records(content: bytes, offset: int) -> tuple[list[Record], int]:
    """The records from an offset on that one answer tells, and where the next one goes on. Raises BatchError."""
    return decode_batches(content, offset, told_bytes_max=TOLD_BYTES_MAX)
