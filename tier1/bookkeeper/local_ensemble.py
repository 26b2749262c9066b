"""A BookKeeper cluster on this machine, for tests and trials: one ZooKeeper and some bookies, on loopback alone.

    DIR/ensemble.json       ports, and of each server its pid and when it was started
    DIR/zookeeper/          its data; zookeeper.cfg, zookeeper.log
    DIR/bookie0/ ...        journal and ledgers; bookie0.conf, bookie0.log

Each server is a JVM with a small heap. A bookie is known by its address, so a directory keeps its ports.

Invariants:

- Only processes that were started here are ended: a pid counts together with the start time that was written down.
- up() on a directory with data goes on with it, and starts what does not run.
- A bookie that ends itself while it is waited for is started again, as the supervisor of a real one does: a bookie that
  lost its session gives the old registration `zkTimeout` to vanish, and ends if ZooKeeper, just back, still has it.

    python -m tier1.bookkeeper.local_ensemble up DIR
    python -m tier1.bookkeeper.local_ensemble down DIR
    python -m tier1.bookkeeper.local_ensemble kill 2 DIR      bookie 2, by SIGKILL; `restart 2 DIR` starts it again
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.local_processes import (
    LOOPBACK,
    LocalProcess,
    end_of_log,
    free_ports,
    is_listening,
    start_process,
)
from segmentstore.runtime.process_role import Place, ProcessRole
from tier1.bookkeeper.jars import Part, class_path, require_java

ZOOKEEPER: Final = "zookeeper"
LEDGERS_PATH: Final = "/ledgers"
_START_SECONDS_MAX: Final = 120.0
_END_SECONDS_MAX: Final = 15.0
_STARTS_MAX: Final = 3
_MADE_BEFORE: Final = f"Ledger root path: {LEDGERS_PATH} already exists"
_LOOK_SECONDS: Final = 0.05
_JAVA: Final = (
    "java",
    "-Xmx{heap}m",
    "-XX:MaxDirectMemorySize={heap}m",
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
    "-classpath",
    "{classpath}",
)
ZOOKEEPER_ROLE: Final = ProcessRole(
    name=ZOOKEEPER,
    count=1,
    ports={"port": 2181},
    sizes={"heap": "128"},
    # Not ZooKeeperServerMain, which this one calls for a server without others: it deletes no old snapshots.
    command=(*_JAVA, "org.apache.zookeeper.server.quorum.QuorumPeerMain", "{settings}"),
    directories=("{data}",),
    settings={
        # Sessions end a tick late at most. The shorter that is, the surer the registration of a bookie is gone when the
        # bookie has waited for that as long as its session, and the sooner a node that died is replaced.
        "tickTime": "200",
        "minSessionTimeout": "2000",
        "maxSessionTimeout": "20000",
        "dataDir": "{data}",
        "clientPort": "{port}",
        "clientPortAddress": "{host}",
        "maxClientCnxns": "200",
        "admin.enableServer": "false",
        "forceSync": "yes",
        # Else snapshots and logs of transactions are kept for ever, and fill the disk. In hours.
        "autopurge.purgeInterval": "1",
        "autopurge.snapRetainCount": "3",
        # Which sessions have a connection: so is told apart who is registered from whose registration is left.
        "4lw.commands.whitelist": "srvr,cons",
    },
)
BOOKIE_ROLE: Final = ProcessRole(
    name="bookie",
    count=4,
    ports={"port": 3181},
    sizes={"heap": "256"},
    command=(*_JAVA, "org.apache.bookkeeper.server.Main", "--conf", "{settings}"),
    directories=("{data}/journal", "{data}/ledgers"),
    settings={
        "bookiePort": "{port}",
        "advertisedAddress": "{host}",
        "allowLoopback": "true",
        "listeningInterface": "{interface}",
        "metadataServiceUri": f"zk+hierarchical://{{zookeeper}}{LEDGERS_PATH}",
        "zkTimeout": "4000",
        "journalDirectories": "{data}/journal",
        "ledgerDirectories": "{data}/ledgers",
        "indexDirectories": "{data}/ledgers",
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
    },
)
BOOKIE_SHELL_ROLE: Final = ProcessRole(
    name="bookkeeper-init",
    count=1,
    sizes={"heap": "64"},
    command=(
        *_JAVA,
        *("org.apache.bookkeeper.bookie.BookieShell", "-conf", "{settings}", "initnewcluster"),
    ),
)
"""Ends when what BookKeeper keeps in ZooKeeper of a cluster is there. Its settings are those of a bookie."""


@dataclass(frozen=True, slots=True)
class EnsembleRoles:
    """What the processes of an ensemble are started with."""

    zookeeper: ProcessRole = ZOOKEEPER_ROLE
    bookie: ProcessRole = BOOKIE_ROLE
    shell: ProcessRole = BOOKIE_SHELL_ROLE


@dataclass(slots=True)
class Server:
    """One process. `started` is what the kernel says of its start; pid 0: it was ended here."""

    name: str
    port: int
    pid: int = 0
    started: int = 0

    @property
    def process(self) -> LocalProcess:
        return LocalProcess(self.pid, self.started)


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
    roles: EnsembleRoles = field(default_factory=EnsembleRoles)

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
        found = list(ports) or free_ports(1 + bookie_count)
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
        await self.make_cluster()
        for number in range(len(self.bookies)):
            self._start_bookie(number)
        for number in range(len(self.bookies)):
            await self._wait_for_bookie(number)

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
            self._start(self.zookeeper, self.zookeeper_command())
        if not await self._listens(self.zookeeper):
            raise self._did_not_start(self.zookeeper)

    def zookeeper_command(self) -> list[str]:
        """What starts ZooKeeper; its settings are written."""
        path = self.directory / "zookeeper.cfg"
        place = self._place(self.zookeeper, path)
        _write_settings(self.roles.zookeeper, place, path)
        return self.roles.zookeeper.command_at(place)

    def bookie_command(self, number: int) -> list[str]:
        """What starts a bookie; its settings are written."""
        place = self._bookie_place(number)
        return self.roles.bookie.command_at({**place, "heap": str(self.heap_megabytes)})

    async def restart(self, number: int) -> None:
        """Start a bookie that was ended."""
        self._start_bookie(number)
        await self._wait_for_bookie(number)

    async def add_bookie(self) -> int:
        """Start one more; its number. Its directory may be there already."""
        (port,) = free_ports(1)
        self.bookies.append(Server(f"bookie{len(self.bookies)}", port))
        number = len(self.bookies) - 1
        await self.restart(number)
        return number

    async def kill(self, server: Server) -> None:
        """By SIGKILL; it has ended when this returns."""
        self.send(server, signal.SIGKILL)
        await self._wait_for_end(server)

    def send(self, server: Server, number: int) -> None:
        """A signal, if it runs."""
        server.process.send(number)

    def runs(self, server: Server) -> bool:
        return server.process.runs

    def bookie_directory(self, number: int) -> Path:
        return self.directory / f"bookie{number}"

    def _start_bookie(self, number: int) -> None:
        bookie = self.bookies[number]
        if self.runs(bookie):
            return
        self._start(bookie, self.bookie_command(number))

    def _bookie_place(self, number: int) -> Place:
        """Its settings are written."""
        path = self.directory / f"bookie{number}.conf"
        place = self._place(self.bookies[number], path)
        role = self.roles.bookie
        _write_settings(replace(role, settings={**role.settings, **self.conf}), place, path)
        return place

    def _place(self, server: Server, settings: Path) -> dict[str, str]:
        return {
            "host": LOOPBACK,
            "interface": "lo",
            "port": str(server.port),
            "zookeeper": self.servers,
            "data": str(self.directory / server.name),
            "settings": str(settings),
            "classpath": ":".join(class_path(Part.SERVERS)),
        }

    async def make_cluster(self) -> None:
        """Once: what BookKeeper keeps in ZooKeeper of a cluster."""
        done = self.directory / "cluster.made"
        if not done.exists():
            name = self.roles.shell.name
            command = self.roles.shell.command_at(self._bookie_place(0))
            log = self.directory / f"{name}.log"
            with log.open("ab") as said:
                shell = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said
                )
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_START_SECONDS_MAX):
                        await shell.wait()
            finally:
                if shell.returncode is None:
                    shell.kill()
                    await shell.wait()
            # One that was interrupted may have made it, and is refused the next time.
            if shell.returncode and _MADE_BEFORE not in log.read_text(errors="replace"):
                raise InvalidRequestError(
                    f"{name} failed exit_code={shell.returncode}; {end_of_log(log)}"
                )
            done.touch()

    def _start(self, server: Server, command: Sequence[str]) -> None:
        if is_listening(server.port):
            raise InvalidRequestError(
                f"{server.name} cannot start: another process listens on port {server.port}"
            )
        process = self._process(server.name, command)
        server.pid, server.started = process.pid, process.started
        self._write_down()

    def _process(self, name: str, command: Sequence[str]) -> LocalProcess:
        return start_process(
            command,
            log=self.directory / f"{name}.log",
            environment=os.environ,
            is_detached=self.is_detached,
        )

    async def _wait_for_bookie(self, number: int) -> None:
        """Until it listens."""
        bookie = self.bookies[number]
        for _ in range(_STARTS_MAX):
            self._start_bookie(number)
            if await self._listens(bookie):
                return
            if self.runs(bookie):
                break
        raise self._did_not_start(bookie)

    async def _listens(self, server: Server) -> bool:
        """Whether it does, in time and before it ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS_MAX):
                while self.runs(server):
                    if is_listening(server.port):
                        return True
                    await asyncio.sleep(_LOOK_SECONDS)
        return False

    def _did_not_start(self, server: Server) -> InvalidRequestError:
        log = self.directory / f"{server.name}.log"
        what = f"does not listen on port {server.port}" if self.runs(server) else "has ended"
        return InvalidRequestError(f"{server.name} did not start: it {what}; {end_of_log(log)}")

    async def _wait_for_end(self, server: Server) -> None:
        await server.process.end(0, seconds_max=_END_SECONDS_MAX)
        server.pid = server.started = 0
        self._write_down()

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


def _write_settings(role: ProcessRole, place: Place, path: Path) -> None:
    for each in role.directories_at(place):
        Path(each).mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(role.settings_at(place))


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
    except (InvalidRequestError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
