"""A container manager with its registry, and everything that it made, for tests to look at."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from segmentstore.contracts.containers import AssignmentSource, ContainerState, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.container_registry import ContainerRegistry
from tests.host.simple_container import SimpleContainer

HOST = HostId("here")


@dataclass
class Host:
    """A manager, its registry, and every container that it created."""

    manager: ContainerManager
    registry: ContainerRegistry
    created: list[SimpleContainer]
    births: list[tuple[ContainerId, float]]
    task: asyncio.Task[None]

    def newest(self, container_id: int) -> SimpleContainer:
        return [each for each in self.created if each.container_id == container_id][-1]

    def births_of(self, container_id: int) -> list[float]:
        return [at for born, at in self.births if born == container_id]

    async def stop(self) -> None:
        self.registry.check()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert not self.registry.running()
        assert {each.state for each in self.created} <= {ContainerState.STOPPED}


def start_host(
    assignments: AssignmentSource,
    make: Callable[[ContainerId], SimpleContainer] = SimpleContainer,
    container_count: int = 4,
    shorten_seconds: float = 0.0,
) -> Host:
    loop = asyncio.get_running_loop()
    created: list[SimpleContainer] = []
    births: list[tuple[ContainerId, float]] = []
    registry = ContainerRegistry(container_count=container_count)

    def create(container_id: ContainerId) -> SimpleContainer:
        alive = [
            each
            for each in created
            if each.container_id == container_id and each.state is not ContainerState.STOPPED
        ]
        assert not alive, f"two lives at once container={container_id}"
        container = make(container_id)
        created.append(container)
        births.append((container_id, loop.time()))
        return container

    manager = ContainerManager(
        host_id=HOST,
        assignments=assignments,
        registry=registry,
        create_container=create,
        shorten_seconds=shorten_seconds,
    )
    return Host(manager, registry, created, births, loop.create_task(manager.run()))
