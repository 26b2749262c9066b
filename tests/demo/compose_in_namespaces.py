"""compose.yaml run without Docker: each service in namespaces of its own, with its address, its script and its /data.

What a container would see is the files of this machine below a layer of its own: start scripts in /start, its volume in
/data, BookKeeper's jars in /opt/bookkeeper. Services start as `depends_on` says, by their own health checks. Not shown:
the images, the user they run as, and what Docker forbids them.

    python -m tests.demo.compose_in_namespaces DIR        Linux, as root; DIR is made, and holds logs afterwards

Everything is in a network namespace of this program: it reaches nothing else, and nothing of it is left.
"""

import asyncio
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from segmentstore.demo.cluster_roles import CLUSTER_ROLES, TIER2
from segmentstore.demo.s3_gateway import built_gateway
from tier1.bookkeeper import jars

COMPOSE: Final = Path(__file__).resolve().parents[2] / "compose"
INSIDE: Final = "--inside"
_READY_SECONDS_MAX: Final = 240.0
_SERVED_SECONDS_MAX: Final = 120.0
_END_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_MADE: Final = "service_completed_successfully"


class Service:
    """One of compose.yaml."""

    def __init__(self, name: str, values: Mapping[str, Any], directory: Path) -> None:
        self.name = name
        self.address = str(values["networks"]["cluster"]["ipv4_address"])
        self.waits: Mapping[str, Any] = values.get("depends_on", {})
        self.has_health = not values.get("healthcheck", {}).get("disable")
        self._command: Sequence[str] = values["command"]
        self._environment: Mapping[str, str] = values["environment"]
        self._root = directory / name / "root"
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._has_worked = False

    def prepare(self, hosts: str) -> None:
        """Its network and its files."""
        _ip("netns", "add", self.name)
        outer = f"v{self.address.rpartition('.')[2]}"
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", outer, "master", "cluster", "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", self.name, "link", "set", link, "up")
        upper, work = self._root.with_name("upper"), self._root.with_name("work")
        for each in (upper, work, self._root):
            each.mkdir(parents=True)
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, str(self._root))
        for source, target in (
            (COMPOSE / "start", "start"),
            (jars.directory(), "opt/bookkeeper"),
        ):
            (self._root / target).mkdir(parents=True, exist_ok=True)
            _run("mount", "--bind", str(source), str(self._root / target))
        for name in ("proc", "dev", "sys"):
            _run("mount", "--rbind", f"/{name}", str(self._root / name))
        (self._root / "data").mkdir()
        # A container has a host name of its own, which is that of its address.
        own = f"{self.address} {socket.gethostname()}\n"
        (self._root / "etc" / "hosts").write_text(hosts + own)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words(self._command), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in it, as `docker compose exec` runs one."""
        return subprocess.run(self._words(command), capture_output=True, text=True, check=False)

    def works(self) -> bool:
        """From the first time on that it says so."""
        self._has_worked = self._has_worked or self.run("/start/health.sh").returncode == 0
        return self._has_worked

    def has_ended(self) -> int | None:
        """Its exit code."""
        return self._process.poll() if self._process is not None else None

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _words(self, command: Sequence[str]) -> list[str]:
        path = f"{Path(sys.executable).parent}:{built_gateway().parent}:{os.environ['PATH']}"
        variables = {
            **self._environment,
            "PATH": path,
            "PYTHONPATH": str(COMPOSE.parent),
            jars.VARIABLE: "/opt/bookkeeper",
        }
        given = [f"{name}={value}" for name, value in variables.items()]
        inside = shlex.join(["env", "-i", *given, *command])
        return [
            *("ip", "netns", "exec", self.name),
            *("chroot", str(self._root), "sh", "-c", f"cd /; exec {inside}"),
        ]


async def started(services: Mapping[str, Service]) -> None:
    """Start all of them in their order, and again what ends with an error. Raises TimeoutError."""
    running: set[str] = set()
    async with asyncio.timeout(_READY_SECONDS_MAX):
        while not all(_is_there(each) for each in services.values()):
            for each in services.values():
                if code := each.has_ended():
                    # As `restart` asks of Docker.
                    print("again", each.name, f"ended with {code}", flush=True)  # noqa: T201
                    each.start()
                is_due = all(
                    other in running
                    and (
                        services[other].has_ended() == 0
                        if wait["condition"] == _MADE
                        else services[other].works()
                    )
                    for other, wait in each.waits.items()
                )
                if each.name not in running and is_due:
                    each.start()
                    running.add(each.name)
                    print("start", each.name, flush=True)  # noqa: T201  # a command line
            await asyncio.sleep(_LOOK_SECONDS)


def _is_there(service: Service) -> bool:
    return service.works() if service.has_health else service.has_ended() == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _ip(*words: str) -> None:
    _run("ip", *words)


def inside(directory: Path) -> int:
    """In namespaces of this program: 0 if the cluster of compose.yaml works."""
    document = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    services = {
        name: Service(name, values, directory)
        for name, values in document["services"].items()
        if "build" in values
    }
    (network,) = document["networks"]["cluster"]["ipam"]["config"]
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    _ip("link", "add", "cluster", "type", "bridge")
    _ip("address", "add", network["subnet"].replace(".0/", ".1/"), "dev", "cluster")
    _ip("link", "set", "cluster", "up")
    hosts = "127.0.0.1 localhost\n" + "".join(f"{s.address} {s.name}\n" for s in services.values())
    try:
        for each in services.values():
            each.prepare(hosts)
        asyncio.run(started(services))
        return _asked(services)
    finally:
        for each in reversed(services.values()):
            each.end()


def _asked(services: Mapping[str, Service]) -> int:
    place = f"bookkeeper://zookeeper:{CLUSTER_ROLES.zookeeper.ports['port']}/ledgers"
    node, worker = services["node0"], services["spark-worker0"]
    controller = f"tcp://{services['controller0'].address}:{CLUSTER_ROLES.controller.ports['grpc']}"
    steps = (
        (node, "segmentstore", "cluster", "check", "--cluster", place),
        (node, "segmentstore", "cluster", "nodes", "--cluster", place),
        (node, "python", "-c", _APPEND_AND_READ, node.address, services["node2"].address),
        (node, "segmentstore", "scope", "create", "plant", "--controller", controller),
        (worker, "python", "-c", _SPARK_JOB, worker.address, controller, TIER2),
    )
    # A node says that it works before it was given containers.
    end = time.perf_counter() + _SERVED_SECONDS_MAX
    while node.run(*steps[0][1:]).returncode and time.perf_counter() < end:
        time.sleep(_LOOK_SECONDS)
    for service, *step in steps:
        done = service.run(*step)
        print(done.stdout, done.stderr[-3000:], flush=True)  # noqa: T201
        if done.returncode:
            return done.returncode
    return 0


_APPEND_AND_READ: Final = """
import sys, urllib.request as r
first, second = (f"http://{host}:9091/v1/segments/compose/hello" for host in sys.argv[1:])
r.urlopen(r.Request(first + "/create", method="PUT"))
r.urlopen(r.Request(first + "/append", method="POST", data=b"hello"))
assert r.urlopen(second + "/read").read() == b"hello"
print("appended at one node, read at another")
"""
_SPARK_JOB: Final = """
import json, sys, urllib.request as r
from pyspark.sql import SparkSession
address, controller, tier2 = sys.argv[1:]
state = json.load(r.urlopen("http://spark-master:8080/json/"))
assert state["aliveworkers"] == 2, state
spark = (SparkSession.builder.master("spark://spark-master:7077").config("spark.driver.host", address)
    .config("spark.executor.memory", "512m").config("spark.ui.enabled", "false").getOrCreate())
from pyspark_segmentstore import DefaultSource
spark.dataSource.register(DefaultSource)
rows = spark.range(1000).selectExpr("concat('sensor-', id % 12) AS key", "string(id) AS value")
(rows.repartition(4).write.format("segmentstore").mode("append").option("controller", controller)
    .option("stream", "plant/readings").option("createIfMissing", "true").option("segments", "4")
    .option("txnAppId", "compose").option("txnVersion", "1").save())
found = (spark.read.format("segmentstore").option("tier2", tier2).option("controller", controller)
    .option("stream", "plant/readings").load())
values = sorted(int(row[0]) for row in found.select(found.value.cast("string")).collect())
assert values == list(range(1000)), len(values)
print("Spark's two workers wrote 1,000 events, and read them again")
"""


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    if len(arguments) == 1:
        for part in jars.Part:
            jars.build(part)
        built_gateway()
        shutil.rmtree(arguments[0], ignore_errors=True)
        Path(arguments[0]).mkdir(parents=True)
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", sys.executable]
        return subprocess.run(
            [*words, "-m", "tests.demo.compose_in_namespaces", INSIDE, *arguments], check=False
        ).returncode
    return inside(Path(arguments[1]).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
