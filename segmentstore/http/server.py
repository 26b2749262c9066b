"""The HTTP server: its socket, start and shutdown, and its parts put together.

build_server() puts the parts together over a SegmentApi; HttpServer listens, and owns what runs beside the requests.

    /v1/stream/{name}     Durable Streams (stream_*.py)
    /v1/segments...       segment verbs (segment_verbs.py)
    /v1/flush             POST: everything is in Tier 2 (segment_verbs.py)
    /v1/containers...     swaps that compactors propose (tier2_verbs.py)
    /v1/backups...        points in time of the store (tier2_verbs.py)
    /v1/topics...         topics and their records (topic_verbs.py)
    /v1/clocks/settle     POST: a person says that the present time is right
    /health, /metrics     (health_and_metrics.py)

- aiohttp's low-level server: its parser and its protocol, without its router, its applications and their middleware,
  which would find the one handler anew for each request.
- close() stops accepting, ends long polls and event streams, lets requests under way finish within `shutdown_seconds`,
  and then drops what is left. Commits that were submitted go on in the containers.
- A node of a cluster has others that go on: it takes leave of each client before (server_runner.py), so that none has
  a request whose outcome it does not know.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from random import Random

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import NodeInCluster
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentApi, SegmentReads
from segmentstore.http.client_connections import ClientConnections, ClientRequest, farewell
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.forwarding import RequestForwarding
from segmentstore.http.health_and_metrics import (
    ContainerMetrics,
    MetricsExposition,
    NodeHealth,
    RequestStatistics,
)
from segmentstore.http.maintenance import Maintenance
from segmentstore.http.other_nodes import OtherNodes
from segmentstore.http.requests import BodyBudget, BodyReader
from segmentstore.http.router import STREAM_PREFIX, Router
from segmentstore.http.segment_verbs import SegmentVerbs
from segmentstore.http.server_runner import ServerRunner
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_append import StreamAppend
from segmentstore.http.stream_create import StreamCreate, StreamForks
from segmentstore.http.stream_directory import (
    ForkRegistry,
    StreamDirectory,
    StreamExpiry,
    open_stream_handle,
)
from segmentstore.http.stream_read import StreamRead, Waiters
from segmentstore.http.tier2_verbs import (
    BackupOwnerSource,
    BackupVerbs,
    SwapOwnerSource,
    SwapVerbs,
    no_backup_owners,
    no_swap_owner,
)
from segmentstore.http.topic_verbs import TopicVerbs
from segmentstore.http.whole_store import ContainerParts, ContainersHere, WholeStore
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.handle_cache import HandleCache
from segmentstore.runtime.http_connections import ConnectionBounds
from segmentstore.topics.topics import Topics

_BACKLOG = 1024


class HttpServer:
    """start(), then `address`, then close()."""

    def __init__(
        self,
        *,
        router: Router,
        maintenance: Maintenance,
        waiters: Waiters,
        others: OtherNodes | None,
        directory: StreamDirectory,
        settings: HttpSettings,
    ) -> None:
        self.router = router
        self._directory = directory
        self._others = others
        self._maintenance = maintenance
        self._waiters = waiters
        self._settings = settings
        self._runner: ServerRunner | None = None
        self._owns_sockets = True
        self._is_closing = False

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self, listening: Sequence[socket.socket] = ()) -> None:
        """Listen; on sockets that were bound for this server, if there are any. Raises OSError if the port is taken."""
        assert self._runner is None, "the server is started already"
        self._owns_sockets = not listening
        settings = self._settings
        connections = ClientConnections(
            self.router.handle,
            bounds=ConnectionBounds(
                connections_max=settings.connections_max,
                window_bytes=settings.window_bytes,
                window_seconds_max=settings.write_seconds_max,
            ),
            access_log=None,
            # A reader that goes away ends its wait at once; commits are shielded.
            handler_cancellation=True,
            # Encoded bodies are refused, so that no small body can become a large one.
            auto_decompress=False,
            keepalive_timeout=75.0,
            request_factory=self._request,
        )
        runner = ServerRunner(
            connections,
            end_waits=self._end_waits,
            shutdown_seconds=settings.shutdown_seconds,
        )
        self._runner = runner
        await runner.setup()
        self._maintenance.start()
        if self._others is not None:
            self._others.start()
        try:
            if not listening:
                await web.TCPSite(runner, settings.host, settings.port, backlog=_BACKLOG).start()
            for each in listening:
                await web.SockSite(runner, each, backlog=_BACKLOG).start()
        except BaseException:
            await self.close()
            raise

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return ClientRequest(
            message, payload, protocol, writer, task, is_stopping=self._is_stopping
        )

    def _is_stopping(self) -> bool:
        return self._is_closing

    def _end_waits(self) -> None:
        self._waiters.stop()
        if self._others is not None:
            self._others.stop_reads()

    def forget_container(self, container_id: ContainerId, *, container_count: int) -> None:
        """It runs here no more: what is open of it is let go of, and what is remembered of it."""
        self._directory.forget_container(
            container_id, lambda name: container_of(name, container_count) == container_id
        )

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self._is_closing = True
            if self._others is not None:
                await runner.take_leave(
                    self._settings.linger_seconds,
                    farewell=farewell(self._settings.retry_after_seconds),
                    owns_sockets=self._owns_sockets,
                )
            await runner.cleanup()
            # After the last request.
            await self._maintenance.close()
            if self._others is not None:
                await self._others.close()


def build_server(
    *,
    segments: SegmentApi,
    reads: SegmentReads | None = None,
    health: Callable[[], NodeHealth],
    metrics: Callable[[], ContainerMetrics],
    node_metrics: Callable[[], Mapping[str, float]] = dict,
    settle_clocks: Callable[[], None] = lambda: None,
    swap_owners: SwapOwnerSource = no_swap_owner,
    backup_owners: BackupOwnerSource = no_backup_owners,
    wall_clock: WallClock,
    random: Random,
    settings: HttpSettings | None = None,
    executor: Executor | None = None,
    cluster: NodeInCluster | None = None,
    parts: ContainerParts | None = None,
    topics: Callable[[], Topics | None] | None = None,
) -> HttpServer:
    """A server over these segments. Does no I/O.

    `reads` answers readers, also of containers that stay down (without it `segments` does).
    `health`, `metrics` and `node_metrics` (of the process's other servers) give snapshots, taken when asked for.
    `settle_clocks` tells the rest of the process when a person says that the present time is right.
    `swap_owners` gives the owner of a container to compactors beside it, `backup_owners` those of all.
    `executor` splits and parses large JSON bodies (None: the loop's own).
    `cluster` is for a node of one: requests for containers that are elsewhere go to their nodes, and `parts` does what
    concerns all containers for those that are here. The one needs the other.
    `topics` gives the process's topics, None while they recover; without it there are none.
    """
    settings = settings or HttpSettings()
    reads = reads or segments
    clock_watch = ClockWatch(
        wall_clock=wall_clock,
        difference_seconds_max=settings.clock_difference_seconds_max,
        settle_seconds=settings.clock_settle_seconds,
    )
    handles = HandleCache(
        open_handle=partial(open_stream_handle, segments),
        idle_max=settings.pinned_segments_max,
        idle_seconds=settings.pin_idle_seconds,
    )
    assert (cluster is None) == (parts is None), "a node of a cluster answers for its part"
    here = None if cluster is None or parts is None else ContainersHere(cluster, parts)
    directory = StreamDirectory(
        segments=segments,
        reads=reads,
        handles=handles,
        expiry=StreamExpiry(
            clock_watch=clock_watch,
            wall_clock=wall_clock,
            streams_max=settings.expiring_streams_max,
        ),
        forks=ForkRegistry(segments=segments, has_all_containers=cluster is None),
        list_here=None if here is None else here.list_page,
        is_here=_everywhere if here is None else here.has,
    )
    waiters = Waiters(
        waiters_max=settings.waiters_max,
        connections_max=settings.sse_connections_max,
        retry_after_seconds=settings.retry_after_seconds,
    )
    bodies = BodyReader(
        budget=BodyBudget(
            bytes_max=settings.body_bytes_in_flight_max,
            retry_after_seconds=settings.retry_after_seconds,
        ),
        seconds_max=settings.body_seconds_max,
        silence_seconds_max=settings.body_silence_seconds_max,
        json_bytes_max=settings.control_body_bytes_max,
        json_inline_bytes_max=settings.json_inline_bytes_max,
        executor=executor,
        kept_bytes_max=settings.forward_kept_bytes_max,
    )
    cross_origin = CrossOrigin(
        listened_host=settings.host, hosts=settings.hosts, origins=settings.cors_origins
    )
    verbs = SegmentVerbs(
        segments=segments,
        reads=reads,
        directory=directory,
        bodies=bodies,
        cross_origin=cross_origin,
        health=health,
        settings=settings,
    )
    backups = BackupVerbs(owners=backup_owners, settings=settings)
    others: OtherNodes | None = None
    forwarding: RequestForwarding | None = None
    whole_store: WholeStore | None = None
    if cluster is not None and parts is not None:
        others = OtherNodes(locations=cluster.locations, settings=settings)
        forwarding = RequestForwarding(
            node=cluster,
            others=others,
            bodies=bodies,
            cross_origin=cross_origin,
            settings=settings,
        )
        whole_store = WholeStore(
            node=cluster,
            parts=parts,
            verbs=verbs,
            backups=backups,
            forwarding=forwarding,
            others=others,
            settings=settings,
        )
    statistics = RequestStatistics()
    maintenance = Maintenance(
        clock_watch=clock_watch, directory=directory, handles=handles, settings=settings
    )

    def gauges() -> Mapping[str, float]:
        """Numbers of this server for `/metrics`, apart from the requests."""
        return {
            "requests_in_flight": statistics.in_flight,
            "body_received_bytes_total": bodies.bytes_received,
            "body_in_flight_bytes": bodies.budget.bytes_held,
            "waiting_readers": len(waiters),
            "event_stream_connections": waiters.connections,
            "pinned_segments": len(handles),
            "expired_streams_total": directory.expired_count,
            "clocks_trusted": 0 if clock_watch.complaint() else 1,
            **({} if forwarding is None else forwarding.metrics()),
        }

    router = Router(
        directory=directory,
        create=StreamCreate(
            directory=directory,
            forks=StreamForks(directory=directory, settings=settings, stream_prefix=STREAM_PREFIX),
            bodies=bodies,
            settings=settings,
            executor=executor,
        ),
        append=StreamAppend(
            directory=directory,
            bodies=bodies,
            settings=settings,
            wall_clock=wall_clock,
            executor=executor,
        ),
        read=StreamRead(
            directory=directory,
            waiters=waiters,
            settings=settings,
            cross_origin=cross_origin,
            wall_clock=wall_clock,
            random=random,
        ),
        verbs=verbs,
        swaps=SwapVerbs(owners=swap_owners, bodies=bodies, settings=settings),
        backups=backups,
        health=health,
        exposition=MetricsExposition(
            containers=metrics, requests=statistics, gauges=gauges, node=node_metrics
        ),
        statistics=statistics,
        clock_watch=clock_watch,
        settle_clocks=settle_clocks,
        maintenance=maintenance,
        cross_origin=cross_origin,
        forwarding=forwarding,
        whole_store=whole_store,
        topics=None
        if topics is None
        else TopicVerbs(
            topics=topics,
            bodies=bodies,
            waiters=waiters,
            cross_origin=cross_origin,
            now_ms=wall_clock.now_ms,
            random=random,
            settings=settings,
            executor=executor,
        ),
        settings=settings,
    )
    return HttpServer(
        router=router,
        maintenance=maintenance,
        waiters=waiters,
        others=others,
        directory=directory,
        settings=settings,
    )


def _everywhere(_name: str) -> bool:
    return True
