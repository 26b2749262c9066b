"""A process of a store of several: its containers, its servers, and in the first one the controller.

Invariants:

- It listens before the parent tells the others of it, on sockets that the parent keeps.
- Its containers are opened by the kernel's lock on the directory of each log: while another process of this store still
  has one, however late it ends, the container waits and is started again.
- Stopping goes outside in, as in a store of one process.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.processes.channel import Channel
from segmentstore.host.processes.locations import ProcessLocations
from segmentstore.host.processes.orders import Orders, containers_of
from segmentstore.host.processes.parent_link import ParentLink
from segmentstore.host.processes.store_controller import StoreController
from segmentstore.host.servers import ServerSockets
from segmentstore.host.service_builder import Service, StoreShare, open_share
from segmentstore.host.serving import begin_serving, listen
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.process import freeze_long_lived_objects

logger = logging.getLogger(__name__)

_SERVERS_SECONDS_MAX = 5.0
"""A controller, or topics, that have not recovered by then go on trying; they are announced as such."""


async def serve_node(
    orders: Orders,
    resolved: ResolvedSettings,
    parent: socket.socket,
    listening: Sequence[socket.socket],
) -> None:
    """Until SIGTERM, or the end of the parent.

    `listening`: HTTP of the store, HTTP of this process, the wire if it has one, and then Kafka's protocol as HTTP.
    """
    stopping = begin_serving(resolved.settings.shutdown.grace_seconds)
    process = NodeProcess(orders, resolved, await Channel.over(parent), listening)
    async with AsyncExitStack() as stack:
        stack.callback(process.close)
        await process.serve(stopping)
    logger.info("stopped")


class NodeProcess:
    """serve() once, then close()."""

    def __init__(
        self,
        orders: Orders,
        resolved: ResolvedSettings,
        channel: Channel,
        listening: Sequence[socket.socket],
    ) -> None:
        self._orders = orders
        self._resolved = resolved
        self._listening = listening
        self._controller: StoreController | None = None
        self._link = ParentLink(channel, take=lambda states: self._locations.take(states))
        self._locations = ProcessLocations(
            orders.nodes,
            container_count=orders.container_count,
            own_index=orders.index,
            own_start=orders.start,
            ask_parent=self._link.refresh,
            on_change=lambda: self._look(),
        )
        if orders.index == 0 and orders.controller_address != "off":
            self._controller = StoreController(
                address=orders.controller_address,
                locations=self._locations,
                token=orders.token,
                epoch=orders.start,
                wall_clock=SystemWallClock(),
                random=system_random(),
            )
        self._ends: Counter[ContainerId] = Counter()

    async def serve(self, stopping: asyncio.Event) -> None:
        """Start, say so, work, and stop in order; or say why it cannot be started."""
        async with asyncio.TaskGroup() as outer:
            following = outer.create_task(self._link.run(), name="parent")
            try:
                async with open_share(self._resolved, self._share()) as service:
                    service.registry.watch(self._container_changed)
                    await self._serve(service, stopping)
            except InvalidRequestError as error:
                # An address that is taken, a package that is not there: the parent says what follows from it.
                self._link.send({"refused": str(error)})
            following.cancel()

    def close(self) -> None:
        """Idempotent."""
        self._link.close()

    async def _serve(self, service: Service, stopping: asyncio.Event) -> None:
        controller = self._controller
        try:
            await listen(service.servers.start())
            if controller is not None:
                await listen(controller.start())
            address = "" if controller is None else controller.address
            topics_grpc = service.servers.addresses().topics_grpc
            self._link.send({"up": {"controller": address, "topics_grpc": topics_grpc}})
            async with asyncio.TaskGroup() as group:
                managing = group.create_task(service.manager.run(), name="container manager")
                serving = group.create_task(service.servers.run(), name="servers")
                controlling = group.create_task(_run(controller), name="controller process")
                announcing = group.create_task(self._tell_settled(service), name="announce")
                caching = group.create_task(service.containers.preallocate_cache(), name="cache")
                await stopping.wait()
                logger.info("stopping")
                announcing.cancel()
                caching.cancel()
                serving.cancel()
                controlling.cancel()
                if controller is not None:
                    await controller.close()
                await service.servers.close()
                managing.cancel()
        finally:
            if controller is not None:
                await controller.close()
            await service.servers.close()

    async def _tell_settled(self, service: Service) -> None:
        await service.manager.wait_until_settled()
        self._link.send({"settled": _summary(self._own(service.registry.health()))})
        controller = self._controller
        with suppress(TimeoutError):
            async with asyncio.timeout(_SERVERS_SECONDS_MAX):
                if controller is not None:
                    await controller.wait_until_ready()
                await service.servers.wait_until_ready()
        recovering = service.servers.recovering()
        if controller is not None and not controller.is_ready:
            recovering = ["controller", *recovering]
        self._link.send({"ready": {"recovering": recovering}})
        freeze_long_lived_objects()

    def _own(self, containers: Sequence[ContainerHealth]) -> list[ContainerHealth]:
        own = set(self._containers())
        return [each for each in containers if each.container_id in own]

    def _share(self) -> StoreShare:
        orders, controller = self._orders, self._controller
        return StoreShare(
            identity=DirectoryIdentity(
                bytes.fromhex(orders.store_id), orders.container_count, orders.created_ms
            ),
            containers=self._containers(),
            locations=self._locations,
            node_id=self._locations.node_id,
            token=orders.token,
            volumes_socket=orders.volumes_socket,
            sockets=ServerSockets(
                http=self._listening[:2],
                wire=self._listening[2] if len(self._listening) > 2 else None,
                kafka=self._listening[3:],
            ),
            complaints=list if controller is None else controller.complaints,
            metrics=dict if controller is None else controller.metrics,
        )

    def _containers(self) -> list[ContainerId]:
        orders = self._orders
        return containers_of(
            orders.index, len(orders.nodes), container_count=orders.container_count
        )

    def _container_changed(self, container_id: ContainerId, *, runs: bool) -> None:
        if runs:
            return
        self._ends[container_id] += 1
        self._link.send({"ended": [container_id, self._ends[container_id]]})

    def _look(self) -> None:
        if self._controller is not None:
            self._controller.look()


async def _run(controller: StoreController | None) -> None:
    if controller is not None:
        await controller.run()


def _summary(containers: Sequence[ContainerHealth]) -> dict[str, int]:
    running = [each for each in containers if each.state is ContainerState.RUNNING]
    return {
        "containers": len(containers),
        "running": len(running),
        "active_segments": sum(each.active_segments for each in running),
        "unflushed_bytes": sum(each.unflushed_bytes for each in running),
    }
