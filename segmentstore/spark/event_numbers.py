"""The number of an event where the index does not say it, counted back from the next place that does.

An append of many events that was truncated in its middle before it was flushed comes to Tier 2 as bytes of which nobody
says where events lie. What follows it knows its number, or else the segment knows how many events it ever had.

Invariant: None where nobody counted, never a guess.
"""

from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace

from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.block_range import SegmentRange
from segmentstore.spark.block_reading import SegmentBlocks
from segmentstore.spark.event_batches import Block, EventBatches
from segmentstore.spark.tier2_view import Tier2View
from tier2.storage.reader import ContainerReader


def begun_at(block: Block, offset: int, number: int | None) -> Block:
    """A block of which nobody said where events lie, now that one is known to begin at `offset`."""
    return replace(
        block, facts=replace(block.facts, first_event_offset=offset, event_number=number)
    )


async def number_at_head(
    view: Tier2View,
    container: ContainerReader,
    record: SegmentRecord,
    *,
    part: SegmentRange,
    executor: Executor | None,
) -> int | None:
    """The number of the first event of a segment whose first block does not know it.

    O(bytes up to the next block that knows one). Raises CorruptedDataError, StorageError.
    """
    head = record.start_offset
    if head == 0:
        return 0
    count = record.core_attributes.get(EVENT_COUNT)
    if not isinstance(count, int) or count <= 0:
        return None
    end, number = record.length, count
    async with aclosing(container.list_blocks(record.segment_id, head, record.length)) as found:
        async for block in found:
            if block.first_event_offset is not None and block.first_event_offset >= head:
                end, number = block.first_event_offset, block.event_number
                break
    before = await _events_between(
        view, container, record, replace(part, start=head, end=end), executor
    )
    return number - before if before <= number else None


async def _events_between(
    view: Tier2View,
    container: ContainerReader,
    record: SegmentRecord,
    part: SegmentRange,
    executor: Executor | None,
) -> int:
    if part.start >= part.end:
        return 0
    blocks = SegmentBlocks(
        view=view, container=container, segment_id=record.segment_id, executor=executor
    )
    batches = EventBatches(replace(part, content="raw"), ("offset",))
    count = 0
    begun = False
    async with aclosing(blocks.read(part.start, part.end, part.end)) as groups:
        async for group in groups:
            some = group if begun else [begun_at(group[0], part.start, None), *group[1:]]
            begun = True
            count += sum(batch.num_rows for batch in batches.add(some))
            if batches.is_done:
                break
    return count
