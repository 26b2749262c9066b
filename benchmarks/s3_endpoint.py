"""Our S3 endpoint beside versitygw and MinIO: the same client library, puts and gets of three sizes, 16 in flight.

The servers run at once, each in a process of its own, and take turns: a slow moment of the machine hits all. What is
promised is not the same: our puts are synced to the disk before they are answered and every read checks its bytes;
versitygw leaves both to the file system, MinIO checks what it reads.

    python -m benchmarks.s3_endpoint [--rounds 3] [--scale 1.0]
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.s3_servers import (
    BUCKET,
    CONCURRENT,
    Server,
    minio,
    server,
    start_gateway,
    start_minio,
    start_ours,
)
from benchmarks.workbench import Row, median, print_rows, row

SIZES = (("1 KB", 1 << 10, 480), ("100 KB", 100 << 10, 240), ("8 MB", 8 << 20, 32))
"""Name, bytes, and operations of one round."""


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
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(server("ours", start_ours)),
            await stack.enter_async_context(server("versitygw", start_gateway)),
        ]
        if minio() is not None:
            servers.append(await stack.enter_async_context(server("MinIO", start_minio)))
        for round_number in range(rounds):
            turn = round_number % len(servers)
            for title, size, operations in SIZES:
                count = max(CONCURRENT, int(operations * scale))
                for one in (*servers[turn:], *servers[:turn]):
                    puts, gets = await measure(one, size, count, round_number)
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
