"""A running server over a real container: real sockets, a log in memory whose answers a test may hold back."""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.cluster import Lease
from segmentstore.contracts.durable_data_log import LogEntry, LogStatistics, WriteSettings
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    AttributeKey,
    AttributeValue,
    BufferView,
    Epoch,
    LogAddress,
)
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.wire.memory_bound import MemoryBound
from segmentstore.wire.requests import TokenVerifier
from segmentstore.wire.segment_commands import EventNear, FlushContainer, ListChunks
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.store_calls import StoreCallAccess
from tests.containers.node import ONLY_PROCESS, MemoryTiers, running
from tests.reference.memory_tables import MemoryTables
from tests.wire.protocol_client import ProtocolClient
from tier1.memory_log import MemoryDurableDataLog

QUICK = WireSettings(tick_seconds=0.02, long_poll_seconds=30.0)


def memory_bound(bytes_max: int = 1 << 40) -> MemoryBound:
    """For one part of a server."""
    return MemoryBound(bytes_max=bytes_max, ticks_max=1, counters=WireCounters())


class HoldingLog:
    """A log in memory. Between hold() and let_go(), or fail(), nothing becomes durable."""

    def __init__(self, tiers: MemoryTiers) -> None:
        self._log = MemoryDurableDataLog(tiers.log_store)
        self._held = False
        self._failure: Exception | None = None
        self._queue: deque[tuple[bytes, bool, Future[LogAddress]]] = deque()

    @property
    def is_new(self) -> bool:
        return self._log.is_new

    def hold(self) -> None:
        self._held = True

    def let_go(self) -> None:
        self._held = False
        while self._queue:
            self._pass_on(*self._queue.popleft())

    @property
    def held_count(self) -> int:
        """Entries that wait."""
        return len(self._queue)

    def fail(self, error: Exception) -> None:
        """Nothing of what waits becomes durable, nor of what comes."""
        self._failure = error
        while self._queue:
            self._queue.popleft()[2].set_exception(error)

    def _pass_on(self, payload: bytes, internal: bool, future: "Future[LogAddress]") -> None:
        def done(written: "Future[LogAddress]") -> None:
            error = written.exception()
            if future.done():
                return
            if error is None:
                future.set_result(written.result())
            else:
                future.set_exception(error)

        self._log.append([payload], internal=internal).add_done_callback(done)

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "Future[LogAddress]":
        if not self._held:
            return self._log.append(entry, internal=internal)
        future: Future[LogAddress] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        self._queue.append((b"".join(entry), internal, future))
        return future

    @property
    def log_id(self) -> bytes:
        return self._log.log_id

    @property
    def follows(self) -> bytes:
        return self._log.follows

    @property
    def follows_changes(self) -> int | None:
        return self._log.follows_changes

    @property
    def epoch(self) -> Epoch:
        return self._log.epoch

    @property
    def write_settings(self) -> WriteSettings:
        return self._log.write_settings

    async def initialize(self) -> Epoch:
        return await self._log.initialize()

    def read(self) -> AsyncGenerator[LogEntry, None]:
        return self._log.read()

    async def truncate(self, up_to: LogAddress) -> None:
        await self._log.truncate(up_to)

    async def check_owner(self) -> None:
        await self._log.check_owner()

    def statistics(self) -> LogStatistics:
        return self._log.statistics()

    async def disable(self, why: str) -> None:
        await self._log.disable(why)

    async def enable(self) -> None:
        await self._log.enable()

    async def close(self) -> None:
        await self._log.close()


@dataclass
class Node:
    """What a test holds."""

    server: WireServer
    container: StreamSegmentContainer
    log: HoldingLog
    tables: MemoryTables
    clients: AsyncExitStack

    async def client(self) -> ProtocolClient:
        client = await ProtocolClient.connect(self.server.address)
        self.clients.push_async_callback(client.close)
        return client

    async def append(self, segment: str, data: bytes) -> None:
        async with self.container.open_segment(segment) as handle:
            await handle.append(data)

    async def event_count(self, segment: str) -> AttributeValue | None:
        return (await self.container.attributes(segment, [EVENT_COUNT])).get(EVENT_COUNT)

    async def last_number(self, segment: str, writer: bytes) -> AttributeValue | None:
        """The number of the newest event that the segment has of a writer."""
        key = AttributeKey(writer)
        return (await self.container.attributes(segment, [key])).get(key)

    async def content(self, segment: str) -> bytes:
        """Everything from the start offset on."""
        async with self.container.open_segment(segment) as handle:
            info = handle.info()
            length = info.length - info.start_offset
            return handle.read_nowait(info.start_offset, length) or b""


@asynccontextmanager
async def running_server(
    segments: SegmentApi,
    tables: TableApi,
    settings: WireSettings = QUICK,
    *,
    verify_token: TokenVerifier | None = None,
    flush_container: FlushContainer | None = None,
    list_chunks: ListChunks | None = None,
    event_near: EventNear | None = None,
    system_is_closed: bool = False,
    store_calls: StoreCallAccess | None = None,
) -> AsyncIterator[WireServer]:
    server = WireServer(
        segments=segments,
        tables=tables,
        random=Random(7),
        settings=settings,
        verify_token=verify_token,
        flush_container=flush_container,
        list_chunks=list_chunks,
        event_near=event_near,
        system_is_closed=system_is_closed,
        store_calls=store_calls,
    )
    await server.start("127.0.0.1", 0)
    try:
        yield server
        server.check()
    finally:
        await server.close()
    statistics = server.statistics()
    assert statistics.connections == 0, statistics
    assert statistics.pinned_segments == statistics.pinned_tables == 0, statistics


@asynccontextmanager
async def running_node(
    settings: WireSettings = QUICK,
    *,
    tiers: MemoryTiers | None = None,
    container_settings: ContainerSettings | None = None,
    verify_token: TokenVerifier | None = None,
    lease: Lease | None = ONLY_PROCESS,
) -> AsyncIterator[Node]:
    tiers = tiers or MemoryTiers()
    log = HoldingLog(tiers)
    tables = MemoryTables()
    async with (
        running(tiers, log=log, settings=container_settings, lease=lease) as container,
        running_server(container, tables, settings, verify_token=verify_token) as server,
        AsyncExitStack() as clients,
    ):
        try:
            yield Node(server, container, log, tables, clients)
        finally:
            log.let_go()
