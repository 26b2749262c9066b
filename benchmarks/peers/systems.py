"""The systems that are compared, started on free ports and an empty directory, and what the kernel says of them.

- This store and Pravega 0.13.0, which speak one protocol. Both sync every acknowledged byte, both write on to files as
  their Tier 2, both have four containers. This store's log is in files, Pravega's on one bookie in its own process.
- The same two with their logs on three bookies that are processes of their own, three copies of an entry, of which two
  are synced before it is acknowledged.
- This store in two processes, which one parent starts.
- Kafka 4.2.0 on one broker, driven by its own tools. `flush.messages=1` syncs each batch before it is acknowledged,
  which is what this store and Pravega promise.
- The CPU and memory of a server are those of its process and of that one's children. Those of bookies in processes of
  their own, and of their ZooKeeper, are told apart, and so is the CPU of the client, which shares the machine.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import grpc.aio

from benchmarks.peers.cases import (
    OURS,
    OURS_BOOKKEEPER,
    OURS_TWO_PROCESSES,
    PRAVEGA_BOOKKEEPER,
    PRAVEGA_SAME_BOOKIES,
)
from segmentstore.runtime.local_processes import free_ports
from tests.integration.java_libraries import cache_directory, class_path
from tests.integration.pravega_clients.controller_calls import ControllerCalls
from tests.integration.pravega_clients.store_process import StoreProcess
from tests.integration.pravega_clients.toolchain import compiled
from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def family(process_id: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _fields(int(entry.name))
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [process_id]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def cpu_seconds(process_id: int) -> float:
    """User and system time so far."""
    ticks = 0
    for each in family(process_id):
        fields = _fields(each)
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def resident_bytes(process_id: int) -> int:
    pages = 0
    for each in family(process_id):
        pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def _fields(process_id: int) -> list[str]:
    """Of /proc/PID/stat, from the state on: a name may contain anything, a closing bracket too."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()


JAVA = Path(__file__).parent / "java"
CONTAINERS = 4
BOOKIES = 3
BOOKIE_HEAP_MEGABYTES = 512
_READY_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 60.0
_METRICS_SECONDS_MAX = 20.0
_OPEN_FOR_NETTY = ("java.nio", "sun.nio.ch", "java.lang", "java.io")


class Server(Protocol):
    """One that was started."""

    name: str

    @property
    def controller(self) -> str:
        """HOST:PORT."""

    @property
    def process_id(self) -> int: ...

    @property
    def bookie_process_ids(self) -> Sequence[int]:
        """Of bookies that are processes of their own, and of their ZooKeeper."""

    def stop(self) -> None: ...


def java_command(*options: str) -> list[str]:
    """A JVM with Pravega's class path and our programs; the class to run comes next."""
    path = class_path(JAVA / "pom.xml")
    classes = compiled(JAVA / "pom.xml", JAVA / "src")
    logging = f"-Dlogback.configurationFile={JAVA / 'logback.xml'}"
    return ["java", *options, logging, "-classpath", f"{classes}:{path}"]


class Bookies(Protocol):
    """Three on loopback, with a ZooKeeper, in processes of their own; they begin empty."""

    ledgers_path: str

    @property
    def zookeeper_port(self) -> int: ...

    @property
    def process_ids(self) -> Sequence[int]: ...
    def stop(self) -> None: ...


SETTINGS_OF_PRAVEGAS_BOOKIES: Mapping[str, str] = {
    # Entries are sorted in memory and written to the entry logs behind the appends, not on their way.
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "journalMaxGroupWaitMSec": "2",
    "journalMaxSizeMB": "2048",
    "journalPreAllocSizeMB": "16",
    "entryLogSizeLimit": str(1 << 30),
    "flushInterval": "10000",
    "gcWaitTime": "600000",
}
"""Those of its own tests say little: these are BookKeeper's defaults, where the ones of our tests differ from them."""


class EnsembleBookies:
    """Those of `tier1.bookkeeper.local_ensemble`, BookKeeper 4.17.3: a process each.

    They are set as Pravega's are, and have more memory than tests give them: with 256 MB of heap a bookie ends when
    entries of 1 MB come as fast as they can.
    """

    ledgers_path = LEDGERS_PATH

    def __init__(self, directory: Path) -> None:
        self._ensemble = LocalEnsemble.opened(directory / "bookies", bookie_count=BOOKIES)
        self._ensemble.heap_megabytes = BOOKIE_HEAP_MEGABYTES
        self._ensemble.conf = dict(SETTINGS_OF_PRAVEGAS_BOOKIES)
        try:
            asyncio.run(self._ensemble.up())
        except BaseException:
            self.stop()
            raise

    @property
    def zookeeper_port(self) -> int:
        return self._ensemble.zookeeper.port

    @property
    def process_ids(self) -> Sequence[int]:
        return [each.pid for each in (self._ensemble.zookeeper, *self._ensemble.bookies)]

    def stop(self) -> None:
        asyncio.run(self._ensemble.down(number=signal.SIGKILL))


class PravegaBookies:
    """Those that Pravega's own tests start, BookKeeper 4.14.1: all in one process."""

    ledgers_path = "/ledgers-of-the-bookie/ledgers"

    def __init__(self, directory: Path) -> None:
        directory = directory.resolve() / "bookies"
        (directory / "tmp").mkdir(parents=True)
        self.zookeeper_port, *ports = free_ports(1 + BOOKIES)
        memory = f"{BOOKIES * BOOKIE_HEAP_MEGABYTES}m"
        command = pravega_command(
            directory, f"-Xmx{memory}", f"-XX:MaxDirectMemorySize={memory}", main="PravegaBookies"
        )
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(self.zookeeper_port), *map(str, ports)],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                text=True,
            )
        assert self._process.stdout is not None, "stdout is a pipe"
        if not any(line.strip() == "READY" for line in self._process.stdout):
            raise OSError(f"Pravega's bookies did not start; their log is {directory / 'log'}")

    @property
    def process_ids(self) -> Sequence[int]:
        return [self._process.pid]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)
        assert self._process.stdout is not None, "stdout is a pipe"
        self._process.stdout.close()


class OurServer:
    """This store, with its defaults, and its log on bookies if there are some."""

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        name: str = OURS,
        bookies: Bookies | None = None,
    ) -> None:
        self.name = name
        self._bookies = bookies
        if bookies is not None:
            place = f"127.0.0.1:{bookies.zookeeper_port}{bookies.ledgers_path}"
            options = [*options, f"--tier1=bookkeeper://{place}"]
        self._process = StoreProcess(directory / "data", options, environment=compiled_modules())
        self._process.start()

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self._process.controller_port}"

    @property
    def process_id(self) -> int:
        return self._process.process_id

    @property
    def bookie_process_ids(self) -> Sequence[int]:
        return self._bookies.process_ids if self._bookies else ()

    def metrics(self) -> Mapping[str, float]:
        """Of `/metrics`, summed over containers: what is a plain number."""
        address = f"http://127.0.0.1:{self._process.http_port}/metrics"
        with urllib.request.urlopen(address, timeout=_METRICS_SECONDS_MAX) as answer:
            lines = answer.read().decode().splitlines()
        totals: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def restart(self) -> None:
        """An orderly end, and a start that recovers."""
        self._process.terminate()
        self._process.start()

    def stop(self) -> None:
        if self._process.is_running:
            self._process.kill()
        if self._bookies is not None:
            self._bookies.stop()


class PravegaServer:
    """Pravega 0.13.0 in one JVM, with one bookie, or without where it is given others.

    See java/src/peers/PravegaServer.java.
    """

    def __init__(self, directory: Path, *, name: str, bookies: Bookies | None = None) -> None:
        directory = directory.resolve()
        self.name = name
        self._bookies = bookies
        controller, store, zookeeper, bookie = free_ports(4)
        self.controller = f"127.0.0.1:{controller}"
        (directory / "tmp").mkdir(parents=True)
        command = pravega_command(
            directory, "-Xms1g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", main="PravegaServer"
        )
        command.append(str(directory / "data"))
        if bookies is None:
            numbers = [controller, store, zookeeper, bookie, CONTAINERS]
            command += map(str, numbers)
        else:
            numbers = [controller, store, bookies.zookeeper_port, 0, CONTAINERS, BOOKIES]
            command += [*map(str, numbers), bookies.ledgers_path]
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,  # its own log files go wherever it stands
            )

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def bookie_process_ids(self) -> Sequence[int]:
        return self._bookies.process_ids if self._bookies else ()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)
        if self._bookies is not None:
            self._bookies.stop()


def pravega_command(directory: Path, *options: str, main: str) -> list[str]:
    """A JVM for one of Pravega's servers; its arguments come next."""
    return [
        *java_command(
            *options,
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_FOR_NETTY),
            f"-Djava.io.tmpdir={directory / 'tmp'}",
        ),
        f"peers.{main}",
    ]


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of a server since it began, or what they grew by between two moments."""

    seconds: float
    cpu_seconds: float
    cpu_seconds_of_bookies: float
    frames: float = 0.0
    """Entries of our own log, and their bytes."""
    frame_bytes: float = 0.0
    cpu_seconds_of_client: float = 0.0
    idle_seconds: float = 0.0
    """Of all processors of the machine together, when none had anything to run."""

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(
            self.seconds - before.seconds,
            self.cpu_seconds - before.cpu_seconds,
            self.cpu_seconds_of_bookies - before.cpu_seconds_of_bookies,
            self.frames - before.frames,
            self.frame_bytes - before.frame_bytes,
            self.cpu_seconds_of_client - before.cpu_seconds_of_client,
            self.idle_seconds - before.idle_seconds,
        )


def usage(server: Server, client_process_id: int) -> Usage:
    """Now."""
    metrics = server.metrics() if isinstance(server, OurServer) else {}
    container = "segmentstore_container"
    return Usage(
        time.perf_counter(),
        cpu_seconds(server.process_id),
        sum(map(cpu_seconds, server.bookie_process_ids)),
        metrics.get(f"{container}_frames_total", 0.0),
        metrics.get(f"{container}_frame_bytes_total", 0.0),
        cpu_seconds(client_process_id),
        idle_seconds(),
    )


def idle_seconds() -> float:
    """Since the machine began: without work, or waiting for a disk."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICKS_PER_SECOND


@cache
def compiled_modules() -> Mapping[str, str]:
    """Compiles our modules once, as the installation of a package does; the variables with which they are found.

    Without them the server would compile half a thousand files at every start, wherever bytecode is not written.
    """
    variables = {
        "PYTHONPYCACHEPREFIX": str(cache_directory() / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    subprocess.run(
        [sys.executable, "-c", "import segmentstore.cli.main, segmentstore.host.standalone"],
        env={**os.environ, **variables},
        check=True,
    )
    return variables


def start(name: str, directory: Path) -> tuple[Server, float]:
    """(the server, seconds from its start, behind its bookies, until it made a first stream)."""
    directory.mkdir(parents=True)
    compiled_modules()
    bookies = _BOOKIES[name](directory) if name in _BOOKIES else None
    started = time.perf_counter()
    try:
        server = _started(name, directory, bookies)
    except BaseException:
        if bookies is not None:
            bookies.stop()
        raise
    try:
        asyncio.run(wait_until_ready(server.controller))
    except BaseException:
        server.stop()
        raise
    return server, time.perf_counter() - started


_BOOKIES: Mapping[str, Callable[[Path], Bookies]] = {
    OURS_BOOKKEEPER: EnsembleBookies,
    PRAVEGA_BOOKKEEPER: PravegaBookies,
    PRAVEGA_SAME_BOOKIES: EnsembleBookies,
}


def _started(name: str, directory: Path, bookies: Bookies | None) -> Server:
    if name == OURS_TWO_PROCESSES:
        return OurServer(directory, ["--processes=2"], name=name)
    if name in (OURS, OURS_BOOKKEEPER):
        return OurServer(directory, name=name, bookies=bookies)
    return PravegaServer(directory, name=name, bookies=bookies)


async def wait_until_ready(controller: str) -> None:
    """A server is ready when it has made a stream."""
    async with asyncio.timeout(_READY_SECONDS_MAX):
        number = 0
        while True:
            number += 1
            async with ControllerCalls(controller) as calls:
                try:
                    await calls.create("ready", f"s{number}", 1)
                except (grpc.aio.AioRpcError, AssertionError):
                    await asyncio.sleep(0.1)
                else:
                    return


_KAFKA_POM = Path(__file__).parent / "kafka" / "pom.xml"
TOPIC = "synced"
_CLUSTER_ID = "c2VnbWVudHN0b3JlLXBlZQ"
_TOOL_SECONDS_MAX = 150.0
_RESULT = re.compile(r"([\d.]+) records/sec .*?([\d.]+) ms 50th, .*?([\d.]+) ms 99th")

_BROKER_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={directory}/logs
"""


class KafkaBroker:
    """Formatted, started, with one topic of one partition that syncs."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        broker, controller = free_ports(2)
        self._address = f"127.0.0.1:{broker}"
        settings = directory / "server.properties"
        settings.write_text(
            _BROKER_SETTINGS.format(broker=broker, controller=controller, directory=directory)
        )
        kafka_tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings))
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_java("-Xms1g", "-Xmx1g"), "kafka.Kafka", str(settings)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._make_topic()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._address

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, *, size: int, count: int) -> dict[str, float]:
        """One producer as fast as it can, with batches as large as Pravega's client makes them."""
        return produce_records(self._address, TOPIC, size=size, count=count, batch_bytes=262144)

    def _make_topic(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self.create_topic(TOPIC)
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def create_topic(self, topic: str) -> None:
        """Of one partition that syncs before it answers."""
        kafka_tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", self._address, "--create", "--topic", topic),
            *("--partitions", "1", "--replication-factor", "1", "--config", "flush.messages=1"),
        )


def produce_records(
    address: str,
    topic: str,
    *,
    size: int,
    count: int,
    batch_bytes: int | None = None,
    per_second: int = -1,
    warm_up: int = 0,
) -> dict[str, float]:
    """Kafka's own producer, as fast as it can or at a rate; without `batch_bytes` with the defaults of its client.

    The first `warm_up` records of `count` are in no figure.
    """
    batches = (
        ()
        if batch_bytes is None
        else (f"batch.size={batch_bytes}", "linger.ms=1", "buffer.memory=67108864")
    )
    output = kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
        *("--throughput", str(per_second), "--producer-props", f"bootstrap.servers={address}"),
        *("acks=all", *batches),
        *(("--warmup-records", str(warm_up)) if warm_up else ()),
    )
    # With a warm-up the last line is of what came behind it.
    found = _RESULT.search(output.splitlines()[-1])
    assert found is not None, output[-500:]
    rate, p50, p99 = map(float, found.groups())
    return {
        "events_per_second": rate,
        "megabytes_per_second": rate * size / 1e6,
        "p50_ms": p50,
        "p99_ms": p99,
    }


def consume_records(address: str, topic: str, *, count: int) -> dict[str, float]:
    """Kafka's own consumer, from the start of the topic: records a second of its whole run, and of what comes behind
    its joining of a group. A broker waits for more members first: Kafka's 3 s by default, ours half a second."""
    output = kafka_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", address, "--topic", topic, "--num-records", str(count)),
        *("--timeout", "60000"),
    )
    fields = output.splitlines()[-1].split(", ")
    assert int(fields[4]) >= count, output[-500:]
    return {"consumed_per_second": float(fields[5]), "fetched_per_second": float(fields[9])}


def kafka_tool(name: str, *arguments: str) -> str:
    """What one of Kafka's tools prints. Raises CalledProcessError."""
    done = subprocess.run(
        [*_java("-Xms256m", "-Xmx512m"), name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TOOL_SECONDS_MAX,
        check=True,
    )
    return done.stdout.strip()


def _java(*options: str) -> list[str]:
    return ["java", *options, "-classpath", class_path(_KAFKA_POM)]
