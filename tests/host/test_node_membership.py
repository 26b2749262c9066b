"""A process that is a node of its cluster, session after session."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from segmentstore.cluster.cluster_state import change_wishes, read_cluster_state, with_drained
from segmentstore.cluster.node_session import NodeSession
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    AssignedContainer,
    AssignmentMap,
    decode_assignment,
    encode_assignment,
    encode_node,
    node_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.node_membership import NodeMembership
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.host.simple_container import SimpleContainer
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

ZERO = ContainerId(0)
OTHER = HostId("m-00000000000000aa")
SESSION_SECONDS = 1.0


class Node:
    """One process, and a leader's hand."""

    def __init__(self, session_seconds: float = SESSION_SECONDS) -> None:
        self.world = SimulatedCoordination(Random(1), session_seconds=session_seconds)
        self.network = Network(Random(2))
        self.sessions: list[SimulatedSession] = []
        self.registry = ContainerRegistry(container_count=1)
        self.containers: list[SimpleContainer] = []
        self.others = [OTHER]

    async def connect(self) -> SimulatedSession:
        session = await SimulatedSession.connect(self.world, self.network)
        self.sessions.append(session)
        return session

    async def membership(self) -> NodeMembership:
        async def register(on_lost: Callable[[], None]) -> NodeSession:
            return await NodeSession.register(
                self.connect,
                name="n",
                http="127.0.0.1:1",
                wire="127.0.0.1:2",
                capacity=0,
                version="1",
                random=Random(len(self.sessions)),
                on_lost=on_lost,
            )

        self.store = await SimulatedSession.connect(self.world, Network(Random(3)))
        return NodeMembership(
            register=register,
            store=self.store,
            running=self.registry.running,
            manager_of=lambda session: ContainerManager(
                host_id=session.node.node_id,
                assignments=session.assignments,
                registry=self.registry,
                create_container=self._create,
            ),
            others=lambda _: self.others,
            random=Random(4),
        )

    def _create(self, container_id: ContainerId) -> SimpleContainer:
        self.containers.append(SimpleContainer(container_id))
        return self.containers[-1]

    async def assign(self, node_id: HostId | None) -> None:
        found = await self.store.get(ASSIGNMENT_PATH)
        if found is None:
            given = AssignmentMap(1, 1, {ZERO: AssignedContainer(node_id, 1)})
            await self.store.create(ASSIGNMENT_PATH, encode_assignment(given))
            return
        before = decode_assignment(found.value)
        version = before.version + 1
        containers = {ZERO: AssignedContainer(node_id, version)}
        given = replace(before, version=version, leader_epoch=2, containers=containers)
        await self.store.compare_and_set(
            ASSIGNMENT_PATH, encode_assignment(given), version=found.version
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_node_runs_what_it_is_assigned_and_leaves_nothing_behind() -> None:
    node = Node()
    membership = await node.membership()
    assert not membership.is_valid()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    await node.assign(membership.node_id)
    await membership.wait_until_settled()
    assert node.registry.running() == [ZERO]
    assert membership.is_valid()
    assert membership.complaints() == []
    task.cancel()
    await asyncio.wait([task])
    assert node.registry.running() == []
    assert not membership.is_valid()
    assert not (await read_cluster_state(node.store)).nodes


async def test_h83_a_node_whose_session_ended_stops_its_containers_and_is_another_node_afterwards() -> (
    None
):
    node = Node()
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    first = membership.node_id
    await node.assign(first)
    await membership.wait_until_settled()
    node.world.end(node.sessions[0].session_id)
    await until(lambda: membership.node_id not in ("", first))
    # The map still says that the container is the first node's.
    assert node.registry.running() == []
    assert len(node.containers) == 1
    await node.assign(membership.node_id)
    await until(lambda: node.registry.running() == [ZERO])
    assert membership.leader_epoch == 2
    task.cancel()
    await asyncio.wait([task])


async def test_h85_a_node_is_drained_when_its_containers_are_gone_and_its_wish_is_taken_back() -> (
    None
):
    node = Node()
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    await node.assign(membership.node_id)
    await membership.wait_until_settled()
    draining = asyncio.create_task(membership.drain(20))
    async with asyncio.timeout(20):
        while not (await read_cluster_state(node.store)).wishes.drained:
            await asyncio.sleep(0.01)
    assert (await read_cluster_state(node.store)).wishes.drained == [membership.node_id]
    assert not draining.done()
    await node.assign(None)
    await draining
    assert node.registry.running() == []
    task.cancel()
    await asyncio.wait([task])
    await membership.forget_drain()
    assert not (await read_cluster_state(node.store)).wishes.drained


async def test_a_process_takes_back_the_drain_in_which_the_one_before_it_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    membership = await node.membership()
    killed, other, lasting = "n-00000000000000aa", OTHER, "n"
    for name in (killed, other, lasting):
        await change_wishes(node.store, partial(with_drained, name=name))
    # Its session lasts a little longer than it did.
    place = node_path(HostId(killed))
    version = await node.store.create(
        place, encode_node(ClusterNode(HostId(killed), "", "", 0, "1"))
    )
    monkeypatch.setattr("segmentstore.host.node_membership._DEAD_SECONDS", 0.01)
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    await asyncio.sleep(0.05)
    assert killed in (await read_cluster_state(node.store)).wishes.drained
    await node.store.delete(place, version=version)
    async with asyncio.timeout(20):
        while killed in (await read_cluster_state(node.store)).wishes.drained:
            await asyncio.sleep(0.01)
    # What a person wants of the name stays, and so does what another node wants of itself.
    assert (await read_cluster_state(node.store)).wishes.drained == [other, lasting]
    task.cancel()
    await asyncio.wait([task])


async def test_a_node_that_no_other_can_follow_does_not_wait_for_its_drain() -> None:
    node = Node()
    node.others = []
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    await node.assign(membership.node_id)
    await membership.wait_until_settled()
    await membership.drain(20)
    assert node.registry.running() == [ZERO]
    assert not (await read_cluster_state(node.store)).wishes.drained
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("name", [OTHER, "m"])
async def test_nodes_that_end_at_the_same_time_do_not_wait_for_one_another(name: str) -> None:
    """Neither takes what the other one gives away, and what a person has drained takes nothing either."""
    node = Node()
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    await node.assign(membership.node_id)
    await membership.wait_until_settled()
    draining = asyncio.create_task(membership.drain(3600))
    async with asyncio.timeout(20):
        while not (await read_cluster_state(node.store)).wishes.drained:
            await asyncio.sleep(0.01)
        assert not draining.done()
        await change_wishes(node.store, partial(with_drained, name=name))
        await draining
    assert node.registry.running() == [ZERO]
    task.cancel()
    await asyncio.wait([task])


async def test_a_node_that_ends_does_not_register_again_when_its_session_ends_meanwhile() -> None:
    node = Node()
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.wait_until_registered()
    draining = asyncio.create_task(membership.drain(20))
    await asyncio.sleep(0)
    node.world.end(node.sessions[0].session_id)
    await draining
    await until(lambda: not membership.node_id)
    # Longer than any pause between two attempts to register.
    await asyncio.sleep(0.5)
    assert len(node.sessions) == 1
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_node_that_ends_while_it_registers_closes_its_session() -> None:
    node = Node()
    membership = await node.membership()
    task = asyncio.create_task(membership.run())
    await membership.drain(20)
    task_of_run = asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.5)
    assert not membership.node_id
    assert not (await read_cluster_state(node.store)).nodes
    task.cancel()
    await task_of_run


def test_a_node_that_lost_its_lease_is_gone_when_the_store_is_back() -> None:
    """Under its old id; else its containers would wait for the end of that session."""

    async def main(loop: SimLoop) -> None:
        node = Node(session_seconds=10.0)
        node.network.timeout_seconds = 0.5
        membership = await node.membership()
        process = loop.start("node", membership.run())
        await asyncio.sleep(20.0)
        first = membership.node_id
        assert first
        node.world.is_down = node.network.metadata_down = True
        await asyncio.sleep(8.0)
        assert not membership.is_valid()
        node.network.metadata_down = False
        node.world.come_back()
        await asyncio.sleep(3.0)
        store = await SimulatedSession.connect(node.world, Network(Random(5)))
        state = await read_cluster_state(store)
        assert list(state.nodes) == [membership.node_id]
        assert membership.node_id != first
        loop.crash(process)

    run_simulation(1, main)
