"""Opens Tier 2 by its place, without its owner: the store may be off, or run beside the reader.

A place is a data directory, its `tier2` directory, a `file://` URL of either, or s3://BUCKET/PREFIX.

- `open_tier2` gives a reader for each container with a sound manifest. With `go_on` it also names the containers whose
  manifest is missing or damaged, with a reader that has no view, for what is left of them.
- Tools read objects as the disk gives them (`UnverifiedObjectStore`). Volumes refuse a whole object of which one byte
  is damaged, also where nothing refers to that byte; parts of it they give as they are. A copy would end there, and a
  verification would name no segment. The tools judge by the checksums that the bytes carry (SSTs, chunks).
- Backups are found in containers without a manifest as well (`find_snapshots`).
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    SegmentNotFoundError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.host.settings import S3StoreSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.container_objects import CONTAINERS_PREFIX, container_of_key
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.manifest.view import with_view
from tier2.object_stores.places import object_directory, open_place
from tier2.object_stores.volumes import only_reading
from tier2.offline.lost_data import find_snapshots_without_manifest
from tier2.offline.verify import Progress, VerifyReport, verify_container
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader, StoreReader
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.opening import open_engine, open_engine_for_reading
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.verification import VerificationReport
from tier2.volumes.volume_files import is_engine_directory


class NoSegmentsError(InvalidRequestError):
    """A place holds no object of a segment store at all: it may hold those of others."""


@dataclass(frozen=True, slots=True)
class LostManifest:
    """A container whose manifest is missing or damaged."""

    reader: ContainerReader
    """Has no view: for a caller that looks at what is left of it."""
    why: str

    @property
    def container_id(self) -> int:
        return self.reader.container_id


@dataclass(frozen=True, slots=True)
class Tier2:
    """Every container that has a manifest, by id."""

    containers: Sequence[ContainerReader]
    lost: Sequence[LostManifest] = ()
    """By id; for a caller that goes on without them."""

    async def container_of(self, name: str) -> ContainerReader:
        """The one that has the segment. Raises SegmentNotFoundError, CorruptedDataError if its manifest is lost."""
        for container in self.containers:
            if await container.find(name) is not None:
                return container
        for lost in self.lost:
            if not self.containers or lost.container_id == container_of(
                name, self.containers[0].manifest.container_count
            ):
                raise CorruptedDataError(f"the segment cannot be looked for: {lost.why} {name=}")
        raise SegmentNotFoundError(name)


@dataclass(frozen=True, slots=True)
class ContainerSnapshot:
    """One container as one backup has it."""

    reader: ContainerReader
    snapshot: Snapshot


@asynccontextmanager
async def open_tier2(
    place: str, *, endpoint_url: str = "", go_on: bool = False
) -> AsyncIterator[Tier2]:
    """`place` is a data directory, its `tier2` directory, a `file://` URL of either, or s3://BUCKET/PREFIX.

    With `go_on` containers whose manifests are missing or damaged are in `lost`, and what the others lead to is there.

    Raises NoSegmentsError if nothing of a segment store is there, InvalidRequestError if it has no manifest,
    StorageError, CorruptedDataError. With `go_on` there may be no sound manifest at all.
    """
    async with open_objects(place, endpoint_url=endpoint_url) as checked:
        store = UnverifiedObjectStore(checked)
        reader = StoreReader(object_store=store, settings=StorageSettings(), executor=None)
        try:
            ids = await reader.containers()
        except CorruptedDataError as damage:
            if not go_on:
                raise
            # Backups may keep manifests that are sound.
            yield Tier2([], await _without_manifests(reader, store, str(damage)))
            return
        if not ids:
            lost = (
                await _without_manifests(reader, store, "no container has a manifest")
                if go_on
                else []
            )
            if lost:
                yield Tier2([], lost)
                return
            error = NoSegmentsError if await _is_empty(store) else InvalidRequestError
            raise error(f"there is no Tier 2 here: no container has a manifest place={place}")
        yield await _opened(reader, ids, go_on=go_on)


async def _opened(reader: StoreReader, ids: Sequence[ContainerId], *, go_on: bool) -> Tier2:
    containers: list[ContainerReader] = []
    lost: list[LostManifest] = []
    for container_id in ids:
        try:
            containers.append(await reader.open(container_id))
        except CorruptedDataError as damage:
            if not go_on:
                raise
            lost.append(LostManifest(reader.unopened(container_id), str(damage)))
    if not containers:
        # How many there were only a manifest tells: snapshots may lead to one.
        return Tier2(containers, sorted(lost, key=lambda each: each.container_id))
    count = containers[0].manifest.container_count
    for number in sorted(set(range(count)).difference(ids)):
        why = f"no manifest container={number} of={count}: what it held cannot be found"
        lost.append(LostManifest(reader.unopened(ContainerId(number)), why))
    return Tier2(containers, sorted(lost, key=lambda each: each.container_id))


async def _without_manifests(
    reader: StoreReader, store: ObjectStore, why: str
) -> list[LostManifest]:
    """Every container that has an object, by id."""
    found: set[ContainerId] = set()
    async with aclosing(store.list(CONTAINERS_PREFIX)) as listing:
        async for info in listing:
            container_id = container_of_key(info.key)
            if container_id is not None:
                found.add(container_id)
    return [LostManifest(reader.unopened(each), why) for each in sorted(found)]


async def _is_empty(store: ObjectStore) -> bool:
    async with aclosing(store.list("")) as listing:
        async for _ in listing:
            return False
    return True


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
        s3 = resolve_settings(flags={}, environment=os.environ).settings.s3
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


class UnverifiedObjectStore:
    """An ObjectStore over another, whose owner closes it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await self._store.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._store.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        return await self._store.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return await self._store.get_range(key, start, length)
        except CorruptedDataError:
            # Two parts, neither of them the whole object.
            length = min(length, await self._store.size(key) - start)
            half = length // 2
            first = await self._store.get_range(key, start, half)
            return first + await self._store.get_range(key, start + half, length - half)

    async def size(self, key: str) -> int:
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        async with aclosing(self._store.list(prefix)) as objects:
            async for info in objects:
                yield info

    async def close(self) -> None:
        """Nothing of its own."""


async def find_snapshots(tier2: Tier2) -> Sequence[ContainerSnapshot]:
    """By container, then by name. Raises StorageError, CorruptedDataError."""
    snapshots = [
        ContainerSnapshot(reader, snapshot)
        for reader in tier2.containers
        for snapshot in await read_snapshots(reader.view)
    ]
    snapshots += [
        ContainerSnapshot(lost.reader, snapshot)
        for lost in tier2.lost
        for snapshot in await find_snapshots_without_manifest(lost.reader.components)
    ]
    return sorted(snapshots, key=lambda each: (each.reader.container_id, each.snapshot.name))


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup over all containers."""

    name: str
    made_ms: int
    """When the snapshot of its last container was made."""
    containers: int
    is_proved: bool
    """Whether its containers are known to be of one moment."""
    is_complete: bool
    """Whether every container of the store has it, proved."""


def summaries_of(
    snapshots: Sequence[ContainerSnapshot], container_count: int
) -> list[BackupSummary]:
    """By name."""
    found: dict[str, list[Snapshot]] = {}
    for each in snapshots:
        found.setdefault(each.snapshot.name, []).append(each.snapshot)
    summaries: list[BackupSummary] = []
    for name, parts in sorted(found.items()):
        is_proved = all(each.is_proved for each in parts)
        summaries.append(
            BackupSummary(
                name,
                max(each.created_ms for each in parts),
                len(parts),
                is_proved,
                is_proved and len(parts) == container_count,
            )
        )
    return summaries


async def list_backups(place: str) -> list[BackupSummary]:
    """By name. Raises as open_tier2() and find_snapshots() do."""
    async with open_tier2(place, go_on=True) as tier2:
        snapshots = await find_snapshots(tier2)
        return summaries_of(snapshots, container_count_in(tier2, snapshots))


async def backup_names(readers: Sequence[ContainerReader]) -> list[str]:
    """Names of the backups that the newest manifests keep. Raises StorageError, CorruptedDataError."""
    return sorted(
        {
            snapshot.name
            for reader in readers
            for snapshot in await with_view(reader, read_snapshots)
        }
    )


def container_count_in(tier2: Tier2, snapshots: Sequence[ContainerSnapshot]) -> int:
    """By a manifest, or by one that a backup keeps. Raises CorruptedDataError if there is neither."""
    if not tier2.containers and snapshots:
        return snapshots[0].snapshot.manifest.container_count
    if not tier2.containers:
        raise CorruptedDataError(f"no manifest is sound: {tier2.lost[0].why}")
    return tier2.containers[0].manifest.container_count


async def verify_containers(
    tier2: Tier2, *, deep: bool, bar: Callable[[str], AbstractContextManager[Progress]]
) -> Mapping[ContainerId, VerifyReport]:
    """What is damaged in each container. `bar` makes a progress bar from its name. Raises StorageError."""
    reports: dict[ContainerId, VerifyReport] = {}
    for container in tier2.containers:
        number = container.container_id
        with bar(f"container {number}") as progress:
            reports[number] = await verify_container(container, progress=progress, deep=deep)
    return reports


async def verify_volumes(place: str, *, deep: bool) -> VerificationReport | None:
    """What the engine says of its volumes; None if Tier 2 is not in volumes. Raises StorageError, OSError.

    It opens the engine itself: the object store above it has no verification, and would start what works in the
    background.
    """
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
