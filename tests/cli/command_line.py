"""Runs the command line in this process and catches what it prints."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from segmentstore.cli.main import run


@dataclass(frozen=True)
class Result:
    """What one command left behind."""

    exit_code: int
    content: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of `-o json`."""
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.rows
        return row


class CommandLine:
    """`segmentstore ...` against one server."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], server: str = "") -> None:
        self.capture = capture
        self._server = server

    def __call__(self, *arguments: str) -> Result:
        """Run one command line."""
        self.capture.readouterr()
        code = run(list(arguments))
        captured = self.capture.readouterr()
        return Result(code, captured.out, captured.err.decode())

    def segment(self, verb: str, *arguments: str) -> Result:
        """`segmentstore segment VERB ... --server`."""
        return self("segment", verb, *arguments, "--server", self._server)

    def load(self, *arguments: str) -> Result:
        """`segmentstore load ... --server --quiet -o json`."""
        return self("load", *arguments, "--server", self._server, "--quiet", "-o", "json")
