"""Three workers share a stream; one of them dies, and the others take over what it had not acknowledged."""

# ruff: noqa: T201 (an example shows what it does)

import asyncio
import sys
from contextlib import suppress

from segmentstore.client import ReaderGroup, ScalingPolicy, StreamConfig, connect
from segmentstore.client.errors import AlreadyExistsError, NotFoundError


class _WorkerDiedError(Exception):
    """What happens to the second worker."""


async def _work(group: ReaderGroup, name: str, done: list[str]) -> None:
    async with group.reader(name) as reader:
        async for event in reader:
            # An event counts as processed when the next one is asked for.
            if name == "worker-2" and done:
                raise _WorkerDiedError
            done.append(event.data.decode())


async def main(controller: str) -> None:
    """A sealed stream ends, so the workers end as well."""
    async with connect(controller) as store:
        with suppress(AlreadyExistsError):
            await store.scope("examples").create()
        stream, group = store.stream("examples/jobs"), store.reader_group("examples/workers")
        with suppress(NotFoundError):
            await group.delete()
        with suppress(NotFoundError):
            await stream.seal()
            await stream.delete()
        await stream.create(StreamConfig(ScalingPolicy.fixed(3)))
        async with stream.writer() as writer:
            for number in range(300):
                await writer.write(f"job {number}".encode(), key=str(number))
        await stream.seal()

        await group.create(["jobs"])
        done: list[str] = []
        with suppress(_WorkerDiedError):
            await _work(group, "worker-2", done)
        await asyncio.gather(
            _work(group, "worker-1", done),
            _work(group, "worker-3", done),
        )
        print(
            f"{len(set(done))} different jobs were done, {len(done) - len(set(done))} of them twice"
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090"))
