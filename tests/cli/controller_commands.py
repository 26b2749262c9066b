"""The nouns that need a controller, against one real server."""

from dataclasses import dataclass
from pathlib import Path

from tests.cli.command_line import CommandLine, Result


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
