"""A controller of a cluster in one process: an election, the work of the one that leads, calls. See `serving.py`, and

    stdout   one line: `ready http://HOST:PORT controller=HOST:PORT ...`, when it takes calls
    HTTP     /health and /metrics alone
    exit     2 for settings that cannot work, 5 if ZooKeeper does not answer

Invariants:

- What a leader does ends with its lead: its decisions on containers, and its run of the controller, with everything
  that this remembers. Calls are handed on from then, or refused; none that begins behind the lease is answered here.
- The process begins no store: it waits until a node has. The container count is that of the store.
- Nothing of it lies on a disk.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random

from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.container_changes import ContainerChanges
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.records import LeaderRecord
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.api.grpc_server import (
    ControllerServer,
    ControllerServerSettings,
    ControllerService,
)
from segmentstore.controller.api.leader_relay import LeaderRelay
from segmentstore.controller.api.messages import Endpoint, no_token
from segmentstore.controller.api.stream_calls import LocationCalls
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.cluster_access import cluster_place
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.log_cluster import (
    connect_coordination,
    connect_metadata,
    connect_session,
    log_cluster,
)
from segmentstore.host.servers import ServerAddresses, address_text
from segmentstore.host.serving import ServingRefusedError, begin_serving, listen, run_process
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.host.settings import is_reachable_address, split_address
from segmentstore.host.store_record import controller_token, find_store_record
from segmentstore.http.status_server import ProcessHealth, StatusServer
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
"""Between two looks whether a node has begun the store."""


def run_controller(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal. `announce` gets the ready line. Raises SegmentStoreError when it cannot start."""
    run_process(serve_controller(resolved, announce), resolved.settings.log)


async def serve_controller(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Start, announce, and stop on SIGTERM or SIGINT."""
    stopping = begin_serving(resolved.settings.shutdown.grace_seconds)
    try:
        async with asyncio.TaskGroup() as group:
            # A start may wait for a node to begin the store: a signal ends that too.
            serving = group.create_task(_serve(resolved, announce), name="controller")
            await stopping.wait()
            logger.info("stopping")
            serving.cancel()
    except ExceptionGroup as end:
        error = end.exceptions[0]
        if len(end.exceptions) == 1 and isinstance(error, SegmentStoreError):
            raise error from None
        raise
    logger.info("stopped")


async def _serve(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    async with _open_controller(resolved) as process:
        await listen(process.start())
        try:
            addresses = process.addresses()
            announce(f"ready http://{addresses.http} controller={addresses.controller}")
            await process.run()
        finally:
            await process.close()


class ClusterController:
    """start() to listen, run() while serving, close() to end."""

    def __init__(
        self,
        resolved: ResolvedSettings,
        *,
        identity: DirectoryIdentity,
        view: ClusterView,
        election_of: "ElectionOf",
        token: str,
        random: Random,
    ) -> None:
        """`token` is what nodes want to see of a controller."""
        settings = resolved.settings
        self._identity = identity
        self._view = view
        self._election_of = election_of
        self._election: Election | None = None
        self._token = token
        self._random = random
        self._changes = ContainerChanges(locations=view, since_of=self._since_of)
        self._controller: Controller | None = None
        self._assigner: Assigner | None = None
        self._supervisor: ControllerSupervisor | None = None
        self._host, port = split_address(settings.controller.address)
        self._relay = LeaderRelay(
            own_service=self._own_service,
            leader_address=self._leader_address,
            own_calls=LocationCalls(
                locate=self._locate, issue_token=no_token, controllers=self._controllers
            ).calls(),
            answers_own_calls=lambda: view.is_fresh,
        )
        self._server = ControllerServer(
            service=self._relay, settings=ControllerServerSettings(address=self._host, port=port)
        )
        self._status = StatusServer(
            *split_address(settings.http.address), health=self._health, metrics=self._metrics
        )

    async def start(self) -> None:
        """Listen. Raises OSError or InvalidRequestError if an address is taken."""
        await self._server.start()
        await self._status.start()

    def addresses(self) -> ServerAddresses:
        """After start()."""
        return ServerAddresses(
            http=address_text(*self._status.address),
            wire="",
            controller=address_text(self._host, self._server.port),
        )

    async def run(self) -> None:
        """Candidate, leader, candidate, until cancelled."""
        address = self.addresses().controller
        leader = LeaderRecord(controller_id=f"{socket.gethostname()}:{address}", grpc=address)
        self._election = self._election_of(leader, self._lead)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._view.run(), name="cluster view")
            group.create_task(self._election.run(), name="election")

    async def close(self) -> None:
        """No new calls; those under way end. Idempotent."""
        await self._server.close()
        await self._relay.close()
        await self._status.close()

    def look(self) -> None:
        """The view has other news of nodes, of the map, or of who leads."""
        self._relay.look()
        if self._supervisor is not None:
            self._changes.look()

    async def _lead(self, leadership: Leadership) -> None:
        """The work of one lead, until cancelled; raises what ended it."""
        assigner = Assigner(
            leadership,
            container_count=self._identity.container_count,
            settings=AssignerSettings(),
        )
        store = RemoteStore(locations=self._view, token=self._token, leader_epoch=leadership.epoch)
        controller = Controller(
            segments=store,
            tables=store,
            wall_clock=SystemWallClock(),
            random=self._random,
            locate=self._locate,
            controllers=self._controllers,
            settings=ControllerSettings(),
        )
        self._changes = ContainerChanges(locations=self._view, since_of=self._since_of)
        self._changes.look()
        supervisor = ControllerSupervisor(controller=controller, containers=self._changes)
        self._assigner, self._controller, self._supervisor = assigner, controller, supervisor
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(assigner.run(), name="assigner")
                group.create_task(store.run(), name="remote store")
                group.create_task(supervisor.run(), name="controller")
        finally:
            self._assigner = self._controller = self._supervisor = None
            await store.close()

    def _locate(self, segment: str) -> Endpoint:
        """Raises ContainerNotFoundError while the container is given to no node."""
        container_id = ContainerId(container_of(segment, self._view.container_count))
        owner = self._view.owner_of(container_id)
        if owner is None:
            raise ContainerNotFoundError(container_id, "it is given to no node now")
        return Endpoint(*split_address(owner.wire))

    def _controllers(self) -> Sequence[Endpoint]:
        # Itself: when it ends, clients ask the others that they were given.
        return [Endpoint(self._host, self._server.port)]

    def _since_of(self, container_id: ContainerId) -> int:
        assignment = self._view.assignment()
        given = None if assignment is None else assignment.containers.get(container_id)
        return 0 if given is None else given.since

    def _own_service(self) -> ControllerService | None:
        """None from the very end of the lease: behind a stop a call may be read before anything here has noticed."""
        leadership = None if self._election is None else self._election.leadership
        if self._controller is None or leadership is None or not leadership.lease.is_valid():
            return None
        return self._controller.service

    def _leader_address(self) -> str | None:
        """Of another process: a leader that lost its lead is not asked by itself."""
        leader = self._view.leader()
        if leader is None or leader.grpc == self.addresses().controller:
            return None
        return leader.grpc

    @property
    def _leads(self) -> bool:
        return self._election is not None and self._election.leadership is not None

    def _health(self) -> ProcessHealth:
        leader = self._view.leader()
        complaints = [] if leader is not None else ["no controller leads at the moment"]
        if self._assigner is not None:
            complaints += self._assigner.complaints()
        if self._supervisor is not None:
            complaints += self._supervisor.complaints()
        return ProcessHealth(
            ready=leader is not None,
            complaints=complaints,
            facts={
                "leads": self._leads,
                "leader": None if leader is None else leader.grpc,
                "nodes": len(self._view.nodes()),
                "container_count": self._identity.container_count,
            },
        )

    def _metrics(self) -> Mapping[str, float]:
        leadership = None if self._election is None else self._election.leadership
        assignment = self._view.assignment()
        controller = {} if self._supervisor is None else self._supervisor.metrics()
        return {
            **controller,
            "cluster_leads": float(leadership is not None),
            "cluster_lease_seconds": 0.0 if leadership is None else leadership.lease.seconds_left,
            "cluster_nodes": len(self._view.nodes()),
            "cluster_assignment_version": 0 if assignment is None else assignment.version,
        }


ElectionOf = Callable[[LeaderRecord, Callable[[Leadership], Coroutine[None, None, None]]], Election]
"""An election in which a process takes part under a record, with what it does while it leads."""


@asynccontextmanager
async def _open_controller(resolved: ResolvedSettings) -> AsyncIterator[ClusterController]:
    """Its parts exist and are not started yet; on exit they are gone."""
    settings = resolved.settings
    host, _ = (
        split_address(settings.controller.address)
        if settings.controller.address != "off"
        else ("", 0)
    )
    if not is_reachable_address(host):
        raise ServingRefusedError(
            "other controllers hand calls on to the one that leads: --listen is to be an IP address that they reach,"
            f" with its port, not {settings.controller.address}"
        )
    names = log_cluster(cluster_place(resolved), settings.bookkeeper)
    random = system_random()
    async with AsyncExitStack() as stack:
        metadata = await connect_metadata(names, settings.bookkeeper)
        stack.push_async_callback(metadata.close)
        store = await connect_coordination(names, settings.bookkeeper)
        stack.push_async_callback(store.close)
        identity = await find_store_record(metadata, names)
        if identity is None:
            logger.warning("waiting for a node to begin the store %s", names.facts)
        while identity is None:
            await asyncio.sleep(_LOOK_SECONDS)
            identity = await find_store_record(metadata, names)
        view = ClusterView(
            store,
            container_count=identity.container_count,
            random=random,
            on_change=lambda: controller.look(),
        )
        controller = ClusterController(
            resolved,
            identity=identity,
            view=view,
            election_of=lambda leader, work: Election(
                connect=partial(connect_session, names, settings.cluster.session_seconds),
                leader=leader,
                work=work,
                random=random,
            ),
            token=controller_token(identity, names),
            random=random,
        )
        await view.refresh()
        yield controller
