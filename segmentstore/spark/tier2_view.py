"""A place with Tier 2, opened for reading in a process of Spark's: the containers' roots, and segments below them.

Invariants:

- Nothing is written and nothing is listed: a container is found by the hash of a segment's name, a segment through its
  container's root, blocks through the segment's layout.
- A missing root is not believed at once: the owner may be starting, and volumes are seen up to a second late. Opening
  tries again within a bound, and only at its edge is the place said to be empty.
- A root is read once, and again when refresh() is called or an object of it turns out to be gone (H8).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.places import open_place
from tier2.storage.reader import ContainerReader, StoreReader
from tier2.storage.settings import StorageSettings

OPEN_ATTEMPTS: Final = 8
OPEN_PAUSE_SECONDS: Final = 0.4
"""Between two looks at a place that seems to be empty: together longer than volumes may lag behind."""

_ROOTS_PROBED_MAX: Final = 16
"""Containers asked for a root before the place is said to have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2Place:
    """Where Tier 2 is. Plain values that travel to executors."""

    place: str
    endpoint: str = ""
    region: str = "us-east-1"


class Tier2View:
    """Made by `open_tier2_view`."""

    def __init__(self, *, store: ObjectStore, executor: Executor | None) -> None:
        self.store = store
        """For ranges of chunks: keys as blocks name them."""
        self._reader = StoreReader(
            object_store=store,
            # Only indexes are read through the reader, and an index is at the end of an image.
            settings=StorageSettings(whole_chunk_read_bytes_max=0),
            executor=executor,
        )
        self._containers: dict[int, ContainerReader | None] = {}
        self._count = 0

    @property
    def container_count(self) -> int:
        """Of the store."""
        assert self._count, "the view was not opened"
        return self._count

    async def open(self) -> None:
        """Learn the number of containers from the first root. Raises ObjectNotFoundError if there is none."""
        for number in range(_ROOTS_PROBED_MAX):
            try:
                container = await self._reader.open(ContainerId(number))
            except ObjectNotFoundError:
                continue
            self._containers[number] = container
            self._count = container.root.container_count
            return
        raise ObjectNotFoundError(f"no container has a root containers={_ROOTS_PROBED_MAX}")

    async def container(self, container_id: int) -> ContainerReader | None:
        """One container; None if it never had a root."""
        if self._containers.get(container_id) is None:
            try:
                self._containers[container_id] = await self._reader.open(ContainerId(container_id))
            except ObjectNotFoundError:
                return None
        return self._containers[container_id]

    def container_id(self, segment: str) -> int:
        """Where a segment lives, by its name."""
        return container_of(segment, self.container_count)

    async def find(self, segment: str) -> SegmentRecord | None:
        """What is published of a segment; None if nothing is. Raises StorageError."""
        container = await self.container(self.container_id(segment))
        return None if container is None else await container.find(segment)

    async def list_segments(self, prefix: str) -> AsyncGenerator[SegmentRecord, None]:
        """Published segments of all containers whose names begin so, container by container. Hold it in `aclosing`."""
        for number in range(self.container_count):
            container = await self.container(number)
            if container is None:
                continue
            async with aclosing(container.list_segments(prefix, "")) as records:
                async for record in records:
                    yield record

    async def refresh(self) -> None:
        """Look at the newest roots from now on. Raises StorageError."""
        for container in self._containers.values():
            if container is not None:
                await container.refresh()


@asynccontextmanager
async def open_for_reading(
    place: Tier2Place, executor: Executor | None
) -> AsyncIterator[ObjectStore]:
    """The objects of the place. Raises InvalidRequestError, StorageError."""
    async with open_place(
        place.place,
        files=SystemFileSystem(),
        executor=executor,
        wall_clock=SystemWallClock(),
        random=system_random(),
        endpoint_url=place.endpoint,
        region=place.region,
    ) as store:
        yield store


@asynccontextmanager
async def open_tier2_view(
    place: Tier2Place, *, executor: Executor | None
) -> AsyncIterator[Tier2View]:
    """Raises InvalidRequestError if there is no Tier 2 at the place, StorageError."""
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        async with AsyncExitStack() as opened:
            try:
                store = await opened.enter_async_context(open_for_reading(place, executor))
                view = Tier2View(store=store, executor=executor)
                await view.open()
            except ObjectNotFoundError as error:
                if attempt == OPEN_ATTEMPTS:
                    raise InvalidRequestError(
                        f"there is no Tier 2 here: no container has a root place={place.place}"
                    ) from error
            except CorruptedDataError:
                raise
            except StorageError:
                if attempt == OPEN_ATTEMPTS:
                    raise
            else:
                yield view
                return
        await asyncio.sleep(OPEN_PAUSE_SECONDS)
