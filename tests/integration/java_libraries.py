"""What Java programs of tests need, fetched once by Maven into a cache directory outside the checkout.

    <cache>/segmentstore/class-path-<digest of pom.xml>.txt    the class path

<cache> is $XDG_CACHE_HOME or ~/.cache. A name is given last, so that an interrupted preparation is done again.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.kept_tools import made_by_one

_FETCH_SECONDS = 600


def cache_directory() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "segmentstore"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def missing(sentence: str) -> None:
    """Nothing is proven without the client: said by name, and in CI it is a failure."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def require_maven(what: str) -> None:
    """`what` was not done without it."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            missing(f"{tool} is missing: {what}; install a JDK of release 17 or later and Maven")


def class_path(pom: Path) -> str:
    """Of a pom's dependencies, downloaded if need be."""
    kept = cache_directory() / f"class-path-{digest([pom])}.txt"
    with made_by_one(kept):
        if not kept.exists():
            with TemporaryDirectory() as directory:
                found = Path(directory) / "path"
                goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
                run(["mvn", "--quiet", "--batch-mode", "--file", str(pom), *goal])
                kept.with_suffix(".new").write_text(found.read_text())
            kept.with_suffix(".new").rename(kept)
    return kept.read_text().strip()


def digest(files: Sequence[Path]) -> str:
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()[:16]


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    assert done.returncode == 0, f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}"
