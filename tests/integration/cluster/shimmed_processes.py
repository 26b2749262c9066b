"""Processes that are started with a shim: their clocks can be set, and they can be cut off from the servers they use.

Each server that a process of its role goes to (ZooKeeper, the bookies, the S3 server) has a proxy of its own for each
process; the shim leads the process there. A process may have its shim for one fault, or for as many as there are: a
cut needs no start then.

    <directory of processes.json>/shims/NAME     what the shim of a process reads
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from tests.integration.cluster.cluster_health import ClusterHealth
from tests.integration.cluster.cut_proxy import CutProxy, Direction, cut_proxy
from tests.integration.cluster.process_shim import ProcessShim
from tests.integration.cluster.processes import Processes

_SERVERS: Mapping[str, Sequence[str]] = {
    "node": ("zookeeper", "bookie", "s3"),
    "controller": ("zookeeper",),
    "bookie": ("zookeeper",),
}
"""What a process of a role goes to. Processes of other roles have no shim."""


class ShimmedProcess:
    """One process with its shim, and its proxies by the role of the server. Made by `shimmed`."""

    def __init__(
        self, name: str, shim: ProcessShim, proxies: Mapping[str, Sequence[CutProxy]]
    ) -> None:
        self.name = name
        self.shim = shim
        self._proxies = proxies

    def cut(self, roles: Sequence[str], direction: Direction) -> None:
        """From all servers of these roles."""
        for role in roles:
            passed = sum(each.bytes_passed[Direction.BACK] for each in self._proxies[role])
            assert passed > 0, f"{self.name} goes to {role} another way than by the proxies"
            for each in self._proxies[role]:
                each.cut(direction)

    def heal(self) -> None:
        for proxies in self._proxies.values():
            for each in proxies:
                each.heal()


@asynccontextmanager
async def shimmed(processes: Processes, name: str) -> AsyncIterator[ShimmedProcess]:
    """Whenever the process is started inside the block, it has the shim; behind it it has to be started without."""
    row = processes.row(name)
    async with AsyncExitStack() as stack:
        routes: dict[int, int] = {}
        proxies: dict[str, list[CutProxy]] = {}
        for role in _SERVERS[row.role]:
            for server in processes.rows(role):
                proxy = await stack.enter_async_context(cut_proxy(server.port))
                routes[server.port] = proxy.port
                proxies.setdefault(role, []).append(proxy)
        shim = ProcessShim(processes.path.parent / "shims" / name)
        shim.route(routes)
        processes.environments[name] = shim.environment
        try:
            yield ShimmedProcess(name, shim, proxies)
        finally:
            processes.environments.pop(name, None)


@asynccontextmanager
async def all_shimmed(processes: Processes) -> AsyncIterator[Mapping[str, ShimmedProcess]]:
    """Every node, controller and bookie is started again with a shim, and without it behind the block."""
    names = [each.name for role in _SERVERS for each in processes.rows(role)]
    async with AsyncExitStack() as stack:
        found = {name: await stack.enter_async_context(shimmed(processes, name)) for name in names}
        try:
            await _restart_all(processes, names)
            yield found
        finally:
            processes.environments.clear()
            # Their proxies go with the block.
            await _restart_all(processes, names)


async def _restart_all(processes: Processes, names: Sequence[str]) -> None:
    """Without load, nodes and controllers may be away together; bookies go one after the other."""
    async with aiohttp.ClientSession() as session:
        cluster = ClusterHealth(processes, session)
        bookies = [name for name in names if processes.row(name).role == "bookie"]
        for name in bookies:
            await cluster.restart(name)
        others = [name for name in names if name not in bookies]
        await asyncio.gather(*(processes.kill(name) for name in others))
        for name in others:
            await processes.start(name)
        for name in others:
            await cluster.until_it_works(name)
