"""Which chunks hold a range of a segment: from its layout alone, without a look at any chunk.

This is what somebody needs who cuts a long segment into work for many: some hundred chunks cost one read of a run.

- Offsets are the segment's; neighbours meet, so the chunks cover the range without a hole.
- The owner may publish meanwhile: every chunk is of the newest root when it is listed (H8).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.components import Components
from tier2.storage.object_names import ObjectKind
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.run_view import RunView
from tier2.storage.view_source import with_view


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk image of a segment."""

    start_offset: int
    end_offset: int
    """In the segment; exclusive."""
    object_key: str
    position: int
    """Of the image in the object."""
    size: int
    """Bytes of the image."""


async def list_chunks(
    segments: PublishedSegments,
    components: Components,
    *,
    segment_id: SegmentId,
    start: int,
    end: int,
) -> AsyncGenerator[StoredChunk, None]:
    """Chunks from the one that holds `start` to the one that holds `end - 1`. O(log n + listed)."""
    offset = start

    async def read(view: RunView) -> StoredChunk:
        entry = await segments.published_entry(view, segment_id, offset, end)
        return StoredChunk(
            start_offset=entry.start_offset,
            end_offset=entry.end_offset,
            object_key=components.names.key(ObjectKind.CHUNKS, entry.identity),
            position=entry.position,
            size=entry.size,
        )

    while offset < end:
        chunk = await with_view(segments.source, read)
        offset = chunk.end_offset
        yield chunk
