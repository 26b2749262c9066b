"""porcupine, a checker of linearizability written by others in Go, with our models: built once into a cache."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.integration.java_libraries import cache_directory, missing
from tests.kept_tools import made_by_one
from tests.linearizability.operation import Operation

SOURCES = Path(__file__).parent / "porcupine"
_SECONDS_MAX = 20.0
"""For one history."""


def referee() -> Path:
    """The program."""
    files = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]
    program = cache_directory() / f"porcupine-{digest}"
    with made_by_one(program):
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                missing("porcupine was not asked: it is built with Go (apt install golang)")
            subprocess.run([go or "go", "build", "-o", str(program), "."], check=True, cwd=SOURCES)
    return program


def verdicts(histories: Sequence[Sequence[Operation]]) -> list[str]:
    """right, wrong or undecided, of each history; each has one target."""
    lines = "".join(json.dumps([each.as_json() for each in one]) + "\n" for one in histories)
    done = subprocess.run(
        [str(referee()), str(_SECONDS_MAX)], input=lines, check=True, capture_output=True, text=True
    )
    found = done.stdout.split()
    assert len(found) == len(histories), done.stderr
    return found
