"""How far what a partition gives reaches, and waiting for more.

Its records are read by decode_batches() of segmentstore/codec/record_batch.py.
"""

import asyncio

from segmentstore.codec.record_batch import parse_header
from segmentstore.topics.partition import Partition


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
