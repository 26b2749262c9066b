"""Listens for Kafka's clients.

start() listens, `address` says where, close() ends: no new connections and no new requests; batches that were handed to
the log are answered, if that does not take too long; then every connection ends. Clients come back by themselves.
Connections that are idle for too long end before.

Requests wait for set_ready(True), which is for the one that starts topics and groups; set_ready(False) when they do
not answer any more.
"""

import asyncio
import logging
import socket
from asyncio import Event, Server
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from segmentstore.kafka.cluster_requests import ClusterRequests
from segmentstore.kafka.connection import ConnectionServices, KafkaConnection
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.fetch_sessions import FetchSessions
from segmentstore.kafka.group_requests import GroupRequests
from segmentstore.kafka.produce_requests import Producing
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.received_frames import FrameMemories
from segmentstore.kafka.requests import Requests
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters, KafkaStatistics
from segmentstore.kafka.topic_requests import TopicRequests
from segmentstore.runtime.shared_room import SharedRoom
from segmentstore.runtime.task_set import TaskSet
from segmentstore.runtime.waiting import gather_all
from segmentstore.topics.brokers import Brokers, OneBroker
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.topics import Topics

_LOG = logging.getLogger(__name__)


class KafkaServer:
    """start(), then `address`, then close()."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        producer_ids: ProducerIds,
        cluster_id: str,
        settings: KafkaSettings,
        brokers: Brokers | None = None,
    ) -> None:
        """`brokers`: None for the one server of a store."""
        known = brokers or OneBroker(settings.node_id, settings.advertised_address)
        self._settings = settings
        self._counters = KafkaCounters()
        self._fetch_sessions = FetchSessions(partitions_max=settings.fetch_session_partitions_max)

        def quota(byte_rate: int) -> ByteQuota:
            return ByteQuota(byte_rate, clients_max=settings.quota_clients_max)

        self._frame_memories = FrameMemories(
            kept_bytes_max=settings.frame_memory_kept_bytes_max,
            ahead_bytes_max=settings.frame_memory_ahead_bytes_max,
        )
        self._answer_room = SharedRoom(settings.answer_bytes_max)
        self._ready = Event()
        self._waiting_bytes = 0
        self._is_too_much_waiting = False
        self._services = ConnectionServices(
            settings=settings,
            counters=self._counters,
            requests=Requests(
                cluster=ClusterRequests(
                    topics=topics,
                    producer_ids=producer_ids,
                    brokers=known,
                    cluster_id=cluster_id,
                    settings=settings,
                ),
                fetching=Fetching(
                    topics=topics,
                    settings=settings,
                    counters=self._counters,
                    quota=quota(settings.consumer_byte_rate),
                ),
                groups=GroupRequests(groups=groups, topics=topics),
                topics=TopicRequests(topics=topics, brokers=known, settings=settings),
            ),
            producing=Producing(
                topics=topics,
                settings=settings,
                counters=self._counters,
                quota=quota(settings.producer_byte_rate),
            ),
            fetch_sessions=self._fetch_sessions,
            frame_memories=self._frame_memories,
            answer_room=self._answer_room,
            ready=self._ready,
            opened=self._opened,
            closed=self._closed,
            add_waiting=self._add_waiting,
            is_too_much_waiting=lambda: self._is_too_much_waiting,
        )
        # A dict, for its order.
        self._connections: dict[KafkaConnection, None] = {}
        self._server: Server | None = None
        self._more_servers: list[Server] = []
        self._tasks = TaskSet(on_failure=self._looks_failed)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._server is not None, "the server is not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def answer_bytes(self) -> int:
        """Of records that were read for consumers and that they have not taken."""
        return self._answer_room.held_bytes

    @property
    def frame_memory_kept_bytes(self) -> int:
        """Of memory that requests came in and that others may come in."""
        return self._frame_memories.kept_bytes

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 lets the system choose. Raises OSError if the port is taken."""
        assert self._server is None, "the server is started already"
        self._server = await asyncio.get_running_loop().create_server(
            lambda: KafkaConnection(services=self._services), host, port, backlog=1024
        )
        self._start_looks()

    async def start_on(self, listening: Sequence[socket.socket]) -> None:
        """As start(), with sockets that were bound for this server, one or more."""
        assert self._server is None, "the server is started already"
        loop = asyncio.get_running_loop()
        self._server, *self._more_servers = [
            await loop.create_server(
                lambda: KafkaConnection(services=self._services), sock=each, backlog=1024
            )
            for each in listening
        ]
        self._start_looks()

    def set_ready(self, ready: bool) -> None:
        """Whether topics and groups answer now."""
        if ready:
            self._ready.set()
        else:
            self._ready.clear()

    async def close(self) -> None:
        """Idempotent. Takes at most `drain_seconds`, for batches that the log does not settle."""
        server, self._server = self._server, None
        if server is None:
            return
        for each in (server, *self._more_servers):
            each.close()
        self._tasks.cancel()
        await self._tasks.join()
        connections = list(self._connections)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds):
                await gather_all([each.drain() for each in connections])
        await gather_all([each.close() for each in connections])

    def statistics(self) -> KafkaStatistics:
        """A snapshot."""
        return KafkaStatistics(
            **asdict(self._counters),
            connections=len(self._connections),
            waiting_bytes=self._waiting_bytes,
            fetch_session_partitions=self._fetch_sessions.remembered,
        )

    def check(self) -> None:
        """O(connections and requests that wait)."""
        for connection in self._connections:
            connection.check()
        waiting = sum(each.waiting_bytes for each in self._connections)
        assert self._waiting_bytes == waiting, f"{self._waiting_bytes} != {waiting}"
        # A fetch that was just given room may not know of it yet.
        taken = sum(each.answer_bytes for each in self._connections)
        assert taken <= self.answer_bytes, f"{taken} > {self.answer_bytes}"
        followed = sum(each.partitions_followed for each in self._connections)
        remembered = self._fetch_sessions.remembered
        assert remembered == followed, f"{remembered} != {followed}"

    # --- connections -----------------------------------------------------------------------------

    def _opened(self, connection: KafkaConnection) -> bool:
        if self._server is None or len(self._connections) >= self._settings.connections_max:
            self._counters.connections_refused += 1
            return False
        self._counters.connections_accepted += 1
        self._connections[connection] = None
        return True

    def _closed(self, connection: KafkaConnection) -> None:
        del self._connections[connection]

    def _start_looks(self) -> None:
        self._tasks.start(self._end_idle_connections(), name="kafka idle connections")

    async def _end_idle_connections(self) -> None:
        while True:
            await asyncio.sleep(self._settings.idle_seconds)
            # What came while this process stood still is received first.
            await asyncio.sleep(0)
            for connection in list(self._connections):
                connection.end_if_idle()

    def _looks_failed(self, error: BaseException) -> None:
        """Without them connections of clients that have gone would stay: they begin again."""
        _LOG.error("looking for idle connections failed", exc_info=error)
        if self._server is not None:
            self._start_looks()

    def _add_waiting(self, byte_count: int) -> None:
        self._waiting_bytes += byte_count
        if self._waiting_bytes > self._settings.all_waiting_bytes_max:
            self._is_too_much_waiting = True
        elif (
            self._is_too_much_waiting
            and self._waiting_bytes <= self._settings.all_waiting_bytes_max // 2
        ):
            self._is_too_much_waiting = False
            for connection in self._connections:
                connection.update_reading()
