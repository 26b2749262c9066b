"""Values of another version of the program, or damaged ones: who meets one goes on with what it knows, and names it."""

import asyncio
import logging
from random import Random

import pytest

from segmentstore.cluster.assigned_containers import LOOK_SECONDS_MAX, AssignedContainers
from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.placement import first_assignment
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    EPOCH_PATH,
    LEADER_PATH,
    WISHES_PATH,
    LeaderRecord,
    NodeReport,
    Wishes,
    decode_assignment,
    encode_assignment,
    encode_epoch,
    encode_node,
    encode_report,
    encode_wishes,
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

NODES = [HostId("n-1"), HostId("n-2")]
UNREADABLE = [b'{"format":2}', b"\xff"]
AGAIN_SECONDS = 2 * LOOK_SECONDS_MAX


class Values:
    """A store, and a person or another version of the program who writes there."""

    def __init__(self) -> None:
        self.world = SimulatedCoordination(Random(0), session_seconds=1_000.0)

    async def connect(self) -> SimulatedSession:
        return await SimulatedSession.connect(self.world, Network(Random(1), message_seconds=0.01))

    async def write(self, path: str, value: bytes) -> bytes:
        """What was there before."""
        async with asyncio.timeout(10):
            session = await self.connect()
            found = await session.get(path)
            if found is None:
                await session.create(path, value)
                return b""
            await session.compare_and_set(path, value, version=found.version)
            return found.value

    async def register(self, node_id: HostId) -> SimulatedSession:
        session = await self.connect()
        node = ClusterNode(node_id=node_id, http="h:1", wire="h:2", capacity=0, version="1")
        await session.create(report_path(node_id), encode_report(NodeReport()), ephemeral=True)
        await session.create(node_path(node_id), encode_node(node), ephemeral=True)
        return session

    def election(self) -> Election:
        async def work(leadership: Leadership) -> None:
            await Assigner(leadership, container_count=2, settings=AssignerSettings()).run()

        return Election(
            connect=self.connect, leader=LeaderRecord("c0", "c0:90"), work=work, random=Random(2)
        )

    def owners(self) -> set[HostId | None]:
        found = decode_assignment(self.world.values[ASSIGNMENT_PATH].value)
        return {each.node for each in found.containers.values()}


async def _ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize(
    "path", [node_path(NODES[1]), report_path(NODES[0]), WISHES_PATH, ASSIGNMENT_PATH]
)
def test_a_leader_goes_on_behind_a_value_that_it_cannot_read(
    path: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    async def main(loop: SimLoop) -> None:
        values = Values()
        if path == ASSIGNMENT_PATH:
            await values.write(path, value)
        leading = loop.create_task(values.election().run())
        await values.register(NODES[0])
        if path != ASSIGNMENT_PATH:
            await asyncio.sleep(AGAIN_SECONDS)
            assert values.owners() == {NODES[0]}
        if path == node_path(NODES[1]):
            await (await values.connect()).create(path, value)
        else:
            await values.register(NODES[1])
            await values.write(path, value)
        await asyncio.sleep(AGAIN_SECONDS)
        assert path in caplog.text
        assert not leading.done()
        # What is wrong goes, and the leader decides again.
        session = await values.connect()
        await session.delete(path, version=values.world.values[path].version)
        if path == node_path(NODES[1]):
            await values.register(HostId("n-3"))
        if path == report_path(NODES[0]):
            await session.create(path, encode_report(NodeReport()))
        await values.write(WISHES_PATH, encode_wishes(Wishes(drained=[NODES[0]])))
        await asyncio.sleep(AGAIN_SECONDS)
        assert NODES[0] not in values.owners()
        await _ended(leading)

    run_simulation(1, main)


def test_wishes_that_cannot_be_read_any_more_are_followed_as_they_were() -> None:
    async def main(loop: SimLoop) -> None:
        values = Values()
        await values.write(WISHES_PATH, encode_wishes(Wishes(drained=[NODES[0]])))
        leading = loop.create_task(values.election().run())
        for node_id in NODES:
            await values.register(node_id)
        await asyncio.sleep(AGAIN_SECONDS)
        assert values.owners() == {NODES[1]}
        await values.write(WISHES_PATH, UNREADABLE[0])
        third = HostId("n-3")
        await values.register(third)
        values.world.end(values.world.values[node_path(NODES[1])].owner)
        await asyncio.sleep(AGAIN_SECONDS)
        assert values.owners() == {third}
        await _ended(leading)

    run_simulation(1, main)


@pytest.mark.parametrize("value", UNREADABLE)
def test_a_controller_that_cannot_read_the_epoch_leads_when_it_can(value: bytes) -> None:
    async def main(loop: SimLoop) -> None:
        values = Values()
        await values.write(EPOCH_PATH, value)
        election = values.election()
        running = loop.create_task(election.run())
        await asyncio.sleep(AGAIN_SECONDS)
        assert not running.done()
        assert LEADER_PATH not in values.world.values
        await values.write(EPOCH_PATH, encode_epoch(7))
        await asyncio.sleep(AGAIN_SECONDS)
        assert election.leadership is not None
        assert election.leadership.epoch == 8
        await _ended(running)

    run_simulation(1, main)


@pytest.mark.parametrize("value", UNREADABLE)
def test_a_node_keeps_what_it_has_behind_a_map_that_it_cannot_read(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: SimLoop) -> None:
        values = Values()
        session = await values.register(NODES[0])
        assignments = AssignedContainers(session, node_id=NODES[0], random=Random(2))
        following = loop.create_task(assignments.run())
        given = first_assignment(1, epoch=1)
        await values.write(ASSIGNMENT_PATH, encode_assignment(given))
        await asyncio.sleep(AGAIN_SECONDS)
        await values.write(ASSIGNMENT_PATH, value)
        await asyncio.sleep(AGAIN_SECONDS)
        assert ASSIGNMENT_PATH in caplog.text
        assert assignments.leader_epoch == 1
        later = first_assignment(1, epoch=3)
        await values.write(
            ASSIGNMENT_PATH,
            encode_assignment(
                type(later)(2, 3, {ContainerId(0): later.containers[ContainerId(0)]})
            ),
        )
        await asyncio.sleep(AGAIN_SECONDS)
        assert assignments.leader_epoch == 3
        await _ended(following)

    run_simulation(1, main)


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("path", [ASSIGNMENT_PATH, LEADER_PATH, node_path(NODES[1])])
def test_what_is_shown_of_the_cluster_stays_behind_a_value_that_cannot_be_read(
    path: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: SimLoop) -> None:
        values = Values()
        await values.register(NODES[0])
        await values.write(ASSIGNMENT_PATH, encode_assignment(first_assignment(1, epoch=1)))
        view = ClusterView(await values.connect(), container_count=1, random=Random(3))
        following = loop.create_task(view.run())
        await asyncio.sleep(AGAIN_SECONDS)
        await values.write(path, value)
        await asyncio.sleep(AGAIN_SECONDS)
        assert path in caplog.text
        assert view.assignment() == first_assignment(1, epoch=1)
        assert [node.node_id for node in view.nodes()] == NODES[:1]
        session = await values.connect()
        await session.delete(path, version=values.world.values[path].version)
        await values.register(HostId("n-3"))
        await asyncio.sleep(AGAIN_SECONDS)
        assert len(view.nodes()) == 2
        await _ended(following)

    run_simulation(1, main)
