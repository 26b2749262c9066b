"""Processes that run containers and a controller over the same logs and the same Tier 2, one after the other.

A process is what the host makes of one, without sockets: registry, manager, the whole store's doors, a controller and
its supervisor. Which containers it runs says the test. A process that starts a container's log takes it from the
one that had it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from google.protobuf.message import Message

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import BackupOwner, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.host.segment_store import SegmentStore
from tests.host.scripted_assignments import ScriptedAssignments
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

Answer = TypeVar("Answer", bound=Message)

_STORE_ID = b"the-shared-store"
_CACHE_BYTES = 64 << 20


class SharedTiers:
    """What outlives every process."""

    def __init__(self, *, container_count: int = 2) -> None:
        self.container_count = container_count
        self.logs = [
            MemoryLogStore(log_id=b"log of tests no%d" % number)
            for number in range(container_count)
        ]
        self.objects = MemoryObjectStore()

    async def fence(self, container_id: int) -> None:
        """Somebody else opens the log, and does nothing with it: who has the container finds out at its next write."""
        log = MemoryDurableDataLog(self.logs[container_id])
        await log.initialize()
        await log.close()


class LoopsWallClock:
    """Follows the loop's clock, whichever loop runs."""

    def now_ms(self) -> int:
        return 1_800_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class StoreProcess:
    """One process. Runs nothing before `assign`."""

    def __init__(self, tiers: SharedTiers, name: str) -> None:
        self._tiers = tiers
        self._cache = CacheManager(storage=CacheStorage(budget_bytes=_CACHE_BYTES))
        self.assignments = ScriptedAssignments()
        self.registry = ContainerRegistry(container_count=tiers.container_count)
        self.segments = SegmentStore(registry=self.registry)
        self.controller = Controller(
            segments=self.segments,
            tables=self.segments,
            wall_clock=LoopsWallClock(),
            random=Random(name),
            locate=lambda segment: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        self.supervisor = ControllerSupervisor(controller=self.controller, containers=self.registry)
        self._manager = ContainerManager(
            host_id=HostId(name),
            assignments=self.assignments,
            registry=self.registry,
            create_container=self._create,
        )

    @asynccontextmanager
    async def working(self, *, controller: bool = True) -> AsyncIterator[None]:
        """Inside, the process lives."""
        tasks = [asyncio.create_task(self._manager.run())]
        if controller:
            tasks.append(asyncio.create_task(self.supervisor.run()))
        try:
            yield
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def assign_all(self) -> None:
        """Every container is to run here from now on, also one that was lost and reported."""
        self.assignments.assign(*range(self._tiers.container_count))

    async def take_over(self) -> None:
        """The same; returns when the controller works."""
        while not self._works():
            # Again and again: what fails once more needs a later version.
            self.assign_all()
            await asyncio.sleep(0.02)

    def _works(self) -> bool:
        running = len(self.registry.running())
        return running == self._tiers.container_count and self.controller.is_ready

    def backup_owners(
        self, containers: Sequence[ContainerId] | None
    ) -> Sequence[tuple[ContainerId, BackupOwner]]:
        """What a server asks for backups."""
        if containers is None:
            containers = [each.container_id for each in self.registry.all_running()]
        return [(each, self.registry.get(each).backups) for each in containers]

    async def until_it_has_nothing(self) -> None:
        while self.registry.running():
            await asyncio.sleep(0.01)

    async def call(self, name: str, request: Message, answer: type[Answer]) -> Answer:
        """A call of the controller. Raises what it is refused with."""
        content = await self.controller.service.answer_when_ready(
            name, request.SerializeToString(), wait_seconds=5.0
        )
        message = answer()
        message.ParseFromString(content)
        return message

    def _create(self, container_id: ContainerId) -> StreamSegmentContainer:
        return StreamSegmentContainer(
            container_id=container_id,
            log=MemoryDurableDataLog(self._tiers.logs[container_id]),
            storage=TieredStorage(
                object_store=self._tiers.objects,
                store_id=_STORE_ID,
                container_id=container_id,
                container_count=self._tiers.container_count,
                settings=StorageSettings(),
                wall_clock=LoopsWallClock(),
                random=Random(2),
                executor=None,
            ),
            cache=self._cache,
            wall_clock=LoopsWallClock(),
            random=Random(3),
            executor=None,
            settings=ContainerSettings(),
            lease=None,
        )
