"""The leader's loop over a store: what its clock decides."""

import asyncio
from random import Random

from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    FailureReport,
    LeaderRecord,
    NodeReport,
    decode_assignment,
    encode_node,
    encode_report,
    node_path,
    report_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

ZERO = ContainerId(0)
PAUSE_SECONDS = 60.0


class Cluster:
    """A leader of one container, and nodes by hand."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.world = SimulatedCoordination(Random(0))
        self.sessions: dict[HostId, SimulatedSession] = {}

    async def connect(self) -> SimulatedSession:
        # Its session lasts for as long as nothing ends it.
        return await SimulatedSession.connect(self.world, Network(Random(1), message_seconds=0.01))

    async def lead(self) -> None:
        async def work(leadership: Leadership) -> None:
            settings = AssignerSettings(failure_pause_seconds=PAUSE_SECONDS)
            await Assigner(leadership, container_count=1, settings=settings).run()

        await Election(
            connect=self.connect, leader=LeaderRecord("c0", "c0:90"), work=work, random=Random(2)
        ).run()

    async def register(self, name: str) -> None:
        node_id = HostId(name)
        session = self.sessions[node_id] = await self.connect()
        node = ClusterNode(node_id=node_id, http="h:1", wire="h:2", capacity=0, version="1")
        await session.create(report_path(node_id), encode_report(NodeReport()), ephemeral=True)
        await session.create(node_path(node_id), encode_node(node), ephemeral=True)

    async def report(self, node_id: HostId, report: NodeReport) -> None:
        path = report_path(node_id)
        version = self.world.values[path].version
        await self.sessions[node_id].compare_and_set(path, encode_report(report), version=version)

    def owner(self) -> HostId | None:
        found = self.world.values.get(ASSIGNMENT_PATH)
        return None if found is None else decode_assignment(found.value).containers[ZERO].node

    async def until_owned(self, *, other_than: HostId | None = None) -> tuple[HostId, float]:
        """By whom, and behind how many seconds."""
        began = self.loop.time()
        while (owner := self.owner()) in (None, other_than):
            await asyncio.sleep(0.1)
        assert owner is not None
        return owner, self.loop.time() - began

    async def keep(self) -> None:
        """All sessions of nodes that are there."""
        while True:
            for session in list(self.sessions.values()):
                await session.heartbeat()
            await asyncio.sleep(1.0)


def test_the_pause_behind_a_failure_is_over_when_the_container_was_given_away() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop)
        leader = loop.start("c0", cluster.lead())
        await cluster.register("a")
        await cluster.register("b")
        keeping = asyncio.create_task(cluster.keep())
        first, _ = await cluster.until_owned()
        given = decode_assignment(cluster.world.values[ASSIGNMENT_PATH].value)
        failed = FailureReport(given.containers[ZERO].since, "no bookie answers", "passing")
        await cluster.report(first, NodeReport(version=given.version, failed={ZERO: failed}))
        second, seconds = await cluster.until_owned(other_than=first)
        assert second != first
        assert seconds >= PAUSE_SECONDS, "it had just failed"
        # The node is gone: that is no failure of the container.
        gone = cluster.sessions.pop(second)
        await gone.close()
        third, seconds = await cluster.until_owned(other_than=second)
        assert third == first
        assert seconds < PAUSE_SECONDS / 4
        keeping.cancel()
        loop.crash(leader)

    run_simulation(1, main)
