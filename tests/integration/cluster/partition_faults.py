"""Partitions: a process does not reach others, is not reached by their answers, or both, for a while.

The process is started again behind proxies of its connections (process_shim.py, cut_proxy.py). Then the connections
are cut three times under load, in each direction and in both, for longer than a session of ZooKeeper lasts; clients
reach the process all the time. Before each next cut the cluster has to be whole again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tests.integration.cluster.cut_proxy import CutProxy, Direction, cut_proxy
from tests.integration.cluster.fault_run import FaultRun

_BEHIND_SESSION_SECONDS = 5.0


async def cut_node_from_zookeeper(run: FaultRun) -> None:
    """A node and ZooKeeper: its lease ends, others take its containers, and it comes back as another node."""
    await _cut_node(run, "zookeeper")


async def cut_node_from_bookies(run: FaultRun) -> None:
    """A node and all bookies, for less than appends are tried again: the node goes on with them when it is healed."""
    node = run.any_node()
    async with _behind_proxies(run, node, "bookie") as links:
        for direction in _directions(run):
            await run.until_it_has_containers(node)
            links.cut(direction)
            await asyncio.sleep(run.settings.session_seconds + _BEHIND_SESSION_SECONDS)
            links.heal()
            await run.until_whole()


async def cut_node_from_bookies_for_long(run: FaultRun) -> None:
    """A node and all bookies, for longer than appends are tried again: its containers are given to others meanwhile."""
    await _cut_node(run, "bookie", variables={"SEGMENTSTORE_BOOKKEEPER_RETRY_SECONDS": "8s"})


async def cut_node_from_s3(run: FaultRun) -> None:
    """A node and Tier 2: appends go on."""
    await _cut_node(run, "s3")


async def cut_node_off(run: FaultRun) -> None:
    """A node and everything but its clients and the other nodes."""
    await _cut_node(run, "zookeeper", "bookie", "s3")


async def cut_bookie_from_zookeeper(run: FaultRun) -> None:
    """A bookie and ZooKeeper. A bookie that ended by that is started again."""
    bookie = run.random.choice(run.processes.rows("bookie")).name
    async with _behind_proxies(run, bookie, "zookeeper") as links:
        for direction in _directions(run):
            links.cut(direction)
            await asyncio.sleep(run.settings.session_seconds)
            links.heal()
            # It does nothing to one that runs.
            await run.processes.start(bookie, links.environment)
            await run.until_whole()


async def cut_leader_from_zookeeper(run: FaultRun) -> None:
    """The controller that leads and ZooKeeper: another one leads, and the one before does not know it yet."""
    leader = await run.until_one_leads()
    chosen = next(each.name for each in run.processes.rows("controller") if each.name != leader)
    async with _behind_proxies(run, chosen, "zookeeper") as links:
        for direction in _directions(run):
            await run.have_lead(chosen)
            links.cut(direction)
            await run.until_one_leads(other_than=chosen)
            links.heal()
            await run.until_whole()


async def _cut_node(run: FaultRun, *roles: str, variables: Mapping[str, str] | None = None) -> None:
    """Others have its containers before it is healed."""
    node = run.any_node()
    async with _behind_proxies(run, node, *roles, variables=variables) as links:
        for direction in _directions(run):
            await run.until_it_has_containers(node)
            await run.lose(node)
            links.cut(direction)
            await asyncio.sleep(run.settings.session_seconds + _BEHIND_SESSION_SECONDS)
            await run.until_taken_over()
            links.heal()
            await run.until_whole()


def _directions(run: FaultRun) -> Sequence[Direction]:
    """In an order of chance: what one left behind is there when the next begins."""
    every = [Direction.FORTH, Direction.BACK, Direction.BOTH]
    return run.random.sample(every, run.settings.cuts)


@dataclass(frozen=True, slots=True)
class _Links:
    """Connections of one process to servers of some roles."""

    proxies: Sequence[CutProxy]
    environment: Mapping[str, str]
    """With which the process goes by way of the proxies."""

    def cut(self, direction: Direction) -> None:
        for each in self.proxies:
            each.cut(direction)

    def heal(self) -> None:
        for each in self.proxies:
            each.heal()


@asynccontextmanager
async def _behind_proxies(
    run: FaultRun, name: str, *roles: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[_Links]:
    """`variables`: what the process is started with besides."""
    async with AsyncExitStack() as stack:
        routes: dict[int, int] = {}
        proxies: list[CutProxy] = []
        for server in [each for role in roles for each in run.processes.rows(role)]:
            proxy = await stack.enter_async_context(cut_proxy(server.port))
            routes[server.port] = proxy.port
            proxies.append(proxy)
        shim = await stack.enter_async_context(run.with_shim(name, routes, variables))
        used = sum(proxy.bytes_passed[Direction.BACK] for proxy in proxies)
        assert used > 0, f"{name} goes another way than by the proxies"
        yield _Links(proxies, {**shim.environment, **(variables or {})})
