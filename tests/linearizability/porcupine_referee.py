"""porcupine, a checker of linearizability written by others in Go, with our models: built once into a cache."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.go_programs import go_program
from tests.linearizability.operation import Operation

SOURCES = Path(__file__).parent / "porcupine"
_SECONDS_MAX = 20.0
"""For one history."""


def referee() -> Path:
    """The program."""
    return go_program(SOURCES, name="porcupine", what="porcupine was not asked")


def verdicts(histories: Sequence[Sequence[Operation]]) -> list[str]:
    """right, wrong or undecided, of each history; each has one target."""
    lines = "".join(json.dumps([each.as_json() for each in one]) + "\n" for one in histories)
    done = subprocess.run(
        [str(referee()), str(_SECONDS_MAX)], input=lines, check=True, capture_output=True, text=True
    )
    found = done.stdout.split()
    assert len(found) == len(histories), done.stderr
    return found
