"""After a recovery from Tier 2 alone: makes streams agree with their segments, in a store started for that (H78).

The controller's own repair does the work.
"""

from pathlib import Path

from segmentstore.cli.offline_store import open_offline
from segmentstore.controller.api.endpoints import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.repair import RepairReport
from segmentstore.host.table_store import TableStore
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random


async def repair_streams(data_directory: Path, *, tier2_place: str) -> RepairReport:
    """`tier2_place`: s3://BUCKET/PREFIX, or empty for what is in the directory. What was repaired is flushed.

    Raises what open_offline() raises, and what the doors raise: begin again then.
    """
    async with open_offline(data_directory, tier2_place=tier2_place) as service:
        controller = Controller(
            segments=service.store,
            tables=TableStore(registry=service.registry),
            wall_clock=SystemWallClock(),
            random=system_random(),
            locate=lambda _: Endpoint("127.0.0.1", 0),
            settings=ControllerSettings(),
        )
        report = await controller.repair()
        for container in service.registry.all_running():
            await container.flush()
        return report
