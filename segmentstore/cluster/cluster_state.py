"""What a cluster is like at the moment, as a person sees it, and what a person can wish of it.

Read from the coordination store alone: no node has to answer. Wishes are changed by compare-and-set; the leader hears
of them by itself.
"""

from asyncio import Event
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    LEADER_PATH,
    NODES_PATH,
    WISHES_PATH,
    AssignedContainer,
    AssignmentMap,
    LeaderRecord,
    NodeReport,
    Wishes,
    decode_assignment,
    decode_leader,
    decode_node,
    decode_report,
    decode_wishes,
    encode_wishes,
    is_id_of,
    is_named,
    node_path,
    report_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import (
    CoordinationStore,
    CoordinationUnavailableError,
    ValueChangedError,
)

_ATTEMPTS_MAX = 20
"""Of a change of the wishes, each behind a change by another process."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Read value by value: what changed meanwhile may be half in it."""

    leader: LeaderRecord | None
    assignment: AssignmentMap | None
    nodes: Mapping[HostId, ClusterNode]
    reports: Mapping[HostId, NodeReport]
    wishes: Wishes

    def containers_of(self, node_id: HostId) -> Sequence[ContainerId]:
        """What is assigned to it."""
        return [] if self.assignment is None else sorted(self.assignment.given_to(node_id))

    def runs(self, container_id: ContainerId) -> bool:
        """Whether the node that it is assigned to has reported that it takes requests."""
        given = None if self.assignment is None else self.assignment.containers.get(container_id)
        if given is None or given.node is None or given.node not in self.nodes:
            return False
        report = self.reports.get(given.node)
        return report is not None and report.runs(container_id, since=given.since)

    def is_drained(self, node_id: HostId) -> bool:
        """Whether a person, or the node itself, wants no container there."""
        return self.wishes.drains(node_id)

    def node_named(self, name: str) -> ClusterNode:
        """By id, the name that outlives its process, or an address. Raises InvalidRequestError."""
        found = [
            node
            for node in self.nodes.values()
            if is_named(node.node_id, name) or name in (node.http, node.wire)
        ]
        if len(found) != 1:
            raise InvalidRequestError(
                f"{'no node has' if not found else 'several nodes have'} that name or address name={name}:"
                f" {', '.join(sorted(self.nodes)) or 'there is no node'}"
            )
        return found[0]

    def problems(self, container_count: int) -> list[str]:
        """What keeps the cluster from serving every container, in sentences."""
        told = []
        if self.leader is None:
            told.append("no controller leads: start one, or wait until one has taken over")
        if not self.nodes:
            told.append("there is no node")
        for number in range(container_count):
            container_id = ContainerId(number)
            if not self.runs(container_id):
                told.append(self._why_not_running(container_id))
        versions = sorted({node.version for node in self.nodes.values()})
        if len(versions) > 1:
            told.append(f"nodes have different versions of the program: {', '.join(versions)}")
        return told

    def notes(self) -> list[str]:
        """What is as a person wants it, and easily forgotten, in sentences. A node that ends drains its own id."""
        return [
            f"node {node_id} is drained: it is given no containers until `segmentstore cluster undrain {name}`"
            for node_id in sorted(self.nodes)
            for name in self.wishes.drained
            if name != node_id and is_named(node_id, name)
        ]

    def _why_not_running(self, container_id: ContainerId) -> str:
        given = AssignedContainer()
        if self.assignment is not None:
            given = self.assignment.containers.get(container_id, given)
        where = f"container {container_id}"
        if given.failure is not None and given.failure.stays_down:
            return f"{where} stays down: it failed at {given.failure.node}: {given.failure.cause}"
        failed = f"; it failed last: {given.failure.cause}" if given.failure is not None else ""
        if given.node is None:
            leaving = f", it is leaving {given.leaving}" if given.leaving is not None else ""
            return f"{where} is given to no node{leaving}{failed}"
        if given.node not in self.nodes:
            return f"{where} is given to {given.node}, which is gone{failed}"
        return f"{where} does not run yet at {given.node}{failed}"


async def read_cluster_state(store: CoordinationStore) -> ClusterState:
    """Raises CoordinationUnavailableError, ClusterRecordError."""
    nodes, reports = {}, {}
    for name in await store.children(NODES_PATH):
        node_id = HostId(name)
        node, report = await store.get(node_path(node_id)), await store.get(report_path(node_id))
        if node is not None:
            nodes[node_id] = decode_node(node.value, node_id)
        if report is not None:
            reports[node_id] = decode_report(report.value, node_id)
    leader, assignment = await store.get(LEADER_PATH), await store.get(ASSIGNMENT_PATH)
    wishes = await read_wishes(store)
    return ClusterState(
        leader=None if leader is None else decode_leader(leader.value),
        assignment=None if assignment is None else decode_assignment(assignment.value),
        nodes=nodes,
        reports=reports,
        wishes=wishes,
    )


async def read_wishes(store: CoordinationStore, *, changed: Event | None = None) -> Wishes:
    """`changed` as CoordinationStore.get() says. Raises CoordinationUnavailableError, ClusterRecordError."""
    found = await store.get(WISHES_PATH, changed=changed)
    return Wishes() if found is None else decode_wishes(found.value)


async def change_wishes(store: CoordinationStore, change: Callable[[Wishes], Wishes]) -> Wishes:
    """Writes what `change` makes of the present wishes, which it may be asked for several times.

    Raises CoordinationUnavailableError: then it may have been written.
    """
    for _ in range(_ATTEMPTS_MAX):
        found = await store.get(WISHES_PATH)
        present = Wishes() if found is None else decode_wishes(found.value)
        wanted = change(present)
        try:
            if found is None:
                await store.create(WISHES_PATH, encode_wishes(wanted))
            elif wanted != present:
                await store.compare_and_set(
                    WISHES_PATH, encode_wishes(wanted), version=found.version
                )
        except ValueChangedError:
            continue
        return wanted
    raise CoordinationUnavailableError("other processes change the wishes all the time")


def with_drained(wishes: Wishes, name: str) -> Wishes:
    """No container shall be at the node of that id or name."""
    return replace(wishes, drained=sorted({*wishes.drained, name}))


def without_drained(wishes: Wishes, names: Collection[str]) -> Wishes:
    """Takes back what was wished under these ids and names."""
    return replace(wishes, drained=[name for name in wishes.drained if name not in names])


async def forget_drains_of_the_dead(store: CoordinationStore, node_id: HostId) -> bool:
    """Takes back what processes of this node's name wished for their own ids, and were killed before they did it.

    An id is never used again. False: some are registered still, as one that was killed is until its session ends.
    Raises CoordinationUnavailableError.
    """
    name = node_id.rpartition("-")[0]
    drained = (await read_wishes(store)).drained
    ids = [each for each in drained if is_id_of(each, name) and each != node_id]
    if not ids:
        return True
    # Read behind the wishes: a process is registered before it wishes anything, and may have the same name.
    registered = await store.children(NODES_PATH)
    gone = [each for each in ids if each not in registered]
    if gone:
        await change_wishes(store, lambda wishes: without_drained(wishes, gone))
    return len(gone) == len(ids)
