"""Containers whose root is lost begin anew, in the Tier 2 where they were, because a person said so.

Everything else about a recovery changes nothing in Tier 2; this writes a root.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from segmentstore.cli.setting_options import resolve
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.filesystem.filesystem_object_store import FilesystemObjectStore
from tier2.object_stores.volumes.late_volumes import LateVolumes
from tier2.places import object_directory, open_place
from tier2.storage.components import Components
from tier2.storage.lost_root import begin_anew
from tier2.storage.root import Root
from tier2.storage.settings import StorageSettings
from tier2.volumes.engine_directory import is_engine_directory
from tier2.volumes.settings import VolumeSettings


async def let_begin_anew(place: str, container_ids: Sequence[int], *, of_store: Root) -> list[Root]:
    """`place`: a bucket or a data directory; `of_store`: any sound root of it. Returns the new roots, in order.

    Raises InvalidRequestError if one of them has a sound root, StorageError.
    """
    random = system_random()
    roots: list[Root] = []
    async with _open_for_writing(place) as store:
        for container_id in container_ids:
            components = Components(
                object_store=store,
                container_id=ContainerId(container_id),
                settings=StorageSettings(),
                executor=None,
            )
            roots.append(
                await begin_anew(
                    components,
                    of_store=of_store,
                    nonce=random_id(random),
                    log_id=random_id(random),
                )
            )
    return roots


@asynccontextmanager
async def _open_for_writing(place: str) -> AsyncIterator[ObjectStore]:
    files, clock, random = SystemFileSystem(), SystemWallClock(), system_random()
    if place.startswith("s3://"):
        s3 = resolve(None, ()).settings.s3
        async with open_place(
            place,
            files=files,
            executor=None,
            wall_clock=clock,
            random=random,
            endpoint_url=s3.endpoint_url,
            region=s3.region,
        ) as bucket:
            yield bucket
        return
    directory = object_directory(place)
    store = (
        LateVolumes(
            directory,
            files=files,
            executor=None,
            wall_clock=clock,
            random=random,
            settings=VolumeSettings(),
        )
        if is_engine_directory(directory, files)
        else FilesystemObjectStore(directory, files=files, executor=None, random=random)
    )
    await store.start()
    try:
        yield store
    finally:
        await store.close()
