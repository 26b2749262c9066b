"""The whole store in one process: start, say so, work, stop when told. What it tells by its exit: `serving.py`, and

    stdout   one line: `ready http://HOST:PORT wire=HOST:PORT controller=HOST:PORT ...`, or `partial http://...` if some
             container could not recover; with `recovering=...` if the controller or topics have not yet
    exit     2 for settings that cannot work; 4 if another process has the data directory

Invariants:

- Nothing listens before the data directory is ours; nothing is announced before every container has recovered or said
  why it cannot.
- Stopping goes outside in: no new requests, requests under way end, containers close their logs, the directory is
  released. A second signal ends the process at once: what was acknowledged is safe either way.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.serving import begin_serving, listen, ready_line, run_process
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.runtime.process import freeze_long_lived_objects

logger = logging.getLogger(__name__)

_SERVERS_SECONDS_MAX = 5.0
"""A controller, or topics, that have not recovered by then go on trying; they are announced as such."""


def run_standalone(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal. `announce` gets the ready line. Raises SegmentStoreError when it cannot start."""
    run_process(serve(resolved, announce), resolved.settings.log)


async def serve(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Start, announce, and stop on SIGTERM or SIGINT."""
    stopping = begin_serving(resolved.settings.shutdown.grace_seconds)
    async with open_service(resolved) as service:
        await listen(service.servers.start())
        try:
            async with asyncio.TaskGroup() as group:
                managing = group.create_task(service.manager.run(), name="container manager")
                serving = group.create_task(service.servers.run(), name="servers")
                announcing = group.create_task(_announce_when_ready(service, announce))
                caching = group.create_task(service.containers.preallocate_cache(), name="cache")
                await stopping.wait()
                logger.info("stopping")
                announcing.cancel()
                caching.cancel()
                serving.cancel()
                await service.servers.close()
                managing.cancel()
        finally:
            await service.servers.close()
    logger.info("stopped")


async def _announce_when_ready(service: Service, announce: Callable[[str], None]) -> None:
    started = asyncio.get_running_loop().time()
    await service.manager.wait_until_settled()
    with suppress(TimeoutError):
        async with asyncio.timeout(_SERVERS_SECONDS_MAX):
            await service.servers.wait_until_ready()
    seconds = asyncio.get_running_loop().time() - started
    freeze_long_lived_objects()
    data = f"data={service.data_directory or 'memory'}"
    announce(
        ready_line(
            service.servers.addresses(),
            service.registry.health(),
            data,
            seconds=seconds,
            recovering=service.servers.recovering(),
        )
    )
