"""Streams of events in memory as a query's source, and all that reads them in batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.spark.scan.data_loss import DataLossPolicy
from segmentstore.spark.streaming.event_boundaries import EventBoundaries
from segmentstore.spark.streaming.micro_batches import (
    BatchLimits,
    MicroBatchPlanner,
    TriggerSettings,
)
from segmentstore.spark.streams.offsets import StreamsOffset
from segmentstore.spark.streams.segment_graph import Cut, StreamMetadata, StreamSegmentMetadata
from tests.spark.streaming.memory_segment import MemorySegment

NAME = "plant/readings"


@dataclass
class MemoryStreams:
    """One or more streams; `contents` by segment name."""

    streams: dict[str, StreamMetadata] = field(default_factory=dict)
    contents: dict[str, MemorySegment] = field(default_factory=dict)
    stop: Cut | None = None
    ends: dict[int, SealedSegmentRecord] = field(default_factory=dict)

    def put(
        self,
        segment_id: int,
        events: list[bytes],
        *,
        stream: str = NAME,
        sealed: bool = False,
        start_offset: int = 0,
        successors: tuple[int, ...] = (),
        predecessors: tuple[int, ...] = (),
        block_bytes: int = 50,
    ) -> None:
        """Add a segment, or replace it by what it has become."""
        scope, _, short = stream.partition("/")
        before = self.streams.get(stream) or StreamMetadata(scope, short, [], {})
        name = f"{stream}/{segment_id & 0xFFFFFFFF}.#epoch.{segment_id >> 32}"
        length = sum(8 + len(event) for event in events)
        content = MemorySegment(
            name,
            events,
            [*range(block_bytes, length, block_bytes), length] if length else [],
            start_offset=start_offset,
        )
        self.contents[name] = content
        mapped = StreamSegmentMetadata(
            segment_id=segment_id,
            name=name,
            epoch=segment_id >> 32,
            low=0.0,
            high=1.0,
            start_offset=start_offset,
            end_offset=length,
            published_end=content.published_end,
            is_sealed=sealed,
            container_id=0,
            successors=successors,
            predecessors=predecessors,
        )
        segments = {each.segment_id: each for each in before.segments} | {segment_id: mapped}
        ordered = [segments[each] for each in sorted(segments)]
        head = {each.segment_id: each.start_offset for each in ordered if not each.predecessors}
        self.streams[stream] = replace(before, segments=ordered, head=head)

    def truncate_to(self, head: dict[int, int], *, stream: str = NAME) -> None:
        """The stream begins there; segments before it are gone."""
        before = self.streams[stream]
        first = min(head)
        kept = [
            replace(
                each,
                start_offset=head.get(each.segment_id, 0),
                predecessors=tuple(p for p in each.predecessors if p >= first),
            )
            for each in before.segments
            if each.segment_id >= first
        ]
        for each in before.segments:
            if each.segment_id < first:
                epoch = min((s >> 32 for s in each.successors), default=0)
                self.ends[each.segment_id] = SealedSegmentRecord(epoch, each.end_offset)
        self.streams[stream] = replace(before, segments=kept, head=head)
        for each in kept:
            self.contents[each.name].start_offset = each.start_offset

    def cut_off(self, segment_id: int, *, at: int, stream: str = NAME) -> None:
        """The segment ends at a place that need not be a boundary."""
        before = self.streams[stream]
        segments = [
            replace(each, end_offset=at) if each.segment_id == segment_id else each
            for each in before.segments
        ]
        self.streams[stream] = replace(before, segments=segments)

    async def maps(self) -> Mapping[str, StreamMetadata]:
        return dict(self.streams)

    def boundaries(self, segment: StreamSegmentMetadata) -> EventBoundaries:
        return EventBoundaries(self.contents[segment.name])

    async def start_of(self, stream: StreamMetadata) -> Cut:
        return dict(stream.head)

    async def stop_of(self, stream: StreamMetadata) -> Cut | None:
        return self.stop

    async def end_of_gone(self, stream: str, segment_id: int) -> SealedSegmentRecord | None:
        return self.ends.get(segment_id)


def batches_of(
    streams: MemoryStreams,
    *,
    bytes_max: int | None = None,
    rows_max: int | None = None,
    fail_on_data_loss: bool = True,
    trigger: TriggerSettings | None = None,
) -> MicroBatchPlanner:
    return MicroBatchPlanner(
        source=streams,
        limits=BatchLimits(bytes_max=bytes_max, rows_max=rows_max),
        trigger=trigger or TriggerSettings(),
        losses=DataLossPolicy(fail_on_data_loss=fail_on_data_loss),
    )


async def events_in(
    streams: MemoryStreams, batches: MicroBatchPlanner, start: StreamsOffset, end: StreamsOffset
) -> list[bytes]:
    """The events of a batch, as a task would read them."""
    found: list[bytes] = []
    for each in await batches.stretches(start, end):
        segment = streams.contents[each.segment.name]
        first = segment.starts.index(each.start)
        found += segment.events[first : segment.starts.index(each.end)]
    return found
