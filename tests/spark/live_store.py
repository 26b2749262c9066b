"""A store in a process of its own, for tests that read what it left in Tier 2."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import Store, connect
from segmentstore.spark.tier2_access import Tier2Location, open_tier2_reader

T = TypeVar("T")

OPTIONS = ["--set", "writer.flush_interval_seconds=1h", "--set", "tier2.compaction_byte_rate=65536"]
"""Only what a test flushes is flushed, and nothing is joined behind its back."""


class LiveStore:
    """Made by `live_store`."""

    def __init__(self, server: ServerProcess, tier2: str) -> None:
        self.server = server
        self.tier2 = tier2
        """The place of Tier 2, as readers name it."""
        self._place = Tier2Location(
            place=tier2, endpoint=os.environ.get("SEGMENTSTORE_S3_ENDPOINT_URL", "")
        )

    @property
    def controller(self) -> str:
        """`tcp://HOST:PORT`."""
        return f"tcp://{self._address('controller')}"

    @property
    def kafka(self) -> str:
        """`HOST:PORT`, of a store with `--kafka`."""
        return self._address("kafka")

    def _address(self, server: str) -> str:
        words = dict(word.split("=", 1) for word in self.server.ready_line.split() if "=" in word)
        return words[server]

    def do(self, work: Callable[[Store], Coroutine[object, object, T]]) -> T:
        """Run work with a client of its own."""

        async def run() -> T:
            async with connect(self.controller) as store:
                return await work(store)

        return asyncio.run(run())

    def append(self, segment: str, content: bytes) -> None:
        """To a segment of its own, which is made."""

        async def run() -> None:
            async with HttpClient(self.server.address) as client:
                await client.ensure(segment)
                await client.append(segment, content)

        asyncio.run(run())

    def flush(self, *segments: str) -> None:
        """Everything that the containers of these segments and of the streams' records hold goes to Tier 2."""

        async def run() -> None:
            lengths: dict[str, int] = {}
            async with HttpClient(self.server.address) as client:
                for name in [*await _tables(client), *segments]:
                    await client.flush(name)
                    # Not its length: the service writes to its tables by itself, and flushes that much later.
                    lengths[name] = (await client.info(name)).storage_length
            await self._seen(lengths)

        asyncio.run(run())

    def flush_all(self) -> None:
        """Everything that was acknowledged goes to Tier 2."""

        async def run() -> None:
            async with HttpClient(self.server.address) as client:
                there = {info.name async for info in client.list_all()}
                await client.flush_all()
                lengths = {
                    info.name: info.storage_length
                    async for info in client.list_all()
                    # What is staged may be merged or thrown away at any moment.
                    if info.name in there and "#transaction" not in info.name
                }
            await self._seen(lengths)

        asyncio.run(run())

    async def _seen(self, lengths: Mapping[str, int]) -> None:
        """Wait until a reader beside the store sees it: volumes show what they hold up to a second late."""
        while True:
            async with open_tier2_reader(self._place, executor=None) as view:
                found = {name: await view.find(name) for name in lengths}
            if all(
                record is not None and record.length >= lengths[name]
                for name, record in found.items()
            ):
                return
            await asyncio.sleep(0.2)

    def flush_stream(self, name: str, segment_ids: Sequence[int]) -> None:
        """Everything of these segments of a stream."""
        self.flush(*(f"{name}/{each & 0xFFFFFFFF}.#epoch.{each >> 32}" for each in segment_ids))


async def _tables(client: HttpClient) -> list[str]:
    return [info.name async for info in client.list_all("_system/_tables/")]


@contextmanager
def live_store(
    directory: Path, *, tier2: str = "filesystem", options: Sequence[str] = OPTIONS
) -> Iterator[LiveStore]:
    """A fresh store, killed at the end. `tier2`: filesystem, volumes, or s3://BUCKET/PREFIX."""
    data = directory / "data"
    place = tier2 if tier2.startswith("s3://") else str(data)
    with ServerProcess(data, ["--tier2", tier2, *options]) as server:
        yield LiveStore(server, place)
