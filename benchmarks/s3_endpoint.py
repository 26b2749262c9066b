"""The S3 endpoint beside versitygw, an S3 gateway over a file system: the same client, the same disk, the same run.

16 requests in flight, objects of 1 KB, 100 KB and 8 MB, put and get. Each server has a process of its own, the client
(aioboto3) a third; rounds alternate, so that all see the same machine. What is compared is not the same promise: our
puts are synced to the disk before they are answered and every read checks its bytes, the gateway leaves both to the
file system.

    python -m benchmarks.s3_endpoint [--rounds 3] [--scale 1.0]
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig

from benchmarks.workbench import Row, median, print_rows, row
from tests.tier2.object_stores.s3.conftest import free_port
from tests.tier2.object_stores.s3.test_real_server import gateway, wait_for

CONCURRENT = 16
ACCESS_KEY, SECRET_KEY = "testkey", "testsecret1"
BUCKET = "benchmark"
SIZES = (("1 KB", 1 << 10, 480), ("100 KB", 100 << 10, 240), ("8 MB", 8 << 20, 32))
"""Name, bytes, and operations of one round."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that is measured."""

    name: str
    url: str
    client: Any  # the client library makes its classes at run time


def start_ours(directory: str) -> tuple[subprocess.Popen[str], str]:
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


def start_gateway(directory: str) -> tuple[subprocess.Popen[str], str]:
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


@asynccontextmanager
async def server(
    name: str, start: Callable[[str], tuple[subprocess.Popen[str], str]]
) -> AsyncIterator[Server]:
    """A server on a directory of its own."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="segmentstore-bench-"))
        process, url = start(str(Path(directory)))
        try:
            client = await stack.enter_async_context(
                aioboto3.Session().client(
                    "s3",
                    endpoint_url=url,
                    region_name="us-east-1",
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


async def rate(operations: int, operation: Callable[[int], Awaitable[None]]) -> float:
    """Operations per second with CONCURRENT in flight."""
    numbers = iter(range(operations))

    async def worker() -> None:
        for number in numbers:
            await operation(number)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENT):
            tasks.create_task(worker())
    return operations / (time.perf_counter() - started)


async def measure(
    one: Server, size: int, operations: int, round_number: int
) -> tuple[float, float]:
    """Puts and gets per second. Every object has bytes of its own, so that nothing is deduplicated."""
    filler = os.urandom(size)

    async def put(number: int) -> None:
        front = b"%08d%08d" % (round_number, number)
        body = front + filler[len(front) :]
        await one.client.put_object(Bucket=BUCKET, Key=f"{size}/{number}", Body=body)

    async def get(number: int) -> None:
        answer = await one.client.get_object(Bucket=BUCKET, Key=f"{size}/{number}")
        async with answer["Body"] as stream:
            content = await stream.read()
        assert len(content) == size, f"read={len(content)} stored={size}"

    return await rate(operations, put), await rate(operations, get)


async def compare(rounds: int, scale: float) -> list[Row]:
    found: dict[tuple[str, str, str], list[float]] = {}
    async with (
        server("ours", start_ours) as ours,
        server("versitygw", start_gateway) as peer,
    ):
        for round_number in range(rounds):
            pair = (ours, peer) if round_number % 2 == 0 else (peer, ours)
            for title, size, operations in SIZES:
                count = max(CONCURRENT, int(operations * scale))
                for one in pair:
                    puts, gets = await measure(one, size, count, round_number)
                    found.setdefault((one.name, "put", title), []).append(puts)
                    found.setdefault((one.name, "get", title), []).append(gets)
    return [
        row(
            f"{verb} {title}, {CONCURRENT} in flight, beside versitygw",
            median(found["ours", verb, title]),
            "1/s",
            median(found["versitygw", verb, title]),
        )
        for title, _, _ in SIZES
        for verb in ("put", "get")
    ]


def main(rounds: int = 3, scale: float = 1.0) -> list[Row]:
    rows = asyncio.run(compare(rounds, scale))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.scale)
