"""A command that is forked runs as one that is started: words, environment, directory, output, exit code, signals."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from segmentstore.cli.server_process import (
    ServerProcess,
    ServerProcessError,
    StartCommand,
    start_command,
)
from tests.preloaded_command import PreloadedCommand, servers_are_forks

__all__ = ["servers_are_forks"]

pytestmark = pytest.mark.integration


def outcome(
    start: StartCommand, words: Sequence[str], log_path: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with log_path.open("wb") as log:
        running = start(words, log, environment)
    assert running.stdout is not None
    with running.stdout as stdout:
        said = stdout.read()
    return running.wait(), said, log_path.read_text()


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (["config", "show"], 0, "7s"),
        (["config", "no-such-verb"], 2, "No such command"),
        (["segment", "info", "any", "--server", "http://127.0.0.1:1"], 5, "127.0.0.1:1"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_it_says_and_ends_as_in_a_process_that_was_started(
    words: Sequence[str],
    exit_code: int,
    said: str,
    preloaded_command: PreloadedCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEGMENTSTORE_WRITER_FLUSH_BYTES", "not given to the process")
    environment = {
        **os.environ,
        "SEGMENTSTORE_WRITER_FLUSH_BYTES": "1MiB",
        "SEGMENTSTORE_WRITER_FLUSH_INTERVAL_SECONDS": "7s",
    }
    started = outcome(start_command, words, tmp_path / "started", environment)
    forked = outcome(preloaded_command.start, words, tmp_path / "forked", environment)
    assert forked == started
    assert forked[0] == exit_code
    assert said in forked[1] + forked[2]


def test_it_works_in_the_directory_of_who_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ServerProcess(Path("data")) as server:
        assert Path(f"/proc/{server.process_id}/cwd").readlink() == tmp_path
        assert (tmp_path / "data" / "lock").exists()


def test_a_signal_ends_it_as_it_ends_any_process(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    assert server.start().terminate() == 0
    server.start().signal(signal.SIGINT)
    assert server.wait() == 0


def test_one_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data"),
        pytest.raises(ServerProcessError, match=r"exit_code=4: .*data"),
    ):
        ServerProcess(tmp_path / "data").start()


def test_it_goes_on_when_what_loaded_it_has_ended(tmp_path: Path) -> None:
    command = PreloadedCommand()
    words = ["standalone", "--http=127.0.0.1:0", "--wire=off", "--controller=off"]
    with (tmp_path / "log").open("wb") as log:
        running = command.start([*words, f"--data={tmp_path / 'data'}"], log, os.environ)
    assert running.stdout is not None
    with running.stdout as stdout:
        assert stdout.readline().startswith("ready ")
        command.close()
        assert Path(f"/proc/{running.pid}/cwd").readlink() == Path.cwd(), "it runs"
        running.kill()
        with pytest.raises(AssertionError, match="has ended"):
            running.wait()
