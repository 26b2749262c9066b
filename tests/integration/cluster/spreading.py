"""Where the containers of a cluster are when a test begins: all of them served, and none about to move.

A node that was started again is given containers a while after it is there. A test that asks for the node of a
container just then would be told that it has none, and what it sends there would be refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from segmentstore.cluster.cluster_state import ClusterState, change_wishes, read_cluster_state
from segmentstore.cluster.placement import Observed, PlacementSettings, next_assignment
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.demo.local_cluster import LocalCluster
from segmentstore.host.cluster_access import open_cluster_access
from segmentstore.host.setting_sources import resolve_settings

SECONDS_MAX = 300.0
"""No promise, only an end."""


async def until_settled(cluster: LocalCluster) -> None:
    """Until every node is there, every container is served, and the leader would move none."""
    resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
    async with open_cluster_access(resolved) as access:

        async def settled() -> bool:
            return _is_settled(await read_cluster_state(access.store), cluster)

        await until(settled)


async def spread_containers(cluster: LocalCluster) -> None:
    """Asks for even loads; each node has a container when this returns, and it is settled."""
    resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
    async with open_cluster_access(resolved) as access:
        await change_wishes(
            access.store, lambda wishes: replace(wishes, rebalance=wishes.rebalance + 1)
        )

        async def is_spread() -> bool:
            state = await read_cluster_state(access.store)
            return _is_settled(state, cluster) and all(map(state.containers_of, state.nodes))

        await until(is_spread)


def _is_settled(state: ClusterState, cluster: LocalCluster) -> bool:
    if state.assignment is None or len(state.nodes) < cluster.plan.nodes:
        return False
    loads = {c: load for report in state.reports.values() for c, load in report.loads.items()}
    observed = Observed(list(state.nodes.values()), state.reports, state.wishes, loads)
    following = next_assignment(
        state.assignment,
        observed,
        epoch=state.assignment.leader_epoch,
        settings=PlacementSettings(),
    )
    containers = map(ContainerId, range(cluster.plan.containers))
    return following is None and all(map(state.runs, containers))


async def is_well(cluster: LocalCluster) -> bool:
    return not await cluster.problems()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():
            await asyncio.sleep(0.1)
