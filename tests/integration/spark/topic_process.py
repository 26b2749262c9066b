"""A store in a process of its own with topics in it, its streams beside them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TypeVar

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client.topics import NewRecord, Topics, connected_topics
from segmentstore.codec.record_batch import Record
from segmentstore.spark.tier2_access import Tier2Location, open_containers, open_for_reading

T = TypeVar("T")

_OPTIONS = [
    "--kafka=127.0.0.1:0",
    "--containers=2",
    "--set=writer.flush_interval_seconds=1h",
    "--set=tier2.cold_seconds=86400",
]
WITHOUT_FILES = ["--set=kafka.file_seconds=1h"]
"""Records stay in batches, in chunks once they are flushed and in the log alone before."""


class TopicProcess:
    """Made by `topic_process`."""

    def __init__(self, server: ServerProcess, tier2: str) -> None:
        self.server = server
        self.tier2 = tier2

    def _address(self, server: str) -> str:
        words = dict(word.split("=", 1) for word in self.server.ready_line.split() if "=" in word)
        return words[server]

    @property
    def kafka(self) -> str:
        """HOST:PORT."""
        return self._address("kafka")

    @property
    def controller(self) -> str:
        """tcp://HOST:PORT."""
        return f"tcp://{self._address('controller')}"

    def do(self, work: Callable[[Topics], Coroutine[object, object, T]]) -> T:
        async def run() -> T:
            async with connected_topics(self.kafka) as topics:
                return await work(topics)

        return asyncio.run(run())

    def create(self, topic: str, partitions: int, **config: str) -> None:
        """Its records may be as old as they like: ten minutes behind its start a server deletes by age."""
        words = {"retention.ms": "-1"}
        words |= {name.replace("_", "."): value for name, value in config.items()}
        self.do(lambda topics: topics.create(topic, partitions=partitions, config=words))

    def produce(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        return self.do(lambda topics: topics.produce(topic, partition, records))

    def consume(self, topic: str) -> dict[int, list[Record]]:
        """All records that the service gives, by partition."""

        async def work(topics: Topics) -> dict[int, list[Record]]:
            found: dict[int, list[Record]] = {}
            for each in await topics.offsets(topic):
                offset = each.first
                found[each.partition] = []
                while offset < each.end:
                    page = await topics.fetch(topic, each.partition, offset=offset)
                    found[each.partition] += page.records
                    offset = page.next_offset
            return found

        return self.do(work)

    def flush(self) -> None:
        """Everything that was acknowledged is in Tier 2 afterwards."""

        async def work() -> None:
            lengths: dict[str, int] = {}
            async with HttpClient(self.server.address) as client:
                await client.flush_all()
                async for info in client.list_all():
                    lengths[info.name] = info.storage_length
            while not await self._is_seen(lengths):
                await asyncio.sleep(0.2)

        asyncio.run(work())

    async def _is_seen(self, lengths: dict[str, int]) -> bool:
        """Volumes are seen a little late."""
        seen: dict[str, int] = {}
        place = Tier2Location(place=self.tier2)
        async with open_for_reading(place, None) as store:
            for reader in await open_containers(store, None, place=self.tier2):  # type: ignore[arg-type]
                async with aclosing(reader.scan_layouts()) as layouts:
                    async for layout in layouts:
                        seen[layout.record.name] = layout.record.length
        return all(seen.get(name, 0) >= length for name, length in lengths.items())


@contextmanager
def topic_process(directory: Path, *, options: Sequence[str] = ()) -> Iterator[TopicProcess]:
    """A fresh store, killed at the end."""
    data = directory / "data"
    with ServerProcess(data, [*_OPTIONS, *options]) as server:
        yield TopicProcess(server, str(data))
