"""What an append over HTTP costs: 64 connections, 1 KB each, one request in flight per connection.

The limit is a bare aiohttp handler that reads the body and answers 204: everything above it is ours. Both servers run
in processes of their own, the client in a third; rounds alternate, so that both see the same machine. The figure is
requests per second *of server CPU time*, which does not depend on how fast the client is. It is taken twice: with the
in-memory segments of the tests, which shows the face alone, and with the whole store behind it (containers, file log
with its syncs, Tier 2), whose own work is then part of it.

    python -m benchmarks.http_append [--seconds 2] [--rounds 3]
"""

import argparse
import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import cast

from aiohttp import web

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.contracts.segments import SegmentApi
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.server import build_server
from segmentstore.http.settings import HttpSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.process import freeze_long_lived_objects, tune_for_serving
from tests.http.memory_segments import MemorySegments

CONNECTIONS = 64
BODY_BYTES = 1_024
RATIO_WANTED = 0.5
STREAM_PATH = "/v1/stream/benchmark"


def run(main: Coroutine[None, None, None]) -> None:
    """On uvloop if it is there: the same loop for both servers."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


@asynccontextmanager
async def bare(_directory: str) -> AsyncIterator[int]:
    """The limit."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=204)

    application = web.Application()
    application.router.add_route("*", "/v1/stream/{name}", handle)
    runner = web.AppRunner(
        application, access_log=None, handler_cancellation=True, auto_decompress=False
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def face(_directory: str) -> AsyncIterator[int]:
    """This room over segments in memory."""
    async with listening(MemorySegments()) as port:
        yield port


@asynccontextmanager
async def store(directory: str) -> AsyncIterator[int]:
    """This room over the real containers."""
    resolved = resolve_settings(flags={"store.data_directory": directory}, environment={})
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        group.create_task(service.manager.run())
        await service.manager.wait_until_settled()
        async with listening(service.store) as port:
            yield port


@asynccontextmanager
async def listening(segments: SegmentApi) -> AsyncIterator[int]:
    """The room as it is built in production; its port."""
    server = build_server(
        segments=segments,
        health=lambda: NodeHealth(containers=(), containers_expected=0),
        metrics=dict,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=HttpSettings(port=0),
    )
    await server.start()
    try:
        yield server.address[1]
    finally:
        await server.close()


Make = Callable[[str], AbstractAsyncContextManager[int]]


def serve(make: Make, directory: str, port_to: Connection) -> None:
    """A server process: tells its port, then serves until it is terminated."""

    async def main() -> None:
        async with make(directory) as port:
            tune_for_serving()
            freeze_long_lived_objects()
            port_to.send(port)
            await asyncio.Event().wait()

    run(main())


class Writer(asyncio.Protocol):
    """One connection that sends its request again whenever it was answered."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        # Both servers answer 204 without a body: the answer ends with its header.
        if not self._answer.endswith(b"\r\n\r\n"):
            return
        assert self._answer.startswith(b"HTTP/1.1 20"), f"refused answer={self._answer!r}"
        self._answer = b""
        self.answered += 1
        assert self._transport is not None, "data before the connection"
        self._transport.write(self._request)


def load(port: int, seconds: float, count_to: Connection) -> None:
    """A client process: tells how many requests were answered."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        create = (
            f"PUT {STREAM_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(create)
        await reader.read()
        writer.close()
        request = (
            f"POST {STREAM_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        ).encode() + b"x" * BODY_BYTES
        writers: list[Writer] = []
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(lambda: Writer(request), "127.0.0.1", port)
            writers.append(connection)
        await asyncio.sleep(seconds)
        count_to.send(sum(each.answered for each in writers))

    run(main())


def cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_server(make: Make, directory: str) -> tuple[multiprocessing.Process, int]:
    """A server process and its port."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(make, directory, there), daemon=True)
    process.start()
    port = here.recv()
    assert isinstance(port, int), f"no port port={port!r}"
    return process, port


def measure(server: multiprocessing.Process, port: int, seconds: float) -> tuple[float, float]:
    """(requests per second of server CPU, requests per second) of one round."""
    assert server.pid is not None, "the server was not started"
    here, there = multiprocessing.Pipe()
    client = multiprocessing.Process(target=load, args=(port, seconds, there), daemon=True)
    cpu, started = cpu_seconds(server.pid), time.perf_counter()
    client.start()
    answered = here.recv()
    client.join()
    cpu, elapsed = cpu_seconds(server.pid) - cpu, time.perf_counter() - started
    return answered / cpu, answered / elapsed


def main(*, seconds: float = 2.0, rounds: int = 3) -> list[Row]:
    """Run the rounds, print the table, return its rows."""
    figures: dict[str, list[tuple[float, float]]] = {}
    with TemporaryDirectory() as directory:
        servers = {make.__name__: start_server(make, directory) for make in (bare, face, store)}
        try:
            for server, port in servers.values():
                measure(server, port, 0.3)
            for _ in range(rounds):
                for name, (server, port) in servers.items():
                    figures.setdefault(name, []).append(measure(server, port, seconds))
        finally:
            for server, _ in servers.values():
                server.terminate()
                server.join()
    rows = rows_of(figures)
    print_rows(rows)
    print(f"wanted: face >= {RATIO_WANTED} per server-CPU-second")
    return rows


def rows_of(figures: dict[str, list[tuple[float, float]]]) -> list[Row]:
    """Medians beside the bare handler's."""
    rows: list[Row] = []
    for index, unit in ((0, "requests/server-CPU-second"), (1, "requests/second")):
        medians = {
            name: median([each[index] for each in rounds_of_it])
            for name, rounds_of_it in figures.items()
        }
        rows += [
            row(f"http append 1 KB, {name}", medians[name], unit, medians["bare"])
            for name in ("face", "store")
        ]
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    main(seconds=arguments.seconds, rounds=arguments.rounds)
