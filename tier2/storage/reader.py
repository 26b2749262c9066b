"""Tier 2 without its owner: every container of a store, read from its root. Nothing is ever written here.

- Existence is concluded from roots only, never from a listing (H3).
- The owner may go on publishing meanwhile: a missing object means that the root moved on (H8).
"""

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing

from segmentstore.contracts.errors import (
    BadOffsetError,
    CorruptedDataError,
    ObjectNotFoundError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    ContainerId,
)
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import (
    StorageStatistics,
)
from tier2.storage.components import Components
from tier2.storage.garbage import list_objects
from tier2.storage.object_names import CONTAINERS_PREFIX, ObjectNames, container_of_key
from tier2.storage.root import Root, decode_root
from tier2.storage.root_reading import RootReading
from tier2.storage.run_view import RunView
from tier2.storage.settings import StorageSettings


class ContainerReader(RootReading):
    """ReadOnlyStorage over one container's root as it was when it was opened, or at the last missing object."""

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
        self._view: RunView | None = None

    @property
    def components(self) -> Components:
        """For whoever verifies the objects themselves."""
        return self._components

    @property
    def view(self) -> RunView:
        assert self._view is not None, f"reader is not open container={self.container_id}"
        return self._view

    @property
    def root(self) -> Root:
        return self.view.root

    async def refresh(self) -> RunView:
        """Read the root; also opens the reader.

        Raises ObjectNotFoundError if the container never had one, CorruptedDataError.
        """
        self._components.counters.gets += 1
        found = await self._components.object_store.get(self._components.names.root)
        try:
            root = decode_root(found.content)
        except CorruptedDataError as error:
            raise CorruptedDataError(f"{error} container={self.container_id}") from error
        if root.container_id != self.container_id:
            raise CorruptedDataError(
                f"root is that of another container other={root.container_id} container={self.container_id}"
            )
        if self._view is None or root.version != self._view.root.version:
            self._segments.forget_everything()
            self._view = self._components.view(root)
        return self._view

    def statistics(self) -> StorageStatistics:
        return self._components.counters.snapshot(
            root_version=0 if self._view is None else self._view.root.version,
            run_count=0 if self._view is None else len(self._view.root.runs),
            garbage_objects=0,
        )

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
        """Raises ObjectNotFoundError if that container has no root, CorruptedDataError."""
        reader = self.unopened(container_id)
        await reader.refresh()
        return reader

    def unopened(self, container_id: ContainerId) -> ContainerReader:
        """A reader whose root was not read: for who looks at the objects of a container that has none."""
        return ContainerReader(
            object_store=self._store,
            container_id=container_id,
            settings=self._settings,
            executor=self._executor,
        )

    async def containers(self) -> list[ContainerId]:
        """Containers that have a root, in order. Reads one root to learn their number, then asks for each."""
        count = await self._container_count()
        names = [(ContainerId(number), ObjectNames(ContainerId(number))) for number in range(count)]
        found: list[ContainerId] = []
        for container_id, name in names:
            try:
                await self._store.size(name.root)
            except ObjectNotFoundError:
                continue
            found.append(container_id)
        return found

    async def _container_count(self) -> int:
        """As the first sound root says. Raises CorruptedDataError if there are roots and none is sound."""
        seen: set[ContainerId] = set()
        damage: CorruptedDataError | None = None
        async with aclosing(list_objects(self._store, CONTAINERS_PREFIX)) as listing:
            async for info in listing:
                container_id = container_of_key(info.key)
                if container_id is None or container_id in seen:
                    continue
                seen.add(container_id)
                try:
                    found = await self._store.get(ObjectNames(container_id).root)
                    return decode_root(found.content).container_count
                except ObjectNotFoundError:
                    continue
                except CorruptedDataError as error:
                    damage = damage or CorruptedDataError(f"{error} container={container_id}")
        if damage is not None:
            raise damage
        return 0
