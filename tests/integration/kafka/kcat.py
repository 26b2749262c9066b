"""kcat 1.7 over librdkafka 2.0, both of Debian: a client that decides by exact versions of each call.

It is the one client that comes neither with pip nor with Maven: `apt install kcat`, which `.ci/run` does. Without it
its tests are skipped, and the last lines of `make test` name them.
"""

import shutil
import subprocess

import pytest

_SECONDS_MAX = 300
_METADATA_SECONDS_MAX = 120
"""Its own are five, which a busy machine may stand still."""


def require_kcat() -> None:
    """Skips the test where it is not installed."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt install kcat")


def kcat(bootstrap: str, *words: str, given: str = "") -> str:
    """What it prints, of what it is given."""
    command = ["kcat", "-b", bootstrap, "-m", str(_METADATA_SECONDS_MAX), *words]
    done = subprocess.run(
        command, input=given.encode(), capture_output=True, timeout=_SECONDS_MAX, check=True
    )
    return done.stdout.decode()
