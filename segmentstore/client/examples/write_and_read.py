"""Write a few events, read them back, remember the position, go on from there."""

# ruff: noqa: T201 (an example shows what it does)

import asyncio
import sys
from contextlib import suppress

from segmentstore.client import ScalingPolicy, StreamConfig, StreamCut, connect
from segmentstore.client.errors import AlreadyExistsError


async def main(controller: str) -> None:
    """Two segments, three keys, thirty events."""
    async with connect(controller) as store:
        stream = store.stream("examples/readings")
        with suppress(AlreadyExistsError):
            await store.scope("examples").create()
        with suppress(AlreadyExistsError):
            await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
        begin = await stream.tail()

        # `write` waits only for room; the end of the block waits until everything is stored.
        async with stream.writer() as writer:
            for number in range(10):
                for sensor in ("door", "roof", "well"):
                    await writer.write(f"{sensor} {number}".encode(), key=sensor)

        async with stream.read(begin) as events:
            for _ in range(12):
                event = await anext(events)
                print(event.data.decode())
            position = str(events.cut())
        print(f"-- stopped at {position}")

        async with stream.read(
            StreamCut.parse(position), stop_at=await stream.tail()
        ) as rest_of_events:
            rest = [event.data.decode() async for event in rest_of_events]
        print(f"-- {len(rest)} more, the last of them: {max(rest)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090"))
