"""One process beside two: the same load of events on stores of 1 and 2 processes in turn, and the hop to the volumes.

The load is that of one client of our own, which writes events of 1 KB to a stream of eight segments. Each row has the
figure of two processes and that of one; CPU is in cores over the run, of the client and of all processes of the server.
Where client and servers share the cores, the sum of the two rows of CPU says whether there was anything to gain.

The hop is a put and a whole get of 8 MB on volumes in this process, and on the same volumes behind a socket.
"""

import argparse
import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import ScalingPolicy, StreamConfig, connect
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.shared_object_store import ObjectStoreServer, SharedObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.volumes.settings import VolumeSettings

EVENT = bytes(1000)
SEGMENTS = 8
OBJECT_BYTES = 8 << 20
OBJECTS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one store."""

    events_per_second: float
    client_cores: float
    server_cores: float


async def load(server: ServerProcess, *, processes: int, seconds: float) -> Run:
    """As many events as are acknowledged in the seconds."""
    pids = [server.process_id]
    if processes > 1:
        async with HttpClient(server.status_address) as status:
            health = await status.health()
        pids += [
            value
            for name, value in health.items()
            if name.endswith("process_id") and isinstance(value, int)
        ]
    words = dict(word.partition("=")[::2] for word in server.ready_line.split())
    async with connect(f"tcp://{words['controller']}") as store:
        await store.scope("bench").create()
        stream = store.stream("bench/events")
        await stream.create(StreamConfig(ScalingPolicy.fixed(SEGMENTS)))
        began, count = time.perf_counter(), 0
        own, servers = time.process_time(), sum(map(cpu_seconds, pids))
        async with stream.writer() as writer:
            while time.perf_counter() < began + seconds:
                for _ in range(100):
                    await writer.write(EVENT, key=str(count % 64))
                    count += 1
        took = time.perf_counter() - began
        return Run(
            count / took,
            (time.process_time() - own) / took,
            (sum(map(cpu_seconds, pids)) - servers) / took,
        )


def cpu_seconds(pid: int) -> float:
    """Of a process so far, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_once(processes: int, *, seconds: float) -> Run:
    with (
        TemporaryDirectory(prefix="segmentstore-bench-") as directory,
        ServerProcess(Path(directory) / "data", ["--processes", str(processes)]) as server,
    ):
        found = asyncio.run(load(server, processes=processes, seconds=seconds))
        server.terminate()
        return found


async def put_and_get(store: ObjectStore, prefix: str) -> tuple[float, float]:
    """Median milliseconds of a put, and of a get."""
    content = os.urandom(OBJECT_BYTES)
    puts, gets = [], []
    for number in range(OBJECTS):
        began = time.perf_counter()
        await store.put(f"{prefix}/{number}", [content])
        put = time.perf_counter()
        await store.get(f"{prefix}/{number}")
        puts.append((put - began) * 1000)
        gets.append((time.perf_counter() - put) * 1000)
    return median(puts), median(gets)


@asynccontextmanager
async def open_volumes(directory: str) -> AsyncIterator[LateVolumes]:
    volumes = LateVolumes(
        f"{directory}/tier2",
        files=SystemFileSystem(),
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        settings=VolumeSettings(),
    )
    await volumes.start()
    try:
        yield volumes
    finally:
        await volumes.close()


async def measure_hop() -> list[Row]:
    """Server and client share this process and its loop: what the hop costs in all, not what it costs a node."""
    with TemporaryDirectory(prefix="segmentstore-bench-") as directory:
        async with open_volumes(directory) as volumes:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(f"{directory}/objects")
            listening.listen()
            server = ObjectStoreServer(volumes)
            await server.start(listening)
            shared = SharedObjectStore(f"{directory}/objects")
            try:
                inside = await put_and_get(volumes, "inside")
                behind = await put_and_get(shared, "behind")
            finally:
                await shared.close()
                await server.close()
    return [
        row(
            "put 8 MB through the socket, beside volumes in the process", behind[0], "ms", inside[0]
        ),
        row(
            "get 8 MB through the socket, beside volumes in the process", behind[1], "ms", inside[1]
        ),
    ]


def main(*, seconds: float = 5.0, rounds: int = 3) -> list[Row]:
    """Measure, print and return the rows."""
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, found in runs.items():
            found.append(run_once(processes, seconds=seconds))
    one, two = runs[1], runs[2]
    rows = [
        row(
            "write 1 KB to 8 segments, 2 processes beside 1",
            median([each.events_per_second for each in two]),
            "events/s",
            median([each.events_per_second for each in one]),
        ),
        row(
            "CPU of the client, 2 processes beside 1",
            median([each.client_cores for each in two]),
            "cores",
            median([each.client_cores for each in one]),
        ),
        row(
            "CPU of the servers, 2 processes beside 1",
            median([each.server_cores for each in two]),
            "cores",
            median([each.server_cores for each in one]),
        ),
        *asyncio.run(measure_hop()),
    ]
    print_rows(rows)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    main(seconds=arguments.seconds, rounds=arguments.rounds)
