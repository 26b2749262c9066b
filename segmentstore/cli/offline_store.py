"""A store in this process for the time of one command: its containers recover, and no face listens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from segmentstore.cli.setting_options import environment
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import resolve_settings


@asynccontextmanager
async def open_offline(data_directory: Path, *, tier2_place: str = "") -> AsyncIterator[Service]:
    """`tier2_place`: s3://BUCKET/PREFIX, or empty for what is in the directory.

    Raises DataDirectoryInUseError while the store runs, ContainerStoppedError if a container does not recover.
    """
    flags = {"store.data_directory": str(data_directory)}
    if tier2_place:
        flags["tier2.place"] = tier2_place
    resolved = resolve_settings(flags=flags, environment=environment())
    async with open_service(resolved) as service:
        managing = asyncio.create_task(service.manager.run(), name="container manager")
        try:
            await service.manager.wait_until_settled()
            for health in service.registry.health():
                if health.state is not ContainerState.RUNNING:
                    raise ContainerStoppedError(
                        f"container {health.container_id} did not recover: {health.cause}"
                    )
            yield service
        finally:
            managing.cancel()
            await asyncio.gather(managing, return_exceptions=True)
