"""Which neighbouring chunks of a segment become one, and the chunks that they become. Pure.

- Neighbours only, in offset order, and never more than `compaction_chunk_bytes` together.
- While a segment grows, a joined chunk is several times as long as its longest part, so that a byte is copied a few
  times in its life and not with every round. A cold segment is joined as far as that is worth a copy.
- What the indexes know of events is kept (H76): the blocks that are read become the runs that are encoded, each with
  what the segment, not the image, says of it; a chunk never mixes blocks of known and unknown structure.
"""

from collections.abc import Iterable, Sequence

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import decode_block
from tier2.format.chunk_format import Compression
from tier2.format.chunk_index import ChunkIndex, EventInformation
from tier2.storage.block_events import block_events
from tier2.storage.new_chunks import NewChunk
from tier2.storage.run_values import LayoutEntry
from tier2.storage.settings import StorageSettings

_COLD_CHUNKS_MIN = 2
_COLD_GROWTH_MIN = 1.5


def windows_to_join(
    entries: Sequence[LayoutEntry], settings: StorageSettings, *, cold: bool
) -> list[Sequence[LayoutEntry]]:
    """Stretches of neighbours, none of them twice. O(n * neighbours in a joined chunk)."""
    count_min = _COLD_CHUNKS_MIN if cold else settings.compaction_chunks_min
    growth_min = _COLD_GROWTH_MIN if cold else settings.compaction_growth_min
    windows: list[Sequence[LayoutEntry]] = []
    first = 0
    while first < len(entries):
        end, total, longest = first, 0, 0
        while (
            end < len(entries)
            and total + entries[end].length <= settings.compaction_chunk_bytes
            and (end == first or entries[end].start_offset == entries[end - 1].end_offset)
        ):
            total += entries[end].length
            longest = max(longest, entries[end].length)
            end += 1
        if end - first >= count_min and total >= growth_min * longest:
            windows.append(entries[first:end])
            first = end
        else:
            first += 1
    return windows


Block = tuple[BufferView, EventInformation | None]
"""The bytes of a block, and what its segment knows of their events."""


def decoded_blocks(entry: LayoutEntry, image: bytes, index: ChunkIndex) -> list[Block]:
    """The blocks of a verified image. O(bytes). Raises CorruptedDataError."""
    view = memoryview(image)
    return [
        (
            decode_block(
                block, view[block.position : block.end_position], source=str(entry.identity)
            ),
            block_events(entry, block),
        )
        for block in index.entries
    ]


def join_blocks(
    offset: int, blocks: Iterable[Block], *, chunk_bytes_max: int, compression: Compression
) -> list[NewChunk]:
    """Chunks of neighbouring blocks from `offset` on, each with the checksum of what was read. O(bytes)."""
    chunks: list[NewChunk] = []
    for content, events in blocks:
        chunk = chunks[-1] if chunks else None
        if (
            chunk is None
            or chunk.length + len(content) > chunk_bytes_max
            or (chunk.events[-1] is None) != (events is None)
        ):
            chunk = NewChunk(offset, compression=compression, crc32=0)
            chunks.append(chunk)
        chunk.runs.append(content)
        chunk.events.append(events)
        chunk.length += len(content)
        chunk.crc32 = crc32_of(content, chunk.crc32 or 0)
        offset += len(content)
    return chunks
