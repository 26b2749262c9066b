"""What a page prints is what a reader sees who types its commands.

A fenced block `console` holds commands behind `$ ` and, behind each, what it prints. All blocks of a page run in order,
in one shell, against a store of their own. Numbers and lengths of blanks may differ; `...` stands for any text.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.server_process import ServerProcess

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/streams.md", "docs/http.md", "docs/tier2.md", "docs/operations.md")
START = "make run"
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps_of(text: str) -> list[tuple[str, str]]:
    """Commands of a page's console blocks, each with what it prints."""
    steps: list[tuple[str, str]] = []
    for block in _CONSOLE.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line.removeprefix("$ "), ""))
            else:
                assert steps, f"a block begins with a command line={line!r}"
                command, printed = steps[-1]
                steps[-1] = command, f"{printed}{line}\n"
    return steps


def pattern_of(printed: str) -> str:
    """Numbers and blanks masked; `...` is any text."""
    words = re.split(r"(\.\.\.|\d+(?:\.\d+)?|\s+)", printed.strip())
    masks = {"...": ".*", "": ""}
    return "".join(
        masks[word]
        if word in masks
        else r"\d+(?:\.\d+)?"
        if word[0].isdigit()
        else r"\s+"
        if word.isspace()
        else re.escape(word)
        for word in words
    )


class Shell:
    """One shell for all commands of a page, so that a variable of one is there for the next."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        words = dict(word.split("=", 1) for word in server.ready_line.split() if "=" in word)
        self._addresses = {
            "http://127.0.0.1:9091": server.address,
            "tcp://127.0.0.1:9090": f"tcp://{words['controller']}",
        }
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "SEGMENTSTORE_SERVER": server.address,
            "SEGMENTSTORE_CONTROLLER": self._addresses["tcp://127.0.0.1:9090"],
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """What it printed."""
        for printed, own in self._addresses.items():
            command = command.replace(printed, own)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho; echo -----done-----\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line == "-----done-----\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended command={command!r} printed={''.join(lines)!r}")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as process:
        yield process


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(
    page: str, server: ServerProcess, tmp_path: Path
) -> None:
    steps = steps_of((ROOT / page).read_text())
    assert steps, "the page has commands"
    shell = Shell(tmp_path, server)
    try:
        for command, printed in steps:
            found = server.ready_line if command == START else shell.run(command)
            assert re.fullmatch(pattern_of(printed), found.strip(), re.DOTALL), (
                f"$ {command}\nthe page says:\n{printed}\nit printed:\n{found}"
            )
    finally:
        shell.close()


def test_a_page_that_promises_something_else_is_found() -> None:
    assert re.fullmatch(pattern_of("length  12\n"), "length 31")
    assert not re.fullmatch(pattern_of("length  12\n"), "length twelve")
    assert re.fullmatch(pattern_of('{"a": 1, ...}'), '{"a": 20, "b": "c"}')
    assert not re.fullmatch(pattern_of("hello\n"), "")
