"""Goal: a store in several processes loses nothing that was acknowledged, whichever of them is killed, whenever.

Method: real processes on one data directory, one of them killed under load; the same directory with other numbers of
processes; a parent that is killed, also beside a process that stands still and so cannot see it.
"""

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.server_process import ServerProcess, ServerProcessError
from segmentstore.client import ScalingPolicy, StreamConfig, connect
from segmentstore.contracts.errors import ErrorKind
from segmentstore.runtime.local_processes import start_time
from tests.integration.pravega_clients.test_java_client import run_scenarios
from tests.integration.pravega_clients.toolchain import require_java

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEGMENTS = [f"loads/{number}" for number in range(8)]
JAVA_SCENARIOS = (
    "a_burst_over_several_segments_keeps_each_keys_order",
    "transactions_commit_in_the_order_of_their_commits",
    "a_scaled_stream_is_read_through_its_generations",
    "a_table_takes_conditional_changes",
)
FLUSHES = ["--set", "writer.flush_interval_seconds=200ms", "--set", "writer.flush_bytes=64KiB"]


def server(directory: Path, processes: int) -> ServerProcess:
    return ServerProcess(directory / "data", ["--processes", str(processes), *FLUSHES])


async def status_of(running: ServerProcess) -> Mapping[str, object]:
    found = re.search(r"status=(\S+)", running.ready_line)
    assert found is not None, running.ready_line
    async with aiohttp.ClientSession() as session, session.get(f"{found[1]}/health") as answer:
        return cast("Mapping[str, object]", json.loads(await answer.read()))


async def pid_of(running: ServerProcess, name: str) -> int:
    return cast("int", (await status_of(running))[f"{name}_process_id"])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """However long it takes: the test has its own end."""
    while not await condition():
        await asyncio.sleep(0.05)


async def until_back(running: ServerProcess, name: str, *, other_than: int) -> None:
    async def is_back() -> bool:
        status = await status_of(running)
        return bool(status["ready"]) and status[f"{name}_process_id"] not in (None, other_than)

    await until(is_back)


async def until_ended(pid: int) -> None:
    async def has_ended() -> bool:
        await asyncio.sleep(0)
        return not start_time(pid)

    await until(has_ended)


class Writer:
    """One segment, and what its only writer knows of it: numbers of eight digits, one behind the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self.unknown = 0

    async def write(self, client: HttpClient, *, until_set: asyncio.Event) -> None:
        """Go on over every failure: where the outcome is unknown, the length of the segment says it."""
        while not until_set.is_set():
            try:
                length = await client.append(
                    self.name, b"%07d\n" % self.acknowledged, offset=8 * self.acknowledged
                )
            except ServerError as error:
                if error.kind is ErrorKind.UNAVAILABLE:
                    self.unknown += 1
                    await asyncio.sleep(0.02)
                    continue
                # It was done, and its answer was lost.
                if error.kind is not ErrorKind.CONFLICT or not self.unknown:
                    raise
                length = (await client.info(self.name)).length
                assert length == 8 * (self.acknowledged + 1)
            self.unknown = 0
            self.acknowledged = length // 8

    async def compare(self, client: HttpClient) -> None:
        """Every acknowledged number, in order, once; at most one more."""
        length = (await client.info(self.name)).length
        content = b""
        while len(content) < length:
            content += (await client.read(self.name, len(content), 1 << 20)).content
        numbers = [int(each) for each in content.split()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) - self.acknowledged in (0, 1)


@asynccontextmanager
async def client_of(running: ServerProcess) -> AsyncIterator[HttpClient]:
    async with HttpClient(running.address) as client:
        yield client


async def write_while(
    client: HttpClient, writers: list[Writer], work: Callable[[], Awaitable[None]]
) -> None:
    """The work, in the middle of the writers' load."""
    stop = asyncio.Event()

    async def everyone_wrote(more: int) -> None:
        before = [writer.acknowledged for writer in writers]

        async def has_written() -> bool:
            await asyncio.sleep(0)
            now = [writer.acknowledged for writer in writers]
            return all(n >= b + more for n, b in zip(now, before, strict=True))

        await until(has_written)

    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.write(client, until_set=stop))
        await everyone_wrote(20)
        await work()
        await everyone_wrote(20)
        stop.set()


@pytest.mark.parametrize(
    ("name", "with_launcher"), [("node_0", False), ("node_1", True), ("volumes", False)]
)
async def test_a_process_killed_under_load_loses_nothing_and_any_number_of_processes_finds_all(
    tmp_path: Path, name: str, *, with_launcher: bool
) -> None:
    writers = [Writer(each) for each in SEGMENTS]
    running = server(tmp_path, 2)
    with running:
        async with client_of(running) as client:
            for each in SEGMENTS:
                await client.create(each)
            pid = await pid_of(running, name)

            async def kill() -> None:
                if with_launcher:
                    os.kill(await pid_of(running, "launcher"), signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                await until_back(running, name, other_than=pid)

            await write_while(client, writers, kill)
            for writer in writers:
                await writer.compare(client)
            await client.flush_all()
        assert running.terminate() == 0
    for processes in (1, 3):
        running = server(tmp_path, processes)
        with running:
            async with client_of(running) as client:
                for writer in writers:
                    await writer.compare(client)
                listed = [each.name async for each in client.list_all("loads/")]
                assert listed == SEGMENTS
            assert running.terminate() == 0


async def test_events_of_a_stream_are_written_and_read_through_the_controller_over_all_processes(
    tmp_path: Path,
) -> None:
    running = server(tmp_path, 2)
    with running:
        controller = re.search(r"controller=(\S+)", running.ready_line)
        assert controller is not None, running.ready_line
        async with connect(f"tcp://{controller[1]}") as store:
            stream = store.stream("s/e")
            await store.scope("s").create()
            await stream.create(StreamConfig(ScalingPolicy.fixed(8)))
            begin = await stream.tail()
            pid = await pid_of(running, "node_1")
            async with stream.writer() as writer:
                for number in range(200):
                    await writer.write(b"%d" % number, key=f"{number % 16}")
                await writer.flush()
                os.kill(pid, signal.SIGKILL)
                for number in range(200, 400):
                    await writer.write(b"%d" % number, key=f"{number % 16}")
            seen: dict[int, list[int]] = {}
            async with stream.read(begin, stop_at=await stream.tail()) as events:
                async for event in events:
                    number = int(event.data)
                    seen.setdefault(number % 16, []).append(number)
        assert seen == {key: list(range(key, 400, 16)) for key in range(16)}
        assert running.terminate() == 0


async def test_a_parent_that_is_killed_leaves_no_process_and_the_next_one_finds_everything(
    tmp_path: Path,
) -> None:
    running = server(tmp_path, 2)
    with running:
        async with client_of(running) as client:
            await client.create("a")
            await client.append("a", b"acknowledged")
        pids = [await pid_of(running, name) for name in ("launcher", "volumes", "node_0", "node_1")]
        running.kill()
        for pid in pids:
            await until_ended(pid)
        running.start()
        async with client_of(running) as client:
            assert (await client.read("a", 0, 100)).content == b"acknowledged"
        assert running.terminate() == 0


@pytest.mark.parametrize("processes", [1, 2])
async def test_no_store_starts_beside_a_process_that_outlives_its_parent(
    tmp_path: Path, processes: int
) -> None:
    running = server(tmp_path, 2)
    with running:
        async with client_of(running) as client:
            await client.create("a")
            await client.append("a", b"acknowledged")
        others = [await pid_of(running, name) for name in ("launcher", "volumes", "node_0")]
        pid = await pid_of(running, "node_1")
        # It stands still, and cannot see that its parent has ended.
        os.kill(pid, signal.SIGSTOP)
        running.kill()
        try:
            with pytest.raises(ServerProcessError, match="exit_code=4"):
                server(tmp_path, processes).start()
        finally:
            os.kill(pid, signal.SIGKILL)
        for each in (pid, *others):
            await until_ended(each)
        running.start()
        async with client_of(running) as client:
            assert (await client.read("a", 0, 100)).content == b"acknowledged"
        assert running.terminate() == 0


def test_a_start_that_can_never_work_ends_with_the_sentence_of_the_process_that_says_so(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        refused = ServerProcess(tmp_path / "data", ["--processes", "2", "--controller", address])
        with pytest.raises(ServerProcessError, match=r"exit_code=2.*the controller cannot listen"):
            refused.start()


def test_pravegas_java_client_finds_the_process_of_each_segment(tmp_path: Path) -> None:
    require_java()
    with server(tmp_path, 2) as running:
        controller = re.search(r"controller=(\S+)", running.ready_line)
        assert controller is not None, running.ready_line
        results = run_scenarios(f"tcp://{controller[1]}", tmp_path, JAVA_SCENARIOS)
    failures = {
        name: results.get(name, "not reached")
        for name in JAVA_SCENARIOS
        if not results.get(name, {}).get("passed")
    }
    assert not failures, failures
