"""What faults of a cluster stand on: a cut holds bytes of its direction alone, a process with a shim is misled."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.cluster.cut_proxy import CutProxy, Direction, cut_proxy
from tests.integration.cluster.process_shim import ProcessShim, can_be_built
from tests.integration.java_libraries import missing

pytestmark = pytest.mark.integration

HOUR = 3600.0
SHORT_SECONDS = 0.2
"""So long nothing comes that is held."""

CHILD = """
import datetime, json, socket, sys, time
def told():
    print(json.dumps([time.time(), datetime.datetime.now().timestamp(), time.monotonic()]), flush=True)
told()
sys.stdin.readline()
told()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as to:
    print(json.dumps(to.recv(100).decode()), flush=True)
"""


@dataclass
class Server:
    """Keeps what it is told, and answers only when it is made to."""

    port: int = 0
    heard: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    connected: asyncio.Queue[asyncio.StreamWriter] = field(default_factory=asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected.put_nowait(writer)
        while piece := await reader.read(100):
            self.heard.put_nowait(piece)
        self.heard.put_nowait(b"")
        writer.close()


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Server, CutProxy]]:
    async with running_server() as server, cut_proxy(server.port) as proxy:
        yield server, proxy


async def comes(awaited: "asyncio.Future[bytes]") -> bool:
    done, _ = await asyncio.wait({awaited}, timeout=SHORT_SECONDS)
    return bool(done)


@pytest.mark.parametrize("cut", [Direction.FORTH, Direction.BACK, Direction.BOTH])
async def test_a_cut_holds_its_direction_alone_and_gives_everything_when_healed(
    cut: Direction,
) -> None:
    async with proxied() as (server, proxy):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        to_client = await server.connected.get()
        proxy.cut(cut)
        writer.write(b"forth")
        to_client.write(b"back")
        forth = asyncio.ensure_future(server.heard.get())
        back = asyncio.ensure_future(reader.read(100))
        for direction, awaited in ((Direction.FORTH, forth), (Direction.BACK, back)):
            if direction in cut:
                assert not await comes(awaited)
            else:
                await awaited
        proxy.heal()
        assert (await forth, await back) == (b"forth", b"back")
        writer.close()


async def test_an_end_is_held_like_bytes() -> None:
    async with proxied() as (server, proxy):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await server.connected.get()
        proxy.cut(Direction.FORTH)
        writer.write(b"last")
        await writer.drain()
        writer.transport.abort()
        heard = asyncio.ensure_future(server.heard.get())
        assert not await comes(heard)
        proxy.heal()
        found = await heard
        assert found in (b"last", b"")


@pytest.mark.parametrize("cut", [Direction.FORTH, Direction.BACK])
async def test_a_connection_that_is_begun_while_it_is_cut_reaches_the_server_when_healed(
    cut: Direction,
) -> None:
    async with proxied() as (server, proxy):
        proxy.cut(cut)
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"forth")
        heard = asyncio.ensure_future(server.heard.get())
        assert not await comes(heard)
        proxy.heal()
        assert await heard == b"forth"
        writer.close()


async def test_a_process_with_a_shim_has_another_calendar_and_goes_to_another_port(
    tmp_path: Path,
) -> None:
    if not can_be_built():
        missing("cc is missing: no clock was set and nothing was cut; install a C compiler")
    shim = ProcessShim(tmp_path / "shim")
    async with running_server() as server, running_server() as other:
        shim.route({server.port: other.port})
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, str(server.port)),
            env={**os.environ, **shim.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        before = json.loads(await child.stdout.readline())
        shim.set_clock(-HOUR)
        child.stdin.write(b"\n")
        behind = json.loads(await child.stdout.readline())
        # Wide bounds: a busy machine is to fail nothing here.
        for calendar in before[:2]:
            assert abs(calendar - time.time()) < HOUR / 4
        for calendar in behind[:2]:
            assert abs(calendar + HOUR - time.time()) < HOUR / 4
        assert 0 <= behind[2] - before[2] < HOUR / 4, "monotonic time goes on"
        (await other.connected.get()).write(b"here")
        assert json.loads(await child.stdout.readline()) == "here"
        assert server.connected.empty()
        child.stdin.close()
        await child.wait()
