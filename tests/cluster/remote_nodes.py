"""Two nodes with real wire servers in one process, real containers that move between them, and what a controller knows.

`RemoteNodes.store` is the store of the controller. The truth is in `owners`; the controller's locations follow it when
they are refreshed, as a watch that comes late would make them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

from containers.segment_container import StreamSegmentContainer
from segmentstore.cluster.node_connections import NodeConnectionSettings
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.wire_protocol.command import (
    OLDEST_WIRE_VERSION,
    WIRE_VERSION,
    Command,
    Hello,
    KeepAlive,
)
from segmentstore.codec.wire_protocol.frames import FrameSplitter
from segmentstore.codec.wire_protocol.store_calls import AnswerDone, OpenStoreCalls
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentApi
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.store_calls import StoreCallAccess
from tests.containers.node import MemoryTiers, make_container

TOKEN = "the token of the cluster"
PATIENT = NodeConnectionSettings(connect_seconds=60.0, silence_seconds=60.0, look_seconds=0.05)
"""On a busy machine all of it, nodes and store, may stand still for seconds: no node is given up by that."""
IMPATIENT = replace(PATIENT, silence_seconds=1.0)
"""For calls that no node answers."""


class KnownLocations:
    """ContainerLocations that know of a change once they are refreshed."""

    def __init__(self, *, container_count: int) -> None:
        self._container_count = container_count
        self.registered: dict[HostId, ClusterNode] = {}
        self.owners: dict[ContainerId, HostId | None] = {}
        self._known: dict[ContainerId, HostId | None] = {}
        self.refreshes = 0

    @property
    def container_count(self) -> int:
        return self._container_count

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        owner = self._known.get(container_id)
        return None if owner is None else self.registered.get(owner)

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [self.registered[node_id] for node_id in sorted(self.registered)]

    async def refresh(self) -> None:
        self.refreshes += 1
        await asyncio.sleep(0)
        self._known = dict(self.owners)


class RemoteNode:
    """One node: containers, and the server in front of them."""

    def __init__(self, node_id: str, *, container_count: int) -> None:
        self.node_id = HostId(node_id)
        self.registry = ContainerRegistry(container_count=container_count)
        self.newest_epoch = 0
        self._port = 0
        self._store = SegmentStore(registry=self.registry)
        self.server = self._new_server()

    async def start(self) -> None:
        """Again after a stop: at the same address."""
        if self._port:
            self.server = self._new_server()
        await self.server.start("127.0.0.1", self._port)
        self._port = self.server.address[1]

    async def stop(self) -> None:
        """Its connections end; its containers go on."""
        await self.server.close()

    @property
    def as_registered(self) -> ClusterNode:
        return ClusterNode(self.node_id, "", f"127.0.0.1:{self._port}", 0, "test")

    def _new_server(self) -> WireServer:
        def container(container_id: int) -> SegmentApi:
            return self.registry.get(ContainerId(container_id))

        return WireServer(
            segments=self._store,
            tables=self._store,
            random=Random(3),
            settings=WireSettings(tick_seconds=0.05, drain_seconds=0.2),
            system_is_closed=True,
            store_calls=StoreCallAccess(
                token=TOKEN, containers=container, newest_epoch=lambda: self.newest_epoch
            ),
        )


class RemoteNodes:
    """The nodes, which container runs where, and the store over them."""

    def __init__(
        self, *, container_count: int = 4, settings: NodeConnectionSettings = PATIENT
    ) -> None:
        self.container_count = container_count
        self._settings = settings
        self.locations = KnownLocations(container_count=container_count)
        self.nodes = [RemoteNode(each, container_count=container_count) for each in ("a", "b")]
        self.containers: dict[ContainerId, StreamSegmentContainer] = {}
        self._tiers = [MemoryTiers() for _ in range(container_count)]
        self._runs: dict[ContainerId, asyncio.Task[None]] = {}
        self._seeds = 0
        self.store = self.new_store(leader_epoch=1)

    def new_store(self, *, leader_epoch: int, token: str = TOKEN) -> RemoteStore:
        """Close it."""
        return RemoteStore(
            locations=self.locations,
            token=token,
            leader_epoch=leader_epoch,
            settings=self._settings,
        )

    def node_of(self, container_id: ContainerId) -> RemoteNode:
        owner = self.locations.owners[container_id]
        return next(node for node in self.nodes if node.node_id == owner)

    def name_in(self, container_id: int, text: str = "segment") -> str:
        """A name of a segment of that container."""
        for number in range(10_000):
            name = f"{text}/{number}"
            if container_of(name, self.container_count) == container_id:
                return name
        raise AssertionError("no name found")

    async def start(self) -> None:
        """Containers are split evenly."""
        for node in self.nodes:
            await node.start()
            self.locations.registered[node.node_id] = node.as_registered
        for number in range(self.container_count):
            await self.place(ContainerId(number), self.nodes[number % len(self.nodes)])

    async def place(self, container_id: ContainerId, node: RemoteNode) -> None:
        """Recover the container there."""
        self._seeds += 2
        container = make_container(
            self._tiers[container_id],
            container_id=container_id,
            container_count=self.container_count,
            cache_bytes=16 << 20,
            seed=self._seeds,
        )
        node.registry.set_starting(container)
        self.containers[container_id] = container
        await container.start()
        self._runs[container_id] = asyncio.create_task(container.run())
        node.registry.set_running(container)
        self.locations.owners[container_id] = node.node_id

    async def take_away(self, container_id: ContainerId) -> None:
        """The container ends, and no node has it. What was under way in it may have been done."""
        node = self.node_of(container_id)
        container = self.containers.pop(container_id)
        node.registry.set_absent(container, reason="moved", failed=False)
        await container.close()
        run = self._runs.pop(container_id)
        await asyncio.gather(run, return_exceptions=True)
        self.locations.owners[container_id] = None

    async def move(self, container_id: ContainerId) -> None:
        """To the other node; the controller hears of it when it asks."""
        old = self.node_of(container_id)
        await self.take_away(container_id)
        await self.place(container_id, next(node for node in self.nodes if node is not old))

    async def close(self) -> None:
        """The store first, as a controller would."""
        await self.store.close()
        for node in self.nodes:
            node.server.check()
            await node.stop()
        for container_id in list(self.containers):
            await self.take_away(container_id)


@asynccontextmanager
async def remote_nodes(
    *, container_count: int = 4, settings: NodeConnectionSettings = PATIENT
) -> AsyncIterator[RemoteNodes]:
    """Started; the store's own work runs beside."""
    nodes = RemoteNodes(container_count=container_count, settings=settings)
    await nodes.start()
    looking = asyncio.create_task(nodes.store.run())
    try:
        yield nodes
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await nodes.close()


@dataclass(frozen=True, slots=True)
class SilentNode:
    """What it got."""

    address: str
    pings: Sequence[Command]
    """The signs of life that it was asked for."""
    calls: Sequence[Command]


@asynccontextmanager
async def silent_node(*, answers_pings: bool = False) -> AsyncIterator[SilentNode]:
    """A server that accepts calls and answers none; with `answers_pings` it says that it is there."""
    pings: list[Command] = []
    calls: list[Command] = []
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        splitter = FrameSplitter()
        writer.write(Hello(WIRE_VERSION, OLDEST_WIRE_VERSION).encode())
        while content := await reader.read(1 << 16):
            for command in splitter.feed_commands(content):
                if isinstance(command, OpenStoreCalls):
                    writer.write(AnswerDone(command.request_id).encode())
                elif isinstance(command, KeepAlive):
                    pings.append(command)
                    if answers_pings:
                        writer.write(command.encode())
                elif not isinstance(command, Hello):
                    calls.append(command)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield SilentNode(f"{host}:{port}", pings, calls)
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def call_into_silence(nodes: RemoteNodes, silent: SilentNode) -> "asyncio.Task[object]":
    """A change of container 0, which is said to be at that node; it is under way."""
    node = nodes.nodes[0]
    nodes.locations.registered[node.node_id] = replace(node.as_registered, wire=silent.address)
    await nodes.locations.refresh()
    task: asyncio.Task[object] = asyncio.create_task(nodes.store.create(nodes.name_in(0)))
    while not silent.calls:
        await asyncio.sleep(0.01)
    assert not task.done()
    return task
