"""Rows of `chunks`: the blocks of a segment, taken together by the image that holds them.

Reads one index an image, and no data.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.metadata_tables.segments_table import stream_columns
from segmentstore.spark.metadata_tables.table_rows import Row, time_of
from tier2.format.chunk_format import BLOCK_CHECKSUM_BYTES, Compression
from tier2.storage.reader import ContainerReader


async def chunk_rows(
    container: ContainerReader, record: SegmentRecord
) -> AsyncGenerator[Row, None]:
    """The images of one segment, in order. Hold it in `aclosing`. Raises StorageError."""
    offset, latest = record.start_offset, record
    image: list[StoredBlock] = []
    while offset < latest.length:
        blocks = container.list_blocks(record.segment_id, offset, latest.length)
        try:
            async with aclosing(blocks):
                async for block in blocks:
                    if image and _image(image[-1]) != _image(block):
                        yield chunk_row(container.container_id, latest, image)
                        image = []
                    image.append(block)
                    offset = block.offset + block.length
        except SegmentTruncatedError:
            # Truncated since the record was read: what is left of the segment begins further on.
            await container.refresh()
            again = await container.find(record.name)
            if again is None:
                return
            latest, offset, image = again, max(offset, again.start_offset), []
    if image:
        yield chunk_row(container.container_id, latest, image)


def chunk_row(container_id: int, record: SegmentRecord, blocks: Sequence[StoredBlock]) -> Row:
    """One image by its blocks, in order."""
    first, last = blocks[0], blocks[-1]
    numbers = [each.event_number for each in blocks if each.first_event_offset is not None]
    known = [each for each in blocks if each.events_known and each.highest_time_ms]
    row: Row = {
        "segment": record.name,
        "container_id": container_id,
        "start_offset": max(first.offset, record.start_offset),
        "end_offset": min(last.offset + last.length, record.length),
        "object_key": first.object_key,
        "position": first.image_position,
        "stored_bytes": sum(each.stored_length + BLOCK_CHECKSUM_BYTES for each in blocks),
        "block_count": len(blocks),
        "compression": _compression(blocks),
        "events_known": all(each.events_known for each in blocks),
        "first_event_number": numbers[0] if numbers else None,
        "last_block_event_number": last.event_number
        if last.first_event_offset is not None
        else None,
        "lowest_time": time_of(min((each.lowest_time_ms for each in known), default=0)),
        "highest_time": time_of(max((each.highest_time_ms for each in known), default=0)),
    }
    columns = stream_columns(record.name)
    columns.pop("epoch", None)
    return row | columns


def _image(block: StoredBlock) -> tuple[str, int]:
    return block.object_key, block.image_position


def _compression(blocks: Sequence[StoredBlock]) -> str:
    names = {each.compression: Compression(each.compression).name.lower() for each in blocks}
    return "+".join(names[number] for number in sorted(names))
