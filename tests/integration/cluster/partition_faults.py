"""Partitions: a process does not reach others, is not reached by their answers, or both, for a while.

Its connections go by way of proxies (shimmed_processes.py), which are cut three times under load, in each direction
and in both, each time those of another node; clients reach the process all the time. A cut from ZooKeeper lasts for
longer than a session. Before each next cut the cluster has to be whole again.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle

from tests.integration.cluster.cut_proxy import Direction
from tests.integration.cluster.fault_run import FaultRun

_SHORT_SECONDS = 7.0
"""A ledger fails behind five, and no append is given up before the next one has failed as well."""


async def cut_node_from_zookeeper(run: FaultRun) -> None:
    """A node and ZooKeeper: its lease ends, others take its containers, and it comes back as another node."""
    await _cut_node(run, "zookeeper")


async def cut_node_from_bookies(run: FaultRun) -> None:
    """A node and all bookies, for less than appends are tried again: the node goes on with them when it is healed."""
    node = run.any_node()
    async with run.with_shim(node) as process:
        for direction in _directions(run):
            await run.until_it_has_containers(node)
            process.cut(["bookie"], direction)
            await asyncio.sleep(_SHORT_SECONDS)
            process.heal()
            await run.until_whole()


async def cut_node_from_bookies_for_long(run: FaultRun) -> None:
    """A node and all bookies, for longer than appends are tried again: its containers are given to others meanwhile."""
    await _cut_node(run, "bookie")


async def cut_node_from_s3(run: FaultRun) -> None:
    """A node and Tier 2: appends go on."""
    await _cut_node(run, "s3")


async def cut_node_from_s3_for_long(run: FaultRun) -> None:
    """A node and Tier 2, until others have its containers: segments can be made in every container before it is healed.

    It gets containers again when it has reached Tier 2 for a while.
    """
    node = run.any_node()
    async with run.with_shim(node) as process:
        await run.until_it_has_containers(node)
        process.cut(["s3"], run.random.choice(list(Direction)))
        await run.until_it_has_none(node)
        await run.until_segments_are_made()
        process.heal()
        await run.until_it_has_containers(node)


async def cut_node_off(run: FaultRun) -> None:
    """A node and everything but its clients and the other nodes."""
    await _cut_node(run, "zookeeper", "bookie", "s3")


async def cut_bookie_from_zookeeper(run: FaultRun) -> None:
    """A bookie and ZooKeeper. A bookie that ended by that is started again."""
    bookie = run.random.choice(run.processes.rows("bookie")).name
    async with run.with_shim(bookie) as process:
        for direction in _directions(run):
            process.cut(["zookeeper"], direction)
            await asyncio.sleep(run.settings.session_seconds)
            process.heal()
            # It does nothing to one that runs.
            await run.processes.start(bookie)
            await run.until_whole()


async def cut_leader_from_zookeeper(run: FaultRun) -> None:
    """The controller that leads and ZooKeeper: another one leads, and the one before does not know it yet."""
    leader = await run.until_one_leads()
    chosen = next(each.name for each in run.processes.rows("controller") if each.name != leader)
    async with run.with_shim(chosen) as process:
        for direction in _directions(run):
            await run.have_lead(chosen)
            process.cut(["zookeeper"], direction)
            await run.until_one_leads(other_than=chosen)
            process.heal()
            await run.until_whole()


async def _cut_node(run: FaultRun, *roles: str) -> None:
    """Others have its containers before it is healed.

    Then it is another node's turn: one where containers failed is given none for a while.
    """
    names = [each.name for each in run.processes.rows("node")]
    nodes = cycle(run.random.sample(names, len(names)))
    for node, direction in zip(nodes, _directions(run), strict=False):
        async with run.with_shim(node) as process:
            await run.until_it_has_containers(node)
            process.cut(roles, direction)
            # It has lost its containers by then: appends that are acknowledged now are acknowledged by other nodes.
            await asyncio.sleep(run.settings.session_seconds)
            await run.until_appends_go_on()
            process.heal()
            await run.until_whole()


def _directions(run: FaultRun) -> Sequence[Direction]:
    """In an order of chance: what one left behind is there when the next begins."""
    every = [Direction.FORTH, Direction.BACK, Direction.BOTH]
    return run.random.sample(every, run.settings.cuts)
