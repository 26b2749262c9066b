"""The controller of a store of several processes: it runs in the first of them, and speaks to all over the wire.

Invariants:

- It asks every process alike, its own too: there is one way to a container.
- Its epoch is the number of its process's start: a process that has heard of a later one answers it no more.
- A run ends when a process ends that has containers of its tables, or when one of these containers does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from segmentstore.cluster.container_changes import ContainerChanges
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.api.grpc_server import ControllerServer, ControllerServerSettings
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.host.processes.locations import ProcessLocations
from segmentstore.host.servers import address_text
from segmentstore.host.settings import split_address
from segmentstore.runtime.clock import WallClock


class StoreController:
    """start() to listen, run() while serving, close() to end."""

    def __init__(
        self,
        *,
        address: str,
        locations: ProcessLocations,
        token: str,
        epoch: int,
        wall_clock: WallClock,
        random: Random,
    ) -> None:
        self._locations = locations
        self._store = RemoteStore(locations=locations, token=token, leader_epoch=epoch)
        self._controller = Controller(
            segments=self._store,
            tables=self._store,
            wall_clock=wall_clock,
            random=random,
            locate=self._locate,
            settings=ControllerSettings(),
        )
        self._changes = ContainerChanges(locations=locations, since_of=locations.ends_of)
        self._changes.look()
        self._supervisor = ControllerSupervisor(
            controller=self._controller, containers=self._changes
        )
        self._host, port = split_address(address)
        self._server = ControllerServer(
            service=self._controller.service,
            settings=ControllerServerSettings(address=self._host, port=port),
        )

    async def start(self) -> None:
        """Listen. Raises InvalidRequestError if the address is taken."""
        await self._server.start()

    @property
    def address(self) -> str:
        """HOST:PORT, after start()."""
        return address_text(self._host, self._server.port)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store.run(), name="remote store")
            group.create_task(self._supervisor.run(), name="controller")

    async def wait_until_ready(self) -> None:
        """Until calls are answered."""
        await self._supervisor.wait_until_recovered()

    @property
    def is_ready(self) -> bool:
        """Whether wait_until_ready() would not wait."""
        return self._supervisor.has_recovered

    def look(self) -> None:
        """The locations have changed."""
        self._changes.look()

    async def close(self) -> None:
        """No new calls; those under way end. Idempotent."""
        await self._server.close()
        await self._store.close()

    def complaints(self) -> Sequence[str]:
        """For `/health`."""
        return self._supervisor.complaints()

    def metrics(self) -> Mapping[str, float]:
        """For `/metrics`."""
        return self._supervisor.metrics()

    def _locate(self, segment: str) -> Endpoint:
        container_id = ContainerId(container_of(segment, self._locations.container_count))
        return Endpoint(*split_address(self._locations.wire_address(container_id)))
