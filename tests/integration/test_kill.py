"""Goal: what was acknowledged survives kill -9 at any moment, in order, once, and unchanged.

Method: a real server is killed again and again under load, on one data directory. Each segment has one writer that
waits for each acknowledgement, so after a restart a segment holds exactly what was acknowledged, and at most the one
append that was under way, whole. Small flush intervals and journals keep Tier 2, log truncation and journal recycling
busy.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.errors import ErrorKind

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OPTIONS = [
    "--set", "writer.flush_interval_seconds=150ms",
    "--set", "writer.flush_bytes=256KiB",
    "--set", "tier1.journal_bytes_max=8MiB",
    "--set", "tier2.garbage_grace_seconds=1s",
]  # fmt: skip
KILLS = 24
APPENDS_MIN = 12
"""Before each kill, however long they take."""
SIZES = (1, 10, 100, 1000, 10_000, 100_000)


@dataclass
class Writer:
    """One segment and what its only writer knows of it."""

    name: str
    random: Random
    acknowledged: bytearray = field(default_factory=bytearray)
    under_way: bytes = b""
    appends: int = 0
    compared: int = 0
    compared_before: int = 0

    async def write(self, client: HttpClient) -> None:
        """Append until the server is gone."""
        while True:
            self.under_way = self.random.randbytes(self.random.choice(SIZES))
            offset = len(self.acknowledged) if self.random.random() < 0.5 else None
            try:
                length = await client.append(self.name, self.under_way, offset=offset)
            except ServerError as error:
                if error.kind is ErrorKind.UNAVAILABLE:
                    return
                raise
            self.acknowledged += self.under_way
            self.under_way = b""
            self.appends += 1
            assert length == len(self.acknowledged)

    async def compare(self, client: HttpClient, *, whole: bool) -> None:
        """The segment holds what was acknowledged, and the append under way whole or not at all.

        Without `whole` only what this life and the one before it added is compared, to save time.
        """
        start = 0 if whole else self.compared_before
        content = await read_from(client, self.name, start)
        length = start + len(content)
        if length == len(self.acknowledged) + len(self.under_way):
            self.acknowledged += self.under_way
        self.under_way = b""
        assert length == len(self.acknowledged), self.name
        assert sha256(content) == sha256(bytes(self.acknowledged[start:])), self.name
        self.compared_before, self.compared = self.compared, length


async def read_from(client: HttpClient, name: str, start: int) -> bytes:
    content = bytearray()
    while piece := (await client.read(name, start + len(content), 1 << 20)).content:
        content += piece
    return bytes(content)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_twenty_four_kills_under_load_lose_and_change_nothing(tmp_path: Path) -> None:
    random = Random(20261121)
    writers = [Writer(f"kill/{number}", Random(number)) for number in range(12)]
    server = ServerProcess(tmp_path / "data", OPTIONS)

    async def life(number: int) -> None:
        async with HttpClient(server.address) as client:
            for writer in writers:
                if number == 0:
                    await client.create(writer.name)
                else:
                    await writer.compare(client, whole=number % 8 == 0)
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.write(client))
                before = sum(writer.appends for writer in writers)
                await asyncio.sleep(random.uniform(0.05, 0.8))
                while sum(writer.appends for writer in writers) < before + APPENDS_MIN:
                    await asyncio.sleep(0.01)
                server.kill()

    with server:
        for number in range(KILLS):
            asyncio.run(life(number))
            server.start()
        asyncio.run(check_and_stop(server, writers))
    assert sum(writer.appends for writer in writers) >= APPENDS_MIN * KILLS


async def check_and_stop(server: ServerProcess, writers: list[Writer]) -> None:
    async with HttpClient(server.address) as client:
        for writer in writers:
            await writer.compare(client, whole=True)
    assert server.terminate() == 0


def test_sigterm_under_load_ends_with_zero_and_loses_nothing(tmp_path: Path) -> None:
    writers = [Writer(f"term/{number}", Random(number)) for number in range(8)]
    server = ServerProcess(tmp_path / "data", OPTIONS)

    async def life(number: int) -> None:
        async with HttpClient(server.address) as client:
            for writer in writers:
                if number == 0:
                    await client.create(writer.name)
                else:
                    await writer.compare(client, whole=True)
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.write(client))
                await asyncio.sleep(0.5)
                code = await asyncio.get_running_loop().run_in_executor(None, server.terminate)
                assert code == 0

    with server:
        for number in range(3):
            asyncio.run(life(number))
            server.start()
        asyncio.run(check_and_stop(server, writers))
