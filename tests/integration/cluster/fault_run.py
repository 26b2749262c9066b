"""What every fault of a cluster has in its hands: processes, clients at work, and waits for what has to come back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random

from tests.integration.cluster.cluster_health import (
    LOOK_SECONDS,
    RECOVER_SECONDS_MAX,
    ClusterHealth,
)
from tests.integration.cluster.http_calls import url_of
from tests.integration.cluster.shimmed_processes import ShimmedProcess, shimmed
from tests.integration.cluster.workload import Workload, until_told

PROMISED_PAUSE_SECONDS = 15.0
"""A kill of any one process interrupts appends to no segment for longer, if the machine has a processor for them."""

_NEW_SEGMENTS = 40


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Times in seconds."""

    before_seconds: float = 4.0
    after_seconds: float = 3.0
    operations_min: int = 0
    """So many are answered before the fault, and as many behind it, however long that takes."""
    session_seconds: float = 10.0
    """Of nodes and controllers in ZooKeeper: what is stopped for longer has lost it."""
    s3_seconds: float = 120.0
    """How long Tier 2 is away."""
    cuts: int = 3
    """Of each partition: one in each direction and one in both, or some of these."""


@dataclass(slots=True)
class FaultRun(ClusterHealth):
    """What a fault has in its hands, and what it leaves for the report."""

    workload: Workload
    settings: FaultSettings
    random: Random
    shimmed: Mapping[str, ShimmedProcess] = field(default_factory=dict)
    """Processes that run with a shim in any case; others are started with one when a fault needs it."""
    lost_at: float = 0.0
    lost_segments: Sequence[str] = ()
    pause_seconds_max: float = inf
    """What is promised of appends to any segment."""
    notes: list[str] = field(default_factory=list)
    """What was measured beside pauses, in words."""

    async def segments_on(self, node: str) -> list[str]:
        """The long-lived segments whose containers the node has."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while not (health := await self.health(node)):
                await asyncio.sleep(LOOK_SECONDS)
        here = {
            each["container"] for each in health.get("containers", []) if each["state"] == "running"
        }
        return [name for name in self.workload.segments if await self._container_of(name) in here]

    async def _container_of(self, name: str) -> object:
        node = self.random.choice(self.processes.rows("node"))
        url = url_of(node.http, name, "info")
        async with asyncio.timeout(RECOVER_SECONDS_MAX), self.session.get(url) as response:
            values = json.loads(await response.read())
        return values.get("container")

    async def lose(self, node: str) -> None:
        """The node's segments are those of which the failover is measured, from now on."""
        self.lost_segments = await self.segments_on(node)
        self.lost_at = asyncio.get_running_loop().time()

    async def until_taken_over(self) -> None:
        """Until the segments of the node that was lost take appends again."""
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while max(self.failover_seconds(), default=0.0) == float("inf"):
                await asyncio.sleep(LOOK_SECONDS)

    def failover_seconds(self) -> list[float]:
        """Of each segment of the node that was lost."""
        history = self.workload.history
        return [history.seconds_until_append(each, self.lost_at) for each in self.lost_segments]

    async def until_whole(self) -> None:
        """Until every node is ready, and each segment has taken an append that was sent after this call."""
        for node in self.processes.rows("node"):
            await self.until_ready(node.name)
        await self.until_appends_go_on()

    async def until_segments_are_made(self) -> None:
        """Until so many new ones have been made that each container has some: what has no Tier 2 refuses them."""
        node = self.processes.rows("node")[0].name
        client = self.workload.client(node, seconds_max=RECOVER_SECONDS_MAX)
        prefix = f"{self.workload.segments[0]}-new-{self.random.getrandbits(32):08x}"
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            for number in range(_NEW_SEGMENTS):
                await until_told(partial(client.create, f"{prefix}-{number}"))

    async def until_more_is_answered(self, count: int) -> None:
        """Until clients have so many more answers than now."""
        history = self.workload.history
        goal = history.checked_count + count
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while history.checked_count < goal:
                await asyncio.sleep(LOOK_SECONDS)

    async def until_appends_go_on(self) -> None:
        """Until each segment has taken an append that was sent after this call."""
        began = asyncio.get_running_loop().time()
        history = self.workload.history
        async with asyncio.timeout(RECOVER_SECONDS_MAX):
            while any(
                history.seconds_until_append(each, began) == float("inf")
                for each in self.workload.segments
            ):
                await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def with_shim(self, name: str) -> AsyncIterator[ShimmedProcess]:
        """A node, bookie or controller with a shim: started again with it and without it, unless it has one anyway."""
        present = self.shimmed.get(name)
        if present is not None:
            try:
                yield present
            finally:
                present.heal()
                present.shim.set_clock(0.0)
            return
        async with shimmed(self.processes, name) as made:
            try:
                await self.restart(name)
                yield made
            finally:
                # Its proxies go with the block.
                del self.processes.environments[name]
                await self.restart(name)

    def any_node(self) -> str:
        return self.random.choice(self.processes.rows("node")).name
