"""One active segment in a caller's hands (`SegmentHandle`), and merges by name (`SegmentMerges`).

A handle is what contracts.segments.Segment says. What it tells that another owner of the container could contradict is
confirmed first (containers/ownership.py): refusals of changes where they complete, all else here.

A merge by name takes one source, or many into one target behind one another.

Invariants of merges:
- a source that is gone counts as merged only if the target remembers it;
- of many, the log has the first so many at any moment, in the order given: what is refused stops those behind it;
- many share the log's frames: what waits for the log is each slice of them, not each of them.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from containers.attributes.attribute_updates import (
    ATTRIBUTE_UPDATES_MAX,
    decode_merge,
    merged_source_key,
    merged_source_keys,
    validate_updates,
)
from containers.held_changes import HeldChanges
from containers.log.operation_processor import OperationProcessor
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import MergeOperation
from containers.segments.segment_mapper import SegmentMapper
from segmentstore.contracts.errors import (
    InvalidRequestError,
    NotATableError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import (
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
    BufferView,
    ContainerId,
    SegmentId,
)
from segmentstore.contracts.segments import (
    EVENT_HEADER_BYTES,
    AttributeUpdate,
    PublishingProgress,
    ReadResultEntry,
    SegmentProperties,
)

MERGED_TOGETHER_MAX = 256
"""Sources that are pinned together, and taken in within one turn of the loop."""


class SegmentHandle:
    """A segment that is pinned as long as a caller has this handle; the context manager that made it unpins."""

    __slots__ = ("_is_table", "_mapper", "_metadata", "_processor")

    def __init__(
        self,
        *,
        metadata: SegmentMetadata,
        processor: OperationProcessor,
        mapper: SegmentMapper,
    ) -> None:
        self._metadata = metadata
        self._processor = processor
        self._mapper = mapper
        # Fixed at creation, and kept here: an append should meet as few objects of its segment as it can.
        self._is_table = TABLE_KEY_LENGTH in metadata.attributes.core_values

    @property
    def name(self) -> str:
        return self._metadata.name

    @property
    def segment_id(self) -> SegmentId:
        return self._metadata.segment_id

    @property
    def metadata(self) -> SegmentMetadata:
        """For benchmarks and checks inside this package's tests."""
        return self._metadata

    def is_sure(self) -> bool:
        """See contracts.segments.ReadOnlySegment.is_sure."""
        return self._mapper.ownership.is_sure()

    async def confirm(self) -> None:
        """See contracts.segments.ReadOnlySegment.confirm."""
        await self._mapper.ownership.confirm()

    def info(self) -> SegmentProperties:
        """Raises SegmentNotFoundError if it was deleted or merged away meanwhile."""
        self._mapper.ownership.is_sure()
        if self._metadata.is_gone():
            raise SegmentNotFoundError(self._metadata.name)
        return properties_of(self._metadata, self._mapper.container_id)

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        """Also raises InvalidRequestError for updates that can never be accepted, and for events that cannot be."""
        if self._is_table:
            self.require_no_table()
        if attribute_updates:
            validate_updates(attribute_updates)
        if events is not None and not (0 < events * EVENT_HEADER_BYTES <= len(data)):
            raise InvalidRequestError(
                f"{len(data)} bytes cannot be {events} events of at least {EVENT_HEADER_BYTES} bytes each"
            )
        return self._processor.append(
            self._metadata,
            data,
            offset=offset,
            attribute_updates=attribute_updates,
            seal=seal,
            events=events,
        )

    def require_no_table(self) -> None:
        """Raises NotATableError: a segment verb would break the records or the index of a table."""
        if self._is_table:
            raise NotATableError(
                f"the segment is a table: change it by the verbs of tables name={self._metadata.name!r}"
            )

    def update_attributes(self, updates: Sequence[AttributeUpdate]) -> "Future[int]":
        self.require_no_table()
        validate_updates(updates)
        return self._processor.update_attributes(self._metadata, updates)

    def barrier(self) -> "Future[int]":
        return self._processor.barrier(self._metadata)

    def publishing(self) -> PublishingProgress:
        segment = self._metadata
        return PublishingProgress(
            segment.last_sequence_number,
            segment.published_sequence_number,
            self._mapper.storage_is_full(),
        )

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        table = self._metadata.attributes
        if not table.is_known(key):
            raise KeyError(key)
        return table.pending_value(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        values = await self._known_attributes(keys)
        await self._mapper.ownership.confirm()
        return values

    async def _known_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        values = await self._mapper.attribute_values(self._metadata, keys)
        return {key: value for key, value in values.items() if value is not None}

    def merge(
        self,
        source: "SegmentHandle",
        *,
        attribute_updates: Sequence[AttributeUpdate],
        seal_source: bool,
    ) -> "Future[int]":
        """See contracts.segments.SegmentApi.merge. Appends to the source that are still queued are not part of it."""
        return self._processor.merge(
            self._metadata,
            source._metadata,
            attribute_updates=attribute_updates,
            seal_source=seal_source,
        )

    def merge_first(
        self,
        sources: "Sequence[SegmentHandle]",
        merged: list[MergeOperation],
        *,
        seal_sources: bool,
    ) -> "Future[int]":
        """Merge the first source, and those behind it up to one that is refused; `merged` has them when it is done.

        Fails with why the first one is refused. Needs one source at least.
        """
        return self._processor.merge_first(
            self._metadata,
            [source._metadata for source in sources],
            merged,
            seal_sources=seal_sources,
        )

    async def merged_length(self, source_name: str) -> int | None:
        """This segment's length behind its merge of that source, None if it remembers none."""
        key = merged_source_key(source_name)
        value = (await self.load_attributes([key])).get(key)
        return None if value is None else decode_merge(value)[0]

    async def forget_merged(self, source_names: Sequence[str]) -> None:
        """See contracts.segments.SegmentApi.forget_merged."""
        keys = merged_source_keys(source_names)
        for first in range(0, len(keys), ATTRIBUTE_UPDATES_MAX):
            remembered = await self.load_attributes(keys[first : first + ATTRIBUTE_UPDATES_MAX])
            if remembered:
                forgotten = [AttributeUpdate(key, None) for key in remembered]
                self.require_no_table()
                # Not by the verb of users: they cannot touch what a segment remembers of merges.
                await asyncio.shield(self._processor.update_attributes(self._metadata, forgotten))
        self._mapper.forget_merged(source_names)

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        return b"".join(self.views_nowait(offset, length_max)) or None

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        if self._mapper.ownership.is_sure():
            return self._metadata.read_index.views_nowait(offset, length_max)
        try:
            return self._metadata.read_index.views_nowait(offset, length_max)
        except SegmentStoreError:
            return ()  # a refusal that is not confirmed: read() has to say it

    def readable(self, offset: int) -> "Future[None]":
        return self._metadata.read_index.readable(offset)

    def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        return self._metadata.read_index.read(
            offset, max_length, confirm=self._mapper.ownership.confirm
        )


def properties_of(metadata: SegmentMetadata, container_id: ContainerId) -> SegmentProperties:
    """Committed state as users see it."""
    return SegmentProperties(
        name=metadata.name,
        segment_id=metadata.segment_id,
        container_id=container_id,
        start_offset=metadata.start_offset,
        length=metadata.length,
        storage_length=min(metadata.storage_length, metadata.length),
        sealed=metadata.sealed,
        sealed_in_storage=metadata.sealed_in_storage,
        last_modified_ms=metadata.last_modified_ms,
        core_attributes=metadata.attributes.core(),
    )


class SegmentMerges:
    """The merging verbs of one container."""

    def __init__(
        self,
        *,
        open_segment: Callable[[str], AbstractAsyncContextManager[SegmentHandle]],
        held: HeldChanges,
    ) -> None:
        self._open_segment = open_segment
        self._held = held

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate],
        seal_source: bool,
    ) -> int:
        """See contracts.segments.SegmentApi.merge."""
        validate_updates(attribute_updates)
        async with self._open_segment(target) as into:
            into.require_no_table()
            try:
                async with self._open_segment(source) as handle:
                    handle.require_no_table()
                    await self._held.let_through()
                    merging = into.merge(
                        handle, attribute_updates=attribute_updates, seal_source=seal_source
                    )
                    self._held.watch(merging)
                    return await asyncio.shield(merging)
            except SegmentNotFoundError as error:
                return await _remembered_length(into, source, error)

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool
    ) -> list[int]:
        """See contracts.segments.SegmentApi.merge_all."""
        lengths: list[int] = []
        async with self._open_segment(target) as into:
            into.require_no_table()
            while len(lengths) < len(sources):
                some = sources[len(lengths) : len(lengths) + MERGED_TOGETHER_MAX]
                lengths += await self._merge_first(into, some, seal_sources=seal_sources)
        return lengths

    async def _merge_first(
        self, into: SegmentHandle, sources: Sequence[str], *, seal_sources: bool
    ) -> list[int]:
        """Merge the first source, and as many behind it as can be had with it. Raises why the first one is refused."""
        first = sources[0]
        try:
            async with AsyncExitStack() as opened:
                handles: list[SegmentHandle] = []
                for name in sources:
                    try:
                        handle = await opened.enter_async_context(self._open_segment(name))
                        handle.require_no_table()
                    except SegmentStoreError:
                        if not handles:
                            raise
                        # Refused when its turn has come: those before it are merged first.
                        break
                    handles.append(handle)
                await self._held.let_through()
                merged: list[MergeOperation] = []
                merging = into.merge_first(handles, merged, seal_sources=seal_sources)
                self._held.watch(merging)
                await asyncio.shield(merging)
                return [operation.result for operation in merged]
        except SegmentNotFoundError as error:
            return [await _remembered_length(into, first, error)]


async def _remembered_length(into: SegmentHandle, source: str, error: SegmentNotFoundError) -> int:
    """The target's length behind an earlier merge of the source. Raises the error if it remembers none."""
    if error.name != source:
        raise error
    length = await into.merged_length(source)
    if length is None:
        raise error
    return length
