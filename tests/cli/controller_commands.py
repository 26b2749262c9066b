"""The nouns that need a controller, against one real server."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from segmentstore.client import ClientSettings
from segmentstore.client import store as module
from tests.cli.command_line import CommandLine, Result


@pytest.fixture(autouse=True)
def no_server_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """For files that import it: a server that a busy machine holds up for some seconds is not taken for dead, or what
    may not be sent twice has an unknown outcome."""
    settings = ClientSettings(silence_seconds=60.0)
    monkeypatch.setattr(module, "connect", partial(module.connect, settings=settings))


@dataclass
class ControllerCommands:
    """`segmentstore NOUN VERB ... --controller`."""

    cli: CommandLine
    address: str
    folder: Path

    def __call__(self, *arguments: str, lines: bytes | None = None) -> Result:
        """Run one command line; `lines` become a file that is its last argument."""
        if lines is None:
            return self.cli(*arguments, "--controller", self.address)
        path = self.folder / "lines"
        path.write_bytes(lines)
        return self.cli(*arguments, str(path), "--controller", self.address)
