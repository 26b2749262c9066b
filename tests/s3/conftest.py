"""An endpoint in this loop, or in a process of its own, and boto3 as its client."""

import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import boto3
import pytest
from botocore.config import Config

from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.s3.authentication import Credentials
from segmentstore.s3.endpoint import open_endpoint
from segmentstore.s3.settings import EndpointSettings
from tests.sim.loop_factories import virtual_time_in
from tier2.volumes.settings import VolumeSettings

pytest_asyncio_loop_factories = virtual_time_in("test_silent_bodies.py")

_NUMBERS = count(1)
KEYS = Credentials("testkey", "testsecret1")


@asynccontextmanager
async def endpoint(
    directory: Path, settings: EndpointSettings, volumes: VolumeSettings | None = None
) -> AsyncIterator[str]:
    """The URL of an endpoint in this loop."""
    async with open_endpoint(
        str(directory),
        credentials=KEYS,
        files=SystemFileSystem(),
        wall_clock=SystemWallClock(),
        random=Random(7),
        settings=settings,
        volume_settings=volumes or VolumeSettings(),
    ) as server:
        yield "http://{}:{}".format(*server.address)


def client_of(url: str, *, secret: str = KEYS.secret_key, **config: object) -> Any:
    """boto3 makes its classes at run time."""
    return _session().client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


@functools.cache
def _session() -> Any:
    """It parses megabytes that describe AWS's services; clients have nothing else in common."""
    return boto3.session.Session()


class Process:
    """`segmentstore s3` as users start it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None
        self.ready_line = ""

    @property
    def url(self) -> str:
        return self.ready_line.split()[1]

    def start(self, *, port: int = 0) -> str:
        environment = {
            **os.environ,
            "SEGMENTSTORE_S3_ACCESS_KEY": KEYS.access_key,
            "SEGMENTSTORE_S3_SECRET_KEY": KEYS.secret_key,
        }
        command = [sys.executable, "-m", "segmentstore.cli", "s3", "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            [*command, "--data", str(self.directory)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line.startswith("ready "), self.ready_line
        return self.url

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._end()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        assert self.process is not None
        code = self.process.wait(120)  # its last writes may wait for a busy disk
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    client: Any


@pytest.fixture(scope="session")
def session_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    process = Process(tmp_path_factory.mktemp("endpoint"))
    url = process.start()
    client = client_of(url)
    yield Endpoint(url, client)
    client.close()
    assert process.stop() == 0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Not started; killed in the end if a test left it running."""
    process = Process(tmp_path / "data")
    yield process
    if process.process is not None:
        process.kill()


@pytest.fixture
def url(session_endpoint: Endpoint) -> str:
    return session_endpoint.url


@pytest.fixture
def client(session_endpoint: Endpoint) -> Any:
    return session_endpoint.client


@pytest.fixture
def bucket(client: Any) -> str:
    name = f"bucket-{next(_NUMBERS)}"
    client.create_bucket(Bucket=name)
    return name
