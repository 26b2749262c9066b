"""A drain into S3 beside bare puts, and the client library beside a Rust-backed one; all against versitygw, in turns.

- Drain: rounds of incompressible bytes published by the container's storage. Beside it: put_object of the client
  library for objects of exactly the sizes that the drain put, as many at once as the drain has.
- obstore, where it is installed (`pip install obstore`): also by CPU second of this process, since client and server
  share the machine.

    python -m benchmarks.s3_drain
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from benchmarks.s3_endpoint import rate
from benchmarks.s3_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    Server,
    server,
    start_gateway,
)
from benchmarks.tier2_care import BilledObjectStore
from benchmarks.tier2_drain import open_storage, publication
from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.storage import DataPiece
from segmentstore.runtime.process import freeze_long_lived_objects, loop_factory, tune_for_serving
from tier2.object_stores.s3.s3_object_store import S3ObjectStore
from tier2.object_stores.s3.settings import S3Settings

ROUNDS = 3
PUBLICATIONS = 3
PUBLICATION_BYTES = 128 << 20
RUN_BYTES = 64 << 10
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
    runs = [content[at : at + RUN_BYTES] for at in range(0, len(content), RUN_BYTES)]
    begin = time.perf_counter()
    for count in range(PUBLICATIONS):
        length = count * len(content)
        await storage.publish(
            publication([(1, "scope/stream/0", length, DataPiece(length, runs))], count + 1)
        )
    speed = PUBLICATIONS * len(content) / (time.perf_counter() - begin)
    await storage.close()
    await store.close()
    return speed, sized


async def bare(one: Server, content: memoryview, sizes: Sequence[int], at_once: int) -> float:
    """Bytes per second of the client library alone."""
    numbers = iter(range(len(sizes)))

    async def worker() -> None:
        for number in numbers:
            # A copy of its own, as whoever uploads has: the library takes no views.
            body = bytes(content[: sizes[number]])
            await one.client.put_object(Bucket=BUCKET, Key=f"bare/{number}", Body=body)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(worker())
    return sum(sizes) / (time.perf_counter() - begin)


async def compare_drain(one: Server, executor: ThreadPoolExecutor) -> list[Row]:
    content = memoryview(os.urandom(PUBLICATION_BYTES))
    drained: list[float] = []
    limits: list[float] = []
    for number in range(ROUNDS):
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
        for _ in range(ROUNDS):
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


async def measure() -> list[Row]:
    tune_for_serving()
    freeze_long_lived_objects()
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    with ThreadPoolExecutor(max_workers=6) as executor:
        async with server("versitygw", start_gateway) as one:
            return [*await compare_drain(one, executor), *await compare_clients(one)]


def main() -> list[Row]:
    # On the loop that serving processes run on.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(measure())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
