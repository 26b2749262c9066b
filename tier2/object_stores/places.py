"""Where a Tier 2 is, in words that a person writes, and the object store that is there.

    s3://BUCKET/PREFIX        a bucket
    DIR, file:///DIR          a data directory, or its `tier2` directory: volumes or plain files, whichever is there

Used by tools and batch jobs that work beside the service or without it; the service is put together by its host.
"""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from urllib.parse import unquote, urlsplit

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import is_engine_directory


@asynccontextmanager
async def open_place(
    place: str,
    *,
    files: FileSystem,
    executor: Executor | None,
    wall_clock: WallClock,
    random: Random,
    endpoint_url: str = "",
    region: str = "us-east-1",
    read_only: bool = True,
) -> AsyncIterator[ObjectStore]:
    """The object store of a place. Raises InvalidRequestError, StorageError."""
    if is_remote(place):
        # Only a process that uses S3 needs its client library.
        from tier2.object_stores.s3.s3_object_store import S3ObjectStore
        from tier2.object_stores.s3.settings import S3Settings, parse_s3_url

        bucket, prefix = parse_s3_url(place)
        settings = S3Settings(bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)
        bucket_store = S3ObjectStore(
            settings=replace(settings, region=region, startup_race_rounds=0), random=random
        )
        await bucket_store.start()
        try:
            yield bucket_store
        finally:
            await bucket_store.close()
        return
    directory = object_directory(place)
    if is_engine_directory(directory, files):
        volumes = LateVolumes(
            directory,
            files=files,
            executor=executor,
            wall_clock=wall_clock,
            random=random,
            settings=VolumeSettings(),
            read_only=read_only,
        )
        await volumes.start()
        try:
            yield volumes
        finally:
            await volumes.close()
        return
    store = FilesystemObjectStore(directory, files=files, executor=executor, random=random)
    if not read_only:
        # One that was not started reads, and leaves no trace.
        await store.start()
    try:
        yield store
    finally:
        await store.close()


def is_remote(place: str) -> bool:
    """Whether every look at an object is a request to somewhere else."""
    return place.startswith("s3://")


def holds_volumes(place: str, files: FileSystem) -> bool:
    """Whether the objects are in volumes, which one process at a time may write."""
    return not is_remote(place) and is_engine_directory(object_directory(place), files)


def object_directory(place: str) -> str:
    """The directory that holds the objects of a data directory, of itself, or of a file:// URL of either."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise InvalidRequestError(
            f"Tier 2 is read from a directory, a file:// URL or an s3:// URL, not from {parts.scheme}://"
        )
    path = Path(unquote(parts.path) if parts.scheme else place).absolute()
    inside = path / "tier2"
    return str(inside if inside.is_dir() else path)
