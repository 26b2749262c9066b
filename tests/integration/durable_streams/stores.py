"""What stands behind the HTTP server in these tests: the one place that says so."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from segmentstore.contracts.segments import SegmentApi
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings
from tests.http.memory_segments import MemorySegments


@asynccontextmanager
async def memory(_directory: Path) -> AsyncIterator[SegmentApi]:
    """Only the face is real."""
    yield MemorySegments()


@asynccontextmanager
async def containers(directory: Path) -> AsyncIterator[SegmentApi]:
    """The whole store: containers, file log, Tier 2 in a directory. Opening it again recovers it."""
    resolved = resolve_settings(flags={"store.data_directory": str(directory)}, environment={})
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        managing = group.create_task(service.manager.run(), name="container manager")
        try:
            await service.manager.wait_until_settled()
            yield service.store
        finally:
            managing.cancel()


STORES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[SegmentApi]]] = {
    "containers": containers,
    "memory": memory,
}
