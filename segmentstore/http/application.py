"""Puts the room together: one aiohttp application over a SegmentApi.

/v1/stream/{name}     Durable Streams (stream_*.py)
/v1/segments...       segment verbs (segment_verbs.py)
/v1/clocks/settle     POST: a person says that the present time is right (H77)
/health, /metrics
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from random import Random

from aiohttp import web

from segmentstore.contracts.segments import SegmentApi
from segmentstore.http.bodies import BodyBudget, BodyReader
from segmentstore.http.clock_watch import ClockWatch
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
from segmentstore.http.upkeep import Upkeep
from segmentstore.http.waiters import Waiters
from segmentstore.runtime.clock import WallClock


def build_application(
    *,
    segments: SegmentApi,
    health: Callable[[], NodeHealth],
    metrics: Callable[[], ContainerMetrics],
    wall_clock: WallClock,
    random: Random,
    settings: HttpSettings | None = None,
    executor: Executor | None = None,
) -> web.Application:
    """An application that HttpServer (or any aiohttp runner) can serve.

    `health` and `metrics` give snapshots and are called per request of /health and /metrics. `executor` splits large
    JSON bodies (None: the loop's own). Does no I/O.
    """
    settings = settings or HttpSettings()
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
    directory = StreamDirectory(
        segments=segments, pins=pins, expiry=expiry, forks=ForkRegistry(segments=segments)
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
    )
    cross_origin = CrossOrigin(settings.cors_allow_origin)
    statistics = RequestStatistics()

    def gauges() -> Mapping[str, float]:
        return {
            "requests_in_flight": statistics.in_flight,
            "body_received_bytes_total": bodies.bytes_received,
            "body_in_flight_bytes": bodies.budget.bytes_held,
            "waiting_readers": len(waiters),
            "event_stream_connections": waiters.connections,
            "pinned_segments": len(pins),
            "expired_streams_total": directory.expired_count,
            "clocks_trusted": 0 if clock_watch.complaint() else 1,
        }

    events = StreamEvents(
        waiters=waiters,
        settings=settings,
        cross_origin=cross_origin,
        wall_clock=wall_clock,
        random=random,
    )
    dispatch = Dispatch(
        directory=directory,
        create=StreamCreate(
            directory=directory,
            forks=StreamForks(directory=directory, settings=settings, stream_prefix=STREAM_PREFIX),
            bodies=bodies,
            settings=settings,
            executor=executor,
        ),
        append=StreamAppend(
            directory=directory, bodies=bodies, settings=settings, executor=executor
        ),
        read=StreamRead(
            directory=directory,
            events=events,
            waiters=waiters,
            settings=settings,
            wall_clock=wall_clock,
            random=random,
        ),
        verbs=SegmentVerbs(
            segments=segments,
            directory=directory,
            bodies=bodies,
            streaming=SegmentStreaming(
                segments=segments, settings=settings, cross_origin=cross_origin
            ),
            health=health,
            settings=settings,
        ),
        health=health,
        exposition=MetricsExposition(containers=metrics, requests=statistics, gauges=gauges),
        statistics=statistics,
        clock_watch=clock_watch,
        cross_origin=cross_origin,
        settings=settings,
    )
    upkeep = Upkeep(
        clock_watch=clock_watch,
        directory=directory,
        pins=pins,
        waiters=waiters,
        settings=settings,
    )
    return _serve(dispatch, upkeep)


def _serve(dispatch: Dispatch, upkeep: Upkeep) -> web.Application:
    # Bodies are bounded by BodyReader; aiohttp's own limit concerns request.read() alone.
    application = web.Application(client_max_size=0)
    # Two resources because aiohttp looks for the longest known prefix first: appends find theirs sooner.
    for path in (STREAM_PREFIX + "{name:(?s:.*)}", "/{path:(?s:.*)}"):
        application.router.add_route("*", path, dispatch.handle, expect_handler=dispatch.expect)

    async def stop_waiting(_application: web.Application) -> None:
        upkeep.stop_waiting()

    async def run_upkeep(_application: web.Application) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(upkeep.run(), name="http upkeep")
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await upkeep.close()

    application.on_shutdown.append(stop_waiting)
    application.cleanup_ctx.append(run_upkeep)
    return application
