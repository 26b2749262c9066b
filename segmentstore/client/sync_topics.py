"""Record topics for code without a loop: the client of topics.py, every call waits.

```python
with connect_topics("127.0.0.1:9092") as topics:
    topics.create("logs", partitions=6)
    topics.produce("logs", 0, [NewRecord(value=b"hello")])
    for record in topics.fetch("logs", 0, offset=0).records:
        print(record.value)
```

Invariants: those of sync.py. One loop in the calling thread, which turns only during calls, and nothing in the
background; so it belongs to one thread, and cannot be used inside a running loop.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from segmentstore.client.sync import CallRunner, behind_news, open_runner
from segmentstore.client.topics import (
    FetchedColumns,
    FetchedRecords,
    NewRecord,
    PartitionOffsets,
    Topics,
    connected_topics,
)
from segmentstore.codec.record_batch import Compression
from segmentstore.runtime.clock import WallClock

Result = TypeVar("Result")
_FETCH_BYTES = 1 << 20


class SyncTopics:
    """Made by `connect_topics`; what each method does and raises is said in `Topics`."""

    def __init__(self, topics: Topics, runner: CallRunner) -> None:
        self._topics = topics
        self._runner = runner

    def run(self, work: Callable[[Topics], Coroutine[None, None, Result]]) -> Result:
        """Anything the asyncio client can do: `topics.run(lambda topics: topics.groups())`."""
        return self._runner.run(behind_news(partial(work, self._topics)))

    def create(
        self, name: str, *, partitions: int, config: Mapping[str, str] | None = None
    ) -> None:
        self.run(lambda topics: topics.create(name, partitions=partitions, config=config))

    def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> None:
        self.run(lambda topics: topics.alter(name, partitions=partitions, config=config))

    def delete(self, name: str) -> None:
        self.run(lambda topics: topics.delete(name))

    def offsets(self, name: str) -> Sequence[PartitionOffsets]:
        return self.run(lambda topics: topics.offsets(name))

    def produce(
        self,
        name: str,
        partition: int,
        records: Sequence[NewRecord],
        *,
        compression: Compression = Compression.NONE,
    ) -> int:
        """The offset of the first, when all are durable."""
        return self.run(
            lambda topics: topics.produce(name, partition, records, compression=compression)
        )

    def fetch(
        self,
        name: str,
        partition: int,
        *,
        offset: int,
        wait_ms: int = 0,
        bytes_max: int = _FETCH_BYTES,
    ) -> FetchedRecords:
        return self.run(
            lambda topics: topics.fetch(
                name, partition, offset=offset, wait_ms=wait_ms, bytes_max=bytes_max
            )
        )

    def fetch_columns(
        self,
        name: str,
        partition: int,
        *,
        offset: int,
        wait_ms: int = 0,
        bytes_max: int = _FETCH_BYTES,
    ) -> FetchedColumns:
        """Without an object per record."""
        return self.run(
            lambda topics: topics.fetch_columns(
                name, partition, offset=offset, wait_ms=wait_ms, bytes_max=bytes_max
            )
        )


@contextmanager
def connect_topics(address: str, *, wall_clock: WallClock | None = None) -> Iterator[SyncTopics]:
    """As `connected_topics`."""
    with open_runner() as runner:
        held = connected_topics(address, wall_clock=wall_clock)
        topics = runner.run(_awaited(held.__aenter__()))
        try:
            yield SyncTopics(topics, runner)
        finally:
            if runner.is_of_this_process:
                runner.run(_awaited(held.__aexit__(None, None, None)))


async def _awaited(work: Awaitable[Result]) -> Result:
    return await work
