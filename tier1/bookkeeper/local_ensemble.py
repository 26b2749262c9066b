"""A BookKeeper cluster on this machine, for tests and trials: one ZooKeeper and some bookies, on loopback alone.

    DIR/ensemble.json       ports, and of each server its pid and when it was started
    DIR/zookeeper/          its data; zookeeper.cfg, zookeeper.log
    DIR/bookie0/ ...        journal and ledgers; bookie0.conf, bookie0.log

Each server is a JVM with a small heap. A bookie is known by its address, so a directory keeps its ports.

Invariants:

- Only processes that were started here are ended: a pid counts together with the start time that was written down.
- up() on a directory with data goes on with it, and starts what does not run.

    python -m tier1.bookkeeper.local_ensemble up DIR
    python -m tier1.bookkeeper.local_ensemble down DIR
    python -m tier1.bookkeeper.local_ensemble kill 2 DIR      bookie 2, by SIGKILL; `restart 2 DIR` starts it again
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError
from tier1.bookkeeper.jars import Part, class_path, require_java

LOOPBACK: Final = "127.0.0.1"
ZOOKEEPER: Final = "zookeeper"
LEDGERS_PATH: Final = "/ledgers"
_START_SECONDS_MAX: Final = 120.0
_END_SECONDS_MAX: Final = 15.0
_LOOK_SECONDS: Final = 0.05
_FLAGS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.eventLoopThreads=2",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.nio",
            "sun.nio.ch",
            "java.lang",
            "java.io",
            "jdk.internal.misc",
            "java.util.zip",
        )
    ),
)


@dataclass(slots=True)
class Server:
    """One process. `started` is what the kernel says of its start; pid 0: it was ended here."""

    name: str
    port: int
    pid: int = 0
    started: int = 0


@dataclass(slots=True)
class LocalEnsemble:
    """The servers of one directory. opened() reads it, up() starts them, down() ends them."""

    directory: Path
    zookeeper: Server
    bookies: list[Server]
    heap_megabytes: int = 256
    is_detached: bool = False
    """Servers outlive the terminal."""
    conf: dict[str, str] = field(default_factory=dict)
    """Settings of bookies that differ from those here."""

    @classmethod
    def opened(
        cls, directory: Path, *, bookie_count: int = 4, ports: Sequence[int] = ()
    ) -> "LocalEnsemble":
        """As written down; of a new directory: with these ports, ZooKeeper's first, or with free ones."""
        directory = directory.resolve()
        record = directory / "ensemble.json"
        if record.exists():
            values = json.loads(record.read_text())
            return cls(
                directory,
                Server(**values["zookeeper"]),
                [Server(**each) for each in values["bookies"]],
                values["heap_megabytes"],
            )
        found = list(ports) or _free_ports(1 + bookie_count)
        bookies = [Server(f"bookie{number}", port) for number, port in enumerate(found[1:])]
        return cls(directory, Server(ZOOKEEPER, found[0]), bookies)

    @property
    def servers(self) -> str:
        """Of ZooKeeper, as clients take them."""
        return f"{LOOPBACK}:{self.zookeeper.port}"

    async def up(self) -> None:
        """Start what does not run. Raises InvalidRequestError if one cannot be started."""
        require_java()
        class_path(Part.SERVERS)
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.start_zookeeper()
        await self._make_cluster()
        for number in range(len(self.bookies)):
            self._start_bookie(number)
        for bookie in self.bookies:
            await self._wait_for(bookie)

    async def down(self, *, number: int = signal.SIGTERM) -> None:
        """End those that run; bookies first. What does not end by the signal is killed."""
        for server in self.bookies:
            self.send(server, number)
        for server in self.bookies:
            await self._wait_for_end(server)
        self.send(self.zookeeper, number)
        await self._wait_for_end(self.zookeeper)

    async def start_zookeeper(self) -> None:
        if not self.runs(self.zookeeper):
            data = self.directory / ZOOKEEPER
            data.mkdir(exist_ok=True)
            path = self.directory / "zookeeper.cfg"
            path.write_text(_lines(_zookeeper_settings(data, self.zookeeper.port)))
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            self._start(self.zookeeper, 128, main, str(path))
        await self._wait_for(self.zookeeper)

    async def restart(self, number: int) -> None:
        """Start a bookie that was ended."""
        self._start_bookie(number)
        await self._wait_for(self.bookies[number])

    async def kill(self, server: Server) -> None:
        """By SIGKILL; it has ended when this returns."""
        self.send(server, signal.SIGKILL)
        await self._wait_for_end(server)

    def send(self, server: Server, number: int) -> None:
        """A signal, if it runs."""
        if self.runs(server):
            os.kill(server.pid, number)

    def runs(self, server: Server) -> bool:
        return server.pid > 0 and _start_time(server.pid) == server.started

    def bookie_directory(self, number: int) -> Path:
        return self.directory / f"bookie{number}"

    def _start_bookie(self, number: int) -> None:
        bookie = self.bookies[number]
        if self.runs(bookie):
            return
        path = self._write_conf(number)
        main = "org.apache.bookkeeper.server.Main"
        self._start(bookie, self.heap_megabytes, main, "--conf", str(path))

    def _write_conf(self, number: int) -> Path:
        data = self.bookie_directory(number)
        for each in ("journal", "ledgers"):
            (data / each).mkdir(parents=True, exist_ok=True)
        settings = _bookie_settings(data, self.bookies[number].port, self.zookeeper.port)
        path = self.directory / f"bookie{number}.conf"
        path.write_text(_lines({**settings, **self.conf}))
        return path

    async def _make_cluster(self) -> None:
        """Once: what BookKeeper keeps in ZooKeeper of a cluster."""
        done = self.directory / "cluster.made"
        if not done.exists():
            shell = Server("cluster", 0)
            main = "org.apache.bookkeeper.bookie.BookieShell"
            self._start(shell, 64, main, "-conf", str(self._write_conf(0)), "initnewcluster")
            async with asyncio.timeout(_START_SECONDS_MAX):
                await self._wait_while_runs(shell)
            done.touch()

    def _start(self, server: Server, heap_megabytes: int, *main: str) -> None:
        if server.port and _is_taken(server.port):
            raise InvalidRequestError(
                f"{server.name} cannot start: another process listens on port {server.port}"
            )
        log = str(self.directory / f"{server.name}.log")
        command = [
            *("java", f"-Xmx{heap_megabytes}m", f"-XX:MaxDirectMemorySize={heap_megabytes}m"),
            *(*_FLAGS, "-classpath", ":".join(class_path(Part.SERVERS)), *main),
        ]
        # Not subprocess: its processes belong to the one that started them, these may outlive it.
        server.pid = os.posix_spawnp(
            "java",
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=self.is_detached,
        )
        server.started = _start_time(server.pid)
        self._write_down()

    async def _wait_for(self, server: Server) -> None:
        """Until it listens."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS_MAX):
                while self.runs(server):
                    if _is_taken(server.port):
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        raise InvalidRequestError(
            f"{server.name} did not start; its log is {self.directory / server.name}.log"
        )

    async def _wait_for_end(self, server: Server) -> None:
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                await self._wait_while_runs(server)
        except TimeoutError:
            self.send(server, signal.SIGKILL)
            await self._wait_while_runs(server)
        server.pid = server.started = 0
        self._write_down()

    async def _wait_while_runs(self, server: Server) -> None:
        while self.runs(server):  # noqa: ASYNC110  # the kernel sets no event
            await asyncio.sleep(_LOOK_SECONDS)

    def _write_down(self) -> None:
        values = {
            "zookeeper": _fields(self.zookeeper),
            "bookies": [_fields(each) for each in self.bookies],
            "heap_megabytes": self.heap_megabytes,
        }
        made = self.directory / "ensemble.json.new"
        made.write_text(json.dumps(values, indent=2) + "\n")
        made.replace(self.directory / "ensemble.json")


def _fields(server: Server) -> dict[str, str | int]:
    return {"name": server.name, "port": server.port, "pid": server.pid, "started": server.started}


def _start_time(pid: int) -> int:
    """When the kernel started it, in ticks since the machine's start; 0 if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of ours is not to stay as a zombie
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        ports = []
        for _ in range(count):
            each = open_sockets.enter_context(socket.socket())
            each.bind((LOOPBACK, 0))
            ports.append(int(each.getsockname()[1]))
        return ports


def _lines(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _zookeeper_settings(data: Path, port: int) -> dict[str, str]:
    return {
        "tickTime": "1000",
        "dataDir": str(data),
        "clientPort": str(port),
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": "200",
        "admin.enableServer": "false",
        "forceSync": "yes",
    }


def _bookie_settings(data: Path, port: int, zookeeper_port: int) -> dict[str, str]:
    return {
        "bookiePort": str(port),
        "advertisedAddress": LOOPBACK,
        "allowLoopback": "true",
        "listeningInterface": "lo",
        "metadataServiceUri": f"zk+hierarchical://{LOOPBACK}:{zookeeper_port}{LEDGERS_PATH}",
        "zkTimeout": "4000",
        "journalDirectories": str(data / "journal"),
        "ledgerDirectories": str(data / "ledgers"),
        "indexDirectories": str(data / "ledgers"),
        # The smallest heap of the three kinds of storage.
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
        "journalSyncData": "true",
        "journalWriteData": "true",
        "journalMaxGroupWaitMSec": "1",
        "journalMaxSizeMB": "64",
        "journalPreAllocSizeMB": "4",
        "journalMaxBackups": "0",
        "numJournalCallbackThreads": "1",
        "numAddWorkerThreads": "1",
        "numReadWorkerThreads": "1",
        "numHighPriorityWorkerThreads": "1",
        "serverNumIOThreads": "2",
        # Deleted ledgers give their space back soon: a test writes gigabytes and deletes them.
        "gcWaitTime": "5000",
        "entryLogSizeLimit": str(64 << 20),
        "minUsableSizeForEntryLogCreation": str(16 << 20),
        "minUsableSizeForIndexFileCreation": str(1 << 20),
        "flushInterval": "5000",
        "diskCheckInterval": "1000",
        "diskUsageThreshold": "0.97",
        "diskUsageWarnThreshold": "0.96",
        "diskUsageLwmThreshold": "0.96",
        "httpServerEnabled": "false",
        "autoRecoveryDaemonEnabled": "false",
        "enableStatistics": "false",
        "extraServerComponents": "",
    }


async def _command(arguments: Sequence[str]) -> None:
    *verb, directory = arguments
    ensemble = LocalEnsemble.opened(Path(directory))
    ensemble.is_detached = True
    match verb:
        case ["up"]:
            await ensemble.up()
            ports = ", ".join(str(each.port) for each in ensemble.bookies)
            _say(f"ZooKeeper at {ensemble.servers}, bookies on ports {ports}")
            _say(f"tier1: bookkeeper://{ensemble.servers}{LEDGERS_PATH}")
        case ["down"]:
            await ensemble.down()
            _say(f"the servers of {ensemble.directory} have ended; their data stays")
        case ["kill", number]:
            await ensemble.kill(ensemble.bookies[int(number)])
        case ["restart", number]:
            await ensemble.restart(int(number))
        case _:
            raise InvalidRequestError("usage: up|down|kill N|restart N DIR")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    if len(arguments) < 2:
        sys.stderr.write(
            "usage: python -m tier1.bookkeeper.local_ensemble up|down|kill N|restart N DIR\n"
        )
        return 2
    try:
        asyncio.run(_command(arguments))
    except InvalidRequestError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
