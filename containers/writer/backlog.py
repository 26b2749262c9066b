"""Everything consumed from the log and not yet published: the aggregators, and when the next flush is due.

`Backlog` holds the aggregators of a container: items come in, what is due is selected, and after a flush
`recompute_marks()` looks at all of them. Memory is bounded by what the container lets into its log and cache: reading
on while a publication is under way moves items from the log's list to these, and adds nothing to them.

`AckCalculator` says how far the log may be truncated. Every aggregator names the lowest sequence number of it that is
not yet under a published manifest: bytes, attributes, creation, seal, truncation, merge and deletion alike.
Everything below the lowest of them is in Tier 2, and if no aggregator holds anything back, everything that was
consumed.

    consumed up to 90
    segment 1 holds 41, 60      lowest 41
    segment 2 holds 44, 45      lowest 44      ->  acknowledge 40

Invariants (check()):
- an aggregator stands here from its first item to its last publication, unless a merge gave it to its target;
- `total_bytes` is the sum of what they hold;
- `oldest` and the other marks by which a flush becomes due are never later than the truth: consuming an item moves
  them at once, and recompute_marks() makes them exact after a flush.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum

from containers.container_settings import WriterSettings
from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    DeleteOperation,
    MapSegmentOperation,
    MergeOperation,
    SegmentOperation,
    TruncateOperation,
)
from containers.writer.data_source import FlushSource, LogItem
from containers.writer.segment_aggregator import (
    NEVER,
    ByteTally,
    PendingItem,
    SegmentAggregator,
    last_number,
)
from segmentstore.contracts.identifiers import NO_SEGMENT, SegmentId, SequenceNumber

_BYTES_FACTOR_MAX = 3.0
_SPACE_FREEING_ITEMS = (DeleteOperation, TruncateOperation)


@dataclass(frozen=True, slots=True)
class CachePressure:
    """How badly the cache needs room, 0 to 1: limits of size and age shrink in proportion; at 1 all is due."""

    level: float = 0.0
    short_lived: float = 0.0
    """The same for short-lived segments: most of what they hold leaves the cache by itself."""


ALL_IS_DUE = CachePressure(1.0, 1.0)


class FlushKind(Enum):
    """What a round may publish, after Tier 2 said that it is full."""

    NORMAL = "normal"
    DELETIONS = "deletions"
    """Deletions alone: hardly any bytes to store, and they free the most."""
    FRUGAL = "frugal"
    """Segments with something that may free space, those with the fewest bytes first, few bytes in all."""


class AckCalculator:
    """One calculation: made with what was consumed, told what is held back, asked for the result."""

    def __init__(self, consumed_up_to: SequenceNumber) -> None:
        self._up_to = consumed_up_to

    def hold_back(self, lowest_unpublished: SequenceNumber) -> None:
        """An aggregator has not published this operation; all its others come later."""
        if lowest_unpublished <= self._up_to:
            self._up_to = SequenceNumber(lowest_unpublished - 1)

    @property
    def result(self) -> SequenceNumber:
        """The highest number that may be acknowledged."""
        return self._up_to


class Backlog:
    """The aggregators of one container."""

    def __init__(self, *, source: FlushSource, settings: WriterSettings) -> None:
        self._source = source
        self._settings = settings
        self._aggregators: dict[SegmentId, SegmentAggregator] = {}
        self.highest_segment_id = NO_SEGMENT
        self.space_freeing_items = 0
        """Deletions and truncations consumed so far."""
        self._tally = ByteTally()
        self._oldest = NEVER
        self._oldest_prompt = NEVER
        self._oldest_short_lived = NEVER
        self._oldest_truncation = NEVER
        """Of a short-lived segment."""
        self._largest_bytes = 0
        """What the segment with the most of them has to flush."""
        self._largest_short_lived = 0
        """The same of short-lived segments."""
        self._most_dead = 0
        """Bytes of a short-lived segment that were truncated before they reached Tier 2."""

    def __len__(self) -> int:
        return len(self._aggregators)

    @property
    def total_bytes(self) -> int:
        """Bytes of all items, those of deleted segments included until the deletion is published."""
        return self._tally.held_bytes

    @property
    def item_count(self) -> int:
        """Items held, those of merged sources included."""
        return self._tally.item_count

    @property
    def oldest(self) -> float:
        """Loop time at which the oldest item was consumed, infinite if there is none."""
        return min(self._oldest, self._oldest_short_lived)

    # --- items come in ------------------------------------------------------------------------

    def consume(self, item: LogItem, now: float) -> None:
        """Take the next item of the log to its aggregator. O(1), or O(sources) of a merge."""
        if isinstance(item, AppendRun):
            segment = self._source.segment(item.segment_id)
            assert segment is not None, f"append to a segment without metadata {item.segment_id}"
            self._add(segment, item, now)
        elif isinstance(item, MergeOperation):
            self._consume_merge(item, now)
        elif isinstance(item, MapSegmentOperation):
            if item.created:
                self._add(item.segment, item, now)
        elif isinstance(item, SegmentOperation):
            self._add(item.segment, item, now)
        # Checkpoints have nothing for Tier 2; being consumed acknowledges them.

    def _add(self, segment: SegmentMetadata, item: PendingItem, now: float) -> None:
        if last_number(item) <= segment.published_sequence_number:
            return  # Replayed, and in Tier 2 since an earlier epoch.
        aggregator = self._aggregator(segment)
        aggregator.add(item, now)
        if isinstance(item, _SPACE_FREEING_ITEMS):
            self.space_freeing_items += 1
            self.skip_dead_bytes(aggregator)
        self._note_marks(aggregator)

    def skip_dead_bytes(self, aggregator: SegmentAggregator) -> None:
        """Tell the container what it need not keep in memory."""
        if aggregator.dead_bytes:
            offset = aggregator.skip_dead_bytes()
            if offset:
                self._source.skipped(aggregator.segment_id, offset)

    def _consume_merge(self, merge: MergeOperation, now: float) -> None:
        source_id = SegmentId(merge.source.segment_id)
        if merge.sequence_number <= merge.segment.published_sequence_number:
            self._forget_merged_before(merge)
            return
        target = self._aggregator(merge.segment)
        source = self._aggregator(merge.source)
        del self._aggregators[source_id]
        target.add_merge(merge, source, now)
        self._note_marks(target)

    def _forget_merged_before(self, merge: MergeOperation) -> None:
        """The merge was published in an earlier epoch; what was replayed of its source is in Tier 2 in the target."""
        source = self._aggregators.pop(SegmentId(merge.source.segment_id), None)
        gone = [] if source is None else [*source.sources()]
        for other in reversed(gone):
            assert other.merged_into is not None, f"not merged {other.segment!r}"
            other.finished = True
            self._source.merge_completed(other.merged_into.segment_id, other.segment_id)
            self._source.segment_removed(other.segment_id)
        if source is not None:
            source.discard()
            source.finished = True
        source_id = SegmentId(merge.source.segment_id)
        self._source.merge_completed(SegmentId(merge.segment.segment_id), source_id)
        self._source.segment_removed(source_id)

    def _aggregator(self, segment: SegmentMetadata) -> SegmentAggregator:
        segment_id = SegmentId(segment.segment_id)
        aggregator = self._aggregators.get(segment_id)
        if aggregator is None:
            aggregator = self._aggregators[segment_id] = SegmentAggregator(segment, self._tally)
            self.highest_segment_id = max(self.highest_segment_id, segment_id)
        return aggregator

    def _note_marks(self, aggregator: SegmentAggregator) -> None:
        self._oldest_prompt = min(self._oldest_prompt, aggregator.prompt_since)
        pending_bytes = aggregator.pending_bytes
        if aggregator.short_lived:
            self._oldest_short_lived = min(self._oldest_short_lived, aggregator.since)
            self._largest_short_lived = max(self._largest_short_lived, pending_bytes)
            self._most_dead = max(self._most_dead, aggregator.dead_bytes)
            self._oldest_truncation = min(self._oldest_truncation, aggregator.first_truncated_at)
        else:
            self._oldest = min(self._oldest, aggregator.since)
            self._largest_bytes = max(self._largest_bytes, pending_bytes)

    @property
    def _short_lived_bytes_max(self) -> float:
        return self._settings.flush_bytes * min(
            self._settings.short_lived_factor, _BYTES_FACTOR_MAX
        )

    # --- items go out -------------------------------------------------------------------------

    def drop_if_empty(self, aggregator: SegmentAggregator) -> None:
        """An aggregator without work is not kept."""
        if not aggregator.items and aggregator.merged_into is None:
            aggregator.finished = True
            if self._aggregators.get(aggregator.segment_id) is aggregator:
                del self._aggregators[aggregator.segment_id]

    # --- when and what ------------------------------------------------------------------------

    def due_at(self, pressure: CachePressure) -> float:
        """Loop time from which a round has something to do; -inf for at once, infinite for nothing to wait for."""
        if not self._aggregators:
            return NEVER
        limit_factor, short_factor = 1.0 - pressure.level, 1.0 - pressure.short_lived
        settings = self._settings
        if (
            self._largest_bytes >= settings.flush_bytes * limit_factor > 0
            or self._largest_short_lived >= self._short_lived_bytes_max * short_factor > 0
            or self._most_dead >= self._short_lived_bytes_max
            or self.total_bytes >= settings.publication_bytes_max
        ):
            return -NEVER
        age = settings.flush_interval_seconds
        return min(
            self._oldest + age * limit_factor,
            self._oldest_truncation + age * limit_factor,
            self._oldest_short_lived + age * short_factor * settings.short_lived_factor,
            self._oldest_prompt + settings.prompt_age_seconds * limit_factor,
        )

    async def select(
        self, now: float, *, pressure: CachePressure, forced_up_to: SequenceNumber, kind: FlushKind
    ) -> list[SegmentAggregator]:
        """The aggregators to publish now, the one with the oldest operation first. O(n log n), in slices.

        If one aggregator is due, those at least half as old as the age limit go along, and all that want to be
        published soon, so that many small segments share few publications.
        """
        is_full = self.total_bytes >= self._settings.publication_bytes_max
        chosen: list[tuple[int, int, SegmentAggregator]] = []
        for number, aggregator in enumerate(list(self._aggregators.values()), 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            if aggregator.merged_into is not None or aggregator.awaits_removal:
                continue
            lowest = aggregator.lowest_number()
            if lowest is None:
                continue
            aggregator.stops_at_truncation = False
            if kind is FlushKind.FRUGAL:
                if aggregator.prompt_since != NEVER or aggregator.has_truncation:
                    chosen.append((aggregator.pending_bytes, aggregator.segment_id, aggregator))
            elif kind is FlushKind.DELETIONS:
                if aggregator.deleted:
                    chosen.append((lowest, aggregator.segment_id, aggregator))
            elif (
                is_full
                or aggregator.prompt_since != NEVER
                or lowest <= forced_up_to
                or self._is_due(aggregator, now, pressure)
            ):
                chosen.append((lowest, aggregator.segment_id, aggregator))
        chosen.sort()  # ids differ, so aggregators are never compared
        return [aggregator for _, _, aggregator in chosen]

    def _is_due(self, aggregator: SegmentAggregator, now: float, pressure: CachePressure) -> bool:
        """By its size or age. Of a short-lived one that is truncated again and again what came since has time."""
        settings = self._settings
        limit_factor = 1.0 - pressure.level
        aged = now - settings.flush_interval_seconds * limit_factor / 2
        if (pressure.short_lived if aggregator.short_lived else pressure.level) >= 1.0:
            return True
        if not aggregator.short_lived:
            is_large = aggregator.pending_bytes >= settings.flush_bytes * limit_factor
            return is_large or aggregator.since <= aged
        limit_factor = 1.0 - pressure.short_lived
        if aggregator.pending_bytes >= self._short_lived_bytes_max * limit_factor:
            return True
        age = settings.flush_interval_seconds * limit_factor * settings.short_lived_factor
        aggregator.stops_at_truncation = aggregator.truncated_at > now - age
        return (
            aggregator.first_truncated_at <= aged
            or aggregator.since <= now - age / 2
            or aggregator.dead_bytes >= self._short_lived_bytes_max
        )

    async def recompute_marks(self, acknowledgement: AckCalculator) -> None:
        """Look at every aggregator: drop the empty, tell the calculator what is held back, renew the marks. In slices.

        Items consumed meanwhile have higher numbers than the calculator was made with. Going over a copy of the
        list keeps a source in sight that a merge takes away from under us.
        """
        self._oldest = self._oldest_prompt = NEVER
        self._oldest_short_lived = self._oldest_truncation = NEVER
        self._largest_bytes = self._largest_short_lived = self._most_dead = 0
        for number, aggregator in enumerate(list(self._aggregators.values()), 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            lowest = aggregator.lowest_number()
            if lowest is None:
                self.drop_if_empty(aggregator)
                continue
            acknowledgement.hold_back(lowest)
            if not aggregator.awaits_removal:
                self._note_marks(aggregator)

    def describe(self) -> str:
        """Every aggregator in a line, for the message of a failed check. O(n)."""
        return "\n".join(repr(aggregator) for aggregator in self._aggregators.values())

    def check(self) -> None:
        """Prove the invariants; O(items)."""
        total = 0
        count = 0
        for segment_id, aggregator in self._aggregators.items():
            assert aggregator.segment_id == segment_id, f"{segment_id}: {aggregator.segment!r}"
            assert aggregator.merged_into is None, f"merged {aggregator.segment!r} stands here"
            aggregator.check()
            count += len(aggregator.items)
            for source in aggregator.sources():
                source.check()
                count += len(source.items)
            total += aggregator.held_bytes
            if aggregator.items and not aggregator.awaits_removal:
                oldest = self._oldest_short_lived if aggregator.short_lived else self._oldest
                assert oldest <= aggregator.since, f"{oldest} > {aggregator.since}"
        assert count == self.item_count, f"{self.item_count} items noted, {count} held"
        assert total == self.total_bytes, f"{self.total_bytes} bytes noted, {total} held"
