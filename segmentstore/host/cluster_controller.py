"""A controller of a cluster in one process: an election, the work of the one that leads, calls. See `serving.py`, and

    stdout   one line: `ready http://HOST:PORT controller=HOST:PORT ...`, when it takes calls
    HTTP     /health and /metrics alone
    exit     2 for settings that cannot work, 5 if ZooKeeper does not answer

Invariants:

- What a leader does ends with its lead.
- The process begins no store: it waits until a node has. The container count is that of the store.
- Nothing of it lies on a disk.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.records import LeaderRecord
from segmentstore.host.cluster_access import cluster_place
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
from segmentstore.host.store_record import find_store_record
from segmentstore.http.status_server import ProcessHealth, StatusServer
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
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(_serve(resolved, announce), name="controller")
        await stopping.wait()
        logger.info("stopping")
        serving.cancel()
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
    ) -> None:
        settings = resolved.settings
        self._identity = identity
        self._view = view
        self._election_of = election_of
        self._election: Election | None = None
        self._address = settings.controller.address
        self._status = StatusServer(
            *split_address(settings.http.address), health=self._health, metrics=self._metrics
        )

    async def start(self) -> None:
        """Listen. Raises OSError or InvalidRequestError if an address is taken."""
        await self._status.start()

    def addresses(self) -> ServerAddresses:
        """After start()."""
        return ServerAddresses(
            http=address_text(*self._status.address),
            wire="",
            controller=self._address,
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
        await self._status.close()

    async def _lead(self, leadership: Leadership) -> None:
        """The work of one lead, until cancelled; raises what ended it."""
        assigner = Assigner(
            leadership,
            container_count=self._identity.container_count,
            settings=AssignerSettings(),
        )
        await assigner.run()

    @property
    def _leads(self) -> bool:
        return self._election is not None and self._election.leadership is not None

    def _health(self) -> ProcessHealth:
        leader = self._view.leader()
        complaints = [] if leader is not None else ["no controller leads at the moment"]
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
        return {
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
        view = ClusterView(store, container_count=identity.container_count, random=random)
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
        )
        await view.refresh()
        yield controller
