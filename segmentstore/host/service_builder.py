"""Puts the service together: the one file that names concrete classes.

    settings -> data directory (lock), cluster of the logs -> identity -> threads -> logs, object stores
             -> per container: log, storage, container -> registry, manager, store -> servers

Invariants:

- What is opened first is closed last; an error half-way closes what was opened.
- Threads of Tier 1 and of Tier 2 are apart: a slow Tier 2 never holds back a sync of the log. Within each, containers
  take turns; that is why every container has its own lane and its own object store.
- Everything that outlives a container object is made once, here; a log, a storage and a container are made anew
  each time a container starts.
"""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import (
    ContainerSettings,
    ExpirySettings,
    OperationProcessorSettings,
    WriterSettings,
)
from containers.ownership import OnlyProcess
from containers.segment_container import StreamSegmentContainer
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.node_session import NodeSession
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.stream_names import is_of_internal_stream
from segmentstore.codec.wire_protocol.store_calls import NO_LEADER
from segmentstore.contracts.cluster import ContainerLocations, Lease, NodeInCluster
from segmentstore.contracts.containers import BackupOwner, HostId, SegmentContainer
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.cluster_access import cluster_place
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.data_directory import DataDirectory, DataDirectoryError, DirectoryIdentity
from segmentstore.host.in_process_assignment import InProcessAssignmentSource
from segmentstore.host.kept_backups import KeptBackups
from segmentstore.host.log_cluster import (
    OpenedCluster,
    choose_log_place,
    connect_coordination,
    connect_session,
    open_cluster,
)
from segmentstore.host.logs import BookKeeperLogs, ContainerLogs, FileLogs, MemoryLogs
from segmentstore.host.node_membership import NodeMembership
from segmentstore.host.object_stores import S3_SCHEME, Tier2Stores, tier2_place
from segmentstore.host.published_container import PublishedContainer
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.host.segment_store import SegmentLayout, SegmentStore, StoreReads
from segmentstore.host.servers import Servers, ServerSockets
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.host.settings import (
    ServiceSettings,
    SettingsError,
    is_reachable_address,
    parse_retention_rules,
    split_address,
)
from segmentstore.host.store_record import controller_token, open_store_record
from segmentstore.host.tier2_reach import Tier2Reach
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import FileSystem, SystemFileSystem
from segmentstore.runtime.thread_pool import FairThreadPool, Lane
from segmentstore.runtime.waiting import Change
from segmentstore.wire.store_calls import StoreCallAccess
from tier1.bookkeeper.settings import GiveUpSettings
from tier1.file_log.settings import FileLogSettings
from tier2.format.chunk_format import Compression
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage

_WIRE_APPEND_BYTES_MAX = (8 << 20) + (64 << 10)
"""The largest event of Pravega's clients has 8 MiB, and its header comes with it."""
_TIER2_NICENESS = 10
"""Appends wait for the log's threads, none waits for those that write Tier 2: beside a drain p99 falls to a third."""
_SHORTEN_SECONDS = 3.0
"""A container that moves serves for so long at most while its log is shortened; its writers wait only behind that."""
_READ_THREADS = 4
"""Of Tier 2 too, but a reader waits for what they read."""
_FREEING_BYTES = 8 << 20
"""Room in a full log for checkpoints, truncations and deletions."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that the caller of open_service() handles."""

    store: SegmentStore
    registry: ContainerRegistry
    manager: ContainerManager
    servers: Servers
    containers: "ContainerFactory"
    logs: ContainerLogs
    data_directory: str
    """Empty if everything is in memory."""


@asynccontextmanager
async def open_service(resolved: ResolvedSettings) -> AsyncIterator[Service]:
    """A service whose parts exist and are not started yet; on exit they are gone.

    Raises DataDirectoryError, DataDirectoryInUseError, DataDirectoryCorruptedError.
    """
    outside = _Outside()
    async with AsyncExitStack() as stack:
        place = await _open_place(resolved, stack, outside)
        parts = await _open_parts(resolved, place, stack, outside)
        containers = [ContainerId(number) for number in range(place.identity.container_count)]
        parts.registry.expect(containers)
        assignments = InProcessAssignmentSource(
            containers=containers,
            settings=resolved.settings.restart,
            on_kept_down=parts.keep_down,
            # No other process can have a log in this directory; one in BookKeeper goes to the process that asks last.
            gives_way=place.cluster is not None,
        )
        manager = ContainerManager(
            host_id=HostId(f"{socket.gethostname()}:{os.getpid()}"),
            assignments=assignments,
            registry=parts.registry,
            # In a directory that this process holds no other can have a log.
            create_container=partial(
                parts.containers.create, lease=None if place.cluster else OnlyProcess()
            ),
        )
        yield Service(
            store=parts.store,
            registry=parts.registry,
            manager=manager,
            servers=parts.servers(resolved.settings, outside, complaints=assignments.complaints),
            containers=parts.containers,
            logs=parts.logs,
            data_directory=place.directory.path if place.directory else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShare:
    """What one of several processes has of a store whose data directory a parent holds for all of them."""

    identity: DirectoryIdentity
    containers: Collection[ContainerId]
    locations: ContainerLocations
    node_id: HostId
    token: str
    """What the controller shows to the other processes."""
    volumes_socket: str
    """Where the process that has the volumes answers; empty: Tier 2 is not in volumes."""
    sockets: ServerSockets
    complaints: Callable[[], Sequence[str]] = list
    metrics: Callable[[], Mapping[str, float]] = dict


@asynccontextmanager
async def open_share(resolved: ResolvedSettings, share: StoreShare) -> AsyncIterator[Service]:
    """As open_service(), in a process that a parent started for these containers alone."""
    settings = resolved.settings
    outside = _Outside()
    async with AsyncExitStack() as stack:
        directory = _data_directory(settings, outside)
        place = _Place(directory, None, share.identity)
        parts = await _open_parts(
            resolved, place, stack, outside, volumes_socket=share.volumes_socket
        )
        change = Change()
        parts.registry.watch(lambda *_, **__: change.tell())
        parts.registry.expect(share.containers)
        assignments = InProcessAssignmentSource(
            containers=share.containers, settings=settings.restart, on_kept_down=parts.keep_down
        )
        manager = ContainerManager(
            host_id=share.node_id,
            assignments=assignments,
            registry=parts.registry,
            # The parent gives a container to another process only when it has seen this one end.
            create_container=partial(parts.containers.create, lease=OnlyProcess()),
        )
        yield Service(
            store=parts.store,
            registry=parts.registry,
            manager=manager,
            servers=parts.servers(
                # The controller is beside the servers, and asks this process like any other.
                replace(settings, controller=replace(settings.controller, address="off")),
                outside,
                complaints=lambda: [*assignments.complaints(), *share.complaints()],
                metrics=share.metrics,
                cluster=NodeInCluster(
                    locations=share.locations,
                    node_id=lambda: share.node_id,
                    is_lease_valid=OnlyProcess().is_valid,
                    serves=parts.registry.serves,
                    wait_for_change=change.wait,
                ),
                store_calls=StoreCallAccess(
                    token=share.token,
                    containers=lambda number: parts.registry.get(ContainerId(number)),
                ),
                remote_store=_remote_store(settings, share.locations, share.token),
                sockets=share.sockets,
            ),
            containers=parts.containers,
            logs=parts.logs,
            data_directory=directory.path,
        )


@asynccontextmanager
async def open_volumes(resolved: ResolvedSettings) -> AsyncIterator[Tier2Stores]:
    """The volumes alone, for the process that has them for others; opened by the first call, on exit closed."""
    settings = resolved.settings
    outside = _Outside()
    with ExitStack() as threads:
        writers = FairThreadPool(
            thread_count=settings.tier2.worker_thread_count, name="tier2", niceness=_TIER2_NICENESS
        )
        threads.callback(writers.close)
        readers = FairThreadPool(thread_count=_READ_THREADS, name="reads")
        threads.callback(readers.close)
        stores = Tier2Stores(
            place="volumes",
            settings=settings,
            directory=_data_directory(settings, outside),
            files=outside.files,
            wall_clock=outside.wall_clock,
            random=outside.random,
            threads=writers,
            lanes=[writers.lane()],
            readers=readers,
        )
        try:
            yield stores
        finally:
            await stores.close()


@dataclass(frozen=True, slots=True)
class NodeService:
    """The parts that the caller of open_node() handles."""

    registry: ContainerRegistry
    view: ClusterView
    membership: NodeMembership
    tier2_reach: Tier2Reach
    servers: Servers
    containers: "ContainerFactory"


@asynccontextmanager
async def open_node(resolved: ResolvedSettings) -> AsyncIterator[NodeService]:
    """A node of a cluster, whose parts exist and are not started yet; on exit they are gone.

    Raises SettingsError, StoreRecordError, LedgerUnavailableError, and what open_service() raises.
    """
    settings = _node_settings(resolved)
    outside = _Outside()
    async with AsyncExitStack() as stack:
        place = await _open_node_place(resolved, stack, outside)
        assert place.cluster is not None, "a node without a cluster"
        names, count = place.cluster.names, place.identity.container_count
        store = await connect_coordination(names, settings.bookkeeper)
        stack.push_async_callback(store.close)
        change = Change()
        view = ClusterView(
            store, container_count=count, random=outside.random, on_change=change.tell
        )
        await view.refresh()
        parts = await _open_parts(resolved, place, stack, outside, give_up=settings.cluster.give_up)
        parts.registry.watch(lambda *_, **__: change.tell())
        tier2_reach = Tier2Reach(
            answers=parts.object_stores.answers,
            ask=parts.object_stores.ask,
            silent_seconds=settings.cluster.tier2_seconds,
        )

        def register(on_lost: Callable[[], None]) -> Awaitable[NodeSession]:
            addresses = servers.addresses()
            http = settings.http.advertised_address or addresses.http
            return NodeSession.register(
                partial(connect_session, names, settings.cluster.session_seconds),
                name=settings.cluster.node_name
                or f"{socket.gethostname()}:{http.rpartition(':')[2]}",
                http=http,
                wire=settings.wire.advertised_address or addresses.wire,
                kafka=settings.kafka.advertised_address or addresses.kafka,
                capacity=settings.cluster.capacity_count,
                version=version("segmentstore"),
                random=outside.random,
                on_lost=on_lost,
                tier2_state=lambda: tier2_reach.state,
            )

        membership = NodeMembership(
            register=register,
            store=store,
            running=parts.registry.running,
            manager_of=lambda session: ContainerManager(
                host_id=session.node.node_id,
                assignments=session.assignments,
                registry=parts.registry,
                shorten_seconds=_SHORTEN_SECONDS,
                # That of the session in which the container was given to this node, not of a later one.
                create_container=partial(parts.containers.create, lease=session.lease),
            ),
            others=lambda node_id: [
                node.node_id
                for node in view.nodes()
                if node.node_id != node_id and view.leader() is not None
            ],
            random=outside.random,
        )
        token = controller_token(place.identity, names)
        servers = parts.servers(
            settings,
            outside,
            complaints=lambda: [*membership.complaints(), *tier2_reach.complaints()],
            metrics=lambda: {**membership.metrics(), **tier2_reach.metrics()},
            cluster=NodeInCluster(
                locations=view,
                node_id=lambda: membership.node_id,
                is_lease_valid=membership.is_valid,
                serves=parts.registry.serves,
                wait_for_change=change.wait,
            ),
            store_calls=StoreCallAccess(
                token=token,
                containers=lambda number: parts.registry.get(ContainerId(number)),
                newest_epoch=lambda: membership.leader_epoch,
            ),
            remote_store=_remote_store(settings, view, token),
        )
        yield NodeService(
            registry=parts.registry,
            view=view,
            membership=membership,
            tier2_reach=tier2_reach,
            servers=servers,
            containers=parts.containers,
        )


def _node_settings(resolved: ResolvedSettings) -> ServiceSettings:
    """Those of a node, which has no controller. Raises SettingsError if they cannot be those of one."""
    settings = resolved.settings
    cluster_place(resolved)
    problems = []
    if not settings.tier2.place.startswith(S3_SCHEME):
        problems.append(
            f"Tier 2 has to be the same for all nodes: --tier2 s3://BUCKET/PREFIX, not {settings.tier2.place}"
        )
    told = [
        ("http", settings.http.address, settings.http.advertised_address),
        ("wire", settings.wire.address, settings.wire.advertised_address),
    ]
    if settings.kafka.address != "off":
        told.append(("kafka", settings.kafka.address, settings.kafka.advertised_address))
    for name, address, advertised in told:
        host, _ = (
            split_address(advertised or address) if (advertised or address) != "off" else ("", 0)
        )
        if not is_reachable_address(host):
            problems.append(
                f"other processes have to reach a node: {name}.advertised_address is to be an IP address with its"
                f" port, if {name}.address is none that they reach, not {advertised or address!r}"
            )
    if problems:
        raise SettingsError(problems)
    return replace(settings, controller=replace(settings.controller, address="off"))


def _remote_store(
    settings: ServiceSettings, locations: ContainerLocations, token: str
) -> RemoteStore | None:
    """What topics of this process have of the containers of all; None if it serves none."""
    if settings.kafka.address == "off":
        return None
    return RemoteStore(locations=locations, token=token, leader_epoch=NO_LEADER)


class _Outside:
    """The machine, as every part of a process sees it."""

    def __init__(self) -> None:
        self.files = SystemFileSystem()
        self.wall_clock = SystemWallClock()
        self.random = system_random()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a process has that runs containers, wherever their assignment comes from."""

    store: SegmentStore
    registry: ContainerRegistry
    logs: ContainerLogs
    object_stores: Tier2Stores
    containers: "ContainerFactory"
    record_files: Tier2RecordFiles
    store_id: bytes

    def keep_down(self, container_id: ContainerId, *, why: str, readable: bool) -> None:
        """A KeptDownListener: the container stays down."""
        # Damage may be a contradiction between the log and what is published: neither is answered from then.
        published = self.containers.published(container_id, why=why) if readable else None
        self.registry.set_kept_down(container_id, reason=why, published=published)

    def swap_owner(self, container_id: ContainerId) -> TieredStorage:
        """Raises ContainerNotFoundError unless it runs: only an owner at work may publish."""
        self.registry.get(container_id)
        return self.containers.storage_of(container_id)

    def backup_owners(
        self, containers: Sequence[ContainerId] | None
    ) -> Sequence[tuple[ContainerId, BackupOwner]]:
        """Of these (None: all of the store); none while one is missing: a backup of a part is none."""
        running = (
            self.registry.all_running()
            if containers is None
            else [self.registry.get(container_id) for container_id in containers]
        )
        return [(each.container_id, each.backups) for each in running]

    def servers(
        self,
        settings: ServiceSettings,
        outside: _Outside,
        *,
        complaints: Callable[[], Sequence[str]],
        metrics: Callable[[], Mapping[str, float]] = dict,
        cluster: NodeInCluster | None = None,
        store_calls: StoreCallAccess | None = None,
        remote_store: RemoteStore | None = None,
        sockets: ServerSockets | None = None,
    ) -> Servers:
        """`complaints` and `metrics`: of the assignment. From `cluster` on: for a node of a cluster."""
        return Servers(
            settings=settings,
            store_id=self.store_id,
            store=self.store,
            reads=StoreReads(registry=self.registry),
            registry=self.registry,
            complaints=lambda: [
                *complaints(),
                *self.logs.complaints(),
                *self.object_stores.complaints(),
            ],
            wall_clock=outside.wall_clock,
            random=outside.random,
            process_metrics=lambda: {
                **self.logs.metrics(),
                **self.object_stores.metrics(),
                **self.record_files.metrics(),
                **self.containers.metrics(),
                **metrics(),
            },
            swap_owner=self.swap_owner,
            backup_owners=self.backup_owners,
            layout=SegmentLayout(
                segments=self.store,
                storage_of=self.swap_owner,
                container_count=self.registry.container_count,
            ),
            record_files=self.record_files,
            store_calls=store_calls,
            remote_store=remote_store,
            cluster=cluster,
            sockets=sockets,
        )


async def _open_parts(
    resolved: ResolvedSettings,
    place: "_Place",
    stack: AsyncExitStack,
    outside: _Outside,
    *,
    volumes_socket: str = "",
    give_up: GiveUpSettings | None = None,
) -> _Parts:
    """`give_up`: of the logs, where another process can take their containers over."""
    settings = resolved.settings
    count = place.identity.container_count
    logs = _logs(
        place,
        settings=settings,
        files=outside.files,
        random=outside.random,
        give_up=give_up,
    )
    stack.push_async_callback(logs.close)
    await logs.start()
    storage_threads = FairThreadPool(
        thread_count=settings.tier2.worker_thread_count,
        name="tier2",
        niceness=_TIER2_NICENESS,
    )
    stack.callback(storage_threads.close)
    storage_lanes = [storage_threads.lane() for _ in range(count)]
    read_threads = FairThreadPool(thread_count=_READ_THREADS, name="reads")
    stack.callback(read_threads.close)
    object_stores = Tier2Stores(
        # Behind a socket the parent has looked: the directory may be half made by the process that has the volumes.
        place="volumes"
        if volumes_socket
        else tier2_place(resolved, place.directory, outside.files),
        settings=settings,
        directory=place.directory,
        files=outside.files,
        wall_clock=outside.wall_clock,
        random=outside.random,
        threads=storage_threads,
        lanes=storage_lanes,
        readers=read_threads,
        volumes_socket=volumes_socket,
    )
    containers = ContainerFactory(
        settings=settings,
        identity=place.identity,
        logs=logs,
        wall_clock=outside.wall_clock,
        random=outside.random,
        storage_lanes=storage_lanes,
        read_lanes=[read_threads.lane() for _ in range(count)],
        object_stores=object_stores,
    )
    stack.push_async_callback(containers.close)
    registry = ContainerRegistry(container_count=count)
    record_files = Tier2RecordFiles(
        object_store=object_stores.of(ContainerId(0)),
        writers=storage_threads.lane(),
        readers=read_threads.lane(),
        cache_bytes=settings.kafka.file_cache_bytes,
        has_backups=KeptBackups(
            registry=registry, object_store=object_stores.of(ContainerId(0))
        ).exist,
    )
    stack.push_async_callback(record_files.close)
    return _Parts(
        store=SegmentStore(registry=registry),
        registry=registry,
        logs=logs,
        object_stores=object_stores,
        containers=containers,
        record_files=record_files,
        store_id=place.identity.store_id,
    )


class ContainerFactory:
    """Makes containers, and keeps what outlives them: cache, logs, object stores."""

    def __init__(
        self,
        *,
        settings: ServiceSettings,
        identity: DirectoryIdentity,
        logs: ContainerLogs,
        wall_clock: WallClock,
        random: Random,
        storage_lanes: list[Lane],
        read_lanes: list[Lane],
        object_stores: Tier2Stores,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._logs = logs
        self._wall_clock = wall_clock
        self._random = random
        self._storage_lanes = storage_lanes
        self._read_lanes = read_lanes
        self._cache_storage = CacheStorage(budget_bytes=settings.cache.bytes_max)
        self._cache = CacheManager(storage=self._cache_storage)
        self._object_stores = object_stores
        self._storages: dict[ContainerId, TieredStorage] = {}

    async def close(self) -> None:
        await self._object_stores.close()

    def metrics(self) -> Mapping[str, float]:
        """Of the cache that the containers share, for `/metrics`."""
        cache = self._cache.statistics()
        return {
            "cache_budget_bytes": cache.budget_bytes,
            "cache_resident_bytes": cache.resident_bytes,
            "cache_occupied_bytes": cache.occupied_bytes,
            "cache_unflushed_bytes": cache.unflushed_bytes,
            "cache_evictable_bytes": cache.evictable_bytes,
            "cache_charged_bytes": cache.charged_bytes,
            "cache_evicted_bytes_total": cache.evicted_bytes,
        }

    async def preallocate_cache(self) -> None:
        """Have the cache's memory made before it is needed; returns when it has all that it may have."""
        await self._cache_storage.make_ahead(self._read_lanes[0])

    def create(self, container_id: ContainerId, *, lease: Lease | None) -> SegmentContainer:
        """A container to be started once.

        While the lease is valid no other process has been given the container; None: its log is asked.
        """
        settings = self._settings
        lane = self._storage_lanes[container_id]
        storage = TieredStorage(
            object_store=self._object_stores.of(container_id),
            store_id=self._identity.store_id,
            container_id=container_id,
            container_count=self._identity.container_count,
            settings=self._storage_settings(),
            wall_clock=self._wall_clock,
            random=self._random,
            executor=lane,
            readers=self._read_lanes[container_id],
        )
        self._storages[container_id] = storage
        return StreamSegmentContainer(
            container_id=container_id,
            log=self._logs.of(container_id),
            storage=storage,
            cache=self._cache,
            wall_clock=self._wall_clock,
            random=self._random,
            executor=lane,
            settings=ContainerSettings(
                processor=_processor_settings(settings),
                writer=replace(
                    WriterSettings(),
                    flush_bytes=settings.writer.flush_bytes,
                    flush_interval_seconds=settings.writer.flush_interval_seconds,
                    short_lived_factor=_short_lived_factor(settings),
                ),
                expiry=ExpirySettings(
                    rules=parse_retention_rules(settings.retention.rules),
                    # A reader group would forget where it is, a stream its watermarks.
                    exempt=is_of_internal_stream,
                ),
            ),
            lease=lease,
        )

    def published(self, container_id: ContainerId, *, why: str) -> PublishedContainer:
        """What is read in the place of a container that stays down. Does no I/O."""
        reader = ContainerReader(
            object_store=self._object_stores.of(container_id),
            container_id=container_id,
            settings=self._storage_settings(),
            executor=self._read_lanes[container_id],
        )
        return PublishedContainer(reader=reader, why=why)

    def storage_of(self, container_id: ContainerId) -> TieredStorage:
        """Tier 2 of the container as it was created last, for compactors beside it. Raises KeyError if it never was."""
        return self._storages[container_id]

    def _storage_settings(self) -> StorageSettings:
        tier2 = self._settings.tier2
        return StorageSettings(
            compression=Compression[tier2.codec.upper()],
            garbage_grace_seconds=tier2.garbage_grace_seconds,
            cold_compression=Compression[tier2.cold_codec.upper()],
            cold_seconds=tier2.cold_seconds,
            compaction_bytes_per_second=tier2.compaction_byte_rate,
            scrub_bytes_per_second=tier2.scrub_byte_rate,
        )


def _short_lived_factor(settings: ServiceSettings) -> float:
    """Batches wait until a file of theirs is late, so that a partition's files are all that goes to Tier 2."""
    seconds = max(settings.writer.flush_interval_seconds, settings.kafka.file_seconds)
    return 3 * seconds / settings.writer.flush_interval_seconds


def _processor_settings(settings: ServiceSettings) -> OperationProcessorSettings:
    batch_bytes_max = 0 if settings.kafka.address == "off" else settings.kafka.batch_bytes_max
    return OperationProcessorSettings(
        append_bytes_max=max(
            settings.http.append_bytes_max, _WIRE_APPEND_BYTES_MAX, batch_bytes_max
        )
    )


def _file_log_settings(settings: ServiceSettings) -> FileLogSettings:
    processor = _processor_settings(settings)
    # Whatever is accepted when the disk turns out to be full is written into the reserve: the queue before
    # the log, one append that took it over its bound, one half written; what frees space has to fit beside them.
    largest = max(processor.append_bytes_max, processor.table_batch_bytes_max)
    accepted_bytes = processor.pipeline.queued_bytes_max + 2 * largest
    return FileLogSettings(
        journal_bytes_max=settings.tier1.journal_bytes_max,
        reserve_bytes=accepted_bytes + _FREEING_BYTES,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a store is."""

    directory: DataDirectory | None
    """None if both tiers are in memory."""
    cluster: OpenedCluster | None
    """None if the logs are not in BookKeeper."""
    identity: DirectoryIdentity


def _logs(
    place: _Place,
    *,
    settings: ServiceSettings,
    files: FileSystem,
    random: Random,
    give_up: GiveUpSettings | None,
) -> ContainerLogs:
    count = place.identity.container_count
    if place.cluster is not None:
        return BookKeeperLogs(
            place.cluster,
            settings=settings.bookkeeper,
            container_count=count,
            random=random,
            give_up=give_up,
        )
    if settings.tier1.kind == "memory":
        return MemoryLogs(container_count=count, random=random)
    assert place.directory is not None, "tier 1 in files without a data directory"
    return FileLogs(
        directory=place.directory,
        container_count=count,
        files=files,
        random=random,
        settings=_file_log_settings(settings),
    )


async def _open_place(
    resolved: ResolvedSettings, stack: AsyncExitStack, outside: _Outside
) -> _Place:
    settings = resolved.settings
    default_count = settings.store.container_count
    is_default = resolved.source_of("store.container_count") == "default"
    asked_count = None if is_default else default_count
    if not settings.store.data_directory:
        if settings.tier1.kind != "memory" or _needs_directory(settings.tier2.place):
            raise DataDirectoryError(
                "a data directory is needed: name one with --data, or keep both tiers in memory with "
                "--tier1 memory --tier2 memory"
            )
        identity = DirectoryIdentity(
            random_id(outside.random), default_count, outside.wall_clock.now_ms()
        )
        return _Place(None, None, identity)
    directory = _data_directory(settings, outside)
    await directory.hold()
    stack.push_async_callback(directory.close)
    log_place = choose_log_place(
        resolved,
        noted=await directory.log_place(),
        has_logs=await directory.has_logs(),
        path=directory.path,
    )
    if log_place is None:
        identity = await directory.read_or_begin(
            container_count=asked_count, default_count=default_count
        )
        return _Place(directory, None, identity)
    found = await directory.find_identity()
    cluster = await stack.enter_async_context(open_cluster(log_place, settings.bookkeeper))
    identity = await open_store_record(
        cluster.metadata,
        cluster.names,
        directory=found,
        has_tier2=await directory.has_tier2(),
        container_count=asked_count,
        default_count=default_count,
        random=outside.random,
        wall_clock=outside.wall_clock,
    )
    await directory.adopt(identity, log_place=log_place)
    return _Place(directory, cluster, identity)


async def _open_node_place(
    resolved: ResolvedSettings, stack: AsyncExitStack, outside: _Outside
) -> _Place:
    """As _open_place(); nothing that a node has on its own disk is needed by another start."""
    settings = resolved.settings
    if settings.store.data_directory:
        return await _open_place(resolved, stack, outside)
    cluster = await stack.enter_async_context(
        open_cluster(cluster_place(resolved), settings.bookkeeper)
    )
    is_default = resolved.source_of("store.container_count") == "default"
    identity = await open_store_record(
        cluster.metadata,
        cluster.names,
        directory=None,
        has_tier2=False,
        container_count=None if is_default else settings.store.container_count,
        default_count=settings.store.container_count,
        random=outside.random,
        wall_clock=outside.wall_clock,
    )
    return _Place(None, cluster, identity)


def _data_directory(settings: ServiceSettings, outside: _Outside) -> DataDirectory:
    return DataDirectory(
        _absolute(settings.store.data_directory),
        files=outside.files,
        executor=None,
        random=outside.random,
        wall_clock=outside.wall_clock,
        process_id=os.getpid(),
    )


def _needs_directory(place: str) -> bool:
    return place in ("volumes", "filesystem")


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
