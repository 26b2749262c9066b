"""versitygw, a real S3 gateway over a file system: built by `go install` into a cache outside the checkout, once."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import aioboto3
import pytest

from tests.kept_tools import made_by_one
from tests.tier2.object_stores.s3.conftest import free_port

PACKAGE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "segmentstore-tests" / "go"
_NUMBERS = count(1)


def gateway() -> Path:
    program = CACHE / "versitygw"
    with made_by_one(program):
        if not program.exists():
            build(program)
    return program


def build(program: Path) -> None:
    go = shutil.which("go")
    if go is None:
        sentence = "versitygw, the real S3 server of these tests, is built with Go: install Go (apt install golang)"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    environment = {**os.environ, "GOBIN": str(program.parent)}
    subprocess.run([go, "install", PACKAGE], check=True, env=environment, cwd=program.parent)


@pytest.fixture(scope="module")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program, port = gateway(), free_port()
    directory = tmp_path_factory.mktemp("gateway")
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": "testkey",
        "ROOT_SECRET_KEY": "testsecret1",
    }
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(directory)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int) -> None:
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the gateway did not start")


async def new_bucket(url: str) -> str:
    """The name of a bucket that was made there, with the credentials of the environment."""
    name = f"bucket-{next(_NUMBERS)}"
    async with aioboto3.Session().client("s3", endpoint_url=url, region_name="us-east-1") as client:
        await client.create_bucket(Bucket=name)
    return name
