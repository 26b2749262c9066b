"""A cluster whose nodes fail, move their containers and idle: `python -m benchmarks.cluster [RUNS]`, 20 by default.

Each cluster is one of processes on this machine (`segmentstore/demo/local_cluster.py`), which they share with the
writers: BookKeeper, an S3 server, nodes and controllers. Measured are

    failover      from kill -9 of the owner until another node acknowledges an append, through a node that lives;
                  beside the time-out of a session and 3 s for all that comes behind it
    recovery      of such failovers the part from the assignment to another node until that append, with some megabytes
                  in the log that Tier 2 does not have
    move          the longest wait of a writer while its container leaves a node that is drained, retries included
    a node        its resident memory and its share of a core, with containers that nothing is asked of
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cluster.cluster_state import (
    ClusterState,
    change_wishes,
    read_cluster_state,
    with_drained,
    without_drained,
)
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import CoordinationStore
from segmentstore.demo.local_cluster import ClusterPlan, LocalCluster
from segmentstore.host.cluster_access import open_cluster_access
from segmentstore.host.setting_sources import resolve_settings

RUNS = 20
LOG_MEGABYTES = (16, 128)
CONTAINER_COUNTS = (4, 16, 64, 256)
SESSION_SECONDS = 10.0
BEHIND_SESSION_SECONDS = 3.0
MOVE_MILLISECONDS = 500.0
IDLE_SECONDS = 15.0
WATCHED_SECONDS = 6.0
_APPEND_BYTES = 1 << 20
_AT_ONCE = 4
_RETRY_SECONDS = 0.01
_LOOK_SECONDS = 0.02
_QUIET_SECONDS_MAX = 60.0
_UNFLUSHED = ("writer.flush_interval_seconds=1h", "writer.flush_bytes=1GiB")
_ROOM = ("cache.bytes_max=512MiB",)


class Subject:
    """A cluster that runs, and a look into its ZooKeeper."""

    def __init__(self, cluster: LocalCluster, store: CoordinationStore) -> None:
        self.cluster = cluster
        self.store = store

    async def state(self) -> ClusterState:
        return await read_cluster_state(self.store)

    async def owner_of(self, name: str) -> str | None:
        """The id of the node that has the segment's container."""
        assignment = (await self.state()).assignment
        assert assignment is not None, "a cluster that is ready has an assignment"
        return assignment.containers[self.container_of(name)].node

    def container_of(self, name: str) -> ContainerId:
        return ContainerId(container_of(name, self.cluster.plan.containers))

    def http_beside(self, node: str) -> str:
        """Of some other node than the one of this name."""
        addresses = [each.http for each in self.cluster.with_role("node") if each.name != node]
        return f"http://{addresses[0]}"

    async def until_even(self) -> None:
        """Everything runs, and each node has as many containers as another: nothing is going to move by itself."""
        await self.cluster.up()
        end = time.perf_counter() + _QUIET_SECONDS_MAX
        wishes = await change_wishes(
            self.store, lambda wishes: replace(wishes, rebalance=wishes.rebalance + 1)
        )
        while time.perf_counter() < end:
            state = await self.state()
            loads = [len(state.containers_of(node)) for node in state.nodes]
            found = state.assignment
            if (
                max(loads) - min(loads) <= 1
                and found is not None
                and found.rebalanced >= wishes.rebalance
                and not state.problems(self.cluster.plan.containers)
            ):
                return
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def subject(plan: ClusterPlan) -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="segmentstore-bench-cluster-") as directory:
        cluster = LocalCluster(Path(directory), plan)
        try:
            await cluster.up()
            resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
            async with open_cluster_access(resolved) as access:
                yield Subject(cluster, access.store)
        finally:
            await cluster.down()


async def append_until_told(client: HttpClient, name: str, content: bytes) -> float:
    """Seconds until an append is acknowledged; what is refused or lost is tried again. Here twice does no harm."""
    begin = time.perf_counter()
    while True:
        try:
            await client.append(name, content)
        except ServerError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return time.perf_counter() - begin


async def failover(on: Subject, name: str, log_megabytes: int) -> tuple[float, float]:
    """Seconds from kill -9 to the append, and those of them behind the assignment to another node."""
    await on.until_even()
    killed = await on.owner_of(name)
    assert killed is not None, f"given to none {name=}"
    node = killed.rpartition("-")[0]
    async with HttpClient(on.http_beside(node)) as client:
        await client.ensure(name)
        await _fill(client, name, log_megabytes)
        on.cluster.kill(node)
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            given = tasks.create_task(_given_to_another(on, name, killed))
            waited = tasks.create_task(append_until_told(client, name, b"behind the kill"))
        assigned = given.result() - begin
    done = subprocess.run(on.cluster.of(node).start, shell=True, check=False)
    assert done.returncode == 0, f"not started {node=}"
    return waited.result(), max(0.0, waited.result() - assigned)


async def _fill(client: HttpClient, name: str, megabytes: int) -> None:
    numbers = iter(range((megabytes << 20) // _APPEND_BYTES))
    content = os.urandom(_APPEND_BYTES)

    async def writer() -> None:
        for _ in numbers:
            await append_until_told(client, name, content)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(writer())


async def _given_to_another(on: Subject, name: str, killed: str) -> float:
    while await on.owner_of(name) in (None, killed):
        await asyncio.sleep(_LOOK_SECONDS)
    return time.perf_counter()


async def longest_waits(
    on: Subject, node: str, change: Callable[[], Awaitable[object]]
) -> list[float]:
    """Of one writer for each segment, in seconds, while something changes; through a node that nothing leaves."""
    names = [f"moved/{number}" for number in range(4 * on.cluster.plan.containers)]
    owners = {name: await on.owner_of(name) for name in names}
    containers: dict[ContainerId, str] = {}
    for name, owner in owners.items():
        if owner is not None and owner.rpartition("-")[0] == node:
            containers.setdefault(on.container_of(name), name)
    end = time.perf_counter() + WATCHED_SECONDS

    async with HttpClient(on.http_beside(node)) as client:

        async def write(name: str) -> float:
            await client.ensure(name)
            longest = 0.0
            while time.perf_counter() < end:
                longest = max(longest, await append_until_told(client, name, b"x" * 100))
            return longest

        async with asyncio.TaskGroup() as tasks:
            writing = [tasks.create_task(write(name)) for name in containers.values()]
            await asyncio.sleep(WATCHED_SECONDS / 6)
            await change()
    assert writing, f"nothing was there to move {node=}"
    return [each.result() for each in writing]


async def measured_moves(on: Subject, runs: int) -> tuple[list[float], list[float]]:
    """The longest waits with moves, and without any."""
    moved: list[float] = []
    for number in range(runs):
        await on.until_even()
        node = on.cluster.with_role("node")[number % on.cluster.plan.nodes].name

        drain = partial(with_drained, name=node)
        moved += await longest_waits(on, node, partial(change_wishes, on.store, drain))
        state = await on.state()
        left = [each for each in state.nodes if each.startswith(f"{node}-")]
        assert not any(state.containers_of(each) for each in left), f"not drained {node=}"
        await change_wishes(on.store, partial(without_drained, names={node}))
    await on.until_even()
    node = on.cluster.with_role("node")[0].name
    unmoved = await longest_waits(on, node, partial(asyncio.sleep, 0))
    return moved, unmoved


async def moving(runs: int) -> list[Row]:
    """With the settings that a cluster has by itself: what is in the log is what the writers have just written."""
    async with subject(ClusterPlan()) as on:
        moved, unmoved = await measured_moves(on, runs)
    rows: list[Row] = []
    for what, found in (("median", median(moved)), ("worst", max(moved))):
        name = f"longest wait while a container moves, {what} of {len(moved)}"
        rows.append(row(name, 1000 * found, "ms", MOVE_MILLISECONDS))
    rows.append(row("longest wait while nothing moves", 1000 * max(unmoved), "ms", 0.0))
    return rows


async def failing(runs: int) -> list[Row]:
    rows: list[Row] = []
    async with subject(ClusterPlan(settings=(*_UNFLUSHED, *_ROOM))) as on:
        behind_sessions = [await failover(on, f"killed/{number}", 0) for number in range(runs)]
        recoveries = [(size, await failover(on, f"full/{size}", size)) for size in LOG_MEGABYTES]
    bound = SESSION_SECONDS + BEHIND_SESSION_SECONDS
    seconds = [each for each, _ in behind_sessions]
    for what, each in (("median", median(seconds)), ("worst", max(seconds))):
        name = f"kill -9 to the first append elsewhere, {what} of {runs}"
        rows.append(row(name, each, "s", bound))
    empty = median([each for _, each in behind_sessions])
    rows.append(
        row(
            "assigned anew to the first append, nothing in the log",
            empty,
            "s",
            BEHIND_SESSION_SECONDS,
        )
    )
    for size, (_, each) in recoveries:
        name = f"assigned anew to the first append, {size} MB in the log"
        rows.append(row(name, each, "s", BEHIND_SESSION_SECONDS))
    return rows


async def idle_node(containers: int) -> list[Row]:
    plan = ClusterPlan(nodes=1, controllers=1, bookies=3, containers=containers)
    async with subject(plan) as on:
        await asyncio.sleep(IDLE_SECONDS / 3)
        pid = on.cluster.with_role("node")[0].pid
        before, begin = _cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        share = (_cpu_seconds(pid) - before) / (time.perf_counter() - begin)
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        resident_bytes = resident * os.sysconf("SC_PAGE_SIZE")
    return [
        row(f"memory of a node of {containers} containers", resident_bytes / 1e6, "MB", 0.0),
        row(f"CPU of an idle node of {containers} containers", 100 * share, "% of one", 0.0),
    ]


def _cpu_seconds(pid: int) -> float:
    """Of the process, its Java virtual machine in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(runs: int = RUNS) -> list[Row]:
    """The rows of `python -m benchmarks cluster`."""
    rows = [*asyncio.run(failing(runs)), *asyncio.run(moving(runs))]
    for containers in CONTAINER_COUNTS:
        rows += asyncio.run(idle_node(containers))
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
