"""A real store that the jobs work on: nobody joins chunks in it but the jobs, and nobody flushes but the test."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from random import Random

from segmentstore.cli.http_client import HttpClient
from segmentstore.client import connect
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import (
    Tier2Location,
    open_containers,
    open_for_reading,
)
from tests.integration.pravega_clients.store_process import StoreProcess
from tests.integration.spark.sink_runs import make_stream, scale_to

ROUNDS, LINES = 6, 300
_SEEN_SECONDS_MAX = 120.0
_SETTINGS = (
    "tier2.compaction_byte_rate=65536",
    "tier2.cold_seconds=86400",
    "writer.flush_interval_seconds=86400",
)


class JobStore(StoreProcess):
    """Short words for what the tests do with it."""

    def __init__(self, directory: Path, options: Sequence[str], place: Tier2Location) -> None:
        super().__init__(directory, options)
        self.place = place
        """Where its Tier 2 is."""

    def fill(self, name: str) -> "Counter[bytes]":
        """Three segments that become four half-way, in small chunks; the last round is not flushed."""
        make_stream(self.uri, name, segments=3)
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                scale_to(self.uri, name, 4)
            self.write(name, lines(number))
            if number < ROUNDS - 1:
                self.flush()
        return Counter(line for number in range(ROUNDS) for line in lines(number))

    def write(self, name: str, events: Iterable[bytes]) -> None:
        """Each event under a key of its own."""

        async def work() -> None:
            async with (
                connect(self.uri) as store,
                store.stream(name).writer() as writer,
            ):
                for event in events:
                    await writer.write(event, key=event[:16].decode())

        asyncio.run(work())

    def flush(self) -> None:
        """Everything that was acknowledged is in Tier 2 afterwards, and whoever reads beside the service sees it."""

        async def work() -> dict[str, int]:
            async with HttpClient(self.address) as client:
                await client.flush_all()
                return {info.name: info.storage_length async for info in client.list_all()}

        lengths = asyncio.run(work())
        with LoopRunner() as runner:
            until = time.monotonic() + _SEEN_SECONDS_MAX
            while time.monotonic() < until:
                if runner.run(self._is_seen(lengths, runner)):
                    return
                runner.run(asyncio.sleep(0.2))
        raise AssertionError("what was flushed is not seen in Tier 2")

    async def _is_seen(self, lengths: Mapping[str, int], runner: LoopRunner) -> bool:
        """Volumes are seen a little late."""
        seen: dict[str, int] = {}
        async with open_for_reading(self.place, runner.executor) as store:
            for reader in await open_containers(store, runner.executor, place=self.place.place):
                async with aclosing(reader.scan_layouts()) as layouts:
                    async for layout in layouts:
                        seen[layout.record.name] = layout.record.length
        return all(seen.get(name, 0) >= length for name, length in lengths.items())


def lines(round_number: int) -> list[bytes]:
    """Text of 30 to 400 characters, no line twice."""
    random = Random(round_number)
    return [
        b"%02d %04d " % (round_number, number)
        + random.randbytes(random.randrange(10, 200)).hex().encode()
        for number in range(LINES)
    ]


@contextmanager
def job_store(directory: Path, *, tier2: str, endpoint: str = "") -> Iterator[JobStore]:
    """A store that ends with the `with`. `tier2`: filesystem, volumes, or s3://BUCKET/PREFIX with its endpoint."""
    data = directory / "store"
    options = [f"--tier2={tier2}", "--containers=2"]
    for each in _SETTINGS:
        options += ["--set", each]
    place = Tier2Location(place=tier2 if endpoint else str(data), endpoint=endpoint)
    with JobStore(data, options, place) as store:
        yield store
