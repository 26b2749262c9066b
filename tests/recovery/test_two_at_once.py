"""Two restores or recoveries into one directory: one is refused, and no half of a copy is taken for a store."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.integration

NO_STREAMS = ["--controller", "off", "--wire", "off"]
COMMAND = """
import os, signal, sys
from contextlib import contextmanager
from segmentstore.cli.main import run
from segmentstore.recovery import recover, restore

@contextmanager
def stopping_bar(what, **_):
    if what == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGSTOP)
    yield lambda _: None

recover.progress_bar = restore.progress_bar = stopping_bar
sys.exit(run(sys.argv[2:]))
"""
"""A command line that stops itself where a progress bar of this name begins."""


@pytest.fixture
def data(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Path:
    """Of a stopped store with a segment in Tier 2, and a backup."""
    (tmp_path / "content").write_bytes(b"content")
    with ServerProcess(tmp_path / "data", NO_STREAMS) as server:
        cli = CommandLine(capfdbinary, server.address)
        assert cli.segment("create", "r/1").exit_code == ExitCode.OK
        assert cli.segment("append", "r/1", str(tmp_path / "content")).exit_code == ExitCode.OK
        assert cli.segment("flush").exit_code == ExitCode.OK
        assert server.terminate() == 0
    done = CommandLine(capfdbinary)("backup", "pin", "monday", "--data", str(tmp_path / "data"))
    assert done.exit_code == ExitCode.OK
    return tmp_path / "data"


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_and_stop() -> Iterator[Start]:
    """Starts a command line that stops itself; what is left of it at the end of a test is killed."""
    with ExitStack() as started:
        yield partial(_start_and_stop, started)


def _start_and_stop(started: ExitStack, at: str, *words: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, at, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started.enter_context(process)
    started.callback(process.kill)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    return process


@pytest.mark.parametrize("at", ["copying", "reading the copy"])
@pytest.mark.parametrize("verb", ["restore", "recover"])
def test_a_second_one_is_refused_while_the_first_one_copies(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    start_and_stop: Start,
    verb: str,
    at: str,
) -> None:
    new = tmp_path / "new"
    restore = ("backup", "restore", "monday", "--from", str(data), "--data", str(new))
    recover = ("recover", "--copy", "--from-tier2", str(data), "--data", str(new))
    cli = CommandLine(capfdbinary)
    first = start_and_stop(at, *(restore if verb == "restore" else recover))
    try:
        for words in (restore, recover):
            second = cli(*words, "--quiet")
            assert second.exit_code == ExitCode.CONFLICT, second.errors
            assert "a process uses the store there" in second.errors
    finally:
        first.send_signal(signal.SIGCONT)
    assert first.wait() == ExitCode.OK
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(capfdbinary, server.address)
        assert online.segment("read", "r/1").content == b"content"


def test_one_that_compared_before_the_other_began_is_refused_when_it_is_to_copy(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    start_and_stop: Start,
) -> None:
    new = tmp_path / "new"
    command = ("backup", "restore", "monday", "--from", str(data), "--data", str(new))
    late = start_and_stop("comparing with a listing", *command)
    first = start_and_stop("copying", *command)
    late.send_signal(signal.SIGCONT)
    assert late.wait() == ExitCode.CONFLICT
    first.send_signal(signal.SIGCONT)
    assert first.wait() == ExitCode.OK
    assert CommandLine(capfdbinary)("backup", "restore", "monday", *command[3:]).exit_code == (
        ExitCode.USAGE
    )


def test_a_killed_one_is_in_nobodys_way(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    start_and_stop: Start,
) -> None:
    command = ("backup", "restore", "monday", "--from", str(data), "--data", str(tmp_path / "new"))
    first = start_and_stop("reading the copy", *command)
    first.kill()
    first.wait()
    done = CommandLine(capfdbinary)(*command, "--quiet")
    assert done.exit_code == ExitCode.OK, done.errors


@pytest.mark.parametrize("verb", ["restore", "recover"])
def test_half_a_copy_is_refused_before_anything_is_made_of_it(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    start_and_stop: Start,
    verb: str,
) -> None:
    new = tmp_path / "new"
    restore = ("backup", "restore", "monday", "--from", str(data), "--data", str(new), "--quiet")
    cli = CommandLine(capfdbinary)
    first = start_and_stop("reading the copy", *restore)
    mark = json.loads((new / "restore.unfinished").read_text())
    first.send_signal(signal.SIGCONT)
    assert first.wait() == ExitCode.OK
    # As another one left it: with its mark, and with less than that.
    mark["root_versions"]["2"] += 1000
    (new / "restore.unfinished").write_text(json.dumps(mark))
    (new / "tier1").rename(tmp_path / "tier1")
    words = restore if verb == "restore" else ("recover", "--from-tier2", "--data", str(new))
    again = cli(*words, "--quiet") if verb == "recover" else cli(*words)
    assert again.exit_code == ExitCode.CORRUPT, again.errors
    assert "containers=[2] of=[0, 1, 2, 3]" in again.errors
    assert not (new / "tier1").exists()
