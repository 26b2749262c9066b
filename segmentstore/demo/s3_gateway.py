"""versitygw, an S3 server over a file system, for trials and tests on one machine: built by Go once, and kept.

    ~/.cache/segmentstore/go/versitygw     where it is kept; $XDG_CACHE_HOME counts

Its buckets are directories, its objects files below them. Conditional puts hold there as on S3 itself.

Invariants:

- What is found is whole: it is built beside its place and renamed. One process builds at a time, others find it built.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.process_role import ProcessRole

PACKAGE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "segmentstore" / "go"
)
REGION: Final = "us-east-1"
_BUILD_SECONDS_MAX: Final = 900
GATEWAY_ROLE: Final = ProcessRole(
    name="s3",
    count=1,
    ports={"port": 7070},
    command=("{versitygw}", "--port", "{host}:{port}", "--quiet", "posix", "{data}"),
)
"""A directory in its own is a bucket."""


def built_gateway(package: str = PACKAGE) -> Path:
    """The program, built unless it is there. Raises InvalidRequestError without Go, or if that fails."""
    program = CACHE / "versitygw"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise InvalidRequestError(
            "go is missing: versitygw, an S3 server, is built with it once (apt install golang)"
        )
    building = CACHE / "building"
    building.mkdir(parents=True, exist_ok=True)
    with (CACHE / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            done = subprocess.run(
                [go, "install", package],
                env={**os.environ, "GOBIN": str(building)},
                cwd=building,
                capture_output=True,
                text=True,
                timeout=_BUILD_SECONDS_MAX,
                check=False,
            )
            if done.returncode != 0:
                raise InvalidRequestError(
                    f"go cannot build versitygw: {done.stderr.strip()[-2000:]}"
                )
            (building / program.name).replace(program)
    return program


def gateway_command(program: Path, address: str, directory: Path) -> list[str]:
    """Serves the directory, which has to be there; its region is REGION."""
    host, _, port = address.rpartition(":")
    place = {"versitygw": str(program), "host": host, "port": port, "data": str(directory)}
    return GATEWAY_ROLE.command_at(place)


def gateway_environment(access_key: str, secret_key: str) -> Mapping[str, str]:
    """What the program wants besides its command."""
    return {"ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
