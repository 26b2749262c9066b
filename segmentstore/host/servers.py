"""The servers of a service: HTTP, the segment store protocol, the controller, Kafka's protocol, as the settings say.

Invariants:

- Servers open from the inside out and close from the outside in: clients are sent to a wire that listens already.
- close() waits for no node that says nothing, longer than a call to one takes to be given up.
- The address that the controller names is an IP address; a wire that listens everywhere names the loopback unless the
  settings advertise another one. A controller names itself likewise, with its own port.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from segmentstore.cluster.cluster_brokers import ClusterBrokers
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.contracts.cluster import NodeInCluster
from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.grpc_server import ControllerServer, ControllerServerSettings
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.host.segment_store import SegmentLayout, SegmentStore, StoreReads
from segmentstore.host.settings import (
    ServiceSettings,
    is_reachable_address,
    split_address,
    split_list,
)
from segmentstore.host.topic_supervisor import TopicSupervisor
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.server import HttpServer, build_server
from segmentstore.http.settings import HttpSettings
from segmentstore.http.tier2_verbs import BackupOwnerSource, SwapOwnerSource
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.native import not_compiled
from segmentstore.topics.api.grpc_server import TopicServer, TopicServerSettings
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.store_calls import StoreCallAccess

if TYPE_CHECKING:
    from segmentstore.kafka.server import KafkaServer

_OFF = "off"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """What is listened on; empty for a server that is off."""

    http: str
    wire: str
    controller: str
    kafka: str = ""
    topics_grpc: str = ""


@dataclass(frozen=True, slots=True)
class ServerSockets:
    """Bound by another process, which keeps them: what connects while this one is away waits."""

    http: Sequence[socket.socket]
    """The first one is the address of the store, the second one that of this process."""
    wire: socket.socket | None
    kafka: Sequence[socket.socket] = ()
    """As `http`; empty if Kafka's protocol is off."""


class Servers:
    """start() to listen, run() while serving, close() to end."""

    def __init__(
        self,
        *,
        settings: ServiceSettings,
        store_id: bytes,
        store: SegmentStore,
        reads: StoreReads,
        registry: ContainerRegistry,
        complaints: Callable[[], Sequence[str]],
        wall_clock: WallClock,
        random: Random,
        process_metrics: Callable[[], Mapping[str, float]],
        swap_owner: SwapOwnerSource,
        backup_owners: BackupOwnerSource,
        layout: SegmentLayout,
        record_files: RecordFiles,
        cluster: NodeInCluster | None = None,
        store_calls: StoreCallAccess | None = None,
        remote_store: RemoteStore | None = None,
        sockets: ServerSockets | None = None,
    ) -> None:
        """`cluster` is for a node of one; a process without it has all containers.

        `store_calls` is for one too, whose controllers are other processes. `remote_store` is all of its containers,
        for topics. `sockets`: None makes them by the settings.
        """
        self._not_compiled = not_compiled()
        self._sockets = sockets
        self._record_files = record_files
        self._settings = settings
        self._cluster = cluster
        self._remote_store = remote_store
        self._process_metrics = process_metrics
        self._swap_owner = swap_owner
        self._backup_owners = backup_owners
        self._registry = registry
        self._complaints = complaints
        self._http = self._http_server(store, reads, wall_clock, random)
        registry.watch(self._container_changed)
        self._wire: WireServer | None = None
        self._controller: ControllerSupervisor | None = None
        self._controller_server: ControllerServer | None = None
        if settings.wire.address != _OFF:

            async def flush_container(container_id: int) -> None:
                await registry.get(ContainerId(container_id)).flush()

            self._wire = WireServer(
                segments=store,
                reads=reads,
                tables=store,
                random=random,
                settings=WireSettings(
                    unacked_bytes_max=settings.wire.unacknowledged_bytes_max,
                    held_bytes_max=settings.wire.held_bytes_max,
                ),
                flush_container=flush_container,
                wait_for_recovery=store.wait_for_recovery,
                list_chunks=layout.list_chunks,
                event_near=layout.event_near,
                store_calls=store_calls,
                # Without a controller here, another one may keep its records in the store; one of a cluster has calls
                # of its own.
                system_is_closed=settings.controller.address != _OFF or store_calls is not None,
                cluster=cluster,
            )
        if settings.controller.address != _OFF:
            controller = Controller(
                segments=store,
                tables=store,
                wall_clock=wall_clock,
                random=random,
                locate=self._locate,
                controllers=self._controllers,
                settings=ControllerSettings(),
            )
            host, port = split_address(settings.controller.address)
            self._controller = ControllerSupervisor(controller=controller, containers=registry)
            self._controller_server = ControllerServer(
                service=controller.service,
                settings=ControllerServerSettings(address=host, port=port),
            )
        self._kafka: KafkaServer | None = None
        self._topics: TopicSupervisor | None = None
        self._topics_over_grpc: TopicServer | None = None
        if settings.kafka.address != _OFF:
            self._open_topics(store_id, store, wall_clock, random)

    def _open_topics(
        self, store_id: bytes, store: SegmentStore, wall_clock: WallClock, random: Random
    ) -> None:
        # The messages of Kafka's protocol are a sixth of what a process imports; one without topics starts sooner.
        from segmentstore.cluster.remote_partitions import RemotePartitions
        from segmentstore.kafka.server import KafkaServer

        brokers: ClusterBrokers | None = None
        remote_partitions: RemotePartitions | None = None
        if self._cluster is not None:
            brokers = ClusterBrokers(self._cluster)
            remote_partitions = RemotePartitions(locations=self._cluster.locations)
        tables: TableApi = self._remote_store or store
        topics = Topics(
            segments=store,
            all_segments=self._remote_store,
            tables=tables,
            brokers=brokers,
            remote_partitions=remote_partitions,
            wall_clock=wall_clock,
            random=random,
            settings=replace(
                TopicSettings(),
                file_seconds=self._settings.kafka.file_seconds,
                file_bytes=self._settings.kafka.file_bytes,
                read_ahead_bytes_max=self._settings.kafka.read_ahead_bytes_max,
                compaction_interval_seconds=self._settings.kafka.compaction_seconds,
            ),
            record_files=self._record_files,
        )

        def topic_id_of(name: str) -> UUID | None:
            found = topics.describe(name)
            return None if found is None else found.topic_id

        groups = Groups(
            tables=store,
            wall_clock=wall_clock,
            random=random,
            topic_id_of=topic_id_of,
            settings=GroupSettings(),
            is_coordinator=lambda: brokers is None or brokers.is_here(OFFSETS_TABLE),
            refresh_topics=topics.refresh,
        )
        producer_ids = ProducerIds(tables=tables, wall_clock=wall_clock)
        advertised = self._settings.kafka.advertised_address
        self._kafka = KafkaServer(
            topics=topics,
            groups=groups,
            producer_ids=producer_ids,
            cluster_id=store_id.hex(),
            settings=KafkaSettings(
                advertised_address=split_address(advertised) if advertised else None,
                batch_bytes_max=self._settings.kafka.batch_bytes_max,
                producer_byte_rate=self._settings.kafka.producer_byte_rate,
                consumer_byte_rate=self._settings.kafka.consumer_byte_rate,
            ),
            brokers=brokers,
        )
        self._topics = TopicSupervisor(
            topics=topics,
            groups=groups,
            producer_ids=producer_ids,
            server=self._kafka,
            containers=self._registry,
            brokers=brokers,
        )
        if self._settings.kafka.grpc_address != _OFF:
            host, port = split_address(self._settings.kafka.grpc_address)
            self._topics_over_grpc = TopicServer(
                topics=self._topics.answering,
                producer_ids=producer_ids,
                wall_clock=wall_clock,
                random=random,
                settings=TopicServerSettings(address=host, port=port),
            )

    async def start(self) -> None:
        """Listen everywhere. Raises OSError or InvalidRequestError if an address is taken."""
        sockets = self._sockets
        if self._wire is not None and sockets is not None and sockets.wire is not None:
            await self._wire.start_on(sockets.wire)
        elif self._wire is not None:
            await self._wire.start(*split_address(self._settings.wire.address))
        if self._controller_server is not None:
            # From the start: calls wait for a controller that recovers, though not for ever.
            await self._controller_server.start()
        if self._kafka is not None and sockets is not None:
            await self._kafka.start_on(sockets.kafka)
        elif self._kafka is not None:
            await self._kafka.start(*split_address(self._settings.kafka.address))
        if self._topics_over_grpc is not None:
            await self._topics_over_grpc.start()
        await self._http.start(() if sockets is None else sockets.http)

    async def run(self) -> None:
        """The background work of the servers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._controller is not None:
                group.create_task(self._controller.run(), name="controller supervisor")
            if self._remote_store is not None:
                group.create_task(self._remote_store.run(), name="remote store")
            if self._topics is not None:
                group.create_task(self._topics.run(), name="topic supervisor")
            await asyncio.get_running_loop().create_future()

    async def wait_until_ready(self) -> None:
        """Until every server answers. Containers have to run for that."""
        if self._controller is not None:
            await self._controller.wait_until_recovered()
        if self._topics is not None:
            await self._topics.wait_until_started()

    def recovering(self) -> list[str]:
        """What wait_until_ready() still waits for."""
        names = []
        if self._controller is not None and not self._controller.has_recovered:
            names.append("controller")
        return names if self._topics is None else [*names, *self._topics.starting()]

    async def close(self) -> None:
        """No new requests; those under way end. Idempotent."""
        if self._remote_store is None:
            await self._close_servers()
        else:
            # run() has been cancelled by now, and requests wait for other nodes still: calls to a silent one have to
            # end, or the changes of topics that wait for it never do.
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._remote_store.run(), name="remote store")
                await self._close_servers()
                looking.cancel()
            await self._remote_store.close()
        if self._wire is not None:
            await self._wire.close()

    async def _close_servers(self) -> None:
        """All but the wire, which requests of the others may need."""
        if self._controller_server is not None:
            await self._controller_server.close()
        await self._http.close()
        if self._topics_over_grpc is not None:
            await self._topics_over_grpc.close()
        if self._kafka is not None and self._topics is not None:
            await self._kafka.close()
            await self._topics.close()

    def addresses(self) -> ServerAddresses:
        """After start()."""
        return ServerAddresses(
            http=address_text(*self._http.address),
            wire="" if self._wire is None else address_text(*self._wire.address),
            controller=""
            if self._controller_server is None
            else address_text(
                split_address(self._settings.controller.address)[0], self._controller_server.port
            ),
            kafka="" if self._kafka is None else address_text(*self._kafka.address),
            topics_grpc=""
            if self._topics_over_grpc is None
            else address_text(
                split_address(self._settings.kafka.grpc_address)[0], self._topics_over_grpc.port
            ),
        )

    def _locate(self, segment: str) -> Endpoint:  # noqa: ARG002 (one process serves every segment)
        advertised = self._settings.wire.advertised_address
        if advertised:
            return Endpoint(*split_address(advertised))
        assert self._wire is not None, "a controller without a wire was refused with the settings"
        host, port = self._wire.address
        return Endpoint(_EVERYWHERE.get(host, host), port)

    def _controllers(self) -> Sequence[Endpoint]:
        assert self._controller_server is not None, "asked without a controller"
        host, _ = split_address(self._settings.controller.address)
        if not is_reachable_address(host):
            # It listens everywhere, or where a name says: clients reach it at the host of the wire.
            host = self._locate("").address
        return [Endpoint(host, self._controller_server.port)]

    def _http_server(
        self, store: SegmentStore, reads: StoreReads, wall_clock: WallClock, random: Random
    ) -> HttpServer:
        host, port = split_address(self._settings.http.address)
        settings = HttpSettings(
            host=host,
            port=port,
            append_bytes_max=self._settings.http.append_bytes_max,
            hosts=(*split_list(self._settings.http.hosts), *self._own_names()),
            cors_origins=split_list(self._settings.http.cors_origins),
        )
        return build_server(
            segments=store,
            reads=reads,
            health=self.health,
            metrics=self._registry.metrics,
            node_metrics=self._metrics,
            settle_clocks=self._settle_clocks,
            swap_owners=self._swap_owner,
            backup_owners=self._backup_owners,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
            cluster=self._cluster,
            parts=None if self._cluster is None else store,
            topics=None if self._settings.kafka.address == _OFF else self._answering_topics,
        )

    def _answering_topics(self) -> Topics | None:
        return None if self._topics is None else self._topics.answering()

    def _own_names(self) -> Sequence[str]:
        """By which other nodes address this one."""
        advertised = self._settings.http.advertised_address
        names = [split_address(advertised)[0]] if advertised else []
        if self._sockets is not None:
            names += [str(each.getsockname()[0]) for each in self._sockets.http]
        return names

    def health(self) -> NodeHealth:
        """What `/health` says."""
        complaints = [] if self._controller is None else self._controller.complaints()
        if self._topics is not None:
            complaints = [*complaints, *self._topics.complaints()]
        containers, expected = self._registry.health(), self._registry.container_count
        if self._cluster is not None:
            containers, expected, of_others = health_of_node(self._cluster, containers)
            complaints = [*of_others, *complaints]
        return NodeHealth(
            containers=containers,
            containers_expected=expected,
            complaints=[
                *self._complaints(),
                *self._registry.complaints(),
                *complaints,
            ],
            not_compiled=self._not_compiled,
        )

    def _container_changed(self, container_id: ContainerId, *, runs: bool) -> None:
        if runs:
            return
        count = self._registry.container_count
        self._http.forget_container(container_id, container_count=count)
        if self._wire is not None:
            self._wire.forget_container(container_id, container_count=count)

    def _settle_clocks(self) -> None:
        self._registry.settle_clocks()
        if self._controller is not None:
            self._controller.settle_clocks()
        if self._topics is not None:
            self._topics.settle_clocks()

    def _metrics(self) -> Mapping[str, float]:
        """What `/metrics` shows beside containers and HTTP."""
        controller = {} if self._controller is None else self._controller.metrics()
        topics = {} if self._topics is None else self._topics.metrics()
        return {**self._process_metrics(), **self._wire_metrics(), **controller, **topics}

    def _wire_metrics(self) -> Mapping[str, float]:
        if self._wire is None:
            return {}
        numbers = self._wire.statistics().metrics()
        return {f"wire_{name}": number for name, number in numbers.items()}


def health_of_node(
    cluster: NodeInCluster, containers: Sequence[ContainerHealth]
) -> tuple[Sequence[ContainerHealth], int, Sequence[str]]:
    """Of all containers those that concern this node, how many it should have, and what is amiss elsewhere.

    A container without a node concerns none: every node complains of it, and none is less ready.
    """
    node_id = cluster.node_id()
    of_node: list[ContainerHealth] = []
    expected = 0
    without_node: list[ContainerId] = []
    for container in containers:
        owner = cluster.locations.owner_of(container.container_id)
        is_assigned = owner is not None and owner.node_id == node_id
        expected += is_assigned
        if is_assigned or container.state is not ContainerState.STOPPED:
            of_node.append(container)
        if owner is None:
            without_node.append(container.container_id)
    complaints = []
    if without_node:
        complaints.append(f"containers have no node now containers={without_node}")
    if not cluster.is_lease_valid():
        complaints.append("this node's session is not known to last: it answers for no container")
    return of_node, expected, complaints


def address_text(host: str, port: int) -> str:
    """HOST:PORT; an IPv6 address is bracketed."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
