"""From what a partition gives to records, and waiting for more; Kafka's clients take the batches as they are."""

import asyncio
from collections.abc import Sequence

from segmentstore.codec.record_batch import Record, decode_batch, parse_header
from segmentstore.topics.partition import Partition


def records_from(content: bytes, offset: int) -> tuple[Sequence[Record], int]:
    """The records of whole batches from `offset` on, and the offset behind the last batch.

    A batch begins below `offset` if that lies inside of it. Raises BatchError for damage.
    """
    records: list[Record] = []
    at, next_offset = 0, offset
    with memoryview(content) as view:
        while at < len(view):
            header = parse_header(view, at)
            with view[at : at + header.size] as batch:
                records += [each for each in decode_batch(batch) if each.offset >= offset]
            next_offset = header.next_offset
            at += header.size
    return records, next_offset


def next_offset_of(content: bytes, offset: int) -> int:
    """The offset behind the last batch, without a look at records."""
    at = 0
    with memoryview(content) as view:
        while at < len(view):
            header = parse_header(view, at)
            offset = header.next_offset
            at += header.size
    return offset


async def wait_behind(partition: Partition, offset: int) -> None:
    """Until there may be a record at `offset`, or its next fetch says why there is none. It has no time-out.

    It looks again behind its registration: what came in between wakes nothing.
    """
    moved = asyncio.Event()
    unwatch = partition.watch(moved.set)
    try:
        if partition.high_watermark <= offset:
            await moved.wait()
    finally:
        unwatch()
