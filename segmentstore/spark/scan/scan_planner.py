"""Plans what a query reads: bounds out of Spark's filters, and the ranges that its tasks read.

    filters -> `bounds_of` -> PushedBounds of segment ids, offsets and times
    streams, options -> `plan_scan` -> PlannedRange: what there is of each segment -> `split_ranges` -> SegmentRange

A batch comes by `plan_scan`. Micro-batches (streaming/stream_reader.py) and exports bring ranges of their own to
`split_ranges`.

Bounds of segment ids and offsets are applied here. Bounds of times travel in the ranges: blocks outside of them are
left out where blocks are looked up (block_reader.py; for the Java reader jvm/block_locations.py).

Invariants:

- A bound never leaves out a row that the filters would let through; everything is filtered again by Spark, so a bound
  that lets too much through is only slower.
- Bounds on offsets hold for events alone: a row of bytes is a whole block, wherever it begins.
- A range that a bound or a user begins inside of an event remembers where one is known to begin before it.
- Filters on other columns, of other kinds or with other types of values say nothing here.
- Nothing is listed and no block is read: a segment is cut where its chunks meet, by its layout alone. Only a chunk
  that is longer than a range may be is cut inside, where its index says that an event begins.
- A segment of which it is not recorded where events begin stays whole: a task that began in its middle would have to
  guess.
- The ranges hold what was asked for, each byte once. What is not there is a DataLossError, or left out with a warning.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from segmentstore.codec.stream_names import creation_epoch_of
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.options import Content, SourceOptions
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import BlockRange, SegmentRange
from segmentstore.spark.streams.offsets import is_ahead_of, named_in
from segmentstore.spark.streams.segment_graph import (
    SegmentGraph,
    StreamMetadata,
    StreamSegmentMetadata,
)
from segmentstore.spark.streams.stream_source import StreamSource, position_of
from segmentstore.spark.tier2_access import OPEN_ATTEMPTS, OPEN_PAUSE_SECONDS, Tier2Reader
from tier2.outside_access import ContainerReader

_LOG = logging.getLogger(__name__)
_BLOCKS_JUDGED_MAX: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TRUNCATIONS_MAX: Final = 3
"""Times that retention may overtake the look for a time."""
_RANGE_BYTES_MIN: Final = 64 << 10
"""No range is made shorter on purpose."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What is read of one segment: [start, end)."""

    segment: StreamSegmentMetadata
    start: int
    end: int
    walk_from: int | None = None
    """An event begins there, at or before `start`; None: at `start` itself."""

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def walk_start(self) -> int:
        """Where an event is known to begin, at or before `start`."""
        return self.start if self.walk_from is None else self.walk_from


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedBounds:
    """Inclusive bounds; None where there is none."""

    segment_ids: frozenset[int] | None = None
    lowest_offset: int | None = None
    highest_offset: int | None = None
    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None

    def apply(self, stretch: "PlannedRange", *, content: Content) -> "PlannedRange | None":
        """The part of a stretch that may hold rows; None if none does."""
        if self.segment_ids is not None and stretch.segment.segment_id not in self.segment_ids:
            return None
        if content is Content.BYTES:
            return stretch
        start, end = stretch.start, stretch.end
        if self.lowest_offset is not None:
            start = max(start, self.lowest_offset)
        if self.highest_offset is not None:
            end = min(end, self.highest_offset + 1)
        if start >= end:
            return None
        return replace(stretch, start=start, end=end, walk_from=stretch.walk_start)

    def narrowed(self, each: Filter) -> "PushedBounds":
        """These bounds and those of one more filter."""
        match each:
            case EqualNullSafe(value=None):
                # Rows without a value are asked for; no bound speaks of them.
                return self
            case (
                EqualTo(attribute=(column,), value=value)
                | EqualNullSafe(attribute=(column,), value=value)
            ):
                return self._between(column, value, value, {value})
            case In(attribute=(column,), value=values):
                # No row is equal to null.
                some = [value for value in values if value is not None]
                if not some:
                    return self
                return self._between(column, min(some), max(some), set(some))
            case (
                GreaterThan(attribute=(column,), value=value)
                | GreaterThanOrEqual(attribute=(column,), value=value)
            ):
                return self._between(column, value, None, None)
            case (
                LessThan(attribute=(column,), value=value)
                | LessThanOrEqual(attribute=(column,), value=value)
            ):
                return self._between(column, None, value, None)
            case _:
                return self

    def _between(
        self, column: str, lowest: object, highest: object, values: set[object] | None
    ) -> "PushedBounds":
        if column == "timestamp":
            low, high = _bound_ms(lowest), _bound_ms(highest)
            return replace(
                self,
                lowest_time_ms=_higher_bound(self.lowest_time_ms, low),
                # A part of a millisecond is cut off, so the bound lies one further.
                highest_time_ms=_lower_bound(
                    self.highest_time_ms, None if high is None else high + 1
                ),
            )
        low, high = _bound_number(lowest), _bound_number(highest)
        if column == "offset":
            return replace(
                self,
                lowest_offset=_higher_bound(self.lowest_offset, low),
                highest_offset=_lower_bound(self.highest_offset, high),
            )
        if column == "segment_id" and values is not None:
            ids = frozenset(value for value in values if isinstance(value, int))
            known = self.segment_ids
            return replace(self, segment_ids=ids if known is None else ids & known)
        return self


NO_BOUNDS: Final = PushedBounds()


def bounds_of(filters: Iterable[Filter]) -> PushedBounds:
    """What all of the filters together allow to leave out."""
    bounds = NO_BOUNDS
    for each in filters:
        bounds = bounds.narrowed(each)
    return bounds


def _bound_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bound_ms(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        # Spark hands over local time of the Python process.
        value = value.astimezone(UTC)
    # By whole numbers: a product of floats lies beside the millisecond, and cutting it off goes up before 1970.
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _higher_bound(known: int | None, bound: int | None) -> int | None:
    return bound if known is None else known if bound is None else max(known, bound)


def _lower_bound(known: int | None, bound: int | None) -> int | None:
    return bound if known is None else known if bound is None else min(known, bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFactory:
    """What the ranges of one stream have in common."""

    scope: str
    stream: str
    content: Content
    bounds: PushedBounds = field(default=NO_BOUNDS)

    def published(self, whole: PlannedRange, start: int, end: int) -> BlockRange:
        """A part of a range that Tier 2 holds."""
        segment = whole.segment
        # Records bring times of their own, which say nothing of when they were appended.
        timed = self.content is not Content.RECORD
        return BlockRange(
            scope=self.scope or None,
            stream=self.stream or None,
            segment_id=segment.segment_id if self.scope else None,
            own_id=None if self.scope else segment.segment_id,
            segment_name=segment.name,
            container_id=segment.container_id,
            start=start,
            end=end,
            content=self.content.value,
            walk_from=whole.walk_from if start == whole.start else None,
            lowest_time_ms=self.bounds.lowest_time_ms if timed else None,
            highest_time_ms=self.bounds.highest_time_ms if timed else None,
        )

    def tail(self, whole: PlannedRange, start: int, end: int) -> SegmentRange:
        """A part of a range that the service alone has; `start` is where Tier 2 ends now."""
        segment = whole.segment
        return SegmentRange(
            scope=self.scope or None,
            stream=self.stream or None,
            segment_id=segment.segment_id if self.scope else None,
            own_id=None if self.scope else segment.segment_id,
            segment_name=segment.name,
            container_id=segment.container_id,
            start=start,
            end=end,
            content=self.content.value,
            # What Tier 2 holds may end inside of an event.
            walk_from=whole.walk_start,
        )


async def plan_scan(
    source: StreamSource, options: SourceOptions, bounds: PushedBounds
) -> list[SegmentRange]:
    """The ranges of a batch read. Raises DataLossError, StreamMissingError, StorageError, ClientError."""
    for _ in range(_TRUNCATIONS_MAX):
        try:
            return await _plan_once(source, options, bounds)
        except (SegmentNotFoundError, SegmentTruncatedError):
            # Retention took it away since it was looked at; the next look sees it as what it is, loss or none.
            continue
    return await _plan_once(source, options, bounds)


async def _plan_once(
    source: StreamSource, options: SourceOptions, bounds: PushedBounds
) -> list[SegmentRange]:
    work: list[tuple[RangeFactory, list[PlannedRange]]] = []
    for stream in await _seen_streams(source, options):
        await _check_named_segments(source, options, stream)
        stretches = planned_ranges(
            stream,
            starts=await source.starts(stream),
            ends=await source.ends(stream),
            fail_on_data_loss=options.fail_on_data_loss,
            starts_are_boundaries=not _names_offsets(options.starting_offsets),
        )
        maker = RangeFactory(
            scope=stream.scope,
            stream=stream.stream,
            content=source.content_of(stream),
            bounds=bounds,
        )
        parts = [bounds.apply(each, content=maker.content) for each in stretches]
        work.append((maker, [each for each in parts if each is not None]))
    total = sum(stretch.length for _, stretches in work for stretch in stretches)
    target_bytes = range_bytes(options, total)
    ranges: list[SegmentRange] = []
    for maker, stretches in work:
        ranges += await split_ranges(source.view, maker, stretches, target_bytes=target_bytes)
    return ranges


async def _seen_streams(source: StreamSource, options: SourceOptions) -> list[StreamMetadata]:
    """The streams, once this process sees as much of them as the options name.

    Without the service what was flushed to volumes a moment ago is seen up to a second late.
    """
    is_late = not options.uses_service and (
        _names_offsets(options.starting_offsets) or _names_offsets(options.ending_offsets)
    )
    for _ in range(OPEN_ATTEMPTS - 1 if is_late else 0):
        streams = await source.selected_streams()
        if all([await _is_all_seen(source, stream) for stream in streams]):
            return streams
        await asyncio.sleep(OPEN_PAUSE_SECONDS)
    return await source.selected_streams()


async def _is_all_seen(source: StreamSource, stream: StreamMetadata) -> bool:
    options = source.options
    for text in (options.starting_offsets, options.ending_offsets):
        if is_ahead_of(_named_offsets(text), stream):
            return False
    starts, ends = await source.starts(stream), await source.ends(stream)
    return all(
        max(starts[each.segment_id], ends[each.segment_id]) <= each.end_offset
        for each in stream.segments
    )


def _names_offsets(text: str) -> bool:
    return bool(text) and position_of(text) is not None


async def _check_named_segments(
    source: StreamSource, options: SourceOptions, stream: StreamMetadata
) -> None:
    """A position that names a segment which the stream does not have any more asks for what is lost, unless nothing of
    it is asked for: the other position names the same place in it, or a start the end of it."""
    starts = named_in(_named_offsets(options.starting_offsets), stream)
    ends = named_in(_named_offsets(options.ending_offsets), stream)
    gone = [each for each in sorted({*starts, *ends}) if each not in stream.by_id]
    drained = await _drained(source, stream, starts, [each for each in gone if each not in ends])
    for named, others in ((starts, ends), (ends, starts)):
        for segment_id in gone:
            offset = named.get(segment_id)
            if offset is None or segment_id in drained or others.get(segment_id) == offset:
                continue
            loss = DataLossError(
                f"{stream.name} segment_id={segment_id}",
                start=offset,
                end=offset,
                head=0,
                tail=0,
            )
            if options.fail_on_data_loss:
                raise loss
            _LOG.warning("going on without what is lost: %s", loss)


async def _drained(
    source: StreamSource, stream: StreamMetadata, starts: Mapping[int, int], gone: Sequence[int]
) -> frozenset[int]:
    """Which of the gone segments a start names at their end; none if something of what followed is not there."""
    if not gone:
        return frozenset()
    records = await source.ends_of_gone(stream.scope, stream.stream, gone)
    drained: set[int] = set()
    epochs: set[int] = set()
    for segment_id, record in zip(gone, records, strict=True):
        if record is not None and record.length == starts[segment_id]:
            drained.add(segment_id)
            epochs.add(record.replacing_epoch)
    for each in SegmentGraph.of(stream).first_behind_gone(starts):
        # One of another epoch does not follow directly: what was between came and went, and was never read.
        if creation_epoch_of(each) not in epochs or stream.by_id[each].start_offset > 0:
            return frozenset()
    return frozenset(drained)


def _named_offsets(text: str) -> Mapping[int, int]:
    position = position_of(text) if text else None
    return {} if position is None else position.offsets


def planned_ranges(
    stream: StreamMetadata,
    *,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    fail_on_data_loss: bool,
    starts_are_boundaries: bool = True,
) -> list[PlannedRange]:
    """What there is of each segment between two positions, in the order of the stream, empty ones left out.

    A start behind the tail is loss, too: what was read up to there is not there any more, and what is written next
    would count as read. Without `starts_are_boundaries` a start may lie inside of an event.
    Raises DataLossError for what is not there any more, or not yet, unless that is to be left out.
    """
    stretches: list[PlannedRange] = []
    for segment in stream.segments:
        start, end = starts[segment.segment_id], ends[segment.segment_id]
        is_behind_tail = start > segment.end_offset
        if start >= end and not is_behind_tail:
            continue
        if is_behind_tail or start < segment.start_offset or end > segment.end_offset:
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
            walk_from = start if starts_are_boundaries else segment.start_offset
            stretches.append(PlannedRange(segment, start, end, walk_from))
    return stretches


def range_bytes(options: SourceOptions, total_bytes: int) -> int:
    """How long a range should be for so many bytes in all."""
    shared = -(-total_bytes // options.min_partitions)
    return max(_RANGE_BYTES_MIN, min(options.max_bytes_per_partition, shared))


async def split_ranges(
    view: Tier2Reader | None,
    maker: RangeFactory,
    stretches: Sequence[PlannedRange],
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
                _range_ends(view, maker, segment, stretch.start, published_end, target_bytes)
            ) as cuts:
                start = stretch.start
                async for end in cuts:
                    ranges.append(maker.published(stretch, start, end))
                    start = end
        if published_end < stretch.end:
            ranges.append(maker.tail(stretch, published_end, stretch.end))
    return ranges


async def _range_ends(
    view: Tier2Reader,
    maker: RangeFactory,
    segment: StreamSegmentMetadata,
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
            cutter = _SegmentCutter(container, record, maker.content)
            cuts = cutter.cuts(start, min(end, record.length), target_bytes)
            # What is removed or truncated meanwhile stays whole as well.
            with suppress(SegmentNotFoundError, SegmentTruncatedError):
                async with aclosing(cuts):
                    async for cut in cuts:
                        yield cut
    yield end


class _SegmentCutter:
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
