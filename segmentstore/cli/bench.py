"""`segmentstore bench`: how fast a server takes and gives bytes, seen from an HTTP client.

For each size writers append for a while, then as many readers read the bytes back.
"""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.options import APPEND_BYTES, SECONDS, with_client
from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.cli.server_process import ServerProcess
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.latency_histogram import LOGARITHMIC_BOUNDS_SECONDS, LatencyHistogram

_READ_BYTES = 1 << 20


@click.command()
@click.option(
    "--server",
    envvar="SEGMENTSTORE_SERVER",
    help="Address of the store; one of its own in a temporary directory if left out.",
)
@click.option("--seconds", type=SECONDS, default="3s", show_default=True, help="Time for each row.")
@click.option(
    "--writers",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    help="Appenders at once.",
)
@click.option(
    "--size",
    "sizes",
    type=APPEND_BYTES,
    multiple=True,
    default=("100B", "10KB", "1MiB"),
    show_default=True,
    help="Bytes an append. Repeatable.",
)
@output_option
def bench(
    server: str | None, seconds: float, writers: int, sizes: tuple[int, ...], output: str
) -> None:
    """Measure durable appends and reads over HTTP.

    Every writer waits for the acknowledgement of an append before it sends the next, so one row is `writers` appends in
    flight. The segments it makes are deleted again.
    """
    with ExitStack() as stack:
        if server is None:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="segmentstore-"))
            )
            server = stack.enter_context(ServerProcess(directory / "data")).address

        async def work(client: HttpClient) -> list[Row]:
            rows: list[Row] = []
            for size in sizes:
                rows += await BenchRun(client, size=size, writers=writers, seconds=seconds).run()
            return rows

        print_rows(with_client(server, work), output)


class BenchRun:
    """Appends of one size, then the same bytes read."""

    def __init__(self, client: HttpClient, *, size: int, writers: int, seconds: float) -> None:
        self._client = client
        self._size = size
        self._seconds = seconds
        label = random_id(system_random()).hex()[:8]
        self._names = [f"bench-{label}/{number}" for number in range(writers)]

    async def run(self) -> list[Row]:
        """Two rows: appends and reads."""
        for name in self._names:
            await self._client.create(name)
        try:
            return [await self._measure("append"), await self._measure("read")]
        finally:
            for name in self._names:
                await self._client.delete(name)

    async def _measure(self, verb: str) -> Row:
        loop = asyncio.get_running_loop()
        latencies = LatencyHistogram(LOGARITHMIC_BOUNDS_SECONDS)
        started = loop.time()
        work = self._append if verb == "append" else self._read
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work(name, started + self._seconds, latencies))
                    for name in self._names
                ]
        except BaseExceptionGroup as failures:
            # One sentence and its exit code, as from any other command.
            raise failures.exceptions[0] from None
        elapsed = loop.time() - started
        moved_bytes = sum(task.result() for task in tasks)
        return {
            "verb": verb,
            "size_bytes": self._size if verb == "append" else _READ_BYTES,
            "at_once": len(self._names),
            "per_second": round(latencies.count / elapsed, 1),
            "megabytes_per_second": round(moved_bytes / elapsed / 1e6, 2),
            "p50_ms": round(latencies.quantile(0.5) * 1e3, 2),
            "p99_ms": round(latencies.quantile(0.99) * 1e3, 2),
            "max_ms": round(latencies.max_seconds * 1e3, 2),
        }

    async def _append(self, name: str, end: float, latencies: LatencyHistogram) -> int:
        loop = asyncio.get_running_loop()
        content = system_random().randbytes(self._size)
        moved = 0
        while (started := loop.time()) < end:
            await self._client.append(name, content)
            latencies.record(loop.time() - started)
            moved += len(content)
        return moved

    async def _read(self, name: str, end: float, latencies: LatencyHistogram) -> int:
        loop = asyncio.get_running_loop()
        moved = 0
        offset = 0
        while (started := loop.time()) < end:
            piece = await self._client.read(name, offset, _READ_BYTES)
            latencies.record(loop.time() - started)
            moved += len(piece.content)
            offset = piece.end_offset if piece.content else 0
        return moved
