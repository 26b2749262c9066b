"""The endpoint as a process: start, say so, serve until SIGTERM or SIGINT, end; and its parts, put together.

    stdout      one line: `ready http://HOST:PORT data=DIR ...`, and where the keys are if they are new
    stderr      the log
    DIR/tier2   the engine's directory, which a segment store shares (one process at a time has it)

A second signal ends the process at once: what was acknowledged is safe either way. Engine, buckets, uploads, handlers
and server are opened from the inside out, and closed the other way.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import InvalidRequestError, StorageError
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import FileSystem, SystemFileSystem
from segmentstore.runtime.http_connections import BoundedConnections, ConnectionBounds
from segmentstore.runtime.process import (
    freeze_long_lived_objects,
    loop_factory,
    stop_signals,
    tune_for_serving,
)
from segmentstore.s3.absent_configurations import AbsentConfigurationHandlers
from segmentstore.s3.authentication import FILE_NAME, Authenticator, Credentials, kept_credentials
from segmentstore.s3.buckets import BucketHandlers, Buckets
from segmentstore.s3.listing import Listing, ListingHandlers
from segmentstore.s3.multipart import MultipartHandlers, UploadListingHandlers
from segmentstore.s3.object_copying import ObjectCopyHandlers
from segmentstore.s3.object_lock import ObjectLockHandlers
from segmentstore.s3.object_reading import ObjectReadHandlers
from segmentstore.s3.object_writing import ObjectWriteHandlers, VersionWriter
from segmentstore.s3.request_body import BodyReader, MemoryBudget
from segmentstore.s3.routing import Dispatch, Routes, routes
from segmentstore.s3.settings import EndpointSettings
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.opening import open_engine
from tier2.volumes.settings import VolumeSettings

_LOGGER = logging.getLogger(__name__)

_ENGINE_THREADS = 8
_BODY_THREADS = 4


def run_endpoint(
    directory: Path,
    *,
    credentials: Credentials | None,
    settings: EndpointSettings,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal. Raises SegmentStoreError when it cannot start."""
    if not __debug__:
        raise InvalidRequestError(
            "the endpoint does not run under python -O: its assertions are what stops it before it loses data"
        )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(directory, credentials, settings, announce))


async def _serve(
    directory: Path,
    credentials: Credentials | None,
    settings: EndpointSettings,
    announce: Callable[[str], None],
) -> None:
    files, random = SystemFileSystem(), system_random()
    stopping = stop_signals()
    try:
        files.make_directories(str(directory))
        keys = "keys=environment"
        if credentials is None:
            credentials, are_new = kept_credentials(str(directory), random)
            keys = f"{'new ' if are_new else ''}keys={directory / FILE_NAME}"
    except OSError as error:
        raise StorageError(f"the data directory cannot be used: {error}") from error
    try:
        endpoint = open_endpoint(
            str(directory),
            credentials=credentials,
            files=files,
            wall_clock=SystemWallClock(),
            random=random,
            settings=settings,
            volume_settings=VolumeSettings(),
        )
        tune_for_serving()
        async with endpoint as server:
            freeze_long_lived_objects()
            host, port = server.address
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            announce(f"ready {url} data={directory} {keys}; use: aws --endpoint-url {url} s3 ls")
            await stopping.wait()
            _LOGGER.info("stopping")
    except OSError as error:
        raise StorageError(f"cannot serve: {error.strerror or error}") from error


class S3Server:
    """The listening socket: aiohttp's low-level server, without its router and middleware.

    start(), then `address`, then close(), which stops accepting, lets requests under way finish within
    `shutdown_seconds`, and drops what is left then. Changes that the engine has taken are made all the same.
    """

    def __init__(self, *, dispatch: Dispatch, settings: EndpointSettings) -> None:
        self._dispatch = dispatch
        self._settings = settings
        self._runner: web.ServerRunner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        assert self._runner is None, "the server is started already"
        settings = self._settings
        server = BoundedConnections(
            self._dispatch.handle,
            bounds=ConnectionBounds(
                connections_max=settings.connections_max,
                window_bytes=settings.window_bytes,
                window_seconds_max=settings.window_seconds_max,
            ),
            access_log=None,
            handler_cancellation=True,
            # Bodies are kept as they come: Content-Encoding is a property of the object.
            auto_decompress=False,
            keepalive_timeout=75.0,
            read_bufsize=settings.read_bytes,
            max_line_size=settings.header_bytes_max,
            max_field_size=settings.header_bytes_max,
        )
        runner = web.ServerRunner(server, shutdown_timeout=settings.shutdown_seconds)
        self._runner = runner
        await runner.setup()
        try:
            site = web.TCPSite(runner, settings.host, settings.port, backlog=1024)
            await site.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


@dataclass(frozen=True, slots=True)
class _Components:
    """What the verbs stand on."""

    engine: VolumeEngine
    buckets: Buckets
    uploads: MultipartUploads
    body_threads: ThreadPoolExecutor
    wall_clock: WallClock
    random: Random
    settings: EndpointSettings


@asynccontextmanager
async def open_endpoint(
    directory: str,
    *,
    credentials: Credentials,
    files: FileSystem,
    wall_clock: WallClock,
    random: Random,
    settings: EndpointSettings,
    volume_settings: VolumeSettings,
) -> AsyncIterator[S3Server]:
    """A server that listens. Raises StorageUnavailableError if another process has the volumes, OSError."""
    async with AsyncExitStack() as stack:
        engine_threads = stack.enter_context(
            ThreadPoolExecutor(_ENGINE_THREADS, thread_name_prefix="volumes")
        )
        body_threads = stack.enter_context(
            ThreadPoolExecutor(_BODY_THREADS, thread_name_prefix="bodies")
        )
        engine, uploads = await _open_volumes(
            f"{directory}/tier2",
            stack,
            files=files,
            executor=engine_threads,
            wall_clock=wall_clock,
            random=random,
            settings=volume_settings,
        )
        components = _Components(
            engine=engine,
            buckets=Buckets(engine=engine, wall_clock=wall_clock, settings=settings),
            uploads=uploads,
            body_threads=body_threads,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
        )
        await components.buckets.start()
        stack.push_async_callback(components.buckets.close)
        dispatch = Dispatch(
            authenticator=Authenticator(
                secrets={credentials.access_key: credentials.secret_key},
                wall_clock=wall_clock,
                settings=settings,
            ),
            routes=_routes_over(components),
            failure=lambda: engine.failure,
            random=Random(random.getrandbits(64)),
        )
        server = S3Server(dispatch=dispatch, settings=settings)
        await server.start()
        stack.push_async_callback(server.close)
        yield server


async def _open_volumes(
    directory: str,
    stack: AsyncExitStack,
    *,
    files: FileSystem,
    executor: Executor,
    wall_clock: WallClock,
    random: Random,
    settings: VolumeSettings,
) -> tuple[VolumeEngine, MultipartUploads]:
    """The engine, closed with the stack, and its uploads."""
    try:
        opened = await open_engine(
            directory,
            files=files,
            executor=executor,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
        )
    except OSError as error:
        raise StorageError(f"the volumes cannot be opened: {error}") from error
    stack.push_async_callback(opened.close)
    assert opened.uploads is not None, "an engine that is open for writing has uploads"
    return opened.engine, opened.uploads


def _routes_over(components: _Components) -> Routes:
    settings, wall_clock, engine = components.settings, components.wall_clock, components.engine
    buckets, uploads = components.buckets, components.uploads
    budget = _memory_budget(settings, settings.bodies_bytes_max)
    bodies = BodyReader(
        budget=budget,
        executor=components.body_threads,
        settings=settings,
        piece_bytes=engine.piece_bytes,
    )
    versions = VersionWriter(engine=engine, uploads=uploads, random=components.random)
    answers = _memory_budget(settings, settings.answers_bytes_max)
    reading = ObjectReadHandlers(engine=engine, buckets=buckets, budget=answers, settings=settings)
    copying = ObjectCopyHandlers(
        engine=engine,
        versions=versions,
        buckets=buckets,
        budget=budget,
        wall_clock=wall_clock,
        executor=components.body_threads,
        settings=settings,
    )
    return routes(
        buckets=BucketHandlers(buckets=buckets, uploads=uploads, bodies=bodies, settings=settings),
        listing=ListingHandlers(
            listing=Listing(engine=engine), engine=engine, buckets=buckets, settings=settings
        ),
        reading=reading,
        writing=ObjectWriteHandlers(
            versions=versions,
            uploads=uploads,
            buckets=buckets,
            bodies=bodies,
            wall_clock=wall_clock,
            settings=settings,
        ),
        copying=copying,
        locks=ObjectLockHandlers(
            engine=engine,
            reading=reading,
            buckets=buckets,
            bodies=bodies,
            wall_clock=wall_clock,
        ),
        multipart=MultipartHandlers(
            uploads=uploads,
            versions=versions,
            copying=copying,
            buckets=buckets,
            bodies=bodies,
            wall_clock=wall_clock,
            settings=settings,
        ),
        uploads=UploadListingHandlers(uploads=uploads, buckets=buckets, settings=settings),
        absent=AbsentConfigurationHandlers(buckets=buckets, reading=reading),
    )


def _memory_budget(settings: EndpointSettings, bytes_max: int) -> MemoryBudget:
    return MemoryBudget(bytes_max=bytes_max, wait_seconds_max=settings.body_wait_seconds_max)
