"""What one task reads: a range of offsets of one partition. Plain values that travel by pickle.

    filters -> bounds; partitions, starts, ends -> stretches -> `split_stretches` -> TopicRange

Invariants:

- Offsets are the contract: whether they lie in a file or in batches is looked up when they are read.
- Ranges of one plan do not overlap, and leave out only what a filter excludes.
- What was asked for and is not there is a DataLossError, or left out with a warning.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, InputPartition

from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.scan_planner import NO_BOUNDS, PushedBounds, bounds_of
from segmentstore.spark.topics.topic_source import TopicPartition, TopicSource

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Offsets [start, end) of a partition."""

    topic: str
    index: int
    segment_name: str
    start: int
    end: int
    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None
    """Records outside of these bounds (inclusive) need not be read."""
    size_bytes: int = 0
    """About so much lies there, as far as Tier 2 says."""

    @property
    def name(self) -> str:
        """For messages."""
        return partition_name(self.topic, self.index)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is read of one partition: [start, end)."""

    partition: TopicPartition
    start: int
    end: int


def partition_name(topic: str, index: int) -> str:
    """A partition in messages."""
    return f"topic {topic} partition {index}"


def topic_bounds_of(filters: Iterable[Filter]) -> PushedBounds:
    """What all of the filters together allow to leave out; the partition stands where streams have the segment id."""
    return bounds_of(_of_streams(each) for each in filters)


def _of_streams(each: Filter) -> Filter:
    if isinstance(each, EqualTo | EqualNullSafe | In) and each.attribute == ("partition",):
        return replace(each, attribute=("segment_id",))
    return each


def stretches_between(
    partitions: Sequence[TopicPartition],
    *,
    starts: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    fail_on_data_loss: bool,
) -> list[Stretch]:
    """What there is of each partition between two positions, empty ones left out. Raises DataLossError."""
    stretches: list[Stretch] = []
    for each in partitions:
        start, end = starts[each.key], ends[each.key]
        # A start behind the end is loss as well: what comes there next would count as read.
        is_lost = start > each.end or (start < end and not each.start <= start <= end <= each.end)
        if is_lost:
            loss = DataLossError(
                partition_name(*each.key), start=start, end=end, head=each.start, tail=each.end
            )
            if fail_on_data_loss:
                raise loss
            _LOG.warning("going on without what is lost: %s", loss)
        start, end = max(start, each.start), min(end, each.end)
        if start < end:
            stretches.append(Stretch(each, start, end))
    return stretches


async def split_stretches(
    source: TopicSource,
    stretches: Sequence[Stretch],
    *,
    bounds: PushedBounds = NO_BOUNDS,
    bytes_max: int,
    count_min: int,
) -> list[TopicRange]:
    """Cut where files and marks meet, into ranges of about `bytes_max`; then by offsets until there are `count_min`.

    What the service alone has is cut by offsets alone. Raises StorageError.
    """
    ranges: list[TopicRange] = []
    for each in _within(stretches, bounds):
        ranges += [
            TopicRange(
                each.partition.topic,
                each.partition.index,
                each.partition.segment_name,
                piece.start,
                piece.end,
                bounds.lowest_time_ms,
                bounds.highest_time_ms,
                piece.size_bytes,
            )
            for piece in await _pieces(source, each, bytes_max)
        ]
    return _at_least(ranges, count_min)


def _within(stretches: Sequence[Stretch], bounds: PushedBounds) -> list[Stretch]:
    found: list[Stretch] = []
    for each in stretches:
        if bounds.segment_ids is not None and each.partition.index not in bounds.segment_ids:
            continue
        start, end = each.start, each.end
        if bounds.lowest_offset is not None:
            start = max(start, bounds.lowest_offset)
        if bounds.highest_offset is not None:
            end = min(end, bounds.highest_offset + 1)
        if start < end:
            found.append(Stretch(each.partition, start, end))
    return found


@dataclass(slots=True)
class _Piece:
    """A part of a stretch."""

    start: int
    end: int
    size_bytes: int = 0


async def _pieces(source: TopicSource, stretch: Stretch, bytes_max: int) -> list[_Piece]:
    """The parts of a stretch, about so many bytes in each, as far as Tier 2 says."""
    pieces = [_Piece(stretch.start, stretch.end)]
    for offset, size in await _places(source, stretch):
        last = pieces[-1]
        if offset > last.start and last.size_bytes and last.size_bytes + size > bytes_max:
            last.end = offset
            last = _Piece(offset, stretch.end)
            pieces.append(last)
        last.size_bytes += size
    return pieces


async def _places(source: TopicSource, stretch: Stretch) -> list[tuple[int, int]]:
    """Offsets at which reading may begin at once, and the bytes from each to the next, in order."""
    published = source.published(stretch.partition)
    facts = None if published is None else await published.look()
    if published is None or facts is None:
        return []
    places: list[tuple[int, int]] = []
    if stretch.start < facts.cold_end:
        files = published.files(facts, lambda file: file.end_offset > stretch.start)
        async with aclosing(files) as found:
            async for file in found:
                if file.first_offset >= stretch.end:
                    break
                places.append((file.first_offset, file.size))
    if stretch.end > facts.cold_end:
        hot = [(max(facts.cold_end, facts.log_start), facts.start_position)]
        hot += [
            (each.place.offset, each.place.position)
            for each in await published.marks(facts)
            # The newest mark stays also where it lies below the begin of what is there.
            if each.place.position > facts.start_position
        ]
        hot.append((facts.end, facts.end_position))
        for (offset, position), (behind, end) in pairwise(hot):
            if offset < stretch.end and behind > stretch.start and end > position:
                places.append((offset, end - position))
    return places


def _at_least(ranges: Sequence[TopicRange], count: int) -> list[TopicRange]:
    """The longest are cut most, as Spark's Kafka source does."""
    total = sum(each.end - each.start for each in ranges)
    if not 0 < len(ranges) < count:
        return list(ranges)
    found: list[TopicRange] = []
    for each in ranges:
        length = each.end - each.start
        parts = min(length, -(-length * count // total))
        edges = [each.start + length * part // parts for part in range(parts + 1)]
        found += [replace(each, start=start, end=end) for start, end in pairwise(edges)]
    return found
