"""Tier 2 as a process of Spark's opens it: for reading by names, for uploads, and as a whole for the jobs.

- Reads: `open_tier2_reader` gives a `Tier2Reader`, which finds a container by the hash of a segment's name, and a
  segment by its name.
- Tasks of jobs: `open_for_reading` gives the objects of a location, `container_reader` one container of them;
  `open_for_uploads` gives objects to write to, where any process may write.
- Drivers of jobs: `open_containers` gives every container.
- The Java reader: `locate_objects` says where the bytes of objects are.

Invariants:

- Nothing is written but by uploads. A read by name lists nothing: a container is found by the hash of a segment's name,
  a segment through its container's manifest, blocks through the segment's layout.
- A missing manifest is not believed at once: the owner may be starting, and volumes are seen up to a second late.
  Opening tries again within a bound, and only at its edge is the location said to be empty.
- A manifest is read once, and again when refresh() is called or an object of it turns out to be gone.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
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
from tier2 import outside_access
from tier2.outside_access import (
    ContainerReader,
    ObjectLocation,
    StorageSettings,
    StoreReader,
    holds_volumes,
    is_remote,
    open_place,
)

OPEN_ATTEMPTS: Final = 8
OPEN_PAUSE_SECONDS: Final = 0.4
"""Between two looks at a place that seems to be empty: together longer than volumes may lag behind."""

_MANIFESTS_PROBED_MAX: Final = 16
"""Containers asked for a manifest before the place is said to have none."""

_INDEXES_ONLY: Final = StorageSettings(whole_chunk_read_bytes_max=0)
"""An index is at the end of an image: for readers of indexes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2Location:
    """Where Tier 2 is. Plain values that travel to executors."""

    place: str
    endpoint: str = ""
    region: str = "us-east-1"


class Tier2Reader:
    """Made by `open_tier2_reader`."""

    def __init__(self, *, store: ObjectStore, executor: Executor | None) -> None:
        self.store = store
        """For ranges of chunks: keys as blocks name them."""
        self._reader = StoreReader(
            object_store=store,
            settings=_INDEXES_ONLY,
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
        """Learn the number of containers from the first sound manifest.

        Raises ObjectNotFoundError if there is none, CorruptedDataError if there are some and all are damaged. One that
        is damaged concerns its own container alone: who asks for that hears of it.
        """
        damage: CorruptedDataError | None = None
        for number in range(_MANIFESTS_PROBED_MAX):
            try:
                container = await self._reader.open(ContainerId(number))
            except ObjectNotFoundError:
                continue
            except CorruptedDataError as error:
                damage = damage or error
                continue
            self._containers[number] = container
            self._count = container.manifest.container_count
            return
        if damage is not None:
            raise damage
        raise ObjectNotFoundError(f"no container has a manifest containers={_MANIFESTS_PROBED_MAX}")

    async def container(self, container_id: int) -> ContainerReader | None:
        """One container; None if it never had a manifest."""
        if self._containers.get(container_id) is None:
            try:
                self._containers[container_id] = await self._reader.open(ContainerId(container_id))
            except ObjectNotFoundError:
                return None
        return self._containers[container_id]

    def container_id(self, segment: str) -> int:
        """The container of a segment, by the segment's name."""
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
        """Look at the newest manifests from now on. Raises StorageError."""
        for container in self._containers.values():
            if container is not None:
                await container.refresh()


@asynccontextmanager
async def open_tier2_reader(
    place: Tier2Location, *, executor: Executor | None
) -> AsyncIterator[Tier2Reader]:
    """Raises InvalidRequestError if there is no Tier 2 at the place, StorageError."""
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        async with AsyncExitStack() as opened:
            try:
                store = await opened.enter_async_context(open_for_reading(place, executor))
                view = Tier2Reader(store=store, executor=executor)
                await view.open()
            except ObjectNotFoundError as error:
                if attempt == OPEN_ATTEMPTS:
                    raise InvalidRequestError(
                        f"there is no Tier 2 here: no container has a manifest place={place.place}"
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


@asynccontextmanager
async def open_for_reading(
    place: Tier2Location, executor: Executor | None
) -> AsyncIterator[ObjectStore]:
    """The objects of the place. Raises InvalidRequestError, StorageError."""
    async with _open(place, executor, read_only=True) as store:
        yield store


@asynccontextmanager
async def _open(
    place: Tier2Location, executor: Executor | None, *, read_only: bool
) -> AsyncIterator[ObjectStore]:
    async with open_place(
        place.place,
        files=SystemFileSystem(),
        executor=executor,
        wall_clock=SystemWallClock(),
        random=system_random(),
        endpoint_url=place.endpoint,
        region=place.region,
        read_only=read_only,
    ) as store:
        yield store


def is_volumes(place: Tier2Location) -> bool:
    """Whether only one process may write there: the owner of the directory."""
    return holds_volumes(place.place, SystemFileSystem())


def is_bucket(place: Tier2Location) -> bool:
    """Whether every look at an object is a request to somewhere else."""
    return is_remote(place.place)


@asynccontextmanager
async def open_for_uploads(place: Tier2Location, executor: Executor) -> AsyncIterator[ObjectStore]:
    """A bucket or plain files. Raises InvalidRequestError for volumes, StorageError."""
    if is_volumes(place):
        raise InvalidRequestError(
            f"volumes are written by the process that holds them place={place.place}"
        )
    async with open_for_owner(place, executor) as store:
        yield store


@asynccontextmanager
async def open_for_owner(place: Tier2Location, executor: Executor) -> AsyncIterator[ObjectStore]:
    """The objects, open for the owner of the containers to write: no other process may have volumes open.

    Raises InvalidRequestError, StorageUnavailableError for volumes in use, StorageError.
    """
    async with _open(place, executor, read_only=False) as store:
        yield store


def locate_objects(place: Tier2Location, keys: Iterable[str]) -> Mapping[str, ObjectLocation]:
    """Where the objects of these keys lie; those that are gone are left out. The place must not be open here.

    Raises CorruptedDataError, OSError.
    """
    return outside_access.locate_objects(
        place.place,
        keys,
        files=SystemFileSystem(),
        endpoint_url=place.endpoint,
        region=place.region,
    )


async def open_containers(
    store: ObjectStore, executor: Executor, *, place: str
) -> list[ContainerReader]:
    """A reader of every container that has a manifest, however many there are.

    Raises InvalidRequestError if there is none.
    """
    reader = StoreReader(object_store=store, settings=StorageSettings(), executor=executor)
    for attempt in range(OPEN_ATTEMPTS):
        ids = await reader.containers()
        if ids:
            return [await reader.open(container_id) for container_id in ids]
        if attempt < OPEN_ATTEMPTS - 1:
            # The owner may be starting, and volumes are seen a little late.
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
    raise InvalidRequestError(f"there is no Tier 2 here: no container has a manifest place={place}")


def container_reader(
    store: ObjectStore, container_id: int, executor: Executor | None, *, indexes_only: bool = False
) -> ContainerReader:
    """A reader for a task that knows already what to read: its manifest is not read until it is asked for.

    `indexes_only`: of small chunks no more than their indexes is read.
    """
    settings = _INDEXES_ONLY if indexes_only else StorageSettings()
    reader = StoreReader(object_store=store, settings=settings, executor=executor)
    return reader.unopened(ContainerId(container_id))
