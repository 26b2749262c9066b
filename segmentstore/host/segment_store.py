"""The whole store by name: every verb of segments and tables goes to the container that owns the name.

SegmentStore is the store as one SegmentApi and one TableApi. StoreReads is it as one SegmentReads, which reads of
containers that stay down too. SegmentLayout says where the bytes of a segment are in Tier 2 and where its events begin
there, for servers that tell clients of it.

Invariants:

- A name is checked before it is hashed, and always goes to the same container.
- Verbs touch exactly one container; `list_segments` and `flush(None)` touch all of them, or fail: a part of the
  answer is never passed off as the whole. A listing of one segment, by its name and of length 1, needs its own only.
- A merge across containers is refused, with the way out in the message; it is never a copy in disguise.
- The layout of a segment is looked up where it runs: a container that is not here raises ContainerNotFoundError.
- What is not published yet has no layout; no answer stands in for it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from heapq import merge as merge_sorted
from itertools import islice, takewhile

from segmentstore.codec.container_hash import container_of, primary_name
from segmentstore.codec.wire_protocol.administration import StorageChunk
from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.errors import (
    InvalidRequestError,
    MergeRefusedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, ContainerId
from segmentstore.contracts.segments import (
    AttributeUpdate,
    ReadOnlySegment,
    Segment,
    SegmentApi,
    SegmentProperties,
    SegmentReads,
    check_segment_name,
)
from segmentstore.contracts.storage import SegmentRecord, Storage, StoredBlock
from segmentstore.contracts.tables import Table
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.runtime.waiting import gather_all

LIST_LIMIT_MAX = 10_000

StorageSource = Callable[[ContainerId], Storage]
"""Tier 2 of a running container. Raises ContainerNotFoundError."""


class SegmentStore:
    """Routes the verbs of segments and tables by name. Owns nothing; the containers are the registry's."""

    def __init__(self, *, registry: ContainerRegistry) -> None:
        self._registry = registry

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return self._container(name).open_segment(name)

    def wait_for_recovery(self, name: str) -> Awaitable[None] | None:
        """To be awaited while its container recovers here, or is about to; None if it neither does nor is.

        Raises InvalidRequestError for a bad name.
        """
        container_id = self._container_id(name)
        if not self._registry.is_to_come(container_id):
            return None
        return self._registry.wait_while_starting(container_id)

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        return await self._container(name).create(name, attributes)

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self._container(name).update_attributes(name, updates)

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._container(name).attributes(name, keys)

    async def seal(self, name: str) -> int:
        return await self._container(name).seal(name)

    async def truncate(self, name: str, offset: int) -> None:
        await self._container(name).truncate(name, offset)

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        if not self._local(target, [source]):
            raise self._foreign(target, source)
        return await self._container(target).merge(
            target, source, attribute_updates=attribute_updates, seal_source=seal_source
        )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        local = self._local(target, sources)
        lengths = await self._container(target).merge_all(target, local, seal_sources=seal_sources)
        if len(local) < len(sources):
            raise self._foreign(target, sources[len(local)])
        return lengths

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        await self._container(target).forget_merged(target, sources)

    async def delete(self, name: str) -> None:
        await self._container(name).delete(name)

    async def info(self, name: str) -> SegmentProperties:
        return await self._container(name).info(name)

    async def flush(self, name: str | None = None) -> None:
        """Of one segment's container, or of all containers side by side."""
        if name is not None:
            await self._container(name).flush(name)
            return
        await gather_all(container.flush() for container in self._registry.all_running())

    async def flush_containers(self, containers: Collection[ContainerId]) -> None:
        """Of these, side by side. Raises ContainerNotFoundError if one of them does not run here."""
        running = [self._registry.get(container_id) for container_id in containers]
        await gather_all(container.flush() for container in running)

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        """Segments of all containers in name order (by code point), at most `limit` of them."""
        count = self._registry.container_count
        if limit == 1 and start_after < prefix:
            # How long is this segment? One container knows, and a name sorts before all that it is the beginning of.
            home = container_of(prefix, count)
            first = await self.list_segments_of([home], prefix, start_after, limit)
            if first and first[0].name == prefix:
                return first
        everything = [ContainerId(number) for number in range(count)]
        return await self.list_segments_of(everything, prefix, start_after, limit)

    async def list_segments_of(
        self,
        containers: Collection[ContainerId],
        prefix: str = "",
        start_after: str = "",
        limit: int = 1000,
    ) -> Sequence[SegmentProperties]:
        """As list_segments(), of these. Raises ContainerNotFoundError if one of them does not run here."""
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidRequestError(
                f"a listing has 1 to {LIST_LIMIT_MAX} segments a page limit={limit}"
            )
        running = [self._registry.get(container_id) for container_id in containers]
        pages = [await container.list_segments(prefix, start_after, limit) for container in running]
        return list(islice(merge_sorted(*pages, key=lambda segment: segment.name), limit))

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._container(name).open_table(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self._container(name).create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await self._container(name).delete_table(name, must_be_empty=must_be_empty)

    def _local(self, target: str, sources: Sequence[str]) -> Sequence[str]:
        """The first sources up to one that lives in another container than the target. Raises InvalidRequestError."""
        for name in (target, *sources):
            check_segment_name(name)
        count = self._registry.container_count
        home, target_container = primary_name(target), container_of(target, count)
        return list(
            takewhile(
                # Nearly always the same name: hashing it again takes longer than all the rest.
                lambda source: (
                    primary_name(source) == home or container_of(source, count) == target_container
                ),
                sources,
            )
        )

    def _foreign(self, target: str, source: str) -> MergeRefusedError:
        count = self._registry.container_count
        return MergeRefusedError(
            "the two segments live in different containers, so they cannot be merged as one step; a source named "
            f"'{target}#transaction.<32 hex digits>' lives with its target "
            f"target_container={container_of(target, count)} source_container={container_of(source, count)}"
        )

    def _container(self, name: str) -> SegmentContainer:
        return self._registry.get(self._container_id(name))

    def _container_id(self, name: str) -> ContainerId:
        check_segment_name(name)
        return container_of(name, self._registry.container_count)


class StoreReads:
    """Routes reads by name: to the container, or to what Tier 2 has of one that stays down. For readers alone."""

    def __init__(self, *, registry: ContainerRegistry) -> None:
        self._registry = registry

    def open_segment(self, name: str) -> AbstractAsyncContextManager[ReadOnlySegment]:
        return self._reads(name).open_segment(name)

    async def info(self, name: str) -> SegmentProperties:
        return await self._reads(name).info(name)

    def _reads(self, name: str) -> SegmentReads:
        check_segment_name(name)
        return self._registry.reads_of(container_of(name, self._registry.container_count))


class SegmentLayout:
    """Asks the Tier 2 of the container that owns a segment."""

    def __init__(
        self, *, segments: SegmentApi, storage_of: StorageSource, container_count: int
    ) -> None:
        self._segments = segments
        self._storage_of = storage_of
        self._container_count = container_count

    async def list_chunks(self, name: str) -> Sequence[StorageChunk]:
        """Every chunk of what is published of the segment, in order. Raises SegmentNotFoundError, StorageError."""
        await self._segments.info(name)
        storage = self._storage(name)
        record = await storage.find(name)
        if record is None or record.start_offset == record.length:
            return []
        chunks = storage.list_chunks(record.segment_id, record.start_offset, record.length)
        async with aclosing(chunks) as listed:
            return [
                StorageChunk(
                    metadata_length=chunk.end_offset - chunk.start_offset,
                    storage_length=chunk.size,
                    start_offset=chunk.start_offset,
                    name=f"{chunk.object_key}@{chunk.position}",
                    exists=True,
                )
                async for chunk in listed
            ]

    async def event_near(self, name: str, offset: int) -> int | None:
        """An offset at which an event begins: the first at or above `offset`, or one below it, with nothing but whole
        events between the two. None if Tier 2 cannot say.

        Raises CorruptedDataError, StorageError.
        """
        storage = self._storage(name)
        record = await storage.find(name)
        if record is None or record.start_offset == record.length:
            return None
        try:
            return await _event_in_blocks(storage, record, offset)
        except (SegmentNotFoundError, SegmentTruncatedError):
            # Removed or truncated since it was found.
            return None

    def _storage(self, name: str) -> Storage:
        return self._storage_of(container_of(name, self._container_count))


async def _event_in_blocks(storage: Storage, record: SegmentRecord, offset: int) -> int | None:
    block: StoredBlock | None = None
    begin = max(record.start_offset, min(offset, record.length - 1))
    async with aclosing(storage.list_blocks(record.segment_id, begin, record.length)) as blocks:
        async for block in blocks:
            if not block.events_known:
                return None
            if offset < record.length and block.first_event_offset is not None:
                return block.first_event_offset
    # Publications end where appends end, and these are whole events.
    return record.length if block is not None else None
