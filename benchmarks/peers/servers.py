"""The two systems that speak Pravega's protocol, started on free ports and an empty directory.

Both sync every acknowledged byte, both write on to files as their Tier 2, both have four containers.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import grpc.aio

from benchmarks.peers.cases import OURS, PRAVEGA
from tests.integration.java_libraries import cache_directory, class_path
from tests.integration.pravega_clients.controller_calls import ControllerCalls
from tests.integration.pravega_clients.store_process import StoreProcess, free_ports
from tests.integration.pravega_clients.toolchain import compiled

JAVA = Path(__file__).parent / "java"
CONTAINERS = 4
_READY_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 60.0
_OPEN_FOR_NETTY = ("java.nio", "sun.nio.ch", "java.lang", "java.io")


class Server(Protocol):
    """One that was started."""

    name: str

    @property
    def controller(self) -> str:
        """HOST:PORT."""

    @property
    def process_id(self) -> int: ...
    def stop(self) -> None: ...


def java_command(*options: str) -> list[str]:
    """A JVM with Pravega's class path and our programs; the class to run comes next."""
    path = class_path(JAVA / "pom.xml")
    classes = compiled(JAVA / "pom.xml", JAVA / "src")
    logging = f"-Dlogback.configurationFile={JAVA / 'logback.xml'}"
    return ["java", *options, logging, "-classpath", f"{classes}:{path}"]


class OurServer:
    """This store, with its defaults."""

    name = OURS

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self._process = StoreProcess(directory / "data", options, environment=compiled_modules())
        self._process.start()

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self._process.controller_port}"

    @property
    def process_id(self) -> int:
        return self._process.process_id

    def restart(self) -> None:
        """An orderly end, and a start that recovers."""
        self._process.terminate()
        self._process.start()

    def stop(self) -> None:
        if self._process.is_running:
            self._process.kill()


class PravegaServer:
    """Pravega 0.13.0 with one bookie in one JVM; see java/src/peers/PravegaServer.java."""

    name = PRAVEGA

    def __init__(self, directory: Path) -> None:
        directory = directory.resolve()
        ports = free_ports(4)
        self.controller = f"127.0.0.1:{ports[0]}"
        (directory / "tmp").mkdir(parents=True)
        command = java_command(
            "-Xms1g",
            "-Xmx2g",
            "-XX:MaxDirectMemorySize=4g",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_FOR_NETTY),
            f"-Djava.io.tmpdir={directory / 'tmp'}",
        )
        command += ["peers.PravegaServer", str(directory / "data"), *map(str, ports)]
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(CONTAINERS)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,  # its own log files go wherever it stands
            )

    @property
    def process_id(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)


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
    """(the server, seconds from its start until it made a first stream)."""
    directory.mkdir(parents=True)
    compiled_modules()
    started = time.perf_counter()
    server: Server = OurServer(directory) if name == OURS else PravegaServer(directory)
    try:
        asyncio.run(wait_until_ready(server.controller))
    except BaseException:
        server.stop()
        raise
    return server, time.perf_counter() - started


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
