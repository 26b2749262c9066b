"""What can be read below one container's root, for its owner and for everybody else alike.

`ContainerReader` and `TieredStorage` differ in where their view of the root comes from, and in nothing that they read.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence

from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SegmentId
from segmentstore.contracts.storage import (
    AttributePage,
    SegmentRecord,
    StorageRead,
    StoredBlock,
)
from tier2.storage.block_listing import list_blocks
from tier2.storage.chunk_listing import StoredChunk, list_chunks
from tier2.storage.components import Components
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.run_view import RunView


class RootReading:
    """The reading half of a storage. Whoever derives from it says which view is the newest."""

    def __init__(self, *, components: Components) -> None:
        self._components = components
        settings = components.settings
        self._segments = PublishedSegments(
            source=self,
            chunk_reads=components.chunk_reads,
            record_cache_bytes=settings.record_cache_bytes,
            layout_cache_bytes=settings.chunk_index_cache_bytes // 2,
        )

    @property
    def view(self) -> RunView:
        """What readers look through now."""
        raise NotImplementedError

    async def refresh(self) -> RunView:
        """The view of the root as it is now."""
        raise NotImplementedError

    async def find(self, name: str) -> SegmentRecord | None:
        return await self._segments.find(name)

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]:
        return await self._segments.load(segment_ids)

    async def load_attributes(
        self, segment_id: SegmentId, keys: Sequence[AttributeKey] | None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._segments.load_attributes(segment_id, keys)

    async def scan_attributes(
        self, segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
    ) -> AttributePage:
        return await self._segments.scan_attributes(segment_id, start=start, end=end, count=count)

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        return await self._segments.read(segment_id, offset, length)

    def list_segments(self, prefix: str, start_after: str) -> AsyncGenerator[SegmentRecord, None]:
        return self._segments.list_segments(prefix, start_after)

    def list_blocks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredBlock, None]:
        """The blocks that hold published bytes of [start, end), in order, whole ones at both sides.

        Hold it in `aclosing`. Raises SegmentTruncatedError, CorruptedDataError, and ValueError for a segment that is
        not published or a range past its published length.
        """
        return list_blocks(
            self._segments, self._components, segment_id=segment_id, start=start, end=end
        )

    def list_chunks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredChunk, None]:
        """The chunks that hold published bytes of [start, end), in order; no chunk is looked at.

        Hold it in `aclosing`. Raises SegmentTruncatedError, CorruptedDataError, and ValueError for a segment that is
        not published or a range past its published length.
        """
        return list_chunks(
            self._segments, self._components, segment_id=segment_id, start=start, end=end
        )
