"""The processes of a cluster by its `processes.json`: signals, and what starts one again.

The file is a list of objects with at least these keys; empty where a process has no such address:

    name, role        role: node, controller, bookie, zookeeper, s3
    pid               of the process that runs, or ran last
    http, wire, grpc  HOST:PORT
    port              of the others; 0, or not there, where it is not known
    start             a command for a shell that starts it again with its state and writes its new pid into the file
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from segmentstore.runtime.local_processes import start_time

_START_SECONDS_MAX = 120.0
_END_SECONDS_MAX = 180.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """As the file has it at one time."""

    name: str
    role: str
    pid: int
    http: str
    wire: str
    grpc: str
    kafka: str
    start: str
    port: int


_NOTHING = {name: 0 if name in ("pid", "port") else "" for name in ProcessRow.__slots__}


class Processes:
    """Of one cluster. The file is read again by each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environments: dict[str, Mapping[str, str]] = {}
        """By name: variables that a process is started with besides ours."""

    def rows(self, role: str = "") -> Sequence[ProcessRow]:
        rows = [
            ProcessRow(**{name: row.get(name, none) for name, none in _NOTHING.items()})
            for row in json.loads(self.path.read_text())
        ]
        return [each for each in rows if role in ("", each.role)]

    def row(self, name: str) -> ProcessRow:
        return next(each for each in self.rows() if each.name == name)

    @property
    def controllers(self) -> str:
        """As clients take them."""
        return "tcp://" + ",".join(each.grpc for each in self.rows("controller") if each.grpc)

    @property
    def kafka(self) -> str:
        """As Kafka's clients take them."""
        return ",".join(each.kafka for each in self.rows("node") if each.kafka)

    def send(self, name: str, number: int) -> None:
        os.kill(self.row(name).pid, number)

    async def kill(self, name: str) -> None:
        """By SIGKILL, if it has not ended by itself; it has ended when this returns."""
        pid = self.row(name).pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await self._until_ended(pid)

    async def end(self, name: str) -> None:
        """By SIGTERM; it has ended when this returns. Killed if that takes much longer than a node's drain may."""
        pid = self.row(name).pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                await self._until_ended(pid)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await self._until_ended(pid)

    async def start(self, name: str) -> None:
        """By its own command, with its `environments`. It may not be ready yet when this returns."""
        async with asyncio.timeout(_START_SECONDS_MAX):
            process = await asyncio.create_subprocess_shell(
                self.row(name).start,
                env={**os.environ, **self.environments.get(name, {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
        assert process.returncode == 0, f"{name} was not started: {said.decode()[-1000:]}"

    @staticmethod
    async def _until_ended(pid: int) -> None:
        while is_running(pid):
            await asyncio.sleep(_LOOK_SECONDS)


def is_running(pid: int) -> bool:
    """Also while its first thread is gone, and others still hold what it had."""
    return start_time(pid) > 0
