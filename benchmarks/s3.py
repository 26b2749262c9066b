"""S3: `s3_endpoint`, our endpoint beside versitygw and MinIO, and `s3_drain`, a drain into S3 beside bare puts.

- `s3_endpoint`: the same client library, puts and gets of three sizes, 16 in flight. The servers run at once, each in a
  process and on a directory of its own (peers are built by `go install`), and take turns: a slow moment of the machine
  hits all. What is promised is not the same: our puts are synced to the disk before they are answered and every read
  checks its bytes; versitygw leaves both to the file system, MinIO checks what it reads.
- `s3_drain`, against versitygw: rounds of incompressible bytes published by the container's storage, beside put_object
  of the client library for objects of exactly the sizes that the drain put, as many at once as the drain has. And
  obstore, where it is installed (`pip install obstore`), beside the client library: also by CPU second of this process,
  since client and server share the machine.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig

from benchmarks.tier2 import open_storage, publish_rate
from benchmarks.tier2_care import BilledObjectStore
from benchmarks.workbench import Row, median, print_rows, row, seconds_of_calls
from segmentstore.contracts.identifiers import BufferView
from segmentstore.demo.s3_gateway import CACHE, gateway_command, gateway_environment
from segmentstore.runtime.local_processes import free_ports
from segmentstore.runtime.process import freeze_long_lived_objects, loop_factory, tune_for_serving
from tests.tier2.object_stores.s3.real_server import gateway, wait_for
from tier2.object_stores.s3.s3_object_store import S3ObjectStore
from tier2.object_stores.s3.settings import S3Settings

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
    (port,) = free_ports(1)
    environment = {**os.environ, **gateway_environment(ACCESS_KEY, SECRET_KEY)}
    process = subprocess.Popen(
        gateway_command(gateway(), f"127.0.0.1:{port}", Path(directory)),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for(port, process)
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
    (port,), program = free_ports(1), minio()
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
    wait_for(port, process)
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


ENDPOINT_SIZES = (("1 KB", 1 << 10, 480), ("100 KB", 100 << 10, 240), ("8 MB", 8 << 20, 32))
"""Name, bytes, and operations of one round."""


async def rate(operations: int, operation: Callable[[int], Awaitable[None]]) -> float:
    """Operations per second with CONCURRENT in flight."""
    return operations / await seconds_of_calls(operations, CONCURRENT, operation)


async def put_and_get_rates(
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


async def compare_endpoints(rounds: int, scale: float) -> list[Row]:
    found: dict[tuple[str, str, str], list[float]] = {}
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(server("ours", start_ours)),
            await stack.enter_async_context(server("versitygw", start_gateway)),
        ]
        if minio() is not None:
            servers.append(await stack.enter_async_context(server("MinIO", start_minio)))
        for round_number in range(rounds):
            turn = round_number % len(servers)
            for title, size, operations in ENDPOINT_SIZES:
                count = max(CONCURRENT, int(operations * scale))
                for one in (*servers[turn:], *servers[:turn]):
                    puts, gets = await put_and_get_rates(one, size, count, round_number)
                    found.setdefault((one.name, "put", title), []).append(puts)
                    found.setdefault((one.name, "get", title), []).append(gets)
    return [
        row(
            f"{verb} {title}, {CONCURRENT} in flight, beside {peer.name}",
            median(found["ours", verb, title]),
            "1/s",
            median(found[peer.name, verb, title]),
        )
        for peer in servers[1:]
        for title, _, _ in ENDPOINT_SIZES
        for verb in ("put", "get")
    ]


def s3_endpoint(rounds: int = 3, scale: float = 1.0) -> list[Row]:
    rows = asyncio.run(compare_endpoints(rounds, scale))
    print_rows(rows)
    return rows


DRAIN_ROUNDS = 3
PUBLICATIONS = 3
PUBLICATION_BYTES = 128 << 20
CLIENT_SIZES = (("1 KB", 1 << 10, 320), ("8 MB", 8 << 20, 32))
"""Name, bytes, and operations of one round."""

Operation = Callable[[int], Awaitable[None]]


class SizedObjectStore(BilledObjectStore):
    """Also notes how large the objects are, and how many puts are under way at most."""

    def __init__(self, store: S3ObjectStore) -> None:
        super().__init__(store)
        self.sizes: list[int] = []
        self.under_way = self.under_way_max = 0

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.sizes.append(sum(len(buffer) for buffer in content))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            await super().put(key, content)
        finally:
            self.under_way -= 1


async def drain(
    one: Server, content: memoryview, number: int, executor: ThreadPoolExecutor
) -> tuple[float, SizedObjectStore]:
    """Bytes per second, and what was put."""
    store = S3ObjectStore(
        settings=S3Settings(bucket=BUCKET, prefix=f"drain-{number}", endpoint_url=one.url),
        random=Random(number),
        executor=executor,
    )
    await store.start()
    sized = SizedObjectStore(store)
    storage = await open_storage(sized, executor)
    sized.sizes.clear()
    speed = await publish_rate(storage, content, PUBLICATIONS)
    await storage.close()
    await store.close()
    return speed, sized


async def bare(one: Server, content: memoryview, sizes: Sequence[int], at_once: int) -> float:
    """Bytes per second of the client library alone."""

    async def put(number: int) -> None:
        # A copy, as a program that uploads would have: the library takes no views.
        body = bytes(content[: sizes[number]])
        await one.client.put_object(Bucket=BUCKET, Key=f"bare/{number}", Body=body)

    return sum(sizes) / await seconds_of_calls(len(sizes), at_once, put)


async def compare_drain(one: Server, executor: ThreadPoolExecutor) -> list[Row]:
    content = memoryview(os.urandom(PUBLICATION_BYTES))
    drained: list[float] = []
    limits: list[float] = []
    for number in range(DRAIN_ROUNDS):
        speed, sized = await drain(one, content, number, executor)
        drained.append(speed)
        limits.append(await bare(one, content, sized.sizes, sized.under_way_max))
    # Each round beside the bare puts that followed it: the machine is another one a minute later.
    ratio = median([speed / limit for speed, limit in zip(drained, limits, strict=True)])
    limit = median(limits)
    return [row("drain into S3, beside bare puts", ratio * limit / 1e6, "MB/s", limit / 1e6)]


def operations_of(one: Server, size: int) -> dict[str, tuple[Operation, Operation]]:
    """Put and get by each client library."""
    body = os.urandom(size)

    async def put(number: int) -> None:
        await one.client.put_object(Bucket=BUCKET, Key=f"a/{size}/{number}", Body=body)

    async def get(number: int) -> None:
        answer = await one.client.get_object(Bucket=BUCKET, Key=f"a/{size}/{number}")
        async with answer["Body"] as stream:
            assert len(await stream.read()) == size, "a short read"

    found: dict[str, tuple[Operation, Operation]] = {"aioboto3": (put, get)}
    try:
        import obstore
        from obstore.store import S3Store
    except ImportError:
        return found
    store: Any = S3Store(
        BUCKET,
        endpoint=one.url,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region=REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    async def rust_put(number: int) -> None:
        await obstore.put_async(store, f"b/{size}/{number}", body, use_multipart=False)

    async def rust_get(number: int) -> None:
        answer = await obstore.get_async(store, f"b/{size}/{number}")
        assert len(await answer.bytes_async()) == size, "a short read"

    return {**found, "obstore": (rust_put, rust_get)}


async def compare_clients(one: Server) -> list[Row]:
    rows: list[Row] = []
    for title, size, count in CLIENT_SIZES:
        clients = operations_of(one, size)
        if "obstore" not in clients:
            return rows
        rates: dict[tuple[str, int], list[float]] = {}
        per_cpu: dict[tuple[str, int], list[float]] = {}
        for _ in range(DRAIN_ROUNDS):
            for name, operations in clients.items():
                for verb, operation in enumerate(operations):
                    cpu = time.process_time()
                    rates.setdefault((name, verb), []).append(await rate(count, operation))
                    used = time.process_time() - cpu
                    per_cpu.setdefault((name, verb), []).append(count / used)
        for verb, word in enumerate(("put", "get")):
            for what, found in (("1/s", rates), ("1/CPU-s", per_cpu)):
                rust, ours = median(found["obstore", verb]), median(found["aioboto3", verb])
                rows.append(row(f"{word} {title} by obstore, beside aioboto3", rust, what, ours))
    return rows


async def measure_drain() -> list[Row]:
    tune_for_serving()
    freeze_long_lived_objects()
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    with ThreadPoolExecutor(max_workers=6) as executor:
        async with server("versitygw", start_gateway) as one:
            return [*await compare_drain(one, executor), *await compare_clients(one)]


def s3_drain() -> list[Row]:
    # On the loop that serving processes run on.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(measure_drain())
    print_rows(rows)
    return rows
