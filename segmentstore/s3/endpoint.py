"""The endpoint put together: engine, buckets, uploads, verbs, server. Opened from the inside out, closed the other way.

DIR/tier2         the engine's directory, which a segment store shares (one process at a time has it)
"""

from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import StorageError
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from segmentstore.s3.authentication import Authenticator
from segmentstore.s3.body_reader import BodyBudget, BodyReader
from segmentstore.s3.bucket_verbs import BucketVerbs
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.credentials import Credentials
from segmentstore.s3.dispatch import Dispatch
from segmentstore.s3.listing import Listing
from segmentstore.s3.listing_verbs import ListingVerbs
from segmentstore.s3.lock_verbs import LockVerbs
from segmentstore.s3.multipart_verbs import MultipartVerbs
from segmentstore.s3.object_copying import ObjectCopying
from segmentstore.s3.object_reading import ObjectReading
from segmentstore.s3.object_writing import ObjectWriting
from segmentstore.s3.routing import Routes
from segmentstore.s3.server import S3Server
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.upload_listing import UploadListing
from segmentstore.s3.verbs import routes
from segmentstore.s3.version_scan import VersionScan
from segmentstore.s3.versions import VersionWriter
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.lmdb_index import LmdbIndex
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.opening import open_engine
from tier2.volumes.settings import VolumeSettings

_ENGINE_THREADS = 8
_BODY_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Rooms:
    """What the verbs stand on."""

    engine: VolumeEngine
    scan: VersionScan
    buckets: Buckets
    uploads: MultipartUploads
    body_threads: ThreadPoolExecutor
    wall_clock: WallClock
    random: Random
    settings: EndpointSettings
    piece_bytes: int


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
        engine, uploads, scan = await _open_volumes(
            f"{directory}/tier2",
            stack,
            files=files,
            executor=engine_threads,
            wall_clock=wall_clock,
            random=random,
            settings=volume_settings,
        )
        rooms = _Rooms(
            engine=engine,
            scan=scan,
            buckets=Buckets(engine=engine, scan=scan, wall_clock=wall_clock, settings=settings),
            uploads=uploads,
            body_threads=body_threads,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
            piece_bytes=volume_settings.piece_bytes,
        )
        await rooms.buckets.start()
        dispatch = Dispatch(
            authenticator=Authenticator(
                secrets={credentials.access_key: credentials.secret_key},
                wall_clock=wall_clock,
                settings=settings,
            ),
            routes=_routes(rooms),
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
) -> tuple[VolumeEngine, MultipartUploads, VersionScan]:
    """The engine, closed with the stack, its uploads, and what reads its index besides."""
    try:
        opened = await open_engine(
            directory,
            files=files,
            open_index=LmdbIndex,
            executor=executor,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
        )
    except OSError as error:
        raise StorageError(f"the volumes cannot be opened: {error}") from error
    stack.push_async_callback(opened.close)
    assert opened.uploads is not None, "an engine that is open for writing has uploads"
    scan = VersionScan(index=opened.engine.index, executor=executor)
    return opened.engine, opened.uploads, scan


def _routes(rooms: _Rooms) -> Routes:
    settings, wall_clock, engine = rooms.settings, rooms.wall_clock, rooms.engine
    buckets, uploads = rooms.buckets, rooms.uploads
    budget = _budget(settings, settings.bodies_bytes_max)
    bodies = BodyReader(
        budget=budget,
        executor=rooms.body_threads,
        settings=settings,
        piece_bytes=rooms.piece_bytes,
    )
    versions = VersionWriter(engine=engine, uploads=uploads, random=rooms.random)
    answers = _budget(settings, settings.answers_bytes_max)
    reading = ObjectReading(engine=engine, buckets=buckets, budget=answers, settings=settings)
    copying = ObjectCopying(
        engine=engine,
        versions=versions,
        buckets=buckets,
        budget=budget,
        wall_clock=wall_clock,
        executor=rooms.body_threads,
        settings=settings,
        piece_bytes=rooms.piece_bytes,
    )
    return routes(
        buckets=BucketVerbs(buckets=buckets, uploads=uploads, bodies=bodies, settings=settings),
        listing=ListingVerbs(
            listing=Listing(engine=engine), scan=rooms.scan, buckets=buckets, settings=settings
        ),
        reading=reading,
        writing=ObjectWriting(
            versions=versions,
            buckets=buckets,
            bodies=bodies,
            wall_clock=wall_clock,
            settings=settings,
        ),
        copying=copying,
        locks=LockVerbs(
            engine=engine,
            reading=reading,
            buckets=buckets,
            bodies=bodies,
            wall_clock=wall_clock,
            settings=settings,
        ),
        multipart=MultipartVerbs(
            uploads=uploads,
            versions=versions,
            copying=copying,
            buckets=buckets,
            bodies=bodies,
            budget=budget,
            wall_clock=wall_clock,
            settings=settings,
        ),
        uploads=UploadListing(uploads=uploads, buckets=buckets, settings=settings),
    )


def _budget(settings: EndpointSettings, bytes_max: int) -> BodyBudget:
    return BodyBudget(bytes_max=bytes_max, wait_seconds_max=settings.body_wait_seconds_max)
