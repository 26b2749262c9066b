"""What a streaming query reads, as its batches need it: maps, boundaries and edges over an opened StreamSource.

Where a query begins and ends, in words of the options:

| option | begins | ends |
|---|---|---|
| nothing | at the tail (as Kafka's source) | never |
| earliest, latest | at the head, at the tail as it is when the query is made | the same |
| a position | there; segments that it does not name from the head on | there; segments that it does not name never |
| a timestamp | with the first block that may hold an event of that time | with the last one |

Invariants:

- A beginning or an end that is found by time or at the tail lies between two events.
- The end of a query is decided once, when its first batch is made; one that lies in the future, when its time has come:
  until then nothing that is there can be behind it.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from segmentstore.codec.stream_records import record_places
from segmentstore.codec.stream_records.sealed_segment_record import SealedSegmentRecord
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.runtime.clock import WallClock
from segmentstore.spark.options import LATEST, Content
from segmentstore.spark.positions import Position
from segmentstore.spark.published_streams import PublishedStreams
from segmentstore.spark.stream_map import MappedSegment, StreamMap
from segmentstore.spark.stream_source import StreamSource, position_of
from segmentstore.spark.streaming.event_boundaries import Boundary, EventBoundaries
from segmentstore.spark.streaming.micro_batches import SegmentBoundaries
from segmentstore.spark.streaming.stream_order import Cut, StreamOrder
from tier2.storage.reader import ContainerReader


class QuerySource:
    """The streams of one query. Raises what StreamSource raises."""

    def __init__(self, source: StreamSource, *, wall_clock: WallClock) -> None:
        self._source = source
        self._wall_clock = wall_clock
        self._is_bytes: dict[str, bool] = {}

    async def maps(self) -> Mapping[str, StreamMap]:
        """Every stream as it is now, by `scope/stream`; a single segment by its own name."""
        maps = await self._source.stream_maps()
        for each in maps:
            is_bytes = self._source.content_of(each) is Content.BYTES
            self._is_bytes.update((segment.name, is_bytes) for segment in each.segments)
        segment = self._source.options.segment
        return {segment or f"{each.scope}/{each.stream}": each for each in maps}

    def boundaries(self, segment: MappedSegment) -> SegmentBoundaries:
        if self._is_bytes.get(segment.name, False):
            return ByteBoundaries()
        return EventBoundaries(StoredSegment(self._source, segment))

    async def start_of(self, stream: StreamMap) -> Cut:
        options = self._source.options
        text = options.starting_offsets or LATEST
        if options.starting_timestamp_ms is None:
            position = position_of(text)
            if position is not None:
                named = _named(position, position.starts_in(stream))
                return StreamOrder.of(stream).later_of(stream.head, named)
        starts = await self._source.starts(stream, default=LATEST)
        return await self._at_boundaries(stream, frontier_of(stream, starts))

    async def stop_of(self, stream: StreamMap) -> Cut | None:
        options = self._source.options
        if options.ending_timestamp_ms is None:
            if not options.ending_offsets:
                return None
            position = position_of(options.ending_offsets)
            if position is not None:
                return _named(position, position.ends_in(stream))
        elif self._wall_clock.now_ms() < options.ending_timestamp_ms:
            return None
        return await self._at_boundaries(
            stream, frontier_of(stream, await self._source.ends(stream))
        )

    async def end_of_gone(self, stream: str, segment_id: int) -> SealedSegmentRecord | None:
        """From the records in Tier 2; nothing is known of a segment without a stream, or without Tier 2."""
        view = self._source.view
        if view is None or self._source.options.segment:
            return None
        scope, _, name = stream.partition("/")
        table = await PublishedStreams(view).scope_table(scope)
        value = (await table.get([record_places.sealed(name, segment_id)]))[0]
        return SealedSegmentRecord.decode(value) if value else None

    async def _at_boundaries(self, stream: StreamMap, cut: Cut) -> dict[int, int]:
        found: dict[int, int] = {}
        for segment_id, offset in cut.items():
            segment = stream.by_id[segment_id]
            start = Boundary(segment.start_offset, None)
            if offset > start.offset:
                boundaries = self.boundaries(segment)
                start = await boundaries.at_most(start, target=offset, end=offset)
            found[segment_id] = start.offset
        return found


class StoredSegment:
    """SegmentContent over Tier 2 and, behind its end, the service."""

    def __init__(self, source: StreamSource, segment: MappedSegment) -> None:
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


def frontier_of(stream: StreamMap, offsets: Cut) -> dict[int, int]:
    """The cut of what is reached first, given an offset for every segment. O(segments^2) at worst."""
    order = StreamOrder.of(stream)
    cut = {each: offsets[each] for each in stream.head if each in offsets}
    while True:
        opened = order.opened(cut)
        after = {each: offset if each in cut else offsets[each] for each, offset in opened.items()}
        if after == cut:
            return cut
        cut = after


def _named(position: Position, resolved: Mapping[int, int]) -> dict[int, int]:
    """What a position names, its words for "earliest" and "latest" resolved; segments that are gone as they are."""
    return {each: resolved.get(each, offset) for each, offset in position.offsets.items()}
