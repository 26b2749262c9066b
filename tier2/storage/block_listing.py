"""Which blocks hold a range of a segment, and what is known of the events in them (H76).

This is what somebody needs who reads a segment's objects in parallel: where a block lies, whether it begins on an
event, where its first event starts, and which one that is.

- Only indexes are read, never blocks.
- Numbers and offsets are the segment's, whatever segment the bytes were written to.
- What a layout entry says of its first event decides over the image: a merge knows more than the source did.
"""

from collections.abc import AsyncGenerator

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import StoredBlock
from tier2.format.chunk_index import BlockEntry
from tier2.storage.block_events import block_events
from tier2.storage.components import Components
from tier2.storage.object_names import ObjectKind
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.run_values import LayoutEntry
from tier2.storage.run_view import RunView
from tier2.storage.view_source import with_view


async def list_blocks(
    segments: PublishedSegments,
    components: Components,
    *,
    segment_id: SegmentId,
    start: int,
    end: int,
) -> AsyncGenerator[StoredBlock, None]:
    """Blocks from the one that holds `start` to the one that holds `end - 1`. O(log n + listed)."""
    offset = start

    async def read(view: RunView) -> list[StoredBlock]:
        entry = await segments.published_entry(view, segment_id, offset, end)
        index = await components.chunk_reads.index(entry)
        key = components.names.key(ObjectKind.CHUNKS, entry.identity)
        blocks = [_stored_block(entry, block, key) for block in index.entries]
        return [block for block in blocks if block.offset + block.length > offset]

    while offset < end:
        for block in await with_view(segments.source, read):
            if block.offset >= end:
                return
            offset = block.offset + block.length
            yield block


def _stored_block(entry: LayoutEntry, block: BlockEntry, object_key: str) -> StoredBlock:
    offset = block.first_offset - entry.chunk_offset + entry.start_offset
    events = block_events(entry, block)
    first_event_offset = None
    number = lowest = highest = 0
    if events is not None:
        lowest, highest = events.lowest_time_ms, events.highest_time_ms
        if events.first_event_position is not None:
            first_event_offset = offset + events.first_event_position
            number = events.first_event_number
    return StoredBlock(
        offset=offset,
        length=block.uncompressed_length,
        first_event_offset=first_event_offset,
        event_number=number,
        events_known=events is not None,
        lowest_time_ms=lowest,
        highest_time_ms=highest,
        object_key=object_key,
        image_position=entry.position,
        position=entry.position + block.position,
        stored_length=block.stored_length,
        compression=int(block.compression),
    )
