"""Servers that speak S3, each in a process and on a directory of its own: ours, and peers built by `go install`."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig

from tests.tier2.object_stores.s3.conftest import free_port
from tests.tier2.object_stores.s3.real_server import CACHE, gateway, wait_for

CONCURRENT = 16
ACCESS_KEY, SECRET_KEY = "testkey", "testsecret1"
REGION = "us-east-1"
BUCKET = "benchmark"
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"

StartServer = Callable[[str], tuple["subprocess.Popen[str]", str]]
"""Starts a server on a directory: its process and its address."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that is measured."""

    name: str
    url: str
    client: Any  # the client library makes its classes at run time


def start_ours(directory: str) -> tuple["subprocess.Popen[str]", str]:
    environment = {
        **os.environ,
        "SEGMENTSTORE_S3_ACCESS_KEY": ACCESS_KEY,
        "SEGMENTSTORE_S3_SECRET_KEY": SECRET_KEY,
    }
    command = [sys.executable, "-m", "segmentstore.cli", "s3", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data", directory],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[1]


def start_gateway(directory: str) -> tuple["subprocess.Popen[str]", str]:
    port = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    process = subprocess.Popen(
        [str(gateway()), "--port", f"127.0.0.1:{port}", "--quiet", "posix", directory],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for(port)
    return process, f"http://127.0.0.1:{port}"


def minio() -> Path | None:
    """The program, built once; None where it cannot be built."""
    program = CACHE / "minio"
    go = shutil.which("go")
    if program.exists() or go is None:
        return program if program.exists() else None
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(CACHE)}
    built = subprocess.run([go, "install", MINIO], check=False, env=environment, cwd=CACHE)
    return program if built.returncode == 0 else None


def start_minio(directory: str) -> tuple["subprocess.Popen[str]", str]:
    port, program = free_port(), minio()
    assert program is not None, "MinIO is measured only where it can be built"
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    process = subprocess.Popen(
        [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", directory],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for(port)
    return process, f"http://127.0.0.1:{port}"


@asynccontextmanager
async def server(name: str, start: StartServer) -> AsyncIterator[Server]:
    """A server on a directory of its own, with a bucket and a client."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="segmentstore-bench-"))
        process, url = start(str(Path(directory)))
        try:
            client = await stack.enter_async_context(
                aioboto3.Session().client(
                    "s3",
                    endpoint_url=url,
                    region_name=REGION,
                    aws_access_key_id=ACCESS_KEY,
                    aws_secret_access_key=SECRET_KEY,
                    config=AioConfig(
                        max_pool_connections=CONCURRENT,
                        request_checksum_calculation="when_required",
                        response_checksum_validation="when_required",
                        s3={"addressing_style": "path", "payload_signing_enabled": False},
                    ),
                )
            )
            await client.create_bucket(Bucket=BUCKET)
            yield Server(name, url, client)
        finally:
            process.terminate()
            process.communicate(timeout=30)
