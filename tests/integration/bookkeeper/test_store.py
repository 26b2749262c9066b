"""Goal: a store whose logs are on real bookies loses nothing with its process or its data directory, and says in one
sentence what it cannot work with.

Method: servers of the command line, killed by SIGKILL. Tier 2 is on a disk of its own, a directory behind a link.
"""

import asyncio
import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess, ServerProcessError
from tests.cli.command_line import CommandLine
from tests.host.node_directories import new_node
from tests.integration.bookkeeper.registered_bookies import until_all_are_registered
from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_roots = count()
_SECONDS_MAX = 120.0
PATIENT = ["--set", "bookkeeper.start_seconds=120"]
"""A JVM and its first connections took more than the usual time at a load of seventy."""


@pytest.fixture
def place(ensemble: LocalEnsemble) -> str:
    return f"bookkeeper://{ensemble.servers}{LEDGERS_PATH}"


@pytest.fixture
def root() -> str:
    return f"/stores/{next(_roots)}"


@pytest.fixture(autouse=True)
def _every_server_runs(ensemble: LocalEnsemble) -> None:
    asyncio.run(until_all_are_registered(ensemble))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return new_node(tmp_path, "data")


def server_at(data: Path, place: str, root: str, *options: str) -> ServerProcess:
    flags = ["--tier1", place, "--set", f"bookkeeper.root={root}", "--containers", "2", *options]
    return ServerProcess(data, ["--controller", "off", "--wire", "off", *PATIENT, *flags])


def wait_for_registered_bookies(ensemble: LocalEnsemble, count: int) -> None:
    """A killed bookie is taken for alive until its session in ZooKeeper ends: a ledger may be made on it till then."""
    client = KazooClient(ensemble.servers)
    client.start()
    try:
        while len(set(client.get_children(f"{LEDGERS_PATH}/available")) - {"readonly"}) != count:
            time.sleep(0.1)
    finally:
        client.stop()
        client.close()


def append(cli: CommandLine, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "content").write_bytes(content)
    assert cli.segment("append", name, str(tmp_path / "content")).exit_code == ExitCode.OK


def wait_for_health(server: ServerProcess, holds: Callable[[str], bool]) -> None:
    """Bookies lose their session in ZooKeeper by a long stall, and are registered again a little later."""
    end = time.monotonic() + _SECONDS_MAX
    while not holds(told := health(server)):
        assert time.monotonic() < end, told
        time.sleep(0.2)


def health(server: ServerProcess) -> str:
    try:
        with urllib.request.urlopen(f"{server.address}/health") as answer:
            return str(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_a_killed_node_and_a_new_one_without_its_directory_have_every_acknowledged_byte(
    tmp_path: Path,
    data: Path,
    place: str,
    root: str,
    ensemble: LocalEnsemble,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"s/{number}" for number in range(6)]
    with server_at(data, place, root) as server:
        cli = CommandLine(capfdbinary, server.address)
        for name in names:
            assert cli.segment("create", name).exit_code == ExitCode.OK
            append(cli, tmp_path, name, b"one ")
        assert cli.segment("flush").exit_code == ExitCode.OK
        for name in names:
            append(cli, tmp_path, name, b"two ")
        server.kill()
        ensemble.send(ensemble.bookies[3], signal.SIGKILL)
        server.start()
        cli = CommandLine(capfdbinary, server.address)
        for name in names:
            append(cli, tmp_path, name, b"three")
        wait_for_health(server, lambda told: "bookies" not in told)
        offline = CommandLine(capfdbinary)
        rows = offline("log", "inspect", str(data), "-o", "json").rows
        assert {row["log"] for row in rows} == {"container-0000", "container-0001"}
        assert {row["damage"] for row in rows} == {""}
        server.kill()
    shutil.rmtree(data)
    # Nothing but the place is named: identity and container count come from there.
    again = ServerProcess(
        new_node(tmp_path, "again"),
        [
            "--controller",
            "off",
            "--wire",
            "off",
            "--tier1",
            place,
            "--set",
            f"bookkeeper.root={root}",
            *PATIENT,
        ],
    )
    with again:
        cli = CommandLine(capfdbinary, again.address)
        for name in names:
            assert cli.segment("read", name).content == b"one two three"
        assert again.terminate() == 0
    monkeypatch.setenv("SEGMENTSTORE_BOOKKEEPER_ROOT", root)
    operations = offline("log", "inspect", place, "--operations", "--container", "0", "-o", "json")
    assert operations.exit_code == ExitCode.OK
    # A log is truncated at checkpoints only, so there is one at least, whatever the store has flushed by now.
    assert {row["log"] for row in operations.rows} == {"container-0000"}


def test_what_cannot_work_at_a_start_is_one_sentence(
    tmp_path: Path, data: Path, place: str, root: str, ensemble: LocalEnsemble
) -> None:
    with server_at(data, place, root) as server:
        assert server.terminate() == 0

    def refusal(options: list[str], environment: dict[str, str] | None = None) -> str:
        refused = ServerProcess(
            data,
            ["--controller", "off", "--wire", "off", *PATIENT, *options],
            environment=environment,
        )
        with pytest.raises(ServerProcessError) as caught:
            refused.start()
        return str(caught.value)

    other = ["--tier1", place, "--set", "bookkeeper.root=/stores/nothing"]
    assert "there is none below the root in ZooKeeper" in refusal(other)
    password = {"SEGMENTSTORE_BOOKKEEPER_PASSWORD": "guessed"}
    assert "the password is not the one" in refusal([], password)
    assert "the logs of this store are in BookKeeper" in refusal(["--tier1", "file"])
    away = ["--tier1", "bookkeeper://127.0.0.1:1", "--set", "bookkeeper.session_seconds=2"]
    assert "exit_code=5: error: no ZooKeeper answers servers=127.0.0.1:1" in refusal(away)
    jars = {"SEGMENTSTORE_BOOKKEEPER_JARS": str(tmp_path / "none")}
    assert "make bookkeeper" in refusal([], jars)


def test_too_few_bookies_are_told_and_waited_for(
    data: Path,
    place: str,
    root: str,
    ensemble: LocalEnsemble,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    for bookie in ensemble.bookies[:2]:
        ensemble.send(bookie, signal.SIGKILL)
    wait_for_registered_bookies(ensemble, 2)
    waiting = ServerProcess(
        data,
        [
            *("--controller", "off", "--wire", "off", "--containers", "2", "--tier1", place),
            *("--set", f"bookkeeper.root={root}", "--set", "bookkeeper.retry_seconds=2"),
            *PATIENT,
        ],
        accept=("ready", "partial"),
    )
    with waiting:
        assert waiting.ready_line.startswith("partial ")
        few = "2 bookies take writes, and a ledger needs 3: start bookies"
        wait_for_health(waiting, lambda told: few in told)
        waiting.kill()
    with server_at(data, place, root, "--set", "bookkeeper.few_bookies_count=2") as server:
        cli = CommandLine(capfdbinary, server.address)
        assert cli.segment("create", "a").exit_code == ExitCode.OK
        wait_for_health(server, lambda told: "are on 2 bookies" in told)
