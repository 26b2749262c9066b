"""Opens Tier 2 by its place, for reading, with the service off (or on: its owner may go on)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from segmentstore.cli.bytes_as_they_are import BytesAsTheyAre
from segmentstore.cli.setting_options import resolve
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    SegmentNotFoundError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host.settings import S3StoreSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.volumes.late_volumes import only_reading
from tier2.places import object_directory, open_place
from tier2.storage.garbage import list_objects
from tier2.storage.object_names import CONTAINERS_PREFIX, container_of_key
from tier2.storage.reader import ContainerReader, StoreReader
from tier2.storage.settings import StorageSettings
from tier2.volumes.engine_directory import is_engine_directory
from tier2.volumes.lmdb_index import LmdbIndex
from tier2.volumes.opening import open_engine, open_engine_for_reading
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.verification import VerificationReport


class NoSegmentsError(InvalidRequestError):
    """A place holds no object of a segment store at all: it may hold those of others."""


@dataclass(frozen=True, slots=True)
class LostRoot:
    """A container whose root is missing or damaged."""

    reader: ContainerReader
    """Has no view: for who looks at what is left of it."""
    why: str

    @property
    def container_id(self) -> int:
        return self.reader.container_id


@dataclass(frozen=True, slots=True)
class Tier2:
    """Every container that has a root, by id."""

    containers: Sequence[ContainerReader]
    lost: Sequence[LostRoot] = ()
    """By id; for who goes on without them."""

    async def container_of(self, name: str) -> ContainerReader:
        """The one that has the segment. Raises SegmentNotFoundError."""
        for container in self.containers:
            if await container.find(name) is not None:
                return container
        raise SegmentNotFoundError(name)


async def verify_volumes(place: str, *, deep: bool) -> VerificationReport | None:
    """What the engine says of its volumes; None if Tier 2 is not in volumes. Raises StorageError, OSError."""
    files = SystemFileSystem()
    if place.startswith("s3://") or not is_engine_directory(object_directory(place), files):
        return None
    directory = object_directory(place)
    open_it = partial(
        open_engine,
        directory,
        files=files,
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        settings=only_reading(VolumeSettings()),
    )
    read_it = partial(open_engine_for_reading, *open_it.args, **open_it.keywords)
    try:
        opened = await open_it(open_index=LmdbIndex)
    except StorageUnavailableError:
        # Another process has them: look beside it.
        opened = await read_it(open_index=lambda path: LmdbIndex(path, read_only=True))
    try:
        return await opened.engine.verify(deep=deep)
    finally:
        await opened.close()


@asynccontextmanager
async def open_objects(
    place: str, *, endpoint_url: str = "", read_only: bool = True
) -> AsyncIterator[ObjectStore]:
    """The object store of a place. Raises InvalidRequestError, StorageError."""
    region = S3StoreSettings().region
    if not place.startswith("s3://") and not SystemFileSystem().is_directory(
        object_directory(place)
    ):
        raise InvalidRequestError(f"there is no such directory place={place}")
    if place.startswith("s3://"):
        # The same words that the service takes: SEGMENTSTORE_S3_ENDPOINT_URL and the like.
        s3 = resolve(None, ()).settings.s3
        endpoint_url, region = endpoint_url or s3.endpoint_url, s3.region
    async with open_place(
        place,
        files=SystemFileSystem(),
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        endpoint_url=endpoint_url,
        region=region,
        read_only=read_only,
    ) as store:
        yield store


@asynccontextmanager
async def open_tier2(
    place: str, *, endpoint_url: str = "", go_on: bool = False
) -> AsyncIterator[Tier2]:
    """`place` is a data directory, its `tier2` directory, a `file://` URL of either, or s3://BUCKET/PREFIX.

    With `go_on` containers whose roots are missing or damaged are in `lost`, and what the others lead to is there.

    Raises NoSegmentsError if nothing of a segment store is there, InvalidRequestError if it has no root, StorageError,
    CorruptedDataError. With `go_on` there may be no sound root at all; `require_a_root` refuses that.
    """
    async with open_objects(place, endpoint_url=endpoint_url) as checked:
        store = BytesAsTheyAre(checked)
        reader = StoreReader(object_store=store, settings=StorageSettings(), executor=None)
        try:
            ids = await reader.containers()
        except CorruptedDataError as damage:
            if not go_on:
                raise
            # Backups may have pinned roots that are sound.
            yield Tier2([], await _without_roots(reader, store, str(damage)))
            return
        if not ids:
            lost = await _without_roots(reader, store, "no container has a root") if go_on else []
            if lost:
                yield Tier2([], lost)
                return
            error = NoSegmentsError if await _is_empty(store) else InvalidRequestError
            raise error(f"there is no Tier 2 here: no container has a root place={place}")
        yield await _opened(reader, ids, go_on=go_on)


async def _opened(reader: StoreReader, ids: Sequence[ContainerId], *, go_on: bool) -> Tier2:
    containers: list[ContainerReader] = []
    lost: list[LostRoot] = []
    for container_id in ids:
        try:
            containers.append(await reader.open(container_id))
        except CorruptedDataError as damage:
            if not go_on:
                raise
            lost.append(LostRoot(reader.unopened(container_id), str(damage)))
    if not containers:
        # How many there were only a root tells: pins may lead to one.
        return Tier2(containers, sorted(lost, key=lambda each: each.container_id))
    count = containers[0].root.container_count
    for number in sorted(set(range(count)).difference(ids)):
        why = f"no root container={number} of={count}: what it held cannot be found"
        lost.append(LostRoot(reader.unopened(ContainerId(number)), why))
    return Tier2(containers, sorted(lost, key=lambda each: each.container_id))


async def _without_roots(reader: StoreReader, store: ObjectStore, why: str) -> list[LostRoot]:
    """Every container that has an object, by id."""
    found: set[ContainerId] = set()
    async with aclosing(list_objects(store, CONTAINERS_PREFIX)) as listing:
        async for info in listing:
            container_id = container_of_key(info.key)
            if container_id is not None:
                found.add(container_id)
    return [LostRoot(reader.unopened(each), why) for each in sorted(found)]


def require_a_root(tier2: Tier2) -> None:
    """Raises CorruptedDataError."""
    if not tier2.containers:
        raise CorruptedDataError(f"no root is sound: {tier2.lost[0].why}")


async def _is_empty(store: ObjectStore) -> bool:
    async with aclosing(store.list("")) as listing:
        async for _ in listing:
            return False
    return True
