"""What every fault of a cluster has in its hands: processes, clients at work, and waits for what has to come back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import aiohttp

from segmentstore.runtime.local_processes import is_listening
from tests.integration.cluster.http_calls import url_of
from tests.integration.cluster.process_shim import ProcessShim
from tests.integration.cluster.processes import Processes
from tests.integration.cluster.workload import Workload

_LOOK_SECONDS = 0.1
_RECOVER_SECONDS_MAX = 150.0


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Times in seconds."""

    before_seconds: float = 4.0
    after_seconds: float = 3.0
    session_seconds: float = 10.0
    """Of nodes and controllers in ZooKeeper: what is stopped for longer has lost it."""
    s3_seconds: float = 120.0
    """How long Tier 2 is away."""
    cuts: int = 3
    """Of each partition: one in each direction and one in both, or some of these."""


@dataclass(slots=True)
class FaultRun:
    """What a fault has in its hands, and what it leaves for the report."""

    processes: Processes
    workload: Workload
    settings: FaultSettings
    random: Random
    session: aiohttp.ClientSession
    lost_at: float = 0.0
    lost_segments: Sequence[str] = ()

    async def segments_on(self, node: str) -> list[str]:
        """The long-lived segments whose containers the node has."""
        health = await self.health(node)
        here = {
            each["container"] for each in health.get("containers", []) if each["state"] == "running"
        }
        return [name for name in self.workload.segments if await self._container_of(name) in here]

    async def health(self, name: str) -> dict[str, list[dict[str, object]]]:
        """What a process says of itself; empty if it does not answer."""
        try:
            async with (
                asyncio.timeout(5),
                self.session.get(f"http://{self.processes.row(name).http}/health") as response,
            ):
                values = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}
        assert isinstance(values, dict), values
        return values

    async def _container_of(self, name: str) -> object:
        node = self.random.choice(self.processes.rows("node"))
        url = url_of(node.http, name, "info")
        async with asyncio.timeout(20), self.session.get(url) as response:
            values = json.loads(await response.read())
        return values.get("container")

    async def lose(self, node: str) -> None:
        """The node's segments are those of which the failover is measured, from now on."""
        self.lost_segments = await self.segments_on(node)
        self.lost_at = asyncio.get_running_loop().time()

    async def until_taken_over(self) -> None:
        """Until the segments of the node that was lost take appends again."""
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while max(self.failover_seconds(), default=0.0) == float("inf"):
                await asyncio.sleep(_LOOK_SECONDS)

    def failover_seconds(self) -> list[float]:
        """Of each segment of the node that was lost."""
        history = self.workload.history
        return [history.seconds_until_append(each, self.lost_at) for each in self.lost_segments]

    async def until_ready(self, node: str) -> None:
        """Until a node that was started says that it is.

        One of several nodes is, for this, when no container of it starts or ends: it may have none, and is not told
        apart there from one that lacks those of others.
        """
        is_alone = len(self.processes.rows("node")) == 1
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while True:
                health = await self.health(node)
                states = {each["state"] for each in health.get("containers", [])}
                if health.get("ready") or (
                    health and not is_alone and states <= {"running", "stopped"}
                ):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def until_whole(self) -> None:
        """Until every node is ready, and each segment has taken an append that was sent after this call."""
        for node in self.processes.rows("node"):
            await self.until_ready(node.name)
        began = asyncio.get_running_loop().time()
        history = self.workload.history
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while any(
                history.seconds_until_append(each, began) == float("inf")
                for each in self.workload.segments
            ):
                await asyncio.sleep(_LOOK_SECONDS)

    async def until_it_has_containers(self, node: str) -> None:
        """Until a node runs one; as the last that came it has none at first."""
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while not any(
                each["state"] == "running"
                for each in (await self.health(node)).get("containers", [])
            ):
                await asyncio.sleep(_LOOK_SECONDS)

    async def until_one_leads(self, *, other_than: str = "") -> str:
        """Until a controller says that it leads; which one."""
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while True:
                for each in self.processes.rows("controller"):
                    if each.name != other_than and (await self.health(each.name)).get("leads"):
                        return each.name
                await asyncio.sleep(_LOOK_SECONDS)

    async def _restart(self, name: str, environment: Mapping[str, str]) -> None:
        await self.processes.end(name)
        await self.processes.start(name, environment)
        match self.processes.row(name).role:
            case "node":
                await self.until_ready(name)
                await self.until_it_has_containers(name)
            case "controller":
                async with asyncio.timeout(_RECOVER_SECONDS_MAX):
                    while not await self.health(name):
                        await asyncio.sleep(_LOOK_SECONDS)
            case "bookie":
                await _until_listening(self.processes.row(name).port)

    @asynccontextmanager
    async def with_shim(
        self,
        name: str,
        routes: Mapping[int, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> AsyncIterator[ProcessShim]:
        """A node, bookie or controller is started again with a shim, and without it behind the block."""
        shim = ProcessShim(self.processes.path.parent / "shims" / name)
        shim.route(routes or {})
        try:
            await self._restart(name, {**shim.environment, **(variables or {})})
            yield shim
        finally:
            await self._restart(name, {})

    async def have_lead(self, controller: str) -> None:
        """Those that lead before it are started again."""
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while (leader := await self.until_one_leads()) != controller:
                await self._restart(leader, {})

    async def leader(self) -> str:
        """The controller that leads; the first one if none says so."""
        controllers = self.processes.rows("controller")
        for each in controllers:
            if (await self.health(each.name)).get("leads"):
                return each.name
        return controllers[0].name

    def any_node(self) -> str:
        return self.random.choice(self.processes.rows("node")).name


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(_RECOVER_SECONDS_MAX):
        while not is_listening(port):
            await asyncio.sleep(_LOOK_SECONDS)
