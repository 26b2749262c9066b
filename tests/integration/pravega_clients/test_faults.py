"""Goal: whatever happens to connections and to the server, each event is there once and each key in its order.

Method: a writer and a reader of a real client are at work; every key's events are numbered, so that the reader sees
what is missing, repeated or out of order. Meanwhile acknowledgements are lost on their way, or the server is killed
(kill -9) and started again on the same ports and data.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from tests.integration.pravega_clients.client_program import ClientProgram, client_program
from tests.integration.pravega_clients.connection_faults import losing_acknowledgements
from tests.integration.pravega_clients.controller_calls import ControllerCalls
from tests.integration.pravega_clients.store_process import StoreProcess
from tests.integration.pravega_clients.toolchain import (
    WHEEL,
    java_command,
    require_java,
    wheel_python,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS_MAX = 550
"""Only a client that stands still for ever takes longer, also on a busy machine. The Java client's pauses between
attempts grow tenfold, up to 30 s for the store and 20 s for the controller: a kill costs it 10 s, one that meets it
just when it comes back 30 s."""
KILLS_AT = {"java": (300, 900, 1500), "wheel": (300, 1200)}
"""Written events. The wheel's pauses between attempts grow tenfold, so a kill costs it ten seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("faults") / "data") as server:
        yield server


@dataclass(frozen=True)
class Load:
    """A writer and a reader; one program may be both."""

    writer: ClientProgram
    reader: ClientProgram
    counted: str
    """What the writer calls its events."""

    async def wait_for_events(self, count: int) -> None:
        await self.writer.wait_for_count(self.counted, count)

    async def finish(self) -> None:
        await self.writer.wait_for_verdict()
        if self.reader is not self.writer:
            await self.reader.wait_for_verdict()


@asynccontextmanager
async def java_load(uri: str, scope: str, directory: Path, *options: str) -> AsyncIterator[Load]:
    require_java()
    seconds = f"seconds={SECONDS_MAX - 30}"  # it says what it stands at before it is killed
    command = [*java_command(), "clients.Load", uri, scope, seconds, *options]
    async with client_program(command, log_path=directory / "java", seconds=SECONDS_MAX) as both:
        yield Load(both, both, "acknowledged")


@asynccontextmanager
async def wheel_load(uri: str, scope: str, directory: Path, *options: str) -> AsyncIterator[Load]:
    load = [str(wheel_python()), str(WHEEL / "load.py")]
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(
            client_program(
                [*load, "write", uri, scope, *options],
                log_path=directory / "writer",
                seconds=SECONDS_MAX,
            )
        )
        await writer.wait_for(lambda line: line.get("ready") is True)
        reader = await stack.enter_async_context(
            client_program(
                [*load, "read", uri, scope, *options],
                log_path=directory / "reader",
                seconds=SECONDS_MAX,
            )
        )
        yield Load(writer, reader, "written")


LOADS = {"java": java_load, "wheel": wheel_load}
CLIENTS = pytest.mark.parametrize("client", sorted(LOADS))


@CLIENTS
async def test_h73_lost_acknowledgements_lose_and_repeat_nothing(
    client: str, server: StoreProcess, tmp_path: Path
) -> None:
    # No more than 50 can be acknowledged at once, however slow the machine is: so many are lost in any case.
    options = ("events=1500", "per_second=500", "inflight=50")
    async with (
        losing_acknowledgements(
            controller_port=server.controller_port, store_port=server.wire_port, every=40
        ) as (uri, loser),
        LOADS[client](uri, f"{client}-lost", tmp_path, *options) as load,
    ):
        await load.finish()
        assert loser.drops >= 5, f"too few for a test drops={loser.drops}"


@CLIENTS
async def test_kills_under_write_load_lose_and_repeat_nothing(
    client: str, server: StoreProcess, tmp_path: Path
) -> None:
    async with LOADS[client](
        server.uri, f"{client}-killed", tmp_path, "events=2500", "per_second=800"
    ) as load:
        for count in KILLS_AT[client]:
            await load.wait_for_events(count)
            await restart(server)
        await load.finish()


@CLIENTS
async def test_a_kill_with_long_polls_on_their_way_wakes_the_reader_later(
    client: str, server: StoreProcess, tmp_path: Path
) -> None:
    async with LOADS[client](
        server.uri, f"{client}-polling", tmp_path, "events=400", "pause_at=200", "per_second=400"
    ) as load:
        await load.writer.wait_for_count("paused", 200)
        if load.reader is not load.writer:
            await load.reader.wait_for_count("read", 200)
        await restart(server)
        await load.writer.go_on()
        await load.finish()


@CLIENTS
async def test_h75_a_kill_during_a_scale_keeps_each_keys_order(
    client: str, server: StoreProcess, tmp_path: Path
) -> None:
    scope = f"{client}-scaled"
    async with LOADS[client](
        server.uri, scope, tmp_path, "events=2500", "per_second=800", "segments=1"
    ) as load:
        for count, segments, delay in zip(
            KILLS_AT[client], (4, 2, 3), (0.0, 0.02, 0.05), strict=False
        ):
            await load.wait_for_events(count)
            async with ControllerCalls(server.uri.removeprefix("tcp://")) as controller:
                scaling = asyncio.create_task(controller.start_scale(scope, "s", segments))
                await asyncio.sleep(delay)
                await restart(server)
                with suppress(grpc.aio.AioRpcError):
                    await scaling
        await load.finish()


async def test_a_kill_while_transactions_commit_leaves_them_whole_or_gone(
    server: StoreProcess, tmp_path: Path
) -> None:
    options = ("events=1200", "keys=6", "transactions=5", "per_second=400", "segments=3")
    async with java_load(server.uri, "committing", tmp_path, *options) as load:
        for count in (90, 690):
            await load.wait_for_events(count)
            await restart(server)
        await load.finish()


async def restart(server: StoreProcess) -> None:
    """kill -9, and back on the same ports."""

    def kill_and_start() -> None:
        server.kill()
        server.start()

    await asyncio.get_running_loop().run_in_executor(None, kill_and_start)
