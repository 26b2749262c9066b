"""Tier 2 without its owner: every container of a store, read from its manifest. Nothing is ever written here.

- Existence is concluded from manifests only, never from a listing.
- The owner may go on publishing meanwhile: a missing object means that the manifest moved on.
- `scan_layouts` gives segments in the order of their ids and entries in that of their offsets: the order in which they
  lie in the SSTs. It costs O(segments + layout entries), a page at a time; no chunk is touched, and no table's index.
"""

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.contracts.errors import (
    BadOffsetError,
    CorruptedDataError,
    ObjectNotFoundError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SegmentRecord, StorageStatistics
from tier2.container_objects import CONTAINERS_PREFIX, ObjectNames, container_of_key
from tier2.format.chunk_format import ChunkIndex
from tier2.layout_entry import LayoutEntry
from tier2.manifest.manifest import BRING_BACK, Manifest, decode_manifest
from tier2.manifest.view import ManifestView
from tier2.read.components import Components
from tier2.read.layout_walk import LayoutWalk
from tier2.read.published_segments import PublishedSegments
from tier2.settings import StorageSettings
from tier2.sst.keyspace import (
    decode_record,
)

_LAYOUT_PAGE_ENTRIES = 2_048


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A segment and where its bytes lie."""

    container_id: int
    record: SegmentRecord
    entries: list[LayoutEntry] = field(default_factory=list)
    """Neighbours, from the one that holds the start offset to the one that ends at the published length."""


class ContainerReader(PublishedSegments):
    """ReadOnlyStorage over one container's manifest as it was when it was opened, or at the last missing object."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        container_id: ContainerId,
        settings: StorageSettings,
        executor: Executor | None,
    ) -> None:
        self.container_id = container_id
        super().__init__(
            components=Components(
                object_store=object_store,
                container_id=container_id,
                settings=settings,
                executor=executor,
            )
        )
        self._view: ManifestView | None = None

    @property
    def components(self) -> Components:
        """For a caller that verifies the objects themselves."""
        return self._components

    @property
    def view(self) -> ManifestView:
        assert self._view is not None, f"reader is not open container={self.container_id}"
        return self._view

    @property
    def manifest(self) -> Manifest:
        return self.view.manifest

    @property
    def manifest_identity(self) -> tuple[bytes, int, int, bytes]:
        """Of the manifest that is read now."""
        return self.manifest.identity

    async def refresh(self) -> ManifestView:
        """Read the manifest; also opens the reader.

        Raises ObjectNotFoundError if the container never had one, CorruptedDataError.
        """
        self._components.counters.gets += 1
        found = await self._components.object_store.get(self._components.names.manifest)
        try:
            manifest = decode_manifest(found.content)
        except CorruptedDataError as error:
            raise CorruptedDataError(f"{error}; {self._where_to_mend}") from error
        if manifest.container_id != self.container_id:
            raise CorruptedDataError(
                f"manifest is that of another container other={manifest.container_id}; {self._where_to_mend}"
            )
        if self._view is None or manifest.version != self._view.manifest.version:
            self.forget_everything()
            self._view = self._components.view(manifest)
        return self._view

    @property
    def _where_to_mend(self) -> str:
        return (
            f"{BRING_BACK} container={self.container_id} manifest={self._components.names.manifest}"
        )

    async def chunk_index(self, entry: LayoutEntry) -> ChunkIndex:
        """The index of an image that a layout names; one request. Raises CorruptedDataError, ObjectNotFoundError."""
        return await self._components.chunk_reader.index(entry)

    def statistics(self) -> StorageStatistics:
        return self._components.counters.snapshot(
            root_version=0 if self._view is None else self._view.manifest.version,
            run_count=0 if self._view is None else len(self._view.manifest.ssts),
            garbage_objects=0,
        )

    async def scan_layouts(self) -> AsyncGenerator[SegmentLayout, None]:
        """All segments under the present manifest. Hold it in `aclosing`.

        Raises ObjectNotFoundError if the manifest moved on meanwhile (refresh() and begin again), CorruptedDataError.
        """
        view = self.view
        layout: SegmentLayout | None = None
        walk = LayoutWalk()
        while walk.has_next_page():
            for segment_id, found in await walk.next_page(view, limit=_LAYOUT_PAGE_ENTRIES):
                if isinstance(found, bytes):
                    if layout is not None:
                        yield layout
                    layout = SegmentLayout(self.container_id, decode_record(segment_id, found))
                else:
                    assert layout is not None, "an entry comes behind its record"
                    layout.entries.append(found)
        if layout is not None:
            yield layout

    async def cat(
        self, name: str, *, start: int | None = None, end: int | None = None, step: int = 4 << 20
    ) -> AsyncGenerator[memoryview, None]:
        """The published bytes [start, end) piece by piece; from the first to the last one without bounds.

        Raises SegmentNotFoundError, SegmentTruncatedError, BadOffsetError. Hold it in `aclosing`.
        """
        record = await self.find(name)
        if record is None:
            raise SegmentNotFoundError(name)
        offset = record.start_offset if start is None else start
        last = record.length if end is None else end
        if offset < record.start_offset:
            raise SegmentTruncatedError(name, start_offset=record.start_offset)
        if last > record.length or offset > last:
            raise BadOffsetError(name, expected=record.length, given=max(offset, last))
        while offset < last:
            found = await self.read(record.segment_id, offset, min(step, last - offset))
            piece = found.content[offset - found.offset : last - found.offset]
            offset += len(piece)
            yield piece


class SnapshotReader(ContainerReader):
    """The same over a manifest that a backup keeps, which never moves on."""

    def __init__(self, container: ContainerReader, manifest: Manifest) -> None:
        components = container.components
        super().__init__(
            object_store=components.object_store,
            container_id=container.container_id,
            settings=components.settings,
            executor=components.executor,
        )
        self._view = self._components.view(manifest)

    async def refresh(self) -> ManifestView:
        return self.view


class StoreReader:
    """All containers of one store."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        settings: StorageSettings,
        executor: Executor | None,
    ) -> None:
        self._store = object_store
        self._settings = settings
        self._executor = executor

    async def open(self, container_id: ContainerId) -> ContainerReader:
        """Raises ObjectNotFoundError if that container has no manifest, CorruptedDataError."""
        reader = self.unopened(container_id)
        await reader.refresh()
        return reader

    def unopened(self, container_id: ContainerId) -> ContainerReader:
        """A reader whose manifest was not read: for a caller that looks at the objects of a container without one."""
        return ContainerReader(
            object_store=self._store,
            container_id=container_id,
            settings=self._settings,
            executor=self._executor,
        )

    async def containers(self) -> list[ContainerId]:
        """Containers that have a manifest, in order. Reads one manifest to learn their number, then asks for each."""
        count = await self._container_count()
        names = [(ContainerId(number), ObjectNames(ContainerId(number))) for number in range(count)]
        found: list[ContainerId] = []
        for container_id, name in names:
            try:
                await self._store.size(name.manifest)
            except ObjectNotFoundError:
                continue
            found.append(container_id)
        return found

    async def _container_count(self) -> int:
        """As the first sound manifest says. Raises CorruptedDataError if there are manifests and none is sound."""
        seen: set[ContainerId] = set()
        damage: CorruptedDataError | None = None
        async with aclosing(self._store.list(CONTAINERS_PREFIX)) as listing:
            async for info in listing:
                container_id = container_of_key(info.key)
                if container_id is None or container_id in seen:
                    continue
                seen.add(container_id)
                try:
                    found = await self._store.get(ObjectNames(container_id).manifest)
                    return decode_manifest(found.content).container_count
                except ObjectNotFoundError:
                    continue
                except CorruptedDataError as error:
                    damage = damage or CorruptedDataError(f"{error} container={container_id}")
        if damage is not None:
            raise damage
        return 0
