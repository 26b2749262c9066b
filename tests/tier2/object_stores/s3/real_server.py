"""versitygw, a real S3 gateway over a file system, as the tests start it: with credentials and buckets of theirs."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import aioboto3
import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.demo.s3_gateway import built_gateway, gateway_command, gateway_environment
from tests.tier2.object_stores.s3.conftest import free_port

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
    program, port = gateway(), free_port()
    directory = tmp_path_factory.mktemp("gateway")
    environment = {**os.environ, **gateway_environment("testkey", "testsecret1")}
    command = gateway_command(program, f"127.0.0.1:{port}", directory)
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
