"""Pending Tier-2 work of one segment: the log's items as they came, until they are published.

An aggregator lives while there is any: from the first item consumed to the publication of the last. The items at the
head that belong to the publication under way are counted by `in_flight`; whatever is consumed meanwhile queues behind
them. Items are kept whole and folded into a state only when they are flushed, so that any prefix of them can be
published with exactly the state that belongs to it.

A segment that is merged loses its aggregator to the target's, which keeps it as part of the merge item. A publication
that was under way with the source's items at that moment still completes on the same object, so the merge then finds
the new published length and fewer items.

Invariants (check()):
- items stand in order of their sequence numbers, and all are above those published;
- the first `in_flight` of them are handed to Tier 2, and only one publication is under way;
- `held_bytes` is the sum of the bytes of all items, those of merged sources included;
- nothing follows a deletion, and nothing is added to a segment that was taken over.
"""

from collections.abc import Iterator
from typing import TypeAlias

from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    DeleteOperation,
    MergeOperation,
    SealOperation,
    SegmentOperation,
    TruncateOperation,
)
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    SHORT_LIVED,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import SegmentRecord

NEVER = float("inf")


class ByteTally:
    """What a whole container has not published."""

    __slots__ = ("held_bytes", "item_count")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.item_count = 0
        """Items, those of merged sources included: their memory is outside the cache's budget."""


class PendingMerge:
    """A merge whose target has taken over the source's aggregator, with everything un-published in it."""

    __slots__ = ("operation", "source")

    def __init__(self, operation: MergeOperation, source: "SegmentAggregator") -> None:
        self.operation = operation
        self.source = source


PendingItem: TypeAlias = AppendRun | SegmentOperation | PendingMerge
_PROMPT_ITEMS = (SealOperation, TruncateOperation, DeleteOperation, PendingMerge)
_ITEMS_PER_SOURCE = 8
"""A source that goes along costs a turn of the loop as much as so many items, besides its own."""


class SegmentAggregator:
    """Items of one segment in log order, not yet published."""

    __slots__ = (
        "_left_since",
        "base",
        "base_known",
        "dead_bytes",
        "dead_items",
        "depth",
        "finished",
        "first_truncated_at",
        "held_bytes",
        "in_flight",
        "items",
        "merged_into",
        "merges",
        "outcome_unknown",
        "prompt_count",
        "prompt_since",
        "published_head",
        "segment",
        "short_lived",
        "since",
        "skipped_number",
        "stops_at_truncation",
        "tally",
        "truncated_at",
        "truncated_offset",
    )

    def __init__(self, segment: SegmentMetadata, tally: ByteTally) -> None:
        self.segment = segment
        self.tally = tally
        self.items: list[PendingItem] = []
        self.merges: list[PendingMerge] = []
        """Those of the items that are merges."""
        self.held_bytes = 0
        self.in_flight = 0
        """Items at the head that belong to the publication under way."""
        self.base: SegmentRecord | None = None
        """The record in Tier 2 on which the items build; None if there is none."""
        self.base_known = False
        self.published_head: dict[int, int] = {}
        """If the base ends inside a run: the run's offset, and the CRC32C of what Tier 2 has of it."""
        self.outcome_unknown = False
        """A publication of it may have happened, or may still happen, without our knowing."""
        self.short_lived = segment.attributes.committed_value(SHORT_LIVED) == 1
        """Whether most of its bytes are to be truncated soon, as far as was known when its first item came."""
        self.truncated_offset = 0
        """Of the last truncation that came, if it is short-lived: bytes of items below it need not reach Tier 2."""
        self.truncated_at = -NEVER
        """Loop time at which that came."""
        self.first_truncated_at = NEVER
        """When the first one came that is among the items."""
        self.dead_bytes = 0
        """Of the items, below `truncated_offset`."""
        self.dead_items = 0
        """Items at the head of which a later truncation takes no more bytes."""
        self.skipped_number = NO_SEQUENCE_NUMBER
        """Of the truncation whose bytes the container was told to forget: a publication ends behind it, or takes
        nothing."""
        self.stops_at_truncation = False
        """Whether the next publication ends behind the last truncation, because what is behind it has time."""
        self._left_since = NEVER
        """When what the publication under way leaves came, if it is known."""
        self.since = NEVER
        """Loop time at which the oldest item was consumed."""
        self.prompt_since = NEVER
        """The same for the oldest item that wants to be published soon."""
        self.prompt_count = 0
        """Items that want to be published soon."""
        self.depth = 0
        """Longest chain of merges waiting in it."""
        self.merged_into: SegmentAggregator | None = None
        """The target that this segment was merged into."""
        self.finished = False
        """Nothing of it is left to publish, and nothing will come."""

    @property
    def segment_id(self) -> SegmentId:
        return SegmentId(self.segment.segment_id)

    @property
    def deleted(self) -> bool:
        """The last item is the deletion: everything before it need not reach Tier 2."""
        return bool(self.items) and isinstance(self.items[-1], DeleteOperation)

    @property
    def pending_bytes(self) -> int:
        """Bytes that Tier 2 still has to be given."""
        return 0 if self.deleted else self.held_bytes

    @property
    def awaits_removal(self) -> bool:
        """It is deleted or merged in the container, and that operation has not been consumed yet.

        It is not flushed by itself any more: Tier 2 may already have seen it go in an earlier epoch.
        """
        return self.merged_into is None and self.segment.is_gone() and not self.deleted

    # --- items come in ------------------------------------------------------------------------

    def add(self, item: PendingItem, now: float) -> None:
        """The next item of the segment. O(chain of merges above it)."""
        assert self.merged_into is None, f"item for a merged segment {self.segment!r}"
        assert not self.deleted, f"item behind the deletion of {self.segment!r}"
        if not self.items:
            self.since = now
        if self._is_prompt(item):
            self.prompt_count += 1
            self.prompt_since = min(self.prompt_since, now)
        self.items.append(item)
        self.tally.item_count += 1
        self._grow(byte_count(item))
        if self.short_lived and isinstance(item, TruncateOperation):
            self._note_truncation(item.offset, now)

    def _note_truncation(self, offset: int, now: float) -> None:
        """Amortised O(1): no item is passed twice."""
        self.truncated_at = now
        self.first_truncated_at = min(self.first_truncated_at, now)
        offset = max(offset, self.truncated_offset)
        dead_bytes = 0
        while self.dead_items < len(self.items):
            item = self.items[self.dead_items]
            if isinstance(item, AppendRun):
                end = item.offset + item.length
                dead_bytes += self._live_bytes(item) - min(item.length, max(0, end - offset))
                if end > offset:
                    break
            self.dead_items += 1
        self.truncated_offset = offset
        self._grow(-dead_bytes)
        self.dead_bytes += dead_bytes

    def _live_bytes(self, item: PendingItem) -> int:
        """What it brings of bytes that are not truncated."""
        if isinstance(item, AppendRun):
            return min(item.length, max(0, item.offset + item.length - self.truncated_offset))
        return byte_count(item)

    @property
    def has_truncation(self) -> bool:
        """O(items)."""
        return self._items_to_truncation(NO_SEQUENCE_NUMBER) > 0

    def _items_to_truncation(self, up_to: SequenceNumber) -> int:
        """How many items end with the last truncation, of those with a number of at most `up_to` if there is one."""
        for count in range(len(self.items), 0, -1):
            item = self.items[count - 1]
            if isinstance(item, TruncateOperation) and (
                up_to == NO_SEQUENCE_NUMBER or item.sequence_number <= up_to
            ):
                return count
        return 0

    def skip_dead_bytes(self) -> int:
        """The offset below which no publication asks for bytes of this short-lived segment any more; 0: none to tell.

        Not while one is under way, which has views of them, nor while one that was given up may still land: Tier 2
        would end among them then.
        """
        if not self.dead_bytes or self.in_flight or self.outcome_unknown:
            return 0
        if self.merges or self.merged_into is not None:
            return 0
        count = self._items_to_truncation(NO_SEQUENCE_NUMBER)
        if not count or first_number(self.items[count - 1]) == self.skipped_number:
            return 0
        self.skipped_number = first_number(self.items[count - 1])
        if self.dead_items < len(self.items):
            item = self.items[self.dead_items]
            if isinstance(item, AppendRun) and item.offset < self.truncated_offset:
                # Its checksum is that of the whole run.
                return item.offset
        return self.truncated_offset

    def add_merge(self, operation: MergeOperation, source: "SegmentAggregator", now: float) -> None:
        """Take over the source's un-published items."""
        assert source.merged_into is None, f"merged twice {source.segment!r}"
        merge = PendingMerge(operation, source)
        self.tally.held_bytes -= source.held_bytes  # counted under the target from now on
        self.add(merge, now)
        self.merges.append(merge)
        self.depth = max(self.depth, source.depth + 1)
        source.merged_into = self

    def _grow(self, byte_difference: int) -> None:
        if not byte_difference:
            return
        self.tally.held_bytes += byte_difference
        holder: SegmentAggregator | None = self
        while holder is not None:
            holder.held_bytes += byte_difference
            holder = holder.merged_into

    # --- what is in it ------------------------------------------------------------------------

    def lowest_number(self) -> SequenceNumber | None:
        """The oldest operation not published, merged sources included; None if there is none."""
        lowest = first_number(self.items[0]) if self.items else None
        if self.merges:
            for source in self.sources():
                if source.items:
                    number = first_number(source.items[0])
                    lowest = number if lowest is None or number < lowest else lowest
        return lowest

    def sources(self) -> Iterator["SegmentAggregator"]:
        """Every segment waiting to be merged into this one, directly or through another; targets first."""
        pending = [merge.source for merge in reversed(self.merges)]
        while pending:
            source = pending.pop()
            yield source
            pending.extend(merge.source for merge in reversed(source.merges))

    def owner(self) -> "SegmentAggregator":
        """The aggregator whose publication will carry this one's items."""
        owner = self
        while owner.merged_into is not None:
            owner = owner.merged_into
        return owner

    # --- items go out -------------------------------------------------------------------------

    def flush_target(
        self, *, bytes_max: int, depth_max: int, items_max: int
    ) -> "SegmentAggregator":
        """What to flush first: this segment, or its first merge's source if that is too large to go along."""
        subject = self
        while subject.items and not subject.deleted and not subject.in_flight:
            first = subject.items[0]
            if not isinstance(first, PendingMerge) or not _is_too_large(
                first.source, bytes_max, depth_max, items_max
            ):
                break
            subject = first.source
        return subject

    def count_to_take(
        self,
        *,
        up_to: SequenceNumber,
        bytes_max: int,
        depth_max: int,
        items_max: int,
        may_exceed: bool,
    ) -> int:
        """How many items the next publication can take: a prefix of at most bytes_max and items_max, yet at least one.

        Items above `up_to` stay, because the rest of their operation may not have come yet; those beyond `items_max`
        keep the age of the oldest item. If the container has forgotten bytes of some items, the publication takes all
        items up to their truncation, however much that is, where it `may_exceed`. O(items_max), of a short-lived
        segment O(items).
        """
        if self.in_flight or not self.items:
            return 0
        if self.deleted:
            ready = last_number(self.items[-1]) <= up_to and self._sources_are_ready()
            return len(self.items) if ready else 0
        self._left_since = NEVER
        count = self._count_that_fits(up_to, bytes_max, depth_max, items_max)
        if not self.short_lived:
            return count
        if self.stops_at_truncation:
            last = self._items_to_truncation(up_to)
            if 0 < last <= count:
                count, self._left_since = last, self.truncated_at
        needed = 0
        if self.skipped_number != NO_SEQUENCE_NUMBER:
            needed = self._items_to_truncation(self.skipped_number)
        if count >= needed:
            return count
        self._left_since = NEVER
        is_ready = may_exceed and self.skipped_number <= up_to
        return needed if is_ready else 0

    def _count_that_fits(
        self, up_to: SequenceNumber, bytes_max: int, depth_max: int, items_max: int
    ) -> int:
        total = cost = 0
        for count, item in enumerate(self.items):
            if last_number(item) > up_to:
                return count
            if isinstance(item, PendingMerge):
                if _is_too_large(item.source, bytes_max, depth_max, items_max):
                    if count:
                        self._left_since = self.since  # the source is as old, and is flushed next
                    return count
                if not _is_ready(item.source):
                    return count
            total += self._live_bytes(item)
            cost += _cost_of_source(item.source) if isinstance(item, PendingMerge) else 1
            # An append and its seal are two items with one number: half of it would lose the other half.
            if (
                (total > bytes_max or cost > items_max)
                and count > 0
                and first_number(item) != last_number(self.items[count - 1])
            ):
                if cost > items_max:
                    self._left_since = self.since
                return count
        return len(self.items)

    def _sources_are_ready(self) -> bool:
        return all(source.base_known and not source.in_flight for source in self.sources())

    def complete(self, count: int, base: SegmentRecord | None, started: float) -> None:
        """The first `count` items are published. What is left came after `started`, when the flight began."""
        assert count == self.in_flight, f"completes {count} items, {self.in_flight} in flight"
        self.in_flight = 0
        self.outcome_unknown = False
        self.base = base
        self._drop(count, min(started, self._left_since))

    def learn(self, base: SegmentRecord | None) -> list[PendingMerge]:
        """Tier 2's record is this one. Items that it covers are dropped; gives the merges among them."""
        assert not self.in_flight, f"base changes under a publication of {self.segment!r}"
        self.base = base
        self.base_known = True
        count = 0
        if base is not None:
            for item in self.items:
                if last_number(item) > base.sequence_number:
                    break
                count += 1
        covered = [item for item in self.items[:count] if isinstance(item, PendingMerge)]
        self._drop(count, self.since)
        return covered

    def discard(self) -> None:
        """Nothing of it needs to be published."""
        self._drop(len(self.items), NEVER)

    def _drop(self, count: int, since: float) -> None:
        if count == 0:
            return
        dropped = self.items[:count]
        del self.items[:count]
        self.dead_items = max(0, self.dead_items - count)
        self.tally.item_count -= count + sum(
            len(source.items)
            for item in dropped
            if isinstance(item, PendingMerge)
            for source in [item.source, *item.source.sources()]
        )
        live_bytes = sum(map(self._live_bytes, dropped))
        self.dead_bytes -= sum(map(byte_count, dropped)) - live_bytes
        self._grow(-live_bytes)
        if self.merges:
            del self.merges[: sum(isinstance(item, PendingMerge) for item in dropped)]
            self.depth = max((merge.source.depth + 1 for merge in self.merges), default=0)
        self.prompt_count -= sum(map(self._is_prompt, dropped))
        self.since = since if self.items else NEVER
        self.prompt_since = since if self.prompt_count else NEVER
        self.first_truncated_at = since if self.short_lived and self.has_truncation else NEVER

    def _is_prompt(self, item: PendingItem) -> bool:
        """A truncation of a short-lived segment comes with each file or so, and frees nothing in Tier 2."""
        is_expected = self.short_lived and isinstance(item, TruncateOperation)
        return is_prompt(item) and not is_expected

    def abandon(self) -> None:
        """The publication under way will not be tried again, yet it may happen: Tier 2 has to be asked."""
        self.in_flight = 0
        self.base = None
        self.base_known = False
        self.outcome_unknown = True

    def check(self) -> None:
        """Prove the invariants; O(items)."""
        assert 0 <= self.in_flight <= len(self.items), f"{self.in_flight} of {len(self.items)}"
        held = sum(map(self._live_bytes, self.items))
        assert self.held_bytes == held, f"held_bytes={self.held_bytes} but items have {held}"
        dead = sum(map(byte_count, self.items)) - held
        assert self.dead_bytes == dead, f"dead_bytes={self.dead_bytes} but items have {dead}"
        last = self.base.sequence_number if self.base is not None else 0
        for item in self.items:
            assert last_number(item) >= last, f"{last_number(item)} behind {last}"
            last = last_number(item)
        assert all(
            self._live_bytes(item) == 0
            for item in self.items[: self.dead_items]
            if isinstance(item, AppendRun)
        ), f"bytes that are not truncated among {self.dead_items} items"
        prompt = sum(map(self._is_prompt, self.items))
        assert self.prompt_count == prompt, f"{prompt} prompt items, {self.prompt_count} noted"
        merges = [item for item in self.items if isinstance(item, PendingMerge)]
        assert merges == self.merges, f"{len(merges)} merges, {len(self.merges)} noted"
        assert (self.since == NEVER) == (not self.items), f"{self.since} items={len(self.items)}"
        for merge in merges:
            assert merge.source.merged_into is self, f"{merge.source.segment!r} belongs elsewhere"
        deletes = sum(isinstance(item, DeleteOperation) for item in self.items)
        assert deletes == int(self.deleted), f"{deletes} deletions, deleted={self.deleted}"

    def __repr__(self) -> str:
        return (
            f"<aggregator of {self.segment!r} items={len(self.items)} in_flight={self.in_flight}"
            f" bytes={self.held_bytes} base={self.base_known and self.base} since={self.since}"
            f" merges={[merge.source for merge in self.merges]} finished={self.finished}>"
        )


def _is_too_large(
    source: SegmentAggregator, bytes_max: int, depth_max: int, items_max: int
) -> bool:
    """Whether it has to be flushed by itself before it is merged. One that has a single item left never is."""
    return len(source.items) > 1 and (
        source.held_bytes > bytes_max
        or source.depth >= depth_max
        or _cost_of_source(source) > items_max + _ITEMS_PER_SOURCE
    )


def _cost_of_source(source: SegmentAggregator) -> int:
    """In items: its own and those of all that wait to be merged into it."""
    return sum(_ITEMS_PER_SOURCE + len(each.items) for each in (source, *source.sources()))


def _is_ready(source: SegmentAggregator) -> bool:
    """Whether a publication of the target may take it along."""
    return (
        source.base_known
        and not source.in_flight
        and all(other.base_known and not other.in_flight for other in source.sources())
    )


def first_number(item: PendingItem) -> SequenceNumber:
    """Sequence number of its first operation."""
    if isinstance(item, AppendRun):
        return item.first_sequence_number
    if isinstance(item, PendingMerge):
        return item.operation.sequence_number
    return item.sequence_number


def last_number(item: PendingItem) -> SequenceNumber:
    """Sequence number of its last operation; that of the merge for a merge."""
    return item.last_sequence_number if isinstance(item, AppendRun) else first_number(item)


def byte_count(item: PendingItem) -> int:
    """Un-published bytes that the item brings."""
    if isinstance(item, AppendRun):
        return item.length
    return item.source.held_bytes if isinstance(item, PendingMerge) else 0


def is_prompt(item: PendingItem) -> bool:
    """Whether it should reach Tier 2 soon: it frees space there, or readers of Tier 2 wait for it."""
    return isinstance(item, _PROMPT_ITEMS)
