"""The streaming reader as Spark calls it, and the opened query behind it: what it reads, where it begins and ends.

Spark hands positions in and out, gets ranges for the tasks, and says what was committed. It keeps one reader for each
run of a query in a process beside the driver, and makes others from its pickle for the tasks. So what is open (a loop,
Tier 2, connections) is opened with the first call that needs it and never travels.

Where a query begins and ends, in words of the options:

| option | begins | ends |
|---|---|---|
| nothing | at the tail (as Kafka's source) | never |
| earliest, latest | at the head, at the tail as it is when the query is made | the same |
| a position | there; segments that it does not name from the head on | there; segments that it does not name never |
| a timestamp | with the first block that may hold an event of that time | with the last one |

Invariants:

- The position that Spark keeps in its checkpoint is all that a query remembers: after a restart `partitions` is called
  with two of them, before anything else, and gives the same events.
- A beginning or an end that is found by time or at the tail lies between two events.
- The end of a query is decided once, when its first batch is made; one that lies in the future, when its time has come:
  until then nothing that is there can be behind it.
- `commit` is advisory, and not called for the last batch of a query: nothing depends on it.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.spark.options import LATEST, Content, SourceOptions
from segmentstore.spark.python_worker import OpenSource
from segmentstore.spark.scan.data_loss import DataLossPolicy
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.scan.range_reader import read_range
from segmentstore.spark.scan.scan_planner import (
    PlannedRange,
    RangeFactory,
    range_bytes,
    split_ranges,
)
from segmentstore.spark.streaming.event_boundaries import Boundary, EventBoundaries
from segmentstore.spark.streaming.micro_batches import (
    BatchLimits,
    MicroBatchPlanner,
    SegmentBoundaries,
    TriggerSettings,
)
from segmentstore.spark.streams.offsets import (
    Position,
    StreamsOffset,
    decode_offset,
    encode_offset,
    named_in,
)
from segmentstore.spark.streams.segment_graph import (
    Cut,
    SegmentGraph,
    StreamMetadata,
    StreamSegmentMetadata,
)
from segmentstore.spark.streams.stream_source import StreamSource, open_stream_source, position_of
from tier2.outside_access import ContainerReader

if TYPE_CHECKING:
    from segmentstore.spark.streaming.progress_publisher import ProgressPublisher


class SegmentStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's reader. Its methods raise DataLossError, StreamMissingError, StorageError, ClientError."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises InvalidRequestError for options that a stream cannot have."""
        _check_stream_options(options)
        self._options = options
        self._query: _OpenQuery | None = None
        self._first: StreamsOffset | None = None
        self._last: StreamsOffset | None = None

    def __reduce__(self) -> "tuple[type[SegmentStoreStreamReader], tuple[SourceOptions]]":
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        # Asked for twice before the first batch; both answers have to be the same.
        if self._first is None:
            query = self._opened()
            self._first = query.runner.run(query.batches.first())
        return self._encode(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        query = self._opened()
        query.runner.run(query.batches.freeze())

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802  # Spark's name
        query = self._opened()
        is_limited = not isinstance(limit, ReadAllAvailable) or isinstance(
            self.getDefaultReadLimit(), ReadAllAvailable
        )
        end = query.runner.run(query.batches.next_end(self._decode(start), limited=is_limited))
        self._last = end
        return self._encode(end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  # Spark's name
        if self._query is None or self._last is None:
            return None
        return self._encode(self._query.batches.latest(self._last))

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        query = self._opened()
        return query.runner.run(query.ranges(self._decode(start), self._decode(end)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, SegmentRange):
            yield from read_range(partition, self._options)

    def commit(self, end: dict[str, object]) -> None:
        if self._options.checkpoint_group:
            query = self._opened()
            query.runner.run(query.publish(self._decode(end)))

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.close()

    def _opened(self) -> "_OpenQuery":
        if self._query is None:
            self._query = _OpenQuery(self._options)
        return self._query

    @property
    def _single(self) -> str | None:
        """The one stream or segment of the query; None for a whole scope."""
        options = self._options
        return options.segment or (options.stream_name if options.stream else None)

    def _encode(self, position: StreamsOffset) -> dict[str, object]:
        return encode_offset(position, single=self._single)

    def _decode(self, content: dict[str, object]) -> StreamsOffset:
        return decode_offset(content, single=self._single)


def _check_stream_options(options: SourceOptions) -> None:
    if options.metadata:
        raise InvalidRequestError(
            "a metadata table is read in a batch: spark.read, not spark.readStream"
        )
    if options.checkpoint_group and not (options.uses_service and options.scope):
        raise InvalidRequestError(
            "checkpointGroup tells the service how far a query of streams came: it needs controller and scope"
        )
    if options.content is Content.BYTES and options.max_rows_per_trigger is not None:
        raise InvalidRequestError(
            "maxRowsPerTrigger counts events; a segment of bytes has none: use maxBytesPerTrigger"
        )


class _OpenQuery:
    """What a reader holds open between Spark's calls."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._kept = OpenSource(self._enter)
        self._source = self._kept.source
        self.runner = self._kept.runner
        self.batches = MicroBatchPlanner(
            source=StreamingQuerySource(self._source, wall_clock=SystemWallClock()),
            limits=BatchLimits(
                bytes_max=options.max_bytes_per_trigger, rows_max=options.max_rows_per_trigger
            ),
            trigger=TriggerSettings(
                bytes_min=options.min_bytes_per_trigger,
                delay_seconds_max=options.max_trigger_delay_seconds,
            ),
            losses=DataLossPolicy(fail_on_data_loss=options.fail_on_data_loss),
        )

    async def ranges(self, start: StreamsOffset, end: StreamsOffset) -> list[SegmentRange]:
        """What the tasks of one batch read."""
        stretches = await self.batches.stretches(start, end)
        target_bytes = range_bytes(self._options, sum(each.end - each.start for each in stretches))
        ranges: list[SegmentRange] = []
        for each in stretches:
            maker = RangeFactory(
                scope=each.stream.scope,
                stream=each.stream.stream,
                content=self._source.content_of(each.stream),
            )
            ranges += await split_ranges(
                self._source.view,
                maker,
                [PlannedRange(each.segment, each.start, each.end)],
                target_bytes=target_bytes,
            )
        return ranges

    async def publish(self, position: StreamsOffset) -> None:
        """Tell the query's group what was committed. Never raises the store's errors."""
        if self._publisher is not None:
            await self._publisher.publish(position)

    def close(self) -> None:
        self._kept.close()

    async def _enter(self, opened: AsyncExitStack, executor: Executor) -> StreamSource:
        options = self._options
        self._publisher = _publisher_of(options) if options.checkpoint_group else None
        if self._publisher is not None:
            opened.push_async_callback(self._publisher.close)
        return await opened.enter_async_context(open_stream_source(options, executor=executor))


def _publisher_of(options: SourceOptions) -> "ProgressPublisher":
    # Only queries that ask the service need its client library.
    from segmentstore.spark.streaming.progress_publisher import ProgressPublisher

    return ProgressPublisher.at(options, scope=options.scope, group=options.checkpoint_group)


class StreamingQuerySource:
    """The streams of one query. Raises what StreamSource raises."""

    def __init__(self, source: StreamSource, *, wall_clock: WallClock) -> None:
        self._source = source
        self._wall_clock = wall_clock
        self._is_bytes: dict[str, bool] = {}

    async def maps(self) -> Mapping[str, StreamMetadata]:
        """Every stream as it is now, by `scope/stream`; a single segment by its own name."""
        maps = await self._source.selected_streams()
        for each in maps:
            is_bytes = self._source.content_of(each) is Content.BYTES
            self._is_bytes.update((segment.name, is_bytes) for segment in each.segments)
        segment = self._source.options.segment
        return {segment or f"{each.scope}/{each.stream}": each for each in maps}

    def boundaries(self, segment: StreamSegmentMetadata) -> SegmentBoundaries:
        if self._is_bytes.get(segment.name, False):
            return ByteBoundaries()
        return EventBoundaries(StoredSegment(self._source, segment))

    async def start_of(self, stream: StreamMetadata) -> Cut:
        options = self._source.options
        text = options.starting_offsets or LATEST
        if options.starting_timestamp_ms is None:
            position = position_of(text)
            if position is not None:
                named = _named_offsets(stream, position, position.starts_in(stream))
                named = {
                    each: await self._behind_event(stream, each, named[each]) for each in named
                }
                return SegmentGraph.of(stream).later_of(stream.head, named)
        starts = await self._source.starts(stream, default=LATEST)
        return await self._at_boundaries(stream, frontier_of(stream, starts))

    async def stop_of(self, stream: StreamMetadata) -> Cut | None:
        options = self._source.options
        if options.ending_timestamp_ms is None:
            if not options.ending_offsets:
                return None
            position = position_of(options.ending_offsets)
            if position is not None:
                return _named_offsets(stream, position, position.ends_in(stream))
        elif self._wall_clock.now_ms() < options.ending_timestamp_ms:
            return None
        return await self._at_boundaries(
            stream, frontier_of(stream, await self._source.ends(stream))
        )

    async def end_of_gone(self, stream: str, segment_id: int) -> SealedSegmentRecord | None:
        """From the records in Tier 2; nothing is known of a segment without a stream, or without Tier 2."""
        scope, _, name = stream.partition("/")
        return (await self._source.ends_of_gone(scope, name, [segment_id]))[0]

    async def _behind_event(self, stream: StreamMetadata, segment_id: int, offset: int) -> int:
        """The offset, or the end of the event that it lies inside of: a user may name any byte."""
        segment = stream.by_id.get(segment_id)
        if segment is None or not segment.start_offset < offset < segment.end_offset:
            return offset
        boundaries = self.boundaries(segment)
        head = Boundary(segment.start_offset, None)
        begun = await boundaries.at_most(head, target=offset, end=offset)
        if begun.offset == offset:
            return offset
        end = Boundary(segment.end_offset, None)
        return (await boundaries.after_events(begun, count=1, end=end)).offset

    async def _at_boundaries(self, stream: StreamMetadata, cut: Cut) -> dict[int, int]:
        found: dict[int, int] = {}
        for segment_id, offset in cut.items():
            segment = stream.by_id[segment_id]
            start = Boundary(segment.start_offset, None)
            if offset > start.offset:
                boundaries = self.boundaries(segment)
                start = await boundaries.at_most(start, target=offset, end=offset)
            found[segment_id] = start.offset
        return found


def _named_offsets(
    stream: StreamMetadata, position: Position, resolved: Mapping[int, int]
) -> dict[int, int]:
    """What a position names, its words for "earliest" and "latest" resolved; segments that are gone as they are."""
    named = named_in(position.offsets, stream)
    return {each: resolved.get(each, offset) for each, offset in named.items()}


def frontier_of(stream: StreamMetadata, offsets: Cut) -> dict[int, int]:
    """The cut of what is reached first, given an offset for every segment. O(segments^2) at worst."""
    order = SegmentGraph.of(stream)
    cut = {each: offsets[each] for each in stream.head if each in offsets}
    while True:
        opened = order.opened(cut)
        after = {each: offset if each in cut else offsets[each] for each, offset in opened.items()}
        if after == cut:
            return cut
        cut = after


class StoredSegment:
    """SegmentContent over Tier 2 and, behind its end, the service."""

    def __init__(self, source: StreamSource, segment: StreamSegmentMetadata) -> None:
        self._source = source
        self._segment = segment

    @property
    def name(self) -> str:
        return self._segment.name

    @property
    def start_offset(self) -> int:
        return self._segment.start_offset

    @property
    def published_end(self) -> int:
        return self._segment.published_end

    async def blocks(self, start: int, end: int) -> AsyncGenerator[StoredBlock, None]:
        container, record = await self._published()
        async with aclosing(container.list_blocks(record.segment_id, start, end)) as blocks:
            async for block in blocks:
                yield block

    async def read(self, offset: int, length: int) -> bytes:
        if offset < self._segment.published_end:
            container, record = await self._published()
            wanted = min(length, self._segment.published_end - offset)
            found = await container.read(record.segment_id, offset, wanted)
            return bytes(found.content[offset - found.offset :][:wanted])
        assert self._source.store is not None, f"a tail without a service {self._segment}"
        return await self._source.store.segment(self.name).read(offset, length)

    async def _published(self) -> tuple[ContainerReader, SegmentRecord]:
        view = self._source.view
        assert view is not None, f"published without Tier 2 {self._segment}"
        container = await view.container(self._segment.container_id)
        record = None if container is None else await container.find(self.name)
        if container is None or record is None:
            raise SegmentNotFoundError(self.name)
        return container, record


class ByteBoundaries:
    """Of a segment without events: a batch may end anywhere."""

    async def number_at(self, offset: int) -> Boundary:
        return Boundary(offset, None)

    async def at_most(self, start: Boundary, *, target: int, end: int) -> Boundary:
        return Boundary(max(start.offset, min(target, end)), None)

    async def after_events(self, start: Boundary, *, count: int, end: Boundary) -> Boundary:  # noqa: ARG002
        """There are no events to count."""
        return end
