"""A node of a cluster in one process: start, register, say so, run what is assigned, drain, stop. See `serving.py`, and

    stdout   one line: `ready http://HOST:PORT wire=HOST:PORT containers=2/2 ... node=ID`, or `partial ...` if some
             container that is assigned here could not recover; with `recovering=topics` if these do not answer yet
    exit     2 for settings that cannot work, 5 if ZooKeeper does not answer

Invariants:

- The node listens before it registers: other processes are sent to what answers.
- It is announced when it is registered, what was assigned to it first has started, or said why it cannot, and topics
  answer. Without a controller that leads nothing is assigned: it is announced after a while all the same.
- Told to end, the node goes on serving until its containers are at other nodes, or until `cluster.drain_seconds` are
  over; then it stops as any store does, and its registration goes last.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from segmentstore.host.service_builder import NodeService, open_node
from segmentstore.host.serving import begin_serving, listen, ready_line, run_process
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.runtime.process import freeze_long_lived_objects

logger = logging.getLogger(__name__)

_ASSIGNED_SECONDS_MAX = 15.0
"""A node that has been assigned nothing by then, or whose topics nothing answers, is announced with what it has."""


def run_node(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal. `announce` gets the ready line. Raises SegmentStoreError when it cannot start."""
    run_process(serve_node(resolved, announce), resolved.settings.log)


async def serve_node(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Start, announce, and stop on SIGTERM or SIGINT."""
    settings = resolved.settings
    drain_seconds = settings.cluster.drain_seconds
    stopping = begin_serving(drain_seconds + settings.shutdown.grace_seconds)
    async with open_node(resolved) as node:
        await listen(node.servers.start())
        try:
            async with asyncio.TaskGroup() as group:
                viewing = group.create_task(node.view.run(), name="cluster view")
                asking = group.create_task(node.tier2_reach.run(), name="tier 2 reach")
                taking_part = group.create_task(node.membership.run(), name="node")
                serving = group.create_task(node.servers.run(), name="servers")
                announcing = group.create_task(_announce_when_ready(node, announce))
                caching = group.create_task(node.containers.preallocate_cache(), name="cache")
                await stopping.wait()
                logger.info("stopping")
                announcing.cancel()
                caching.cancel()
                await node.membership.drain(drain_seconds)
                serving.cancel()
                await node.servers.close()
                taking_part.cancel()
                asking.cancel()
                viewing.cancel()
        finally:
            await node.servers.close()
        await node.membership.forget_drain()
    logger.info("stopped")


async def _announce_when_ready(node: NodeService, announce: Callable[[str], None]) -> None:
    started = asyncio.get_running_loop().time()
    with suppress(TimeoutError):
        async with asyncio.timeout(_ASSIGNED_SECONDS_MAX):
            await node.membership.wait_until_settled()
            await node.servers.wait_until_ready()
    await node.membership.wait_until_registered()
    seconds = asyncio.get_running_loop().time() - started
    freeze_long_lived_objects()
    node_id = node.membership.node_id
    assigned = (
        set() if (found := node.view.assignment()) is None else found.given_to(node_id).keys()
    )
    here = [each for each in node.registry.health() if each.container_id in assigned]
    announce(
        ready_line(
            node.servers.addresses(),
            here,
            f"node={node_id}",
            seconds=seconds,
            recovering=node.servers.recovering(),
        )
    )
