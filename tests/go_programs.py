"""Programs of tests in Go: built once for all runs, from their sources and what their go.sum pins."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.integration.java_libraries import cache_directory, missing
from tests.kept_tools import made_by_one


def go_program(sources: Path, *, name: str, what: str) -> Path:
    """The program of the package in that directory. `what` was not done without Go, which is said by name."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(sources.iterdir())))
    program = cache_directory() / f"{name}-{digest.hexdigest()[:16]}"
    with made_by_one(program):
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                missing(f"go is missing: {what} (apt install golang)")
            subprocess.run([go or "go", "build", "-o", str(program), "."], check=True, cwd=sources)
    return program
