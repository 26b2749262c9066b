"""Cuts what a query reads into ranges for its tasks.

Invariants:

- Nothing is listed and no block is read: a segment is cut where its chunks meet, by its layout alone. Only a chunk
  that is longer than a range may be is cut inside, where its index says that an event begins.
- Where nobody said where events begin a segment stays whole: whoever began in the middle would have to guess.
- The ranges hold what was asked for, each byte once. What is not there is a DataLossError, or left out with a warning.
"""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.block_range import BlockRange, SegmentRange, TailRange
from segmentstore.spark.errors import DataLossError
from segmentstore.spark.options import Content, SourceOptions
from segmentstore.spark.pushed_bounds import NO_BOUNDS, PushedBounds
from segmentstore.spark.stream_map import MappedSegment, StreamMap
from segmentstore.spark.stream_source import StreamSource, position_of
from segmentstore.spark.tier2_view import Tier2View
from tier2.storage.reader import ContainerReader

_LOG = logging.getLogger(__name__)
_BLOCKS_JUDGED_MAX: Final = 64
_CUT_BYTES_MIN: Final = 64 << 10
"""No range is made shorter on purpose."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is read of one segment: [start, end)."""

    segment: MappedSegment
    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMaker:
    """What the ranges of one stream have in common."""

    scope: str
    stream: str
    content: Content
    bounds: PushedBounds = field(default=NO_BOUNDS)

    def published(self, segment: MappedSegment, start: int, end: int) -> BlockRange:
        """A range of what Tier 2 holds."""
        # Records bring times of their own, which say nothing of when they were appended.
        timed = self.content is not Content.RECORD
        return BlockRange(
            scope=self.scope or None,
            stream=self.stream or None,
            segment_id=segment.segment_id if self.scope else None,
            segment_name=segment.name,
            container_id=segment.container_id,
            start=start,
            end=end,
            content=self.content.value,
            lowest_time_ms=self.bounds.lowest_time_ms if timed else None,
            highest_time_ms=self.bounds.highest_time_ms if timed else None,
        )

    def tail(self, segment: MappedSegment, start: int, end: int) -> TailRange:
        """A range that the service alone has."""
        return TailRange(
            scope=self.scope or None,
            stream=self.stream or None,
            segment_id=segment.segment_id if self.scope else None,
            segment_name=segment.name,
            container_id=segment.container_id,
            start=start,
            end=end,
            content=self.content.value,
        )


async def plan_scan(
    source: StreamSource, options: SourceOptions, bounds: PushedBounds
) -> list[SegmentRange]:
    """The ranges of a batch read. Raises DataLossError, StreamMissingError, StorageError, ClientError."""
    work: list[tuple[RangeMaker, list[Stretch]]] = []
    for stream in await source.stream_maps():
        _check_named(options, stream)
        stretches = stretches_of(
            stream,
            starts=await source.starts(stream),
            ends=await source.ends(stream),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        maker = RangeMaker(
            scope=stream.scope,
            stream=stream.stream,
            content=source.content_of(stream),
            bounds=bounds,
        )
        work.append((maker, [each for each in map(bounds.apply, stretches) if each is not None]))
    total = sum(stretch.length for _, stretches in work for stretch in stretches)
    target_bytes = range_bytes(options, total)
    ranges: list[SegmentRange] = []
    for maker, stretches in work:
        ranges += await cut_stretches(source.view, maker, stretches, target_bytes=target_bytes)
    return ranges


def range_bytes(options: SourceOptions, total_bytes: int) -> int:
    """How long a range should be for so many bytes in all."""
    shared = -(-total_bytes // options.min_partitions)
    return max(_CUT_BYTES_MIN, min(options.max_bytes_per_partition, shared))


def stretches_of(
    stream: StreamMap,
    *,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    fail_on_data_loss: bool,
) -> list[Stretch]:
    """What there is of each segment between two positions, in the order of the stream, empty ones left out.

    Raises DataLossError for what is not there any more, or not yet, unless that is to be left out.
    """
    stretches: list[Stretch] = []
    for segment in stream.segments:
        start, end = starts[segment.segment_id], ends[segment.segment_id]
        if start >= end:
            continue
        if start < segment.start_offset or end > segment.end_offset:
            loss = DataLossError(
                segment.name,
                start=start,
                end=end,
                head=segment.start_offset,
                tail=segment.end_offset,
            )
            if fail_on_data_loss:
                raise loss
            _LOG.warning("going on without what is lost: %s", loss)
        start, end = max(start, segment.start_offset), min(end, segment.end_offset)
        if start < end:
            stretches.append(Stretch(segment, start, end))
    return stretches


async def cut_stretches(
    view: Tier2View | None,
    maker: RangeMaker,
    stretches: Sequence[Stretch],
    *,
    target_bytes: int,
) -> list[SegmentRange]:
    """Ranges of about so many bytes, in order. O(chunks). Raises StorageError."""
    ranges: list[SegmentRange] = []
    for stretch in stretches:
        segment = stretch.segment
        published_end = min(stretch.end, max(stretch.start, segment.published_end))
        if view is not None and stretch.start < published_end:
            async with aclosing(
                _cuts(view, maker, segment, stretch.start, published_end, target_bytes)
            ) as cuts:
                start = stretch.start
                async for end in cuts:
                    ranges.append(maker.published(segment, start, end))
                    start = end
        if published_end < stretch.end:
            ranges.append(maker.tail(segment, published_end, stretch.end))
    return ranges


async def _cuts(
    view: Tier2View,
    maker: RangeMaker,
    segment: MappedSegment,
    start: int,
    end: int,
    target_bytes: int,
) -> AsyncGenerator[int, None]:
    """Where ranges end: the last one at `end`."""
    if end - start > target_bytes:
        container = await view.container(segment.container_id)
        record = None if container is None else await container.find(segment.name)
        # The view may have moved on since the segment was looked up; then it stays whole, and its reader sees why.
        if container is not None and record is not None and record.start_offset <= start:
            cutter = _Cutter(container, record, maker.content)
            async with aclosing(cutter.cuts(start, min(end, record.length), target_bytes)) as cuts:
                async for cut in cuts:
                    yield cut
    yield end


class _Cutter:
    """One long segment."""

    def __init__(self, container: ContainerReader, record: SegmentRecord, content: Content) -> None:
        self._container = container
        self._record = record
        self._any_block = content is Content.BYTES

    async def cuts(self, start: int, end: int, target_bytes: int) -> AsyncGenerator[int, None]:
        """Offsets above `start` and below `end`, about so far apart."""
        if not await self._is_known(start, end):
            return
        last = start
        async with aclosing(
            self._container.list_chunks(self._record.segment_id, start, end)
        ) as chunks:
            async for chunk in chunks:
                chunk_end = min(chunk.end_offset, end)
                if chunk_end - last <= target_bytes:
                    continue
                chunk_start = max(chunk.start_offset, start)
                if last < chunk_start and chunk_end - chunk_start <= target_bytes:
                    yield chunk_start
                    last = chunk_start
                    continue
                async with aclosing(
                    self._inner_cuts(last, chunk_start, chunk_end, target_bytes)
                ) as cuts:
                    async for cut in cuts:
                        yield cut
                        last = cut

    async def _inner_cuts(
        self, last: int, start: int, end: int, target_bytes: int
    ) -> AsyncGenerator[int, None]:
        """Inside one long chunk [start, end), when the last cut was at or before its start."""
        place: int | None = None
        async with aclosing(
            self._container.list_blocks(self._record.segment_id, start, end)
        ) as blocks:
            async for block in blocks:
                if block.offset + block.length - last > target_bytes and place is not None:
                    yield place
                    last, place = place, None
                found = block.offset if self._any_block else block.first_event_offset
                if found is not None and last < found < end:
                    place = found

    async def _is_known(self, start: int, end: int) -> bool:
        """Whether the segment says where its events begin, judged by its first blocks: one event may have many."""
        if self._any_block:
            return True
        seen = 0
        async with aclosing(
            self._container.list_blocks(self._record.segment_id, start, end)
        ) as blocks:
            async for block in blocks:
                seen += 1
                if block.events_known or seen == _BLOCKS_JUDGED_MAX:
                    return block.events_known
        return False


def _check_named(options: SourceOptions, stream: StreamMap) -> None:
    """A position that names a segment which the stream does not have any more asks for what is lost."""
    for text in (options.starting_offsets, options.ending_offsets):
        position = position_of(text) if text else None
        if position is None:
            continue
        for segment_id in sorted(position.offsets):
            if segment_id in stream.by_id:
                continue
            loss = DataLossError(
                f"{stream.scope}/{stream.stream} segment_id={segment_id}",
                start=position.offsets[segment_id],
                end=position.offsets[segment_id],
                head=0,
                tail=0,
            )
            if options.fail_on_data_loss:
                raise loss
            _LOG.warning("going on without what is lost: %s", loss)
