"""Puts the room together: one handler over a SegmentApi, and what has to run beside it.

/v1/stream/{name}     Durable Streams (stream_*.py)
/v1/segments...       segment verbs (segment_verbs.py)
/v1/flush             POST: everything is in Tier 2 (segment_verbs.py)
/v1/containers...     swaps that compactors propose (swap_verbs.py)
/v1/backups...        points in time of the store (backup_verbs.py)
/v1/clocks/settle     POST: a person says that the present time is right (H77)
/health, /metrics
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from aiohttp import web

from segmentstore.contracts.segments import SegmentApi
from segmentstore.http.backup_verbs import BackupOwnerSource, BackupVerbs, no_backup_owners
from segmentstore.http.bodies import BodyBudget, BodyReader
from segmentstore.http.dispatch import STREAM_PREFIX, Dispatch
from segmentstore.http.fork_registry import ForkRegistry
from segmentstore.http.metrics_exposition import ContainerMetrics, MetricsExposition
from segmentstore.http.node_health import NodeHealth
from segmentstore.http.pins import SegmentPins
from segmentstore.http.request_statistics import RequestStatistics
from segmentstore.http.responses import CrossOrigin
from segmentstore.http.segment_streaming import SegmentStreaming
from segmentstore.http.segment_verbs import SegmentVerbs
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_append import StreamAppend
from segmentstore.http.stream_create import StreamCreate
from segmentstore.http.stream_directory import StreamDirectory
from segmentstore.http.stream_events import StreamEvents
from segmentstore.http.stream_expiry import StreamExpiry
from segmentstore.http.stream_forks import StreamForks
from segmentstore.http.stream_read import StreamRead
from segmentstore.http.swap_verbs import SwapOwnerSource, SwapVerbs, no_swap_owner
from segmentstore.http.upkeep import Upkeep
from segmentstore.http.waiters import Waiters
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.clock_watch import ClockWatch


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What several verbs use together."""

    segments: SegmentApi
    settings: HttpSettings
    clock_watch: ClockWatch
    pins: SegmentPins
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
            "pinned_segments": len(self.pins),
            "expired_streams_total": self.directory.expired_count,
            "clocks_trusted": 0 if self.clock_watch.complaint() else 1,
        }


class HttpApplication:
    """What HttpServer serves: start(), then handle() for each request, stop_waiting() and close()."""

    def __init__(self, *, dispatch: Dispatch, upkeep: Upkeep) -> None:
        self._dispatch = dispatch
        self._upkeep = upkeep
        self._upkeep_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin the ticks."""
        assert self._upkeep_task is None, "the application is started already"
        loop = asyncio.get_running_loop()
        self._upkeep_task = loop.create_task(self._upkeep.run(), name="http upkeep")

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but CancelledError: whatever goes wrong has an answer."""
        return await self._dispatch.handle(request)

    def stop_waiting(self) -> None:
        """Ends long polls and event streams, so that the server can close."""
        self._upkeep.stop_waiting()

    async def close(self) -> None:
        """After the last request. Idempotent."""
        task, self._upkeep_task = self._upkeep_task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await self._upkeep.close()


def build_application(
    *,
    segments: SegmentApi,
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

    `health`, `metrics` and `node_metrics` (of the process's other faces) give snapshots, taken when asked for.
    `settle_clocks` tells the rest of the process when a person says that the present time is right (H77).
    `swap_owners` gives the owner of a container to compactors beside it (H9), `backup_owners` those of all (H6).
    `executor` splits large JSON bodies (None: the loop's own). Does no I/O.
    """
    shared = _shared_parts(segments, wall_clock, settings or HttpSettings())
    settings = shared.settings
    upkeep = Upkeep(
        clock_watch=shared.clock_watch,
        directory=shared.directory,
        pins=shared.pins,
        waiters=shared.waiters,
        settings=settings,
    )
    dispatch = Dispatch(
        directory=shared.directory,
        create=_create(shared, executor),
        append=StreamAppend(
            directory=shared.directory,
            bodies=shared.bodies,
            settings=settings,
            wall_clock=wall_clock,
            executor=executor,
        ),
        read=_read(shared, wall_clock, random),
        verbs=_verbs(shared, health),
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
        upkeep=upkeep,
        cross_origin=shared.cross_origin,
        settings=settings,
    )
    return HttpApplication(dispatch=dispatch, upkeep=upkeep)


def _shared_parts(
    segments: SegmentApi, wall_clock: WallClock, settings: HttpSettings
) -> SharedParts:
    clock_watch = ClockWatch(
        wall_clock=wall_clock,
        difference_seconds_max=settings.clock_difference_seconds_max,
        settle_seconds=settings.clock_settle_seconds,
    )
    expiry = StreamExpiry(
        clock_watch=clock_watch, wall_clock=wall_clock, streams_max=settings.expiring_streams_max
    )
    pins = SegmentPins(
        segments=segments,
        count_max=settings.pinned_segments_max,
        idle_seconds=settings.pin_idle_seconds,
    )
    budget = BodyBudget(
        bytes_max=settings.body_bytes_in_flight_max,
        retry_after_seconds=settings.retry_after_seconds,
    )
    return SharedParts(
        segments=segments,
        settings=settings,
        clock_watch=clock_watch,
        pins=pins,
        directory=StreamDirectory(
            segments=segments, pins=pins, expiry=expiry, forks=ForkRegistry(segments=segments)
        ),
        waiters=Waiters(
            waiters_max=settings.waiters_max,
            connections_max=settings.sse_connections_max,
            retry_after_seconds=settings.retry_after_seconds,
        ),
        bodies=BodyReader(budget=budget, seconds_max=settings.body_seconds_max),
        cross_origin=CrossOrigin(settings.cors_allow_origin),
        statistics=RequestStatistics(),
    )


def _create(shared: SharedParts, executor: Executor | None) -> StreamCreate:
    return StreamCreate(
        directory=shared.directory,
        forks=StreamForks(
            directory=shared.directory, settings=shared.settings, stream_prefix=STREAM_PREFIX
        ),
        bodies=shared.bodies,
        settings=shared.settings,
        executor=executor,
    )


def _read(shared: SharedParts, wall_clock: WallClock, random: Random) -> StreamRead:
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


def _verbs(shared: SharedParts, health: Callable[[], NodeHealth]) -> SegmentVerbs:
    return SegmentVerbs(
        segments=shared.segments,
        directory=shared.directory,
        bodies=shared.bodies,
        streaming=SegmentStreaming(
            segments=shared.segments, settings=shared.settings, cross_origin=shared.cross_origin
        ),
        health=health,
        settings=shared.settings,
    )
