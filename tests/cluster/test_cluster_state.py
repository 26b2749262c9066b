"""What is told of a cluster that is read from the coordination store, and wishes that several people change at once."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from segmentstore.cluster.cluster_state import (
    ClusterState,
    change_wishes,
    read_cluster_state,
    with_drained,
    without_drained,
)
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    LEADER_PATH,
    AssignedContainer,
    AssignmentMap,
    FailureRecord,
    LeaderRecord,
    NodeReport,
    Wishes,
    encode_assignment,
    encode_leader,
    encode_node,
    encode_report,
    node_path,
    report_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.tier1.bookkeeper.simulated_network import Network

ZERO, ONE = ContainerId(0), ContainerId(1)
A, B = HostId("a-01"), HostId("b-02")


def node(node_id: HostId, version: str = "1") -> ClusterNode:
    name = node_id[0]
    return ClusterNode(node_id, f"127.0.0.1:1{ord(name)}", f"127.0.0.1:2{ord(name)}", 0, version)


SOUND = ClusterState(
    leader=LeaderRecord("c", "127.0.0.1:9"),
    assignment=AssignmentMap(7, 1, {ZERO: AssignedContainer(A, 3), ONE: AssignedContainer(B, 5)}),
    nodes={A: node(A), B: node(B)},
    reports={A: NodeReport(7, {ZERO: 3}, [ZERO]), B: NodeReport(7, {ONE: 5}, [ONE])},
    wishes=Wishes(),
)


async def session(world: SimulatedCoordination, seed: int = 1) -> SimulatedSession:
    return await SimulatedSession.connect(world, Network(Random(seed)))


def test_a_cluster_that_serves_every_container_has_no_problem() -> None:
    assert SOUND.problems(2) == []


def changed_map(**changes: AssignedContainer) -> ClusterState:
    assert SOUND.assignment is not None
    containers = {**SOUND.assignment.containers, ONE: changes["one"]}
    return replace(SOUND, assignment=replace(SOUND.assignment, containers=containers))


FAILURE = FailureRecord(3, A, "the disk is gone", "lasting: x", 3, stays_down=True)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (replace(SOUND, leader=None), "no controller leads"),
        (replace(SOUND, nodes={A: node(A)}), "container 1 is given to b-02, which is gone"),
        (replace(SOUND, nodes={A: node(A), B: node(B, "2")}), "different versions"),
        (
            replace(SOUND, reports={A: SOUND.reports[A]}),
            "container 1 does not run yet at b-02",
        ),
        (
            replace(SOUND, reports={**SOUND.reports, B: NodeReport(7, {ONE: 4}, [ONE])}),
            "container 1 does not run yet at b-02",
        ),
        (changed_map(one=AssignedContainer(None, 7, leaving=A)), "it is leaving a-01"),
        (changed_map(one=AssignedContainer(None, 7, failure=FAILURE)), "the disk is gone"),
    ],
    ids=["leader", "node", "versions", "report", "since", "leaving", "down"],
)
def test_what_is_amiss_is_told_in_one_sentence(state: ClusterState, told: str) -> None:
    (problem,) = state.problems(2)
    assert told in problem


def test_a_node_that_a_person_drained_is_told_and_one_that_ends_is_not() -> None:
    assert not replace(SOUND, wishes=Wishes(drained=[A])).notes()
    (note,) = replace(SOUND, wishes=Wishes(drained=["a", "gone"])).notes()
    assert "a-01 is drained" in note
    assert "cluster undrain a" in note


def test_a_cluster_without_nodes_serves_nothing() -> None:
    empty = ClusterState(None, None, {}, {}, Wishes())
    assert len(empty.problems(2)) == 4


@pytest.mark.parametrize("name", ["a-01", "a", "127.0.0.1:197", "127.0.0.1:297"])
def test_a_node_is_found_by_id_name_and_address(name: str) -> None:
    assert SOUND.node_named(name).node_id == A


@pytest.mark.parametrize("name", ["c", "a-02", "-"])
def test_a_name_that_no_node_has_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="no node has"):
        SOUND.node_named(name)


def test_a_name_that_two_nodes_have_is_refused() -> None:
    twin = HostId("a-03")
    state = replace(SOUND, nodes={**SOUND.nodes, twin: node(twin)})
    with pytest.raises(InvalidRequestError, match="several nodes"):
        state.node_named("a")


async def test_the_state_that_is_read_is_the_one_that_was_written() -> None:
    store = await session(SimulatedCoordination(Random(1)))
    assert SOUND.leader is not None
    assert SOUND.assignment is not None
    await store.create(LEADER_PATH, encode_leader(SOUND.leader), ephemeral=True)
    await store.create(ASSIGNMENT_PATH, encode_assignment(SOUND.assignment))
    for each in SOUND.nodes.values():
        await store.create(node_path(each.node_id), encode_node(each))
        report = encode_report(SOUND.reports[each.node_id])
        await store.create(report_path(each.node_id), report)
    await change_wishes(store, lambda wishes: with_drained(wishes, "a"))
    found = await read_cluster_state(store)
    assert found == replace(SOUND, wishes=Wishes(drained=["a"]))
    assert found.is_drained(A)
    assert not found.is_drained(B)


async def test_wishes_that_are_changed_at_once_are_all_kept() -> None:
    world = SimulatedCoordination(Random(1))
    names = [f"n{number}" for number in range(6)]

    async def wish(number: int) -> None:
        store = await session(world, number)
        await change_wishes(store, lambda wishes: with_drained(wishes, names[number]))

    await asyncio.gather(*map(wish, range(len(names))))
    store = await session(world)
    assert (await read_cluster_state(store)).wishes.drained == names
    await change_wishes(store, lambda wishes: without_drained(wishes, names[1:]))
    assert (await read_cluster_state(store)).wishes.drained == ["n0"]
