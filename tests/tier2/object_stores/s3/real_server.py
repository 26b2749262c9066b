"""versitygw, a real S3 gateway over a file system, as the tests start it: with credentials and buckets of theirs."""

import os
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aioboto3
import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.demo.s3_gateway import built_gateway, gateway_command, gateway_environment
from segmentstore.runtime.local_processes import is_listening
from tests.held_ports import bound_sockets, ports_of

_NUMBERS = count(1)


def gateway() -> Path:
    try:
        return built_gateway()
    except InvalidRequestError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = gateway()
    directory = tmp_path_factory.mktemp("gateway")
    log = tmp_path_factory.mktemp("gateway-log") / "log"
    environment = {**os.environ, **gateway_environment("testkey", "testsecret1")}
    # Held by a socket that never listens, so that no other process is given the port before the server has it.
    (holder,) = bound_sockets(1)
    (port,) = ports_of([holder])
    command = gateway_command(program, f"127.0.0.1:{port}", directory)
    with holder:
        with log.open("wb") as said:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        try:
            wait_for(port, process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def wait_for(port: int, process: "subprocess.Popen[Any]", log: Path | None = None) -> None:
    """However long its start takes: a test has its own end."""
    while not is_listening(port):
        said = "" if log is None else log.read_text()[-2000:]
        assert process.poll() is None, f"the server did not start: {said}"
        time.sleep(0.05)


async def new_bucket(url: str) -> str:
    """The name of a bucket that was made there, with the credentials of the environment."""
    name = f"bucket-{next(_NUMBERS)}"
    async with aioboto3.Session().client("s3", endpoint_url=url, region_name="us-east-1") as client:
        await client.create_bucket(Bucket=name)
    return name
