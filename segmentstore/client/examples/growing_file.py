"""A segment as a file that grows: conditional appends, and a reader that follows it."""

# ruff: noqa: T201 (an example shows what it does)

import asyncio
import sys
from contextlib import aclosing, suppress

from segmentstore.client import ByteSegment, connect
from segmentstore.client.errors import AlreadyExistsError, NotFoundError
from segmentstore.contracts.errors import BadOffsetError


async def _follow(segment: ByteSegment) -> bytes:
    content = b""
    async with aclosing(segment.tail(0)) as pieces:
        async for piece in pieces:
            content += piece
    return content


async def main(controller: str) -> None:
    """A stream with one segment, whose bytes are ours."""
    async with connect(controller) as store:
        stream = store.stream("examples/log")
        with suppress(AlreadyExistsError):
            await store.scope("examples").create()
        with suppress(NotFoundError):
            await stream.seal()
            await stream.delete()
        await stream.create()
        # A stream that is made anew goes on counting its segments, so ask instead of assuming number 0.
        (only,) = await stream.segments()
        segment = stream.segment(only.segment_id)
        following = asyncio.create_task(_follow(segment))
        length = await segment.append(b"one ")
        length = await segment.append(b"two ", offset=length)
        try:
            await segment.append(b"never", offset=0)
        except BadOffsetError as error:
            print(f"refused: the segment has {error.expected} bytes")
        await segment.append(b"three", offset=length)
        await stream.seal()
        print((await following).decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090"))
