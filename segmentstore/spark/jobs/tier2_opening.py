"""Opens the Tier 2 of a job for uploads, where any process may write, and all of its containers."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.spark.tier2_view import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Place,
    open_for_reading,
)
from tier2.object_stores.filesystem.filesystem_object_store import FilesystemObjectStore
from tier2.places import object_directory
from tier2.storage.reader import ContainerReader, StoreReader
from tier2.storage.settings import StorageSettings
from tier2.volumes.engine_directory import is_engine_directory


def is_bucket(place: Tier2Place) -> bool:
    """Whether it is reached over a network."""
    return place.place.startswith("s3://")


def is_volumes(place: Tier2Place) -> bool:
    """Whether only one process may write there: the owner of the directory."""
    if is_bucket(place):
        return False
    return is_engine_directory(object_directory(place.place), SystemFileSystem())


@asynccontextmanager
async def open_for_uploads(place: Tier2Place, executor: Executor) -> AsyncIterator[ObjectStore]:
    """A bucket or plain files. Raises InvalidRequestError for volumes, StorageError."""
    if is_bucket(place):
        # To readers and writers a bucket is the same thing.
        async with open_for_reading(place, executor) as bucket:
            yield bucket
        return
    if is_volumes(place):
        raise InvalidRequestError(
            f"volumes are written by the process that holds them place={place.place}"
        )
    store = FilesystemObjectStore(
        object_directory(place.place),
        files=SystemFileSystem(),
        executor=executor,
        random=system_random(),
    )
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def open_containers(
    store: ObjectStore, executor: Executor, *, place: str
) -> list[ContainerReader]:
    """A reader of every container that has a root, however many there are. Raises InvalidRequestError without one."""
    reader = StoreReader(object_store=store, settings=StorageSettings(), executor=executor)
    for attempt in range(OPEN_ATTEMPTS):
        ids = await reader.containers()
        if ids:
            return [await reader.open(container_id) for container_id in ids]
        if attempt < OPEN_ATTEMPTS - 1:
            # The owner may be starting, and volumes are seen a little late.
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
    raise InvalidRequestError(f"there is no Tier 2 here: no container has a root place={place}")
