"""A whole cluster on this machine, for trials, demonstrations and tests: all on loopback, each server a process.

    one ZooKeeper, four bookies         Tier 1
    versitygw, an S3 server             Tier 2
    three nodes, two controllers        `segmentstore node`, `segmentstore controller`

    DIR/plan.json         how many of them there are, and settings of nodes; written once
    DIR/processes.json    a list with one object for each process, format below
    DIR/processes.lock    held while the list changes, and while a process is started
    DIR/environment       assignments for a shell: keys and address of the S3 server, and where the cluster is
    DIR/bookkeeper/       of ZooKeeper and the bookies; see tier1/bookkeeper/local_ensemble.py
    DIR/s3/               buckets; DIR/node0/ ...: what a node keeps; DIR/NAME.log: what each process says

Each object of processes.json has these keys; a port that a process does not have is left empty:

    name        node0, controller1, bookie3, zookeeper, s3
    role        node, controller, bookie, zookeeper, s3
    pid         0 once it was ended by `down`
    started     what the kernel says of its start, in ticks: a pid counts together with it alone
    http        HOST:PORT of nodes and controllers
    wire        HOST:PORT of nodes
    kafka       HOST:PORT of nodes
    grpc        HOST:PORT of controllers
    port        of the others
    start       a command for a shell that starts the process again with its state, and writes its new pid here; it
                ends when the process is started, not when that is ready. It does nothing to one that runs

Invariants:

- Only processes that were started here are ended.
- Each process keeps its ports and its directory for as long as DIR exists.
- The list is replaced as a whole. Commands that run at the same time change it one after the other.

    python -m segmentstore.demo.local_cluster up|status|down DIR
    python -m segmentstore.demo.local_cluster start NAME DIR
"""

import asyncio
import fcntl
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from segmentstore.cli.output import print_rows
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.demo.cluster_roles import CLUSTER_ROLES, PLACE, TIER2, ClusterRoles
from segmentstore.demo.s3_gateway import built_gateway
from segmentstore.runtime.local_processes import (
    LOOPBACK,
    LocalProcess,
    end_of_log,
    free_ports,
    is_listening,
    start_process,
)
from segmentstore.runtime.process_role import Place, ProcessRole
from tier1.bookkeeper.jars import Part, build, is_built
from tier1.bookkeeper.local_ensemble import EnsembleRoles, LocalEnsemble, Server

ZOOKEEPER: Final = "zookeeper"
S3: Final = "s3"
_PACKAGE: Final = Path(__file__).parents[2]
_PYTHON: Final = (sys.executable, "-P", "-m")
"""A module of PYTHONPATH, and not of the directory from which it is started."""
_LISTEN_SECONDS_MAX: Final = 120.0
_READY_SECONDS_MAX: Final = 120.0
_START_SETTING: Final = f"bookkeeper.start_seconds={_READY_SECONDS_MAX:.0f}"
"""Of nodes and controllers: nothing starts one again that gave up earlier. All of them share a machine; on a busy one
the start of a JVM alone takes half a minute."""
_END_SECONDS_MAX: Final = 40.0
_STARTS_MAX: Final = 3
_LOOK_SECONDS: Final = 0.1


class ClusterNotReadyError(SegmentStoreError):
    """A cluster was started, and does not work."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What never changes in a cluster of one directory."""

    nodes: int = CLUSTER_ROLES.node.count
    controllers: int = CLUSTER_ROLES.controller.count
    bookies: int = CLUSTER_ROLES.bookie.count
    containers: int = int(CLUSTER_ROLES.node.sizes["containers"])
    bookie_heap_megabytes: int = int(CLUSTER_ROLES.bookie.sizes["heap"])
    settings: Sequence[str] = field(default_factory=tuple)
    """NAME=VALUE, of nodes and controllers."""


@dataclass(frozen=True, slots=True)
class ClusterProcess:
    """One object of processes.json."""

    name: str
    role: str
    pid: int
    started: int
    http: str
    wire: str
    grpc: str
    port: int
    start: str
    kafka: str = ""

    @property
    def process(self) -> LocalProcess:
        return LocalProcess(self.pid, self.started)

    @property
    def ports(self) -> set[int]:
        """All that it has."""
        addresses = (self.http, self.wire, self.grpc, self.kafka, f":{self.port or ''}")
        return {int(port) for each in addresses if (port := each.rpartition(":")[2])}

    @property
    def listens_on(self) -> int:
        """The port of which it is asked whether it is up."""
        address = self.http or f":{self.port}"
        return int(address.rpartition(":")[2])


class LocalCluster:
    """The cluster of one directory. up() starts what does not run, down() ends it all."""

    def __init__(
        self,
        directory: Path,
        plan: ClusterPlan | None = None,
        *,
        roles: ClusterRoles = CLUSTER_ROLES,
    ) -> None:
        """`plan`: of a new directory; what was planned before counts."""
        self._roles = roles
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "plan.json"
        with self._locked():
            if path.exists():
                self.plan = ClusterPlan(**json.loads(path.read_text()))
                self._give_nodes_a_kafka_port()
            else:
                self.plan = plan or _plan_of(roles)
                self._write([self._planned(*each) for each in _names(self.plan)])
                _replace(path, json.dumps(asdict(self.plan), indent=2) + "\n")

    @property
    def processes_path(self) -> Path:
        return self.directory / "processes.json"

    @property
    def place(self) -> str:
        """Of Tier 1, as nodes, controllers and `segmentstore cluster` take it."""
        return PLACE.format_map(self._servers())

    @property
    def s3_url(self) -> str:
        return f"http://{LOOPBACK}:{self.of(S3).port}"

    @property
    def controllers(self) -> str:
        """As clients take them."""
        return "tcp://" + ",".join(each.grpc for each in self.with_role("controller"))

    @property
    def kafka(self) -> str:
        """All nodes, as Kafka's clients take them to begin with."""
        return ",".join(each.kafka for each in self.with_role("node"))

    def processes(self) -> Mapping[str, ClusterProcess]:
        """By name, as written down."""
        rows = json.loads(self.processes_path.read_text())
        return {row["name"]: ClusterProcess(**row) for row in rows}

    def of(self, name: str) -> ClusterProcess:
        """Raises InvalidRequestError if there is none of that name."""
        processes = self.processes()
        if name not in processes:
            raise InvalidRequestError(f"no such process name={name}: {', '.join(processes)}")
        return processes[name]

    def with_role(self, role: str) -> list[ClusterProcess]:
        return [each for each in self.processes().values() if each.role == role]

    def environment(self) -> Mapping[str, str]:
        """What a process needs besides our own to reach the S3 server."""
        return self._roles.node.environment_at(self._servers())

    def has_begun(self) -> bool:
        """Whether a process of it runs."""
        return self.processes_path.exists() and any(
            each.process.runs for each in self.processes().values()
        )

    async def up(self) -> None:
        """Start what does not run; returns when every container is served, and a controller leads.

        Raises InvalidRequestError if something is missing or a port is taken, ClusterNotReadyError.
        """
        for part in Part:
            if not is_built(part):
                build(part)
        built_gateway(self._roles.gateway_package)
        self._write_environment()
        for name in (ZOOKEEPER, S3):
            self.start(name)
        await self._wait_until_listening(ZOOKEEPER)
        await self._ensemble().make_cluster()
        for name in self.processes():
            self.start(name)
        for each in self.with_role("bookie"):
            await self._wait_until_listening(each.name)
        await self._wait_until_ready()

    def start(self, name: str) -> None:
        """Start one process unless it runs. Raises InvalidRequestError."""
        # Building its command may take a while; the list is held only for the start.
        command = self.command(name)
        with self._locked():
            found = self.of(name)
            if found.process.runs:
                return
            if is_listening(found.listens_on):
                raise InvalidRequestError(
                    f"{name} cannot start: another process listens on port {found.listens_on}"
                )
            process = start_process(
                command,
                log=self.log_path(name),
                environment={**os.environ, **self.variables(name)},
                is_detached=True,
            )
            self._note(name, process)

    async def start_when_ended(self, name: str) -> None:
        """The same of one that was killed a moment ago, and whose threads are not all gone yet."""
        while self.of(name).process.is_ending:  # noqa: ASYNC110  # the kernel sets no event
            await asyncio.sleep(_LOOK_SECONDS)
        self.start(name)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """A signal to one of them, if it runs."""
        self.of(name).process.send(number)

    async def down(self, number: int = signal.SIGTERM) -> None:
        """End all that run, clients before their servers; what does not end by the signal is killed."""
        for roles in (("controller",), ("node",), ("bookie", S3), (ZOOKEEPER,)):
            ending = [each for role in roles for each in self.with_role(role)]
            for each in ending:
                # One that is stopped by a signal would not hear of it.
                each.process.send(signal.SIGCONT)
                each.process.send(number)
            for each in ending:
                await each.process.end(number, seconds_max=_END_SECONDS_MAX)
                with self._locked():
                    if self.of(each.name).pid == each.pid:
                        self._note(each.name, LocalProcess())

    def log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    async def problems(self) -> list[str]:
        """What `segmentstore cluster check` says of it."""
        process = await asyncio.create_subprocess_exec(
            *_segmentstore("cluster", "check", "--cluster", self.place),
            env={**os.environ, **self._python_path(), **self.environment()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        return said.decode().splitlines() if process.returncode else []

    async def _wait_until_listening(self, name: str, *, starts_left: int = _STARTS_MAX - 1) -> None:
        found = self.of(name)
        loop = asyncio.get_running_loop()
        end = loop.time() + _LISTEN_SECONDS_MAX
        while found.process.runs and loop.time() < end:
            if is_listening(found.listens_on):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        if starts_left and not found.process.runs:
            # It was about to end when it was looked at first, or is a bookie whose old registration is still there.
            self.start(name)
            await self._wait_until_listening(name, starts_left=starts_left - 1)
            return
        what = f"does not listen on port {found.listens_on}" if found.process.runs else "has ended"
        raise InvalidRequestError(
            f"{name} did not start: it {what}; {end_of_log(self.log_path(name))}"
        )

    async def _wait_until_ready(self) -> None:
        for role in ("node", "controller"):
            for each in self.with_role(role):
                await self._wait_until_listening(each.name)
        loop = asyncio.get_running_loop()
        end = loop.time() + _READY_SECONDS_MAX
        while problems := await self.problems():
            if loop.time() > end:
                raise ClusterNotReadyError(f"the cluster is not ready: {'; '.join(problems)}")
            await asyncio.sleep(_LOOK_SECONDS)

    def command(self, name: str) -> list[str]:
        """What starts one of them; its directories and its settings are written. Raises InvalidRequestError."""
        process = self.of(name)
        match process.role:
            case "zookeeper":
                return self._ensemble().zookeeper_command()
            case "bookie":
                return self._ensemble().bookie_command(int(name.removeprefix("bookie")))
            case _:
                role, place = self._role_of(process), self._place_of(process)
                for each in role.directories_at(place):
                    Path(each).mkdir(parents=True, exist_ok=True)
                settings = () if process.role == S3 else (_START_SETTING, *self.plan.settings)
                more = [word for setting in settings for word in ("--set", setting)]
                return [*role.command_at(place), *more]

    def variables(self, name: str) -> Mapping[str, str]:
        """What a process gets besides our own environment. Raises InvalidRequestError."""
        process = self.of(name)
        variables = self._role_of(process).environment_at(self._place_of(process))
        python = self._python_path() if process.role in ("node", "controller") else {}
        return {**python, **variables}

    def _ensemble(self) -> LocalEnsemble:
        bookies = [Server(each.name, each.port) for each in self.with_role("bookie")]
        return LocalEnsemble(
            self.directory / "bookkeeper",
            Server(ZOOKEEPER, self.of(ZOOKEEPER).port),
            bookies,
            self.plan.bookie_heap_megabytes,
            is_detached=True,
            roles=EnsembleRoles(self._roles.zookeeper, self._roles.bookie, self._roles.shell),
        )

    def _role_of(self, process: ClusterProcess) -> ProcessRole:
        return next(each for each in self._roles.servers() if each.name == process.role)

    def _servers(self) -> dict[str, str]:
        return {name: f"{LOOPBACK}:{self.of(name).port}" for name in (ZOOKEEPER, S3)}

    def _place_of(self, process: ClusterProcess) -> Place:
        addresses = {name: getattr(process, name) for name in ("http", "wire", "grpc", "kafka")}
        return {
            **self._servers(),
            **{name: address.rpartition(":")[2] for name, address in addresses.items()},
            "port": str(process.port),
            "host": LOOPBACK,
            "name": process.name,
            "data": str(self.directory / process.name),
            "containers": str(self.plan.containers),
            "segmentstore": _segmentstore(),
            "versitygw": str(built_gateway(self._roles.gateway_package))
            if process.role == S3
            else "",
        }

    def _python_path(self) -> Mapping[str, str]:
        there = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": f"{_PACKAGE}{os.pathsep}{there}" if there else str(_PACKAGE)}

    def _planned(self, name: str, role: str, ports: Sequence[int]) -> ClusterProcess:
        addresses = _addresses(ports)
        start = [*_PYTHON, "segmentstore.demo.local_cluster", "start", name]
        has_http = role in ("node", "controller")
        return ClusterProcess(
            name=name,
            role=role,
            pid=0,
            started=0,
            http=addresses[0] if has_http else "",
            wire=addresses[1] if role == "node" else "",
            grpc=addresses[1] if role == "controller" else "",
            kafka=addresses[2] if role == "node" else "",
            port=0 if has_http else ports[0],
            start=f"PYTHONPATH={shlex.quote(str(_PACKAGE))} {shlex.join([*start, str(self.directory)])}",
        )

    def _give_nodes_a_kafka_port(self) -> None:
        """To those of a directory that was made by a version whose nodes served no topics. With the lock held."""
        rows = list(self.processes().values())
        without = [each.name for each in rows if each.role == "node" and not each.kafka]
        if without:
            # Those of the others are free as well while they do not run.
            used = {port for each in rows for port in each.ports}
            free = [port for port in free_ports(len(used) + len(without)) if port not in used]
            given = dict(zip(without, _addresses(free), strict=False))
            self._write([replace(each, kafka=given.get(each.name, each.kafka)) for each in rows])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / "processes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _note(self, name: str, process: LocalProcess) -> None:
        """With the lock held."""
        changed = dict(self.processes())
        changed[name] = replace(changed[name], pid=process.pid, started=process.started)
        self._write(list(changed.values()))

    def _write(self, processes: Sequence[ClusterProcess]) -> None:
        rows = [asdict(each) for each in processes]
        _replace(self.processes_path, json.dumps(rows, indent=2) + "\n")

    def _write_environment(self) -> None:
        values = {
            **self.environment(),
            "SEGMENTSTORE_TIER1_KIND": self.place,
            "SEGMENTSTORE_TIER2_PLACE": TIER2,
            "SEGMENTSTORE_CONTROLLER": self.controllers,
            "SEGMENTSTORE_SERVER": f"http://{self.with_role('node')[0].http}",
            "SEGMENTSTORE_KAFKA": self.kafka,
        }
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
        _replace(self.directory / "environment", "".join(lines))


def _plan_of(roles: ClusterRoles) -> ClusterPlan:
    return ClusterPlan(
        nodes=roles.node.count,
        controllers=roles.controller.count,
        bookies=roles.bookie.count,
        containers=int(roles.node.sizes["containers"]),
        bookie_heap_megabytes=int(roles.bookie.sizes["heap"]),
    )


def _names(plan: ClusterPlan) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Name, role and ports of each process."""
    ports = iter(free_ports(2 + plan.bookies + 3 * plan.nodes + 2 * plan.controllers))
    yield ZOOKEEPER, ZOOKEEPER, [next(ports)]
    yield S3, S3, [next(ports)]
    for number in range(plan.bookies):
        yield f"bookie{number}", "bookie", [next(ports)]
    for number in range(plan.nodes):
        yield f"node{number}", "node", [next(ports), next(ports), next(ports)]
    for number in range(plan.controllers):
        yield f"controller{number}", "controller", [next(ports), next(ports)]


def _addresses(ports: Sequence[int]) -> list[str]:
    return [f"{LOOPBACK}:{port}" for port in ports]


def _segmentstore(*words: str) -> list[str]:
    return [*_PYTHON, "segmentstore.cli", *words]


def _replace(path: Path, content: str) -> None:
    made = path.with_name(f"{path.name}.new")
    made.write_text(content)
    made.replace(path)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _command(verb: str, cluster: LocalCluster) -> int:
    match verb:
        case "up":
            await cluster.up()
            _say(f"ready {cluster.place} {cluster.controllers}")
            _say(f"the processes are in {cluster.processes_path};")
            _say(f"'. {cluster.directory}/environment' has `segmentstore` use this cluster")
        case "status":
            rows = [
                {
                    "name": each.name,
                    "pid": each.pid,
                    "runs": each.process.runs,
                    "http": each.http,
                    "wire": each.wire,
                    "grpc": each.grpc,
                    "kafka": each.kafka,
                    "port": each.port or None,
                }
                for each in cluster.processes().values()
            ]
            print_rows(rows, "table")
            problems = await cluster.problems()
            _say("\n".join(problems) or "the cluster works")
            return int(bool(problems))
        case "down":
            await cluster.down()
            _say(f"the processes of {cluster.directory} have ended; their data stays")
        case _:
            raise InvalidRequestError(_USAGE)
    return 0


_USAGE: Final = (
    "usage: python -m segmentstore.demo.local_cluster up|status|down DIR, or start NAME DIR"
)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        match arguments:
            case ["up", directory]:
                return asyncio.run(_command("up", LocalCluster(Path(directory))))
            case [("status" | "down") as verb, directory]:
                return asyncio.run(_command(verb, _found(directory)))
            case ["start", name, directory]:
                asyncio.run(_found(directory).start_when_ended(name))
            case _:
                sys.stderr.write(f"{_USAGE}\n")
                return 2
    except (SegmentStoreError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _found(directory: str) -> LocalCluster:
    if not (Path(directory) / "plan.json").exists():
        raise InvalidRequestError(f"no cluster was started there directory={directory}")
    return LocalCluster(Path(directory))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
