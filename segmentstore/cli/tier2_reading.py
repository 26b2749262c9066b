"""Opens Tier 2 by its place, for reading, with the service off (or on: its owner may go on)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.places import open_place
from tier2.storage.reader import ContainerReader, StoreReader
from tier2.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class Tier2:
    """Every container that has a root, by id."""

    containers: Sequence[ContainerReader]

    async def container_of(self, name: str) -> ContainerReader:
        """The one that has the segment. Raises SegmentNotFoundError."""
        for container in self.containers:
            if await container.find(name) is not None:
                return container
        raise SegmentNotFoundError(name)


@asynccontextmanager
async def open_tier2(place: str, *, endpoint_url: str = "") -> AsyncIterator[Tier2]:
    """`place` is a data directory, its `tier2` directory, a `file://` URL of either, or s3://BUCKET/PREFIX.

    Raises InvalidRequestError if there is no Tier 2, StorageError.
    """
    async with open_place(
        place,
        files=SystemFileSystem(),
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        endpoint_url=endpoint_url,
    ) as store:
        reader = StoreReader(object_store=store, settings=StorageSettings(), executor=None)
        ids = await reader.containers()
        if not ids:
            raise InvalidRequestError(
                f"there is no Tier 2 here: no container has a root place={place}"
            )
        yield Tier2([await reader.open(container_id) for container_id in ids])
