"""A real store with streams to read from Spark, and short words for what tests do with them."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from segmentstore.client.store import Store
from segmentstore.client.stream_config import ScalingPolicy, StreamConfig
from segmentstore.client.stream_segments import StreamCut
from tests.spark.live_store import LiveStore, live_store

Result = TypeVar("Result")


class LiveStreams:
    """Made by `live_streams`. Only what is flushed here is flushed."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self.controller = store.controller
        self.place = store.tier2
        """Where its Tier 2 is."""

    def run(self, work: Callable[[Store], Coroutine[object, object, Result]]) -> Result:
        """Anything that the client can do."""
        return self._store.do(work)

    def create(self, name: str, *, segments: int = 1, tags: Sequence[str] = ()) -> None:
        async def work(store: Store) -> None:
            scope = name.partition("/")[0]
            if scope not in await store.scopes():
                await store.scope(scope).create()
            config = StreamConfig(ScalingPolicy.fixed(segments), tags=tuple(tags))
            await store.stream(name).create(config)

        self.run(work)

    def write(self, name: str, events: Iterable[bytes]) -> None:
        """Each event under a key of its own."""

        async def work(store: Store) -> None:
            async with store.stream(name).writer() as writer:
                for event in events:
                    await writer.write(event, key=event[:16].decode())

        self.run(work)

    def read(self, name: str) -> list[bytes]:
        """All events of a stream, by the client."""

        async def work(store: Store) -> list[bytes]:
            stream = store.stream(name)
            async with stream.read(stop_at=await stream.tail()) as reader:
                return [event.data async for event in reader]

        return self.run(work)

    def scale(self, name: str, segments: int) -> None:
        self.run(lambda store: store.stream(name).scale_to(segments))

    def seal(self, name: str) -> None:
        self.run(lambda store: store.stream(name).seal())

    def truncate(self, name: str, head: dict[int, int]) -> None:
        self.run(lambda store: store.stream(name).truncate(StreamCut(name, head)))

    def flush(self) -> None:
        """Everything that was acknowledged is in Tier 2 afterwards."""
        self._store.flush_all()


@contextmanager
def live_streams(directory: Path, *, tier2: str = "filesystem") -> Iterator[LiveStreams]:
    """A fresh store that is killed at the end; `tier2` as in `live_store`."""
    with live_store(directory, tier2=tier2) as store:
        yield LiveStreams(store)


def numbered(prefix: str, count: int) -> list[bytes]:
    """Events that tell where they come from, 80 to 100 bytes each."""
    return [f"{prefix}-{number:05d}-".encode() * 10 for number in range(count)]
