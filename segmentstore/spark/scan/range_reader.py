"""Reads one range of a segment on an executor: from Tier 2 as far as that goes, the rest from the service.

Where the range lay when it was planned does not matter: a tail that was flushed meanwhile comes from Tier 2, and an
event that Tier 2 has only the beginning of is completed by the service, if it may be asked.

Where the index does not say the number of an event, it is counted back from the next block that does. This is for an
append of many events that was truncated in its middle before it was flushed: it comes to Tier 2 as bytes of which it is
not recorded where events lie. What follows it knows its number, or else the segment knows how many events it ever had.

Invariants:

- Parsing begins at the last offset at or before the start where an event is known to begin: by Tier 2, or else by the
  plan (`walk_start`). Where Tier 2 has bytes and knows of none, it begins at the head of the segment.
- What is not there any more is a DataLossError, or with fail_on_data_loss false a warning and the first event behind.
- An event of which the end is nowhere is no event yet: it is left out, and a later plan has it.
- The number of an event that was never counted is None, never a guess.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.options import Content, SourceOptions
from segmentstore.spark.python_worker import run_task
from segmentstore.spark.scan.arrow_batches import ByteBatchBuilder, EventBatchBuilder
from segmentstore.spark.scan.block_reader import Block, BlockInfo, BlockReader, event_start_before
from segmentstore.spark.scan.data_loss import DataLossError, pass_over
from segmentstore.spark.scan.partitions import BlockRange, SegmentRange
from segmentstore.spark.service_connection import connect_service
from segmentstore.spark.streams.stream_source import place_of
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Reader,
    open_tier2_reader,
)
from tier2.outside_access import ContainerReader

if TYPE_CHECKING:
    from segmentstore.client.byte_segment import ByteSegment

_TAIL_READ_BYTES: Final = 4 << 20
_REST_READ_BYTES: Final = 1 << 20
"""Asked for behind the range, where its last event ends."""


def read_range(part: SegmentRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one range. Raises DataLossError, StorageError, ClientError."""
    return run_task(lambda executor: read_range_batches(part, options, executor=executor))


async def read_range_batches(
    part: SegmentRange, options: SourceOptions, *, executor: Executor | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    """As read_range, inside a loop. Hold it in `aclosing`."""
    async with AsyncExitStack() as opened:
        view: Tier2Reader | None = None
        place = place_of(options)
        if place is not None:
            view = await opened.enter_async_context(open_tier2_reader(place, executor=executor))
        segment: ByteSegment | None = None
        if options.uses_service:
            store = await opened.enter_async_context(connect_service(options))
            segment = store.segment(part.segment_name)
        reading = RangeReader(part, options=options, view=view, served=segment, executor=executor)
        async with aclosing(reading.batches()) as batches:
            async for batch in batches:
                if batch.num_rows:
                    yield batch


class RangeReader:
    """One range, from what is open already."""

    def __init__(
        self,
        part: SegmentRange,
        *,
        options: SourceOptions,
        view: Tier2Reader | None,
        served: "ByteSegment | None",
        executor: Executor | None,
    ) -> None:
        self._part = part
        self._options = options
        self._view = view
        self._served = served
        self._executor = executor
        self._batches: EventBatchBuilder | ByteBatchBuilder
        if part.content == Content.BYTES:
            self._batches = ByteBatchBuilder(part, options.columns)
        else:
            self._batches = EventBatchBuilder(part, options.columns)
        self._offset = part.start
        """Where reading goes on: every byte of the range before it was looked at."""
        self._head = self._tail = 0
        """Of the segment as this reader saw it last; 0 before that."""

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows. Hold it in `aclosing`. Raises as read_range()."""
        if self._view is not None:
            async with aclosing(self._published_blocks(self._view)) as groups:
                async for blocks in groups:
                    self._offset = blocks[-1].end_offset
                    for batch in self._batches.add(blocks):
                        yield batch
                    if self._batches.is_done:
                        return
        if not self._batches.has_begun and self._offset == self._part.start:
            # Tier 2 has nothing of it: only the plan says where an event begins.
            self._offset = max(self._part.walk_start, self._head)
        is_read = self._offset >= self._part.end and not self._batches.has_rest
        if self._served is None or is_read:
            self._check_end()
            return
        async with aclosing(self._served_blocks(self._served)) as pieces:
            async for block in pieces:
                for batch in self._batches.add([block]):
                    yield batch
                if self._batches.is_done:
                    return
        self._check_end()

    def _check_end(self) -> None:
        """No source has more. An event without its end may be left, bytes that were planned may not be missing."""
        if self._offset < self._part.end:
            self._lose(head=self._head, tail=self._tail)

    async def _published_blocks(self, view: Tier2Reader) -> AsyncGenerator[Sequence[Block], None]:
        """From where an event begins; until the end of what is published, unless the caller stops before."""
        attempts = 0
        while True:
            begun_at = self._offset
            is_overtaken = False
            try:
                async with aclosing(self._visible_blocks(view)) as groups:
                    async for blocks in groups:
                        yield blocks
            except SegmentTruncatedError as error:
                # Truncated since the record was read. Tier 2 has what is behind, with its numbers and times.
                self._skip_to(error.start_offset)
                is_overtaken = True
            except SegmentNotFoundError:
                # Removed since the record was read, or since the plan, and another one has its name.
                self._lose(head=0, tail=0)
                self._offset = self._part.end
                # The rest of an event that is held is gone, too: another segment of the name does not have it.
                self._batches.skip_to(self._part.end)
            is_served_now = self._served is not None and not is_overtaken
            if is_served_now or self._offset >= self._part.end:
                return
            # Rounds that came further do not count: retention may overtake a slow task any number of times.
            attempts = 0 if self._offset > begun_at else attempts + 1
            if attempts == OPEN_ATTEMPTS:
                return
            # The plan saw more than this process does: volumes are seen up to a second late.
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            await view.refresh()

    async def _visible_blocks(self, view: Tier2Reader) -> AsyncGenerator[Sequence[Block], None]:
        part = self._part
        container = await view.container(view.container_id(part.segment_name))
        record = None if container is None else await container.find(part.segment_name)
        if record is not None and not part.is_of(record):
            record = None
        self._head, self._tail = (record.start_offset, record.length) if record else (0, 0)
        if container is None or record is None:
            return
        # Compared before anything else: where all of the range is gone nothing is left to be compared.
        if self._offset < record.start_offset:
            self._skip_to(record.start_offset)
        if record.length <= record.start_offset:
            return
        offset, known = self._offset, True
        if not self._batches.has_begun:
            last = min(self._offset, record.length - 1)
            offset, known = await event_start_before(container, record, last)
        if offset >= record.length:
            return
        blocks = BlockReader(
            view=view,
            container=container,
            segment_id=record.segment_id,
            executor=self._executor,
            carries_times_from=record.start_offset
            if part.content != Content.BYTES and "timestamp" in self._options.columns
            else None,
        )
        times = (part.lowest_time_ms, part.highest_time_ms) if isinstance(part, BlockRange) else ()
        async with aclosing(blocks.read(offset, record.length, part.end, *times)) as groups:
            async for group in groups:
                if not known:
                    number = await number_at_head(
                        view, container, record, part=part, executor=self._executor
                    )
                    group = [begun_at(group[0], offset, number), *group[1:]]
                    known = True
                yield group
        # What was left out because of its time was looked at as well.
        self._offset = max(self._offset, min(record.length, part.end))

    async def _served_blocks(self, segment: "ByteSegment") -> AsyncGenerator[Block, None]:
        """From where Tier 2 ended on."""
        part = self._part
        begins = not self._batches.has_begun
        while True:
            wanted = part.end - self._offset
            size = min(wanted if wanted > 0 else _REST_READ_BYTES, _TAIL_READ_BYTES)
            try:
                content = await self._read_served(segment, size)
            except SegmentTruncatedError as error:
                self._skip_to(error.start_offset)
                begins = True
                continue
            except SegmentNotFoundError:
                self._lose(head=0, tail=0)
                self._offset = part.end
                return
            if not content:
                return
            facts = BlockInfo(
                offset=self._offset,
                first_event_offset=self._offset if begins else None,
                event_number=0 if begins and not self._offset else None,
                lowest_time_ms=0,
            )
            self._offset += len(content)
            self._tail = max(self._tail, self._offset)
            begins = False
            yield Block(facts, content)

    async def _read_served(self, segment: "ByteSegment", size: int) -> bytes:
        """Some bytes; of bytes without events as many as there are, so that the same rows come out each time."""
        content = await segment.read(self._offset, size)
        if self._part.content != Content.BYTES:
            return content
        pieces, length = [content], len(content)
        while pieces[-1] and length < size:
            pieces.append(await segment.read(self._offset + length, size - length))
            length += len(pieces[-1])
        return b"".join(pieces)

    def _skip_to(self, head: int) -> None:
        """The segment begins there now. Nothing is lost if that is not behind what is still to be read."""
        if head > max(self._part.start, self._offset):
            self._lose(head=head, tail=max(head, self._tail))
        self._head = head
        self._offset = max(self._offset, head)
        self._batches.skip_to(head)

    def _lose(self, *, head: int, tail: int) -> None:
        part = self._part
        loss = DataLossError(
            part.segment_name, start=part.start, end=part.end, head=head, tail=tail
        )
        pass_over(loss, fail=self._options.fail_on_data_loss)


def begun_at(block: Block, offset: int, number: int | None) -> Block:
    """A block whose writer did not say where events lie, now that one is known to begin at `offset`."""
    return replace(
        block, facts=replace(block.facts, first_event_offset=offset, event_number=number)
    )


async def number_at_head(
    view: Tier2Reader,
    container: ContainerReader,
    record: SegmentRecord,
    *,
    part: SegmentRange,
    executor: Executor | None,
) -> int | None:
    """The number of the first event of a segment whose first block does not know it.

    O(bytes up to the next block that knows one). Raises SegmentTruncatedError, SegmentNotFoundError,
    CorruptedDataError, StorageError.
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
    before = await _count_events(
        view, container, record, replace(part, start=head, end=end), executor
    )
    return number - before if before <= number else None


async def _count_events(
    view: Tier2Reader,
    container: ContainerReader,
    record: SegmentRecord,
    part: SegmentRange,
    executor: Executor | None,
) -> int:
    if part.start >= part.end:
        return 0
    blocks = BlockReader(
        view=view, container=container, segment_id=record.segment_id, executor=executor
    )
    batches = EventBatchBuilder(replace(part, content="raw"), ("offset",))
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
