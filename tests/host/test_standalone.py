import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess, ServerProcessError

pytestmark = pytest.mark.integration

TURNS_MIN, TURNS_MAX = 3, 12
"""Of starts whose cost is compared."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as process:
        yield process


async def store(server: ServerProcess, name: str, content: bytes) -> None:
    async with HttpClient(server.address) as client:
        await client.create(name)
        await client.append(name, content)


async def fetch(server: ServerProcess, name: str) -> bytes:
    async with HttpClient(server.address) as client:
        return (await client.read(name, 0, 1 << 20)).content


async def until(server: ServerProcess, holds: Callable[[Mapping[str, object]], bool]) -> None:
    """What `/health` says; gives up after three minutes."""
    async with HttpClient(server.address) as client, asyncio.timeout(180):
        while not holds(await client.health()):
            await asyncio.sleep(0.1)


def is_claimed(health: Mapping[str, object]) -> bool:
    """Every container has claimed its root and takes requests."""
    return bool(health["ready"]) and health["storage_state"] == "ok"


def complaints_in(health: Mapping[str, object]) -> list[str]:
    return cast("list[str]", health["complaints"])


def has_controller(health: Mapping[str, object]) -> bool:
    """It works, so its tables are there: a server does not wait for it for ever before it says that it is ready."""
    return not any("the controller does not work" in each for each in complaints_in(health))


def get(server: ServerProcess, path: str) -> str:
    with urllib.request.urlopen(server.address + path, timeout=60) as response:
        return str(response.read().decode())


def get_refusal(server: ServerProcess, path: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(server, path)
    with refused.value as answer:
        return answer.code, answer.read().decode()


def test_the_ready_line_has_the_address_and_what_was_recovered(server: ServerProcess) -> None:
    words = server.ready_line.split()
    assert words[0] == "ready"
    assert words[1].startswith("http://127.0.0.1:")
    assert "containers=4/4" in words
    asyncio.run(store(server, "a", b"x" * 1000))
    asyncio.run(until(server, has_controller))
    server.kill()
    server.start()
    # The segment, and two tables of the controller.
    assert "active_segments=3" in server.ready_line.split()


def test_sigterm_and_sigint_end_with_zero_and_keep_what_was_stored(server: ServerProcess) -> None:
    asyncio.run(store(server, "a", b"kept"))
    for number in (signal.SIGTERM, signal.SIGINT):
        server.signal(number)
        assert server.wait() == 0
        server.start()
        assert asyncio.run(fetch(server, "a")) == b"kept"


def test_a_duplicated_signal_is_one_wish_and_not_two(server: ServerProcess) -> None:
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_warm_start_costs_little_more_than_an_empty_one(tmp_path: Path) -> None:
    """In seconds of processor time, each the least of several by turns: what else the machine does can only add to one.

    Where three turns are not enough, more are taken: the least comes down to what a start costs, and no further.
    """
    with ServerProcess(tmp_path / "empty") as empty, ServerProcess(tmp_path / "warm") as warm:
        asyncio.run(store(warm, "a", b"x" * 1_000_000))
        empty_costs: list[float] = []
        warm_costs: list[float] = []
        while len(warm_costs) < TURNS_MIN or (
            len(warm_costs) < TURNS_MAX and not is_little_more(warm_costs, empty_costs)
        ):
            empty_costs.append(start_cost(empty))
            warm_costs.append(start_cost(warm))
    assert is_little_more(warm_costs, empty_costs), f"{empty_costs=} {warm_costs=}"


def is_little_more(costs: Sequence[float], costs_before: Sequence[float]) -> bool:
    return min(costs) < 1.5 * min(costs_before)


def start_cost(server: ServerProcess) -> float:
    assert server.terminate() == 0
    server.start()
    fields = Path(f"/proc/{server.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_second_server_on_the_directory_is_refused_while_the_first_lives_or_is_stopped(
    server: ServerProcess, tmp_path: Path
) -> None:
    # By another name, so that what it says last is not followed by a line of the first one: a log is beside its name.
    (tmp_path / "again").symlink_to(tmp_path / "data", target_is_directory=True)
    second = ServerProcess(tmp_path / "again")
    with pytest.raises(ServerProcessError, match="in use by another process"):
        second.start()
    server.signal(signal.SIGSTOP)
    with pytest.raises(ServerProcessError, match=rf"exit_code=4.*process_id={server.process_id}"):
        second.start()
    server.signal(signal.SIGCONT)
    assert json.loads(get(server, "/health"))["ready"]
    server.kill()
    with second:
        assert second.ready_line.startswith("ready ")


def test_h62_another_container_count_is_refused_at_start(server: ServerProcess) -> None:
    server.terminate()
    other = ServerProcess(server.data_directory, ["--containers", "5"])
    with pytest.raises(ServerProcessError, match=r"exit_code=2.*container_count=4 given=5"):
        other.start()
    same = ServerProcess(server.data_directory, ["--containers", "4"])
    with same:
        assert "containers=4/4" in same.ready_line
    server.start()


def test_a_port_that_is_taken_is_said_and_ends_the_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ServerProcess(tmp_path / "data", ["--http", f"127.0.0.1:{port}"])
        with pytest.raises(ServerProcessError, match=r"exit_code=2.*cannot listen"):
            server.start()


def test_everything_in_memory_needs_no_directory() -> None:
    command = [sys.executable, "-m", "segmentstore.cli", "standalone", "--http", "127.0.0.1:0"]
    command += ["--tier1", "memory", "--tier2", "memory"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0
    assert line.startswith("ready ")
    assert "data=memory" in line


def test_health_and_metrics_speak_of_every_container(server: ServerProcess) -> None:
    asyncio.run(store(server, "a", b"x"))
    health = json.loads(get(server, "/health"))
    assert [each["container"] for each in health["containers"]] == [0, 1, 2, 3]
    metrics = get(server, "/metrics")
    for container in range(4):
        assert f'segmentstore_container_unflushed_bytes{{container="{container}"}}' in metrics


def test_h42_a_container_whose_log_is_damaged_stays_down_and_the_others_serve(
    server: ServerProcess,
) -> None:
    asyncio.run(store(server, "a", b"x" * 5000))
    with urllib.request.urlopen(server.address + "/v1/segments/a/info", timeout=60) as response:
        container = json.load(response)["container"]
    assert server.terminate() == 0
    log = server.data_directory / "tier1" / f"container-{container:04d}"
    for journal in log.glob("journal-*"):
        content = bytearray(journal.read_bytes())
        for position in range(4096 + 200, 64 * 1024, 4096):
            content[position] ^= 1
        journal.write_bytes(content)
    with pytest.raises(ServerProcessError):
        server.start()
    partial = ServerProcess(server.data_directory, accept=("ready", "partial"))
    with partial:
        assert "containers=3/4" in partial.ready_line
        status, _ = get_refusal(partial, "/v1/segments/a/info")
        assert status == 503
        expected = f"container {container} stays down: its bytes are damaged"
        asyncio.run(
            until(partial, lambda told: any(e.startswith(expected) for e in complaints_in(told)))
        )
        # Long enough for a restart that is not to come.
        time.sleep(2)
        lines = [line for line in partial.log_path.read_text().splitlines() if "ended by" in line]
        assert lines[-1].count("will not be restarted") == 1
        status, health = get_refusal(partial, "/health")
        assert status == 503
        assert [each["ready"] for each in json.loads(health)["containers"]].count(False) == 1


def test_h7_a_tier_1_that_was_lost_is_not_silently_begun_anew(server: ServerProcess) -> None:
    asyncio.run(store(server, "a", b"x"))
    with urllib.request.urlopen(
        urllib.request.Request(server.address + "/v1/segments/a/flush", method="POST"), timeout=60
    ):
        pass
    assert server.terminate() == 0
    shutil.rmtree(server.data_directory / "tier1")
    partial = ServerProcess(server.data_directory, accept=("partial",))
    with partial:
        assert "containers=0/4" in partial.ready_line
    assert "recover --from-tier2" in partial.log_path.read_text()


def test_h41_a_store_starts_while_tier_2_is_away_and_uses_it_when_it_is_back(
    server: ServerProcess,
) -> None:
    asyncio.run(store(server, "flushed", b"in tier 2"))
    with urllib.request.urlopen(
        urllib.request.Request(server.address + "/v1/segments/flushed/flush", method="POST"),
        timeout=60,
    ):
        pass
    asyncio.run(store(server, "fresh", b"in the log alone"))
    server.kill()
    tier2 = server.data_directory / "tier2"
    away, broken, back = (tier2.with_name(name) for name in ("away", "broken", "back"))
    tier2.rename(away)
    broken.write_text("no directory, so no object store")
    tier2.symlink_to(broken)
    server.start()
    assert asyncio.run(fetch(server, "fresh")) == b"in the log alone"
    states = json.loads(get(server, "/health"))["containers"]
    assert {each["storage_state"] for each in states} == {"unclaimed"}
    status, _ = get_refusal(server, "/v1/segments/never-seen/info")
    assert status == 503
    # In one step: where nothing is, the server would make a directory.
    back.symlink_to(away, target_is_directory=True)
    back.replace(tier2)
    asyncio.run(until(server, is_claimed))
    assert asyncio.run(fetch(server, "flushed")) == b"in tier 2"
    assert asyncio.run(fetch(server, "fresh")) == b"in the log alone"
