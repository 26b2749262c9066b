"""Every node of a cluster has containers: tests before may have left all of them at one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from segmentstore.cluster.cluster_state import change_wishes, read_cluster_state
from segmentstore.demo.local_cluster import LocalCluster
from segmentstore.host.cluster_access import open_cluster_access
from segmentstore.host.setting_sources import resolve_settings

SECONDS_MAX = 150.0


async def spread_containers(cluster: LocalCluster) -> None:
    """Asks for even loads; each node has a container when this returns, and all of them are served."""
    resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
    async with open_cluster_access(resolved) as access:
        await change_wishes(
            access.store, lambda wishes: replace(wishes, rebalance=wishes.rebalance + 1)
        )

        async def is_spread() -> bool:
            state = await read_cluster_state(access.store)
            return len(state.nodes) == cluster.plan.nodes and all(
                state.containers_of(each) for each in state.nodes
            )

        await until(is_spread)
    await until(lambda: is_well(cluster))


async def is_well(cluster: LocalCluster) -> bool:
    return not await cluster.problems()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():
            await asyncio.sleep(0.1)
