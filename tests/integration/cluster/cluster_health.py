"""A cluster as its processes tell of themselves, and waits for what has to come back."""

import asyncio
import json
from dataclasses import dataclass

import aiohttp

from segmentstore.runtime.local_processes import is_listening
from tests.integration.cluster.processes import Processes, is_running

LOOK_SECONDS = 0.1
RECOVER_SECONDS_MAX = 300.0
"""No promise, only an end."""


@dataclass(slots=True)
class ClusterHealth:
    """Asks the processes of one cluster."""

    processes: Processes
    session: aiohttp.ClientSession

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

    async def until_ready(self, node: str) -> None:
        """Until a node that was started says that it is.

        One of several nodes is, for this, when no container of it starts or ends: it may have none, and is not told
        apart there from one that lacks those of others.
        """
        is_alone = len(self.processes.rows("node")) == 1
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while True:
                health = await self.health(node)
                assert health or is_running(self.processes.row(node).pid), (
                    f"{node} has ended by itself: its log says why"
                )
                states = {each["state"] for each in health.get("containers", [])}
                if health.get("ready") or (
                    health and not is_alone and states <= {"running", "stopped"}
                ):
                    return
                await asyncio.sleep(LOOK_SECONDS)

    async def until_it_has_containers(self, node: str) -> None:
        """Until a node runs one; as the last that came it has none at first."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while not await self._running_at(node):
                await asyncio.sleep(LOOK_SECONDS)

    async def until_it_has_none(self, node: str) -> None:
        """Until a node that answers runs no container."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while not await self.health(node) or await self._running_at(node):
                await asyncio.sleep(LOOK_SECONDS)

    async def _running_at(self, node: str) -> list[object]:
        found = (await self.health(node)).get("containers", [])
        return [each["container"] for each in found if each["state"] == "running"]

    async def until_one_leads(self, *, other_than: str = "") -> str:
        """Until a controller says that it leads; which one."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while True:
                for each in self.processes.rows("controller"):
                    if each.name != other_than and (await self.health(each.name)).get("leads"):
                        return each.name
                await asyncio.sleep(LOOK_SECONDS)

    async def leader(self) -> str:
        """The controller that leads; the first one if none says so."""
        controllers = self.processes.rows("controller")
        for each in controllers:
            if (await self.health(each.name)).get("leads"):
                return each.name
        return controllers[0].name

    async def have_lead(self, controller: str) -> None:
        """Those that lead before it are started again."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while (leader := await self.until_one_leads()) != controller:
                await self.restart(leader)

    async def restart(self, name: str) -> None:
        """It is ended in order, and started; it works when this returns."""
        await self.processes.end(name)
        await self.processes.start(name)
        await self.until_it_works(name)

    async def until_it_works(self, name: str) -> None:
        """Until a node has containers, a controller answers, a bookie or ZooKeeper listens."""
        match self.processes.row(name).role:
            case "node":
                await self.until_ready(name)
                await self.until_it_has_containers(name)
            case "controller":
                async with asyncio.timeout(RECOVER_SECONDS_MAX):
                    while not await self.health(name):
                        await asyncio.sleep(LOOK_SECONDS)
            case "bookie" | "zookeeper":
                await _until_listening(self.processes.row(name).port)


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(RECOVER_SECONDS_MAX):
        while not is_listening(port):
            await asyncio.sleep(LOOK_SECONDS)
