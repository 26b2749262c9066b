"""BookKeeper's Java client in this process beside the same client without Python, and beside py4j.

Appends of one size, 64 on their way, to ledgers of 3/3/2 on a local ensemble that is synced and shares the machine.
Each client is a process of its own, warmed up first, and the clients take turns; medians of the rounds are compared.
py4j is measured at 64 KB alone: an argument crosses a socket as text.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from asyncio import Future
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.runtime.process import loop_factory, tune_for_serving
from tier1.bookkeeper.jars import Part, build, class_path
from tier1.bookkeeper.java_client import JavaLedgerClient
from tier1.bookkeeper.jvm import JvmSettings
from tier1.bookkeeper.ledgers import Quorum
from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble

SIZES = (1 << 10, 64 << 10, 1 << 20)
PY4J_SIZE = 64 << 10
IN_FLIGHT = 64
WARM_SECONDS, SECONDS = 4.0, 5.0
ROUNDS = 3
TARGET = 0.9
BOOKIE_HEAP_MEGABYTES = 1024
"""Bookies of 256 MB fail appends of a megabyte at this rate, for want of memory."""
_JVM = JvmSettings()
_JAVA_FLAGS = (
    f"-Xmx{_JVM.heap_bytes_max}",
    f"-XX:MaxDirectMemorySize={_JVM.direct_bytes_max}",
    "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true",
)

Measured = dict[str, float]


def main() -> list[Row]:
    """The rows of `python -m benchmarks bookkeeper`."""
    for part in Part:
        build(part)
    with tempfile.TemporaryDirectory() as directory:
        ensemble = LocalEnsemble.opened(Path(directory) / "ensemble")
        ensemble.heap_megabytes = BOOKIE_HEAP_MEGABYTES
        try:
            asyncio.run(ensemble.up())
            rows = _compared(ensemble.servers)
        finally:
            asyncio.run(ensemble.down())
    print_rows(rows)
    return rows


def _compared(servers: str) -> list[Row]:
    rows: list[Row] = []
    for size in SIZES:
        clients: list[tuple[str, Callable[[str, int], Measured]]] = [
            ("java", _java),
            ("python", _python),
        ]
        if size == PY4J_SIZE:
            clients.append(("py4j", _py4j))
        runs: dict[str, list[Measured]] = {name: [] for name, _ in clients}
        for turn in range(ROUNDS):
            for name, client in clients[turn % 2 :] + clients[: turn % 2]:
                runs[name].append(client(servers, size))
        what = f"{size >> 10} KB"
        java = _median_of(runs["java"], "appends_per_second")
        for name in list(runs)[1:]:
            rate = _median_of(runs[name], "appends_per_second")
            rows.append(
                row(f"{name} {what}, {IN_FLIGHT} in flight, beside java", rate, "1/s", java)
            )
        for measure, unit in (("p50_ms", "ms"), ("p99_ms", "ms"), ("process_us", "us")):
            rows.append(
                row(
                    f"python {what} {measure}, beside java",
                    _median_of(runs["python"], measure),
                    unit,
                    _median_of(runs["java"], measure),
                )
            )
        loop = _median_of(runs["python"], "loop_us")
        rows.append(row(f"python {what}, the loop's thread an append", loop, "us", 0))
        each = [
            python["appends_per_second"] / java["appends_per_second"]
            for java, python in zip(runs["java"], runs["python"], strict=True)
        ]
        print(f"  {what}: python beside java by round: {[round(ratio, 2) for ratio in each]}")
    return rows


def _median_of(runs: list[Measured], measure: str) -> float:
    return median([each[measure] for each in runs])


def _java(servers: str, size: int) -> Measured:
    main_class = "segmentstore.bookkeeper.AppendBenchmark"
    path = ":".join(class_path(Part.CLIENT))
    words = (f"zk+null://{servers}{LEDGERS_PATH}", size, IN_FLIGHT, WARM_SECONDS, SECONDS)
    return _last_line(["java", *_JAVA_FLAGS, "-classpath", path, main_class, *map(str, words)])


def _python(servers: str, size: int) -> Measured:
    return _last_line([sys.executable, "-m", "benchmarks.bookkeeper", "python", servers, str(size)])


def _py4j(servers: str, size: int) -> Measured:
    return _last_line([sys.executable, "-m", "benchmarks.bookkeeper", "py4j", servers, str(size)])


def _last_line(command: list[str]) -> Measured:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


# --- in processes of their own -----------------------------------------------------------------------


async def _measured(
    append: "Callable[[bytes], Future[Any]]", size: int, seconds: float
) -> Measured:
    entry = Random(1).randbytes(size)
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    end = began + seconds

    async def append_in_turn() -> None:
        while (now := clock()) < end:
            await append(entry)
            latencies.append(clock() - now)

    process, thread = _process_seconds(), time.thread_time()
    await asyncio.gather(*(append_in_turn() for _ in range(IN_FLIGHT)))
    elapsed, count = clock() - began, len(latencies)
    latencies.sort()
    return {
        "appends_per_second": count / elapsed,
        "p50_ms": latencies[count // 2] * 1e3,
        "p99_ms": latencies[int(count * 0.99)] * 1e3,
        "process_us": (_process_seconds() - process) / count * 1e6,
        "loop_us": (time.thread_time() - thread) / count * 1e6,
    }


def _process_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _run_python(servers: str, size: int) -> Measured:
    client = await JavaLedgerClient.connect(servers, ledgers_path=LEDGERS_PATH, password=b"")
    found: Measured = {}
    for seconds in (WARM_SECONDS, SECONDS):
        writer = await client.create(Quorum(3, 3, 2), labels={})
        found = await _measured(lambda entry, writer=writer: writer.append([entry]), size, seconds)  # type: ignore[misc]  # a default binds the writer
        await writer.close()
        await client.delete(writer.ledger_id)
    await client.close()
    return found


async def _run_py4j(servers: str, size: int) -> Measured:
    from py4j.java_gateway import (
        CallbackServerParameters,
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    port, process = launch_gateway(
        classpath=":".join(class_path(Part.CLIENT)),
        javaopts=list(_JAVA_FLAGS),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port),
        callback_server_parameters=CallbackServerParameters(
            port=0, daemonize=True, daemonize_connections=True
        ),
    )
    gateway.java_gateway_server.resetCallbackClient(
        gateway.java_gateway_server.getCallbackClient().getAddress(),
        gateway.get_callback_server().get_listening_port(),
    )
    java = gateway.jvm
    values = java.org.apache.bookkeeper.conf.ClientConfiguration()
    values.setMetadataServiceUri(f"zk+null://{servers}{LEDGERS_PATH}")
    values.setThrottleValue(0)
    client = java.org.apache.bookkeeper.client.BookKeeper(values)
    digest = java.org.apache.bookkeeper.client.api.DigestType.CRC32C
    loop = asyncio.get_running_loop()

    class Completed:
        """A java.util.function.BiConsumer."""

        def __init__(self, future: "Future[Any]") -> None:
            self._future = future

        def accept(self, entry: object, error: object) -> None:
            assert error is None, f"an append fails {error}"
            loop.call_soon_threadsafe(self._future.set_result, entry)

        class Java:
            implements = ("java.util.function.BiConsumer",)

    found: Measured = {}
    for seconds in (WARM_SECONDS, SECONDS):
        making = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3)
        making = making.withAckQuorumSize(2).withDigestType(digest).withPassword(b"")
        ledger = making.execute().get()

        def append(entry: bytes, ledger: Any = ledger) -> "Future[Any]":
            future = loop.create_future()
            ledger.appendAsync(entry).whenComplete(Completed(future))
            return future

        found = await _measured(append, size, seconds)
        ledger.close()
        client.newDeleteLedgerOp().withLedgerId(ledger.getId()).execute().get()
    client.close()
    gateway.shutdown()
    process.terminate()
    process.wait()
    return found


if __name__ == "__main__":
    kind, zookeeper, entry_bytes = sys.argv[1:]
    tune_for_serving()
    run = {"python": _run_python, "py4j": _run_py4j}[kind]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(run(zookeeper, int(entry_bytes)))))
