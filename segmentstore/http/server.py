"""The HTTP server: its socket, start and shutdown, and its parts put together.

build_application() makes one handler over a SegmentApi, and what has to run beside it; HttpServer listens for it.

    /v1/stream/{name}     Durable Streams (stream_*.py)
    /v1/segments...       segment verbs (segment_verbs.py)
    /v1/flush             POST: everything is in Tier 2 (segment_verbs.py)
    /v1/containers...     swaps that compactors propose (tier2_verbs.py)
    /v1/backups...        points in time of the store (tier2_verbs.py)
    /v1/clocks/settle     POST: a person says that the present time is right (H77)
    /health, /metrics     (health_and_metrics.py)

- aiohttp's low-level server: its parser and its protocol, without its router, its applications and their middleware,
  which would find the one handler anew for each request.
- close() stops accepting, ends long polls and event streams, lets requests under way finish within `shutdown_seconds`,
  and then drops what is left. Commits that were submitted go on in the containers.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from random import Random

from aiohttp import web

from segmentstore.contracts.segments import SegmentApi, SegmentReads
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.health_and_metrics import (
    ContainerMetrics,
    MetricsExposition,
    NodeHealth,
    RequestStatistics,
)
from segmentstore.http.maintenance import Maintenance
from segmentstore.http.requests import BodyBudget, BodyReader
from segmentstore.http.router import STREAM_PREFIX, Router
from segmentstore.http.segment_verbs import SegmentStreaming, SegmentVerbs
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_append import StreamAppend
from segmentstore.http.stream_create import StreamCreate, StreamForks
from segmentstore.http.stream_directory import (
    ForkRegistry,
    StreamDirectory,
    StreamExpiry,
    StreamHandle,
    open_stream_handle,
)
from segmentstore.http.stream_read import StreamEvents, StreamRead, Waiters
from segmentstore.http.tier2_verbs import (
    BackupOwnerSource,
    BackupVerbs,
    SwapOwnerSource,
    SwapVerbs,
    no_backup_owners,
    no_swap_owner,
)
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.handle_cache import HandleCache


class HttpApplication:
    """What HttpServer serves: start(), then handle() for each request, stop_waiting() and close()."""

    def __init__(self, *, router: Router, maintenance: Maintenance) -> None:
        self._router = router
        self._maintenance = maintenance

    async def start(self) -> None:
        """Begin the ticks."""
        self._maintenance.start()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but CancelledError: whatever goes wrong has an answer."""
        return await self._router.handle(request)

    def stop_waiting(self) -> None:
        """Ends long polls and event streams, so that the server can close."""
        self._maintenance.stop_waiting()

    async def close(self) -> None:
        """After the last request. Idempotent."""
        await self._maintenance.close()


class _Runner(web.ServerRunner):
    """Ends what waits after the last connection was accepted and before requests under way are waited for."""

    __slots__ = ("_application",)

    def __init__(
        self, server: web.Server, *, application: HttpApplication, shutdown_seconds: float
    ) -> None:
        super().__init__(server, shutdown_timeout=shutdown_seconds)
        self._application = application

    async def shutdown(self) -> None:
        self._application.stop_waiting()


class HttpServer:
    """start(), then `address`, then close()."""

    def __init__(self, *, application: HttpApplication, settings: HttpSettings) -> None:
        self._application = application
        self._settings = settings
        self._runner: _Runner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        assert self._runner is None, "the server is started already"
        server = web.Server(
            self._application.handle,
            access_log=None,
            # A reader that goes away ends its wait at once; commits are shielded.
            handler_cancellation=True,
            # Encoded bodies are refused, so that no small body can become a large one.
            auto_decompress=False,
            keepalive_timeout=75.0,
        )
        runner = _Runner(
            server,
            application=self._application,
            shutdown_seconds=self._settings.shutdown_seconds,
        )
        self._runner = runner
        await runner.setup()
        await self._application.start()
        try:
            site = web.TCPSite(runner, self._settings.host, self._settings.port, backlog=1024)
            await site.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            await self._application.close()


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What several verbs use together."""

    segments: SegmentApi
    reads: SegmentReads
    settings: HttpSettings
    clock_watch: ClockWatch
    handles: HandleCache[StreamHandle]
    directory: StreamDirectory
    waiters: Waiters
    bodies: BodyReader
    cross_origin: CrossOrigin
    statistics: RequestStatistics

    def gauges(self) -> Mapping[str, float]:
        """Numbers of this room for `/metrics`, apart from the requests."""
        return {
            "requests_in_flight": self.statistics.in_flight,
            "body_received_bytes_total": self.bodies.bytes_received,
            "body_in_flight_bytes": self.bodies.budget.bytes_held,
            "waiting_readers": len(self.waiters),
            "event_stream_connections": self.waiters.connections,
            "pinned_segments": len(self.handles),
            "expired_streams_total": self.directory.expired_count,
            "clocks_trusted": 0 if self.clock_watch.complaint() else 1,
        }


def build_application(
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
) -> HttpApplication:
    """An application for HttpServer.

    `reads` answers readers, also of containers that stay down (without it `segments` does).
    `health`, `metrics` and `node_metrics` (of the process's other faces) give snapshots, taken when asked for.
    `settle_clocks` tells the rest of the process when a person says that the present time is right (H77).
    `swap_owners` gives the owner of a container to compactors beside it (H9), `backup_owners` those of all (H6).
    `executor` splits large JSON bodies (None: the loop's own). Does no I/O.
    """
    shared = _shared_parts(segments, reads or segments, wall_clock, settings or HttpSettings())
    settings = shared.settings
    maintenance = Maintenance(
        clock_watch=shared.clock_watch,
        directory=shared.directory,
        handles=shared.handles,
        waiters=shared.waiters,
        settings=settings,
    )
    router = Router(
        directory=shared.directory,
        create=_build_stream_create(shared, executor),
        append=StreamAppend(
            directory=shared.directory,
            bodies=shared.bodies,
            settings=settings,
            wall_clock=wall_clock,
            executor=executor,
        ),
        read=_build_stream_read(shared, wall_clock, random),
        verbs=_build_segment_verbs(shared, health),
        swaps=SwapVerbs(owners=swap_owners, bodies=shared.bodies, settings=settings),
        backups=BackupVerbs(owners=backup_owners),
        health=health,
        exposition=MetricsExposition(
            containers=metrics,
            requests=shared.statistics,
            gauges=shared.gauges,
            node=node_metrics,
        ),
        statistics=shared.statistics,
        clock_watch=shared.clock_watch,
        settle_clocks=settle_clocks,
        maintenance=maintenance,
        cross_origin=shared.cross_origin,
        settings=settings,
    )
    return HttpApplication(router=router, maintenance=maintenance)


def _shared_parts(
    segments: SegmentApi, reads: SegmentReads, wall_clock: WallClock, settings: HttpSettings
) -> SharedParts:
    clock_watch = ClockWatch(
        wall_clock=wall_clock,
        difference_seconds_max=settings.clock_difference_seconds_max,
        settle_seconds=settings.clock_settle_seconds,
    )
    expiry = StreamExpiry(
        clock_watch=clock_watch, wall_clock=wall_clock, streams_max=settings.expiring_streams_max
    )
    handles = HandleCache(
        open_handle=partial(open_stream_handle, segments),
        idle_max=settings.pinned_segments_max,
        idle_seconds=settings.pin_idle_seconds,
    )
    budget = BodyBudget(
        bytes_max=settings.body_bytes_in_flight_max,
        retry_after_seconds=settings.retry_after_seconds,
    )
    return SharedParts(
        segments=segments,
        reads=reads,
        settings=settings,
        clock_watch=clock_watch,
        handles=handles,
        directory=StreamDirectory(
            segments=segments,
            reads=reads,
            handles=handles,
            expiry=expiry,
            forks=ForkRegistry(segments=segments),
        ),
        waiters=Waiters(
            waiters_max=settings.waiters_max,
            connections_max=settings.sse_connections_max,
            retry_after_seconds=settings.retry_after_seconds,
        ),
        bodies=BodyReader(budget=budget, seconds_max=settings.body_seconds_max),
        cross_origin=CrossOrigin(
            listened_host=settings.host, hosts=settings.hosts, origins=settings.cors_origins
        ),
        statistics=RequestStatistics(),
    )


def _build_stream_create(shared: SharedParts, executor: Executor | None) -> StreamCreate:
    return StreamCreate(
        directory=shared.directory,
        forks=StreamForks(
            directory=shared.directory, settings=shared.settings, stream_prefix=STREAM_PREFIX
        ),
        bodies=shared.bodies,
        settings=shared.settings,
        executor=executor,
    )


def _build_stream_read(shared: SharedParts, wall_clock: WallClock, random: Random) -> StreamRead:
    return StreamRead(
        directory=shared.directory,
        events=StreamEvents(
            waiters=shared.waiters,
            settings=shared.settings,
            cross_origin=shared.cross_origin,
            wall_clock=wall_clock,
            random=random,
        ),
        waiters=shared.waiters,
        settings=shared.settings,
        wall_clock=wall_clock,
        random=random,
    )


def _build_segment_verbs(shared: SharedParts, health: Callable[[], NodeHealth]) -> SegmentVerbs:
    return SegmentVerbs(
        segments=shared.segments,
        reads=shared.reads,
        directory=shared.directory,
        bodies=shared.bodies,
        streaming=SegmentStreaming(
            reads=shared.reads,
            directory=shared.directory,
            settings=shared.settings,
            cross_origin=shared.cross_origin,
        ),
        health=health,
        settings=shared.settings,
    )
