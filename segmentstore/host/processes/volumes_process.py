"""The process that has the volumes of a store of several processes, and answers for them to the others.

Volumes are as in a store of one process, on the same disk in the same form, behind a socket.

Invariants:

- The volumes are opened at once, and closed when the process is told to end; the lock in their directory keeps every
  other process away meanwhile. The task that opens them is the process's own: an index may take longer to be made anew
  than a client waits, and an opening that ended with a request would begin again with the next one.
- Told to end it ends last, when those that flush into it have.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.object_stores import Tier2Stores
from segmentstore.host.processes.channel import Channel
from segmentstore.host.processes.orders import Orders
from segmentstore.host.processes.parent_link import ParentLink
from segmentstore.host.service_builder import open_volumes
from segmentstore.host.serving import begin_serving
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.runtime.backoff import Backoff
from tier2.object_stores.shared_object_store import ObjectStoreServer

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_OPENING_PAUSE_SECONDS_MAX = 60.0


async def serve_volumes(
    orders: Orders,  # noqa: ARG001  (which volumes, the settings say)
    resolved: ResolvedSettings,
    parent: socket.socket,
    listening: Sequence[socket.socket],
) -> None:
    """Until SIGTERM, or the end of the parent."""
    stopping = begin_serving(resolved.settings.shutdown.grace_seconds)
    link = ParentLink(await Channel.over(parent), take=lambda _: None)
    async with AsyncExitStack() as stack:
        stack.callback(link.close)
        volumes = await stack.enter_async_context(open_volumes(resolved))
        server = ObjectStoreServer(volumes.of(ContainerId(0)))
        stack.push_async_callback(server.close)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(link.run(), name="parent")
            opening = group.create_task(_open(volumes), name="opening")
            await server.start(listening[0])
            link.send({"up": {}})
            telling = group.create_task(_tell_complaints(link, volumes.complaints), name="volumes")
            await stopping.wait()
            opening.cancel()
            telling.cancel()
            following.cancel()
    logger.info("volumes closed")


async def _open(volumes: Tier2Stores) -> None:
    pauses = Backoff(seconds_first=_LOOK_SECONDS, seconds_max=_OPENING_PAUSE_SECONDS_MAX)
    while True:
        try:
            await volumes.ask()
        except SegmentStoreError:
            # Each request tries as well, and is told why.
            await asyncio.sleep(pauses.next_seconds())
        else:
            return


async def _tell_complaints(link: ParentLink, complaints: Callable[[], Sequence[str]]) -> None:
    told: Sequence[str] = []
    while True:
        now = list(complaints())
        if now != told:
            link.send({"complaints": now})
            told = now
        await asyncio.sleep(_LOOK_SECONDS)
