"""Two nodes of a cluster in one process: each has segments of its own, and a table says which container is where."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.containers import BackupOwner, HostId
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.contracts.storage import SnapshotInfo
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.server import build_server
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import START_MS, Node, TurnableClock, healthy_container

CONTAINERS = 4
SETTINGS = HttpSettings(
    port=0,
    long_poll_seconds=60.0,
    tick_seconds=0.05,
    owner_wait_seconds=0.5,
    linger_seconds=0.05,
)


PATIENT = replace(SETTINGS, owner_wait_seconds=60.0)
"""For requests that find their owner: however long a busy machine stands still, they do not give up before."""


@dataclass
class TableOfLocations:
    """Implements ContainerLocations. A test turns `owners` and `registered`."""

    owners: dict[ContainerId, HostId] = field(default_factory=dict)
    registered: dict[HostId, ClusterNode] = field(default_factory=dict)
    after_refresh: dict[ContainerId, HostId] = field(default_factory=dict)
    """What a refresh finds."""
    refreshes: int = 0

    @property
    def container_count(self) -> int:
        return CONTAINERS

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        node_id = self.owners.get(container_id)
        return None if node_id is None else self.registered.get(node_id)

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [self.registered[node_id] for node_id in sorted(self.registered)]

    async def refresh(self) -> None:
        self.refreshes += 1
        self.owners.update(self.after_refresh)


class SegmentsOfNode(MemorySegments):
    """What one node has: verbs over all containers touch the asked ones."""

    def __init__(self, *, container_count: int = CONTAINERS) -> None:
        super().__init__(container_count=container_count)
        self.served: set[ContainerId] = set()
        self.flushed: list[ContainerId] = []
        self.backups: set[tuple[ContainerId, str]] = set()
        self.proved: set[tuple[ContainerId, str]] = set()
        """Of these."""
        self.tier2_errors: dict[ContainerId, SegmentStoreError] = {}
        """How backups of these containers fail."""
        self.holds: dict[ContainerId, str] = {}
        self.forget_hold_of: ContainerId | None = None
        """Its owner is replaced behind a backup."""
        self.gone_when_pinned: ContainerId | None = None
        """It runs elsewhere or nowhere, and the others do not know it yet."""
        self.pins_wait_for: dict[ContainerId, asyncio.Event] = {}
        self.pinning = asyncio.Event()
        """One of them waits."""
        self.drop_error: SegmentStoreError | None = None
        self.drops_wait = False
        """For a Tier 2 that does not answer."""
        self.dropped: list[tuple[ContainerId, str]] = []
        self.holds_at_drops: list[set[ContainerId]] = []

    async def list_segments_of(
        self,
        containers: Collection[ContainerId],
        prefix: str = "",
        start_after: str = "",
        limit: int = 1000,
    ) -> Sequence[SegmentProperties]:
        self._require(containers)
        everything = await self.list_segments(prefix, start_after, 10_000)
        found = [
            each for each in everything if container_of(each.name, CONTAINERS) in set(containers)
        ]
        return found[:limit]

    async def flush_containers(self, containers: Collection[ContainerId]) -> None:
        self._require(containers)
        self.flushed += containers

    def backup_owners(
        self, containers: Sequence[ContainerId] | None
    ) -> Sequence[tuple[ContainerId, BackupOwner]]:
        asked = sorted(self.served) if containers is None else containers
        self._require(asked)
        return [(each, BackupsOfContainer(each, self)) for each in asked]

    def _require(self, containers: Collection[ContainerId]) -> None:
        for container_id in containers:
            if container_id not in self.served:
                raise ContainerNotFoundError(container_id)


class BackupsOfContainer:
    """Implements BackupOwner."""

    def __init__(self, container_id: ContainerId, node: SegmentsOfNode) -> None:
        self._container_id = container_id
        self._node = node

    async def flush(self) -> None:
        """Nothing is to be flushed."""

    async def hold(self, hold_id: str, tables: Collection[str]) -> None:
        assert tables, "there is a table to hold"
        self._node.holds[self._container_id] = hold_id

    def is_held(self, hold_id: str) -> bool:
        return self._node.holds.get(self._container_id) == hold_id

    def let_go(self, hold_id: str) -> None:
        if self.is_held(hold_id):
            del self._node.holds[self._container_id]

    async def make(self, name: str, *, hold_id: str = "") -> SnapshotInfo:
        assert self._node.holds.get(self._container_id, "") == hold_id, "made without a hold"
        self._require_tier2()
        wait_for = self._node.pins_wait_for.get(self._container_id)
        if wait_for is not None:
            self._node.pinning.set()
            await wait_for.wait()
        self._node.backups.add((self._container_id, name))
        if self._container_id == self._node.forget_hold_of:
            del self._node.holds[self._container_id]
        if self._container_id == self._node.gone_when_pinned:
            self._node.served.discard(self._container_id)
        return SnapshotInfo(name, START_MS, 1, 1)

    async def prove(self, name: str, *, hold_id: str) -> None:
        assert self._node.holds.get(self._container_id, "") == hold_id, "proved without a hold"
        assert (self._container_id, name) in self._node.backups, "proved and not made"
        self._node.proved.add((self._container_id, name))

    async def drop(self, name: str) -> bool:
        self._require_tier2()
        if self._node.drops_wait:
            await asyncio.Event().wait()
        if self._node.drop_error is not None:
            raise self._node.drop_error
        had = (self._container_id, name) in self._node.backups
        self._node.backups.discard((self._container_id, name))
        self._node.proved.discard((self._container_id, name))
        if had:
            self._node.dropped.append((self._container_id, name))
            self._node.holds_at_drops.append(set(self._node.holds))
        return had

    async def list(self) -> Sequence[SnapshotInfo]:
        return [
            SnapshotInfo(name, START_MS, 1, 1, is_proved=(c, name) in self._node.proved)
            for c, name in sorted(self._node.backups)
            if c == self._container_id
        ]

    def _require_tier2(self) -> None:
        error = self._node.tier2_errors.get(self._container_id)
        if error is not None:
            raise error


@dataclass
class ClusterMember:
    """One node as a test holds it."""

    node: Node
    node_id: HostId
    segments: SegmentsOfNode
    locations: TableOfLocations
    lease_valid: list[bool]

    @property
    def served(self) -> set[ContainerId]:
        return self.segments.served


@dataclass
class TwoNodes:
    """`near` is asked by the tests; it has the even containers, `far` the odd ones."""

    near: ClusterMember
    far: ClusterMember

    def move(self, container_id: ContainerId, to: ClusterMember | None) -> None:
        """At once, and all know it."""
        for member in (self.near, self.far):
            member.served.discard(container_id)
            if to is None:
                member.locations.owners.pop(container_id, None)
            else:
                member.locations.owners[container_id] = to.node_id
        if to is not None:
            to.served.add(container_id)


def name_in(container_id: int, prefix: str = "s") -> str:
    """A name that lives in the container."""
    number = 0
    while container_of(f"{prefix}{number}", CONTAINERS) != container_id:
        number += 1
    return f"{prefix}{number}"


@asynccontextmanager
async def running_member(
    node_id: str, settings: HttpSettings = SETTINGS, segments: SegmentsOfNode | None = None
) -> AsyncIterator[ClusterMember]:
    locations = TableOfLocations()
    segments = segments or SegmentsOfNode()
    lease = [True]
    identity = HostId(node_id)
    clock = TurnableClock(START_MS)
    containers = [healthy_container()]
    server = build_server(
        segments=segments,
        health=lambda: NodeHealth(containers=containers, containers_expected=1),
        metrics=dict,
        wall_clock=clock,
        random=Random(1),
        settings=settings,
        backup_owners=segments.backup_owners,
        cluster=NodeInCluster(
            locations=locations,
            node_id=lambda: identity,
            is_lease_valid=lambda: lease[0],
            serves=segments.served.__contains__,
        ),
        parts=segments,
    )
    await server.start()
    try:
        yield ClusterMember(Node(server, clock, containers), identity, segments, locations, lease)
    finally:
        await server.close()


def registration(member: ClusterMember) -> ClusterNode:
    host, port = member.node.server.address
    return ClusterNode(member.node_id, f"{host}:{port}", "127.0.0.1:1", 0, "test")


@asynccontextmanager
async def node_beside_the_owner(segments: SegmentsOfNode) -> AsyncIterator[Node]:
    """A node that has nothing; another one, whose clock and health these are, has everything."""
    async with running_member("far", segments=segments) as far, running_member("near") as near:
        near.locations.registered = {each.node_id: registration(each) for each in (near, far)}
        for number in range(CONTAINERS):
            far.served.add(ContainerId(number))
            near.locations.owners[ContainerId(number)] = far.node_id
        yield Node(near.node.server, far.node.clock, far.node.containers)


@asynccontextmanager
async def two_nodes(settings: HttpSettings = SETTINGS) -> AsyncIterator[TwoNodes]:
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(running_member("near", settings))
        far = await stack.enter_async_context(running_member("far", settings))
        for member in (near, far):
            member.locations.registered = {each.node_id: registration(each) for each in (near, far)}
        nodes = TwoNodes(near, far)
        for number in range(CONTAINERS):
            nodes.move(ContainerId(number), far if number % 2 else near)
        yield nodes
