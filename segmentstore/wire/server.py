"""Listens for clients of the segment store protocol.

start() listens, `address` says where, close() ends: no new connections, those that exist say what is ready to be said
and go, their appends go on in the containers, and every segment is let go of. Transient segments go with their
connection, but not with the server: its clients come back.
"""

import asyncio
import logging
import socket
from asyncio import Server
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from math import ceil
from random import Random

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import NodeInCluster
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import Segment, SegmentApi, SegmentReads
from segmentstore.contracts.tables import Table, TableApi
from segmentstore.runtime.handle_cache import HandleCache
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.connection import ConnectionServices, WaitForRecovery, WireConnection
from segmentstore.wire.memory_bound import MemoryBound
from segmentstore.wire.replies import OwnerAddress, unknown_address
from segmentstore.wire.requests import TokenVerifier
from segmentstore.wire.segment_commands import (
    EventNear,
    FlushContainer,
    ListChunks,
    SegmentCommands,
)
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters, WireStatistics
from segmentstore.wire.store_calls import StoreCallAccess, StoreCalls
from segmentstore.wire.table_commands import TableCommands

_LOGGER = logging.getLogger(__name__)

_BACKLOG = 1024


class WireServer:
    """start(), then `address`, then close()."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        tables: TableApi,
        random: Random,
        settings: WireSettings,
        verify_token: TokenVerifier | None = None,
        flush_container: FlushContainer | None = None,
        wait_for_recovery: WaitForRecovery | None = None,
        list_chunks: ListChunks | None = None,
        event_near: EventNear | None = None,
        system_is_closed: bool = False,
        reads: SegmentReads | None = None,
        cluster: NodeInCluster | None = None,
        store_calls: StoreCallAccess | None = None,
    ) -> None:
        """Without `verify_token` every token will do; without `flush_container` a flush is of all containers; without
        `wait_for_recovery` whatever is asked of a container that recovers is refused at once; without
        `list_chunks` chunks cannot be listed; without `event_near` events are looked for from the segment's start.
        `random` names transient segments. With `system_is_closed` segments below "_system/" are not for clients.
        `reads` answers reads of containers that are not here; without it they are refused. Controllers of other
        processes are answered with `store_calls`, also about segments below "_system/". `cluster` is for a node of one:
        it names the node that has a container, and its lease says when this one answers nothing."""
        self._settings = settings
        self._counters = WireCounters()
        self._memory = MemoryBound(
            bytes_max=settings.held_bytes_max,
            ticks_max=ceil(settings.held_seconds_max / settings.tick_seconds),
            counters=self._counters,
        )
        self._store_calls: StoreCalls | None = None
        if store_calls is not None:
            self._store_calls = StoreCalls(
                segments=segments,
                tables=tables,
                access=store_calls,
                calls_max=settings.store_calls_max,
                has_lease=_always if cluster is None else cluster.is_lease_valid,
            )
        self._segment_handles: HandleCache[Segment] = HandleCache(
            open_handle=partial(_open_created, segments),
            idle_max=settings.pins_idle_max,
            idle_seconds=settings.pin_idle_seconds,
        )
        self._table_handles: HandleCache[Table] = HandleCache(
            open_handle=tables.open_table,
            idle_max=settings.pins_idle_max,
            idle_seconds=settings.pin_idle_seconds,
        )
        self._services = ConnectionServices(
            settings=settings,
            counters=self._counters,
            memory=self._memory,
            segment_handles=self._segment_handles,
            reads=reads,
            segment_commands=SegmentCommands(
                segments=segments,
                reads=reads or segments,
                random=random,
                flush_container=flush_container,
                list_chunks=list_chunks,
                event_near=event_near,
                settings=settings,
            ),
            table_commands=TableCommands(
                tables=tables, handles=self._table_handles, settings=settings
            ),
            store_calls=self._store_calls,
            verify_token=verify_token,
            system_is_closed=system_is_closed,
            owner_address=unknown_address if cluster is None else _addresses_in(cluster),
            has_lease=_always if cluster is None else cluster.is_lease_valid,
            wait_for_recovery=wait_for_recovery,
            receive_memory=memoryview(bytearray(settings.receive_buffer_bytes)),
            opened=self._opened,
            closed=self._closed,
        )
        # A dict, for its order.
        self._connections: dict[WireConnection, None] = {}
        self._all_closed = asyncio.Event()
        self._server: Server | None = None
        self._tasks = TaskSet(on_failure=self._ticks_failed)
        self._deletions = TaskSet(on_failure=self._deletion_failed)
        """One for each connection that has gone lately and left transient segments."""

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._server is not None, "the server is not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 lets the system choose. Raises OSError if the port is taken."""
        assert self._server is None, "the server is started already"
        self._server = await asyncio.get_running_loop().create_server(
            lambda: WireConnection(services=self._services), host, port, backlog=_BACKLOG
        )
        self._tasks.start(self._run_ticks(), name="wire ticks")

    async def start_on(self, listening: socket.socket) -> None:
        """As start(), with a socket that was bound for this server."""
        assert self._server is None, "the server is started already"
        self._server = await asyncio.get_running_loop().create_server(
            lambda: WireConnection(services=self._services), sock=listening, backlog=_BACKLOG
        )
        self._tasks.start(self._run_ticks(), name="wire ticks")

    async def close(self) -> None:
        """Idempotent. Takes at most `drain_seconds`, for clients that do not take their last replies."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await self._wait_until_all_closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._wait_until_all_closed()
        for connection in connections:
            await connection.join()
        if self._store_calls is not None:
            await self._store_calls.close()
        await self._tasks.close()
        await self._deletions.close()
        await self._segment_handles.close()
        await self._table_handles.close()

    def forget_container(self, container_id: ContainerId, *, container_count: int) -> None:
        """It runs here no more: what is open of it is let go of."""
        for handles in (self._segment_handles, self._table_handles):
            handles.discard_names(lambda name: container_of(name, container_count) == container_id)

    def statistics(self) -> WireStatistics:
        """A snapshot. O(connections)."""
        return WireStatistics(
            **asdict(self._counters),
            connections=len(self._connections),
            unacknowledged_bytes=sum(each.unacked_bytes for each in self._connections),
            held_bytes=self._memory.held_bytes,
            waiting_reads=sum(each.waiting_reads for each in self._connections),
            pinned_segments=len(self._segment_handles),
            pinned_tables=len(self._table_handles),
        )

    def check(self) -> None:
        """O(connections, writers and handles)."""
        self._segment_handles.check()
        self._table_handles.check()
        if self._store_calls is not None:
            self._store_calls.check()
        self._memory.check()
        for connection in self._connections:
            connection.check()
        # Those that have gone may have appends that are not settled.
        held = sum(each.held_bytes for each in self._connections)
        assert held <= self._memory.held_bytes, f"{held} > {self._memory.held_bytes}"

    # --- connections -----------------------------------------------------------------------------

    def _opened(self, connection: WireConnection) -> bool:
        if self._server is None or len(self._connections) >= self._settings.connections_max:
            self._counters.connections_refused += 1
            return False
        self._counters.connections_accepted += 1
        self._connections[connection] = None
        self._memory.join(connection)
        self._all_closed.clear()
        return True

    def _closed(self, connection: WireConnection) -> None:
        del self._connections[connection]
        self._memory.leave(connection)
        if not self._connections:
            self._all_closed.set()
        abandoned = connection.abandoned_transients
        is_room = len(self._deletions) < self._settings.connections_max
        if abandoned and is_room and self._server is not None:
            self._deletions.start(self._services.segment_commands.delete_abandoned(abandoned))

    async def _wait_until_all_closed(self) -> None:
        if self._connections:
            await self._all_closed.wait()

    async def _run_ticks(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self._memory.tick()
            for connection in list(self._connections):
                self._tick(connection, loop.time())
            for handles in (self._segment_handles, self._table_handles):
                try:
                    await handles.release_idle(loop.time())
                except Exception:
                    _LOGGER.exception("a handle that was idle did not close")

    def _tick(self, connection: WireConnection, now: float) -> None:
        """A fault in one connection ends that connection: the long polls of all others end by this tick too."""
        try:
            connection.tick(now)
        except Exception as error:
            _LOGGER.exception("tick failed")
            connection.fail(f"internal error: {error!r}")
            # Its tick, which would end it if its client takes nothing, does not work.
            connection.abort()

    def _deletion_failed(self, error: BaseException) -> None:
        """What it was to delete goes by age."""
        _LOGGER.error("transient segments of a connection were not deleted", exc_info=error)

    def _ticks_failed(self, error: BaseException) -> None:
        """Without ticks long polls would not end, and idle handles would stay: they begin again."""
        _LOGGER.error("the ticks failed", exc_info=error)
        if self._server is not None:
            self._tasks.start(self._run_ticks(), name="wire ticks")


@asynccontextmanager
async def _open_created(segments: SegmentApi, name: str) -> AsyncIterator[Segment]:
    """Raises what open_segment raises; SegmentNotFoundError also for a segment that is half created."""
    async with segments.open_segment(name) as segment:
        segment.info().require_created()
        yield segment


def _always() -> bool:
    return True


def _addresses_in(cluster: NodeInCluster) -> OwnerAddress:
    locations = cluster.locations

    def owner_address(segment: str) -> str:
        owner = locations.owner_of(container_of(segment, locations.container_count))
        is_known = owner is not None and owner.node_id != cluster.node_id()
        return owner.wire if owner is not None and is_known else ""

    return owner_address
