"""What clients of HTTP may hold of a server, and write into its log."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest
from aiohttp import web

from segmentstore.runtime.http_connections import (
    BoundedConnections,
    ConnectionBounds,
)
from segmentstore.runtime.process import loop_factory
from tests.http.node import until

ANSWER_BYTES = 8 << 10
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Bounded(BoundedConnections):
    """It remembers what it has accepted."""

    accepted: asyncio.Transport | None = None

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.accepted = transport


@asynccontextmanager
async def server(bounds: ConnectionBounds) -> AsyncIterator[tuple[Bounded, int]]:
    """It listens on the port."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=bytes(ANSWER_BYTES))

    connections = Bounded(answer, bounds=bounds, access_log=None)
    runner = web.ServerRunner(connections)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield connections, runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "ours"])
def test_a_client_that_leaves_the_last_bytes_of_an_answer_is_disconnected(
    loop: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    """Goal: also what is behind the last wait of an answer is held for a while only.

    Method: the client asks for one answer after another until the sockets of both sides are full and a part of the
    newest stays with the server. That part is less than one answer, by far too little for aiohttp to wait for.
    """

    async def run() -> None:
        bounds = ConnectionBounds(connections_max=8, window_bytes=1 << 20, window_seconds_max=0.2)
        async with server(bounds) as (connections, port):
            with closing(socket.create_connection(("127.0.0.1", port))) as client:
                client.setblocking(False)
                await until(lambda: connections.accepted is not None)
                accepted = connections.accepted
                assert accepted is not None
                asked = 0

                def is_begun() -> bool:
                    return connections.requests_count == asked or not connections.connections

                while not accepted.is_closing() and accepted.get_write_buffer_size() == 0:
                    asked += 1
                    await asyncio.get_running_loop().sock_sendall(client, REQUEST)
                    await until(is_begun)
                await until(lambda: not connections.connections)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def test_what_is_no_http_is_refused_in_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = ConnectionBounds(connections_max=8, window_bytes=1 << 20, window_seconds_max=60.0)
    async with server(bounds) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with caplog.at_level("INFO"), closing(writer):
            writer.write(b"GET / HTTP/1.1\r\nContent-Length: five\r\n\r\n")
            async with asyncio.timeout(60):
                answer = await reader.read()
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    (said,) = [each for each in caplog.records if each.levelname != "DEBUG"]
    assert said.levelname == "INFO"
    assert said.exc_info is None
    assert "\n" not in said.getMessage()
