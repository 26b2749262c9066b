"""The in-memory operation log: what is committed and not yet taken by the storage writer.

Holds runs instead of single appends, everything else as logged; the container charges every item to its share of the
cache. Invariants:

- items stand in order of their first sequence number;
- only the newest item of a segment may grow, and none that was handed out;
- `handed_out_sequence_number`: every operation at or below it was handed out.

The reader is not woken for every commit: items rest for a moment, in which runs grow. With a thousand segments that is
the difference between an item per append and an item per segment and moment.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from containers.metadata.append_run import RUN_BYTES_MAX, AppendRun
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges, Operation, SegmentOperation
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    NO_SEGMENT,
    NO_SEQUENCE_NUMBER,
    BufferView,
    SegmentId,
    SequenceNumber,
)

ITEM_BYTES = 640
"""What an item is charged with, from its commit until it is published. Measured: a run takes 365 bytes, with two
attributes 650, another operation 110 to 230. Values of attributes have a bound of their own (AttributeMemory)."""

BATCH_DELAY_SECONDS = 0.1
"""How long items are gathered before the reader is woken, unless a caller waits for one of them."""

BATCH_ITEMS_MAX = 10_000
"""More items than this wake the reader at once."""


class InMemoryLog:
    """The chain of committed operations between the operation processor and the storage writer."""

    def __init__(self, *, metadata: ContainerMetadata) -> None:
        self._metadata = metadata
        self._wake_reader_up_to: SequenceNumber = NO_SEQUENCE_NUMBER
        self._delay_timer: asyncio.TimerHandle | None = None
        self._items: deque[AppendRun | Operation] = deque()
        self._reader: Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add_append(
        self,
        segment: SegmentMetadata,
        offset: int,
        end: int,
        data: BufferView,
        sequence_number: SequenceNumber,
        last_modified_ms: int,
        attributes: AttributeChanges | None,
        events: int | None = None,
    ) -> None:
        """One committed append: grows the segment's open run, or begins another. Positional: the hot path.

        A run is either events or bytes of unknown structure.
        """
        run = segment.open_run
        if run is None or (
            (run.events is None) != (events is None) and end > offset and run.length
        ):
            run = AppendRun(
                segment_id=segment.segment_id,
                offset=offset,
                end=end,
                checksum=crc32c(data),
                sequence_number=sequence_number,
                last_modified_ms=last_modified_ms,
            )
            if events is not None:
                _begin_events(run, segment, events)
            segment.open_run = run
            self._items.append(run)
        else:
            assert run.end == offset, f"append at {offset} behind a run that ends at {run.end}"
            run.checksum = crc32c(data, run.checksum)
            run.end = end
            run.last_sequence_number = sequence_number
            run.last_modified_ms = last_modified_ms
            if events is not None:
                if run.events is None:
                    _begin_events(run, segment, events)
                else:
                    run.events += events
        if attributes is not None:
            if run.attributes is None:
                run.attributes = {}
            run.attributes.update(attributes)
        if (offset ^ end) >= RUN_BYTES_MAX:
            segment.open_run = None

    def add(self, operation: Operation, *segments: SegmentMetadata) -> None:
        """Any other committed operation; closes the runs of the segments that it touches."""
        for segment in segments:
            segment.open_run = None
        self._items.append(operation)

    def wake_reader(self) -> None:
        """After a batch of additions: at once, or when the items have rested."""
        if self._reader is None or self._reader.done() or not self._items:
            return
        if len(self._items) >= BATCH_ITEMS_MAX or self._is_awaited():
            self._reader.set_result(None)
        elif self._delay_timer is None:
            self._delay_timer = asyncio.get_running_loop().call_later(
                BATCH_DELAY_SECONDS, self._delay_over
            )

    def _delay_over(self) -> None:
        self._delay_timer = None
        if self._reader is not None and not self._reader.done() and self._items:
            self._reader.set_result(None)

    def wake_reader_at(self, up_to: SequenceNumber) -> None:
        """A flush waits until the reader has everything up to this number: until then items do not rest."""
        self._wake_reader_up_to = max(self._wake_reader_up_to, up_to)
        self.wake_reader()

    def _is_awaited(self) -> bool:
        return self.handed_out_sequence_number < self._wake_reader_up_to

    def read_nowait(self, count_max: int) -> Sequence[AppendRun | Operation]:
        """Hand out the oldest items; O(count_max)."""
        items = self._items
        taken: list[AppendRun | Operation] = []
        by_id = self._metadata.by_id
        while items and len(taken) < count_max:
            item = items.popleft()
            if item.__class__ is AppendRun:
                assert isinstance(item, AppendRun)
                segment = by_id.get(item.segment_id)
                if segment is not None and segment.open_run is item:
                    segment.open_run = None
            taken.append(item)
        return taken

    async def read(self, count_max: int) -> Sequence[AppendRun | Operation]:
        """Hand out at least one item; waits for it. One reader at a time."""
        while True:
            assert self._reader is None, "the in-memory log has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            self.wake_reader()
            try:
                await self._reader
            finally:
                self._reader = None
            if self._items:
                break
        return self.read_nowait(count_max)

    def items(self) -> Sequence[AppendRun | Operation]:
        """What is held, in order; a copy."""
        return list(self._items)

    def drop_segments(self, forgotten: Mapping[SegmentId, int]) -> None:
        """Recovery only: items, up to a sequence number, of segments that both tiers have done with."""
        if not forgotten:
            return
        kept: deque[AppendRun | Operation] = deque()
        for item in self._items:
            if isinstance(item, AppendRun):
                segment_id, number = item.segment_id, item.first_sequence_number
            elif isinstance(item, SegmentOperation):
                segment_id, number = item.segment.segment_id, item.sequence_number
            else:
                segment_id, number = NO_SEGMENT, item.sequence_number
            if number > forgotten.get(segment_id, 0):
                kept.append(item)
        self._items = kept

    def drop_published(self) -> None:
        """Recovery only, after it has flushed: items that Tier 2 has, or whose segments have left both tiers."""
        kept: deque[AppendRun | Operation] = deque()
        by_id = self._metadata.by_id
        for item in self._items:
            if isinstance(item, AppendRun):
                segment, number = by_id.get(item.segment_id), item.last_sequence_number
            elif isinstance(item, SegmentOperation):
                segment, number = by_id.get(item.segment.segment_id), item.sequence_number
            else:
                continue  # checkpoints are nothing to Tier 2
            if segment is not None and number > segment.published_sequence_number:
                kept.append(item)
        self._items = kept

    @property
    def handed_out_sequence_number(self) -> SequenceNumber:
        if self._items:
            item = self._items[0]
            first = (
                item.first_sequence_number if isinstance(item, AppendRun) else item.sequence_number
            )
            return SequenceNumber(first - 1)
        return self._metadata.committed_sequence_number

    def check(self) -> None:
        """Prove the order; O(n)."""
        last = 0
        for item in self._items:
            first = (
                item.first_sequence_number if isinstance(item, AppendRun) else item.sequence_number
            )
            assert first >= last, f"item {first} behind {last}"
            last = first


def _begin_events(run: AppendRun, segment: SegmentMetadata, events: int) -> None:
    """The first events of a run: its attributes are committed already, the count of events among them."""
    count = segment.attributes.committed_value(EVENT_COUNT)
    assert isinstance(count, int), f"events without their count {segment!r}"
    run.events = events
    # An earlier version took counts below zero; Tier 2 has no room for such numbers.
    run.event_number = max(count - events, 0)
