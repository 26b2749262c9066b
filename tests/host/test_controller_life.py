"""The controller beside containers that recover: soon after them, in simulated time."""

import asyncio
from random import Random

import pytest

from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.api.controller_server import (
    ControllerServer,
    ControllerServerSettings,
)
from segmentstore.controller.api.endpoints import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.controller_life import ControllerLife
from segmentstore.runtime.clock import SystemWallClock
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation


class LateTables(MemoryTables):
    """Tables whose container recovers for a while."""

    def __init__(self, recovered_at: float) -> None:
        super().__init__()
        self._recovered_at = recovered_at

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        if asyncio.get_running_loop().time() < self._recovered_at:
            raise ContainerNotFoundError(ContainerId(0), "recovering")
        await super().create_table(name, key_length=key_length)


@pytest.mark.parametrize("recovery_seconds", [0.05, 0.31, 0.75, 4.0])
@pytest.mark.parametrize("is_told", [True, False])
def test_the_controller_is_ready_soon_after_its_containers(
    recovery_seconds: float, is_told: bool
) -> None:
    async def main(loop: SimLoop) -> None:
        begin = loop.time()
        controller = Controller(
            segments=MemorySegments(),
            tables=LateTables(begin + recovery_seconds),
            wall_clock=SystemWallClock(),
            random=Random(1),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        server = ControllerServer(service=controller.service, settings=ControllerServerSettings())
        life = ControllerLife(controller=controller, server=server)
        if is_told:
            loop.call_later(recovery_seconds, life.container_recovered)
        running = loop.create_task(life.run())
        await life.wait_until_recovered()
        late = loop.time() - begin - recovery_seconds
        late_max = 0.01 if is_told else 0.03 + recovery_seconds / 4
        assert late <= late_max, f"late={late:.3f}"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_simulation(1, main)
