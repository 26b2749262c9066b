import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine
from tests.preloaded_command import servers_are_forks

__all__ = ["servers_are_forks"]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SEGMENTSTORE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("store") / "data") as process:
        yield process


@pytest.fixture
def cli(server: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    """The command line against a real server."""
    return CommandLine(capfdbinary, server.address)


@pytest.fixture
def offline(capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    """The command line without a server."""
    return CommandLine(capfdbinary)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree of files."""
    root = tmp_path / "tree"
    for name, content in {
        "a.txt": b"alpha",
        "empty.txt": b"",
        "pack/one.py": b"one = 1\n",
        "pack/two.py": b"two = 2\n" * 100_000,
        "pack/deep/three.py": b"three = 3\n",
        "pack/__pycache__/one.pyc": b"never",
        ".hidden/secret": b"never",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root
