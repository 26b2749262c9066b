"""What a publication says of one segment: a prefix of its pending items, folded into one record and its pieces.

The record is the state after exactly those items on top of the record in Tier 2, never the live metadata. The
pieces are runs, by where their bytes are (`RunPiece`), and moves of whole sources (`MergePiece`).

- Bytes begin at max(published length, start offset): what was truncated before it was ever flushed is skipped.
- A run that Tier 2 has in part is trimmed. Its checksum is that of the whole run, so the head is read from Tier 2
  (containers.writer.reconciler) and the rest of the run checked behind it.
- A run that the start offset cuts is trimmed; the head that was never flushed is still in memory, and checked with
  it.
- A merge becomes the source's published bytes, moved, and its un-published ones as bytes of the target. A
  truncation into the middle of moved bytes waits for the next publication, so that a move is always whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

from containers.metadata.append_run import AppendRun
from containers.operations.operation import (
    AttributeChanges,
    MapSegmentOperation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from containers.operations.snapshot_codec import decode_segment_snapshot
from containers.writer.segment_aggregator import (
    PendingItem,
    PendingMerge,
    SegmentAggregator,
    first_number,
    last_number,
)
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    SequenceNumber,
    is_core_attribute,
)
from segmentstore.contracts.storage import MergePiece, RunEvents, SegmentRecord


@dataclass(slots=True)
class MergedSource:
    """A segment that leaves Tier 2 in the same publication, because it was merged or its target was deleted."""

    aggregator: SegmentAggregator
    target_id: SegmentId
    record: SegmentRecord | None
    """Its last record; None if Tier 2 never had it."""


@dataclass(slots=True)
class RunSlice:
    """Bytes to fetch from the container: un-published ones of one segment, on their way to this or its target."""

    owner_id: SegmentId
    owner_offset: int
    length: int
    checksum: int | None
    """CRC32C of the run as received: of its published head, its dropped head and these bytes. None: not known."""
    lowest_time_ms: int
    highest_time_ms: int
    published_head_checksum: int = 0
    """CRC32C of the bytes in front that Tier 2 has already, read there."""
    dropped_head_length: int = 0
    """Bytes right in front that were truncated before they were flushed. They are still in memory."""
    events: RunEvents | None = None
    """None: of unknown structure, as every trimmed run is."""
    views: Sequence[BufferView] = ()
    dropped_head_views: Sequence[BufferView] = ()

    def fetch(self, data: Callable[[SegmentId, int, int], Sequence[BufferView]]) -> None:
        """Ask for the bytes, and for those in front that are checked with them."""
        self.views = data(self.owner_id, self.owner_offset, self.length)
        if self.dropped_head_length:
            head_offset = self.owner_offset - self.dropped_head_length
            self.dropped_head_views = data(self.owner_id, head_offset, self.dropped_head_length)


@dataclass(slots=True)
class RunPiece:
    """New bytes of the segment, one run behind the other."""

    offset: int
    slices: list[RunSlice]

    @property
    def end(self) -> int:
        return self.offset + sum(item.length for item in self.slices)


PlannedPiece: TypeAlias = RunPiece | MergePiece


@dataclass(slots=True)
class SegmentFlush:
    """A folded prefix of one aggregator."""

    aggregator: SegmentAggregator
    item_count: int
    record: SegmentRecord | None
    """None if the segment is deleted and Tier 2 never had it: there is nothing to publish."""
    deleted: bool = False
    pieces: list[PlannedPiece] = field(default_factory=list)
    attributes: Mapping[AttributeKey, AttributeValue | None] = field(default_factory=dict)
    merged_sources: list[MergedSource] = field(default_factory=list)
    """Sources before the segments that they were merged into."""

    def slices(self) -> list[RunSlice]:
        return [
            item for piece in self.pieces if isinstance(piece, RunPiece) for item in piece.slices
        ]


def fold(aggregator: SegmentAggregator, count: int) -> SegmentFlush:
    """Fold the first `count` items, or fewer (at least one) if a truncation has to wait. O(items).

    Raises DataCorruptionError if the items contradict the record in Tier 2.
    """
    if aggregator.deleted:
        assert count == len(aggregator.items), f"{count} items of a deleted segment"
        return _fold_deletion(aggregator)
    state = _FoldedSegment(aggregator)
    folded = state.apply(aggregator.items[:count])
    assert folded > 0, f"nothing of {aggregator.segment!r} can be folded"
    return SegmentFlush(
        aggregator=aggregator,
        item_count=folded,
        record=state.record(),
        pieces=state.trimmed_pieces(),
        attributes=state.extended,
        merged_sources=state.merged_sources,
    )


def _fold_deletion(aggregator: SegmentAggregator) -> SegmentFlush:
    number = last_number(aggregator.items[-1])
    merged_sources = [
        MergedSource(source, _target_id(source), _removal_record(source, number))
        for source in aggregator.sources()
    ]
    return SegmentFlush(
        aggregator=aggregator,
        item_count=len(aggregator.items),
        record=_removal_record(aggregator, number),
        deleted=True,
        merged_sources=merged_sources[::-1],
    )


class _FoldedSegment:
    """The state of a segment while items are applied to its record in Tier 2."""

    def __init__(self, aggregator: SegmentAggregator) -> None:
        assert aggregator.base_known, f"Tier 2 was not asked for {aggregator.segment!r}"
        base = aggregator.base
        self._segment_id = aggregator.segment_id
        self._name = aggregator.segment.name
        self._base_number = base.sequence_number if base else NO_SEQUENCE_NUMBER
        self._base_length = base.length if base else 0
        self._published_head = aggregator.published_head
        self._exists = base is not None
        self._start_offset = base.start_offset if base else 0
        self.length = self._base_length
        self._sealed = base.sealed if base else False
        self._last_modified_ms = base.last_modified_ms if base else 0
        self._core = dict(base.core_attributes) if base else {}
        self._number = self._base_number
        self._no_extended = base.extended_attribute_count_is_zero if base else True
        self.extended: dict[AttributeKey, AttributeValue | None] = {}
        self.pieces: list[PlannedPiece] = []
        self.merged_sources: list[MergedSource] = []

    def apply(self, items: Sequence[PendingItem]) -> int:
        """Apply items in order; gives how many, fewer if a truncation has to wait for moved bytes."""
        for position, item in enumerate(items):
            if isinstance(item, TruncateOperation) and self._would_cut_moved_bytes(item.offset):
                return position
            if not self._exists and not isinstance(item, MapSegmentOperation):
                self._refuse(
                    f"Tier 2 has no record and item {first_number(item)} does not create it"
                )
            self._apply(item)
            assert last_number(item) >= self._number, f"{last_number(item)} after {self._number}"
            self._number = last_number(item)
        return len(items)

    def _apply(self, item: PendingItem) -> None:
        match item:
            case AppendRun():
                self._append(item)
            case PendingMerge():
                self._merge(item)
            case SealOperation():
                self._sealed = True
                self._modified(item.last_modified_ms)
            case TruncateOperation():
                if item.offset > self.length:
                    self._refuse(f"truncation at {item.offset} past the length {self.length}")
                self._start_offset = max(self._start_offset, item.offset)
            case UpdateAttributesOperation():
                self._change_attributes(item.attributes)
            case MapSegmentOperation():
                self._create(item)
            case _:
                raise AssertionError(f"item cannot be folded: {item!r}")

    def _create(self, operation: MapSegmentOperation) -> None:
        if self._exists:
            self._refuse("it is created and Tier 2 has it already")
        snapshot, _ = decode_segment_snapshot(memoryview(operation.snapshot))
        self._exists = True
        self._last_modified_ms = snapshot.last_modified_ms
        self._core = snapshot.attributes.core()
        self._change_attributes(operation.attributes)

    def _append(self, run: AppendRun) -> None:
        skipped = self.length - run.offset
        overlaps = run.first_sequence_number <= self._base_number
        if skipped < 0 or skipped > run.length or (skipped and not overlaps):
            self._refuse(
                f"append at {run.offset} of {run.length} bytes does not stand at {self.length}"
                f" operations={run.first_sequence_number}..{run.last_sequence_number}"
            )
        if skipped < run.length:
            head = self._published_head.get(run.offset) if skipped else 0
            self._add_slice(
                RunSlice(
                    owner_id=self._segment_id,
                    owner_offset=self.length,
                    length=run.length - skipped,
                    checksum=run.checksum if head is not None else None,
                    published_head_checksum=head or 0,
                    lowest_time_ms=run.first_modified_ms,
                    highest_time_ms=run.last_modified_ms,
                    events=_events_of(run) if not skipped else None,
                )
            )
        self._modified(run.last_modified_ms)
        if run.attributes:
            self._change_attributes(list(run.attributes.items()))

    def _add_slice(self, item: RunSlice) -> None:
        if not self.pieces or isinstance(self.pieces[-1], MergePiece):
            self.pieces.append(RunPiece(self.length, []))
        piece = self.pieces[-1]
        assert isinstance(piece, RunPiece), f"bytes cannot join {piece!r}"
        piece.slices.append(item)
        self.length += item.length

    def _merge(self, merge: PendingMerge) -> None:
        operation, source = merge.operation, merge.source
        inner = _FoldedSegment(source)
        inner.apply(source.items)
        if operation.offset != self.length or operation.length != inner.length:
            self._refuse(
                f"merge of {operation.length} bytes at {operation.offset} does not stand at"
                f" {self.length} source={source.segment_id} source_length={inner.length}"
            )
        if inner._start_offset:
            self._refuse(f"merge of a truncated source {source.segment_id}")
        events_before = self._event_count()
        self._change_attributes(operation.attributes)
        events = MergedEvents(events_before, self._event_count(), declared=inner._event_count())
        if inner._base_length:
            moved = MergePiece(0, source.segment_id, inner._base_length, first_event=0)
            inner.pieces.insert(0, moved)
        for piece in inner.pieces:
            if isinstance(piece, MergePiece):
                self.pieces.append(events.in_piece(piece, self.length, begins=piece.offset == 0))
                self.length += piece.length
            else:
                for number, item in enumerate(piece.slices):
                    events.count_in_slice(item, begins=piece.offset == 0 and number == 0)
                    self._add_slice(item)
        self._modified(operation.last_modified_ms)
        self.merged_sources += inner.merged_sources
        record = _removal_record(source, operation.sequence_number)
        self.merged_sources.append(MergedSource(source, self._segment_id, record))

    def _event_count(self) -> int:
        count = self._core.get(EVENT_COUNT, 0)
        # An earlier version took counts below zero: they number nothing.
        return max(count, 0) if isinstance(count, int) else 0

    def _change_attributes(self, changes: AttributeChanges) -> None:
        for key, value in changes:
            if not is_core_attribute(key):
                self.extended[key] = value
            elif value is None:
                self._core.pop(key, None)
            else:
                self._core[key] = value

    def _modified(self, milliseconds: int) -> None:
        self._last_modified_ms = max(self._last_modified_ms, milliseconds)

    def _would_cut_moved_bytes(self, offset: int) -> bool:
        return any(
            isinstance(piece, MergePiece) and piece.offset < offset < piece.offset + piece.length
            for piece in self.pieces
        )

    def record(self) -> SegmentRecord:
        return SegmentRecord(
            segment_id=self._segment_id,
            name=self._name,
            start_offset=self._start_offset,
            length=self.length,
            sealed=self._sealed,
            last_modified_ms=self._last_modified_ms,
            sequence_number=self._number,
            core_attributes=self._core,
            extended_attribute_count_is_zero=self._no_extended and not self.extended,
        )

    def trimmed_pieces(self) -> list[PlannedPiece]:
        """The pieces without what lies below the start offset."""
        return [kept for piece in self.pieces if (kept := self._trimmed(piece)) is not None]

    def _trimmed(self, piece: PlannedPiece) -> PlannedPiece | None:
        start = self._start_offset
        if isinstance(piece, MergePiece):
            return piece if piece.offset + piece.length > start else None
        kept: list[RunSlice] = []
        offset = piece.offset
        for item in piece.slices:
            end = offset + item.length
            if end > start:
                skipped = max(0, start - offset)
                if skipped:
                    item.owner_offset += skipped
                    item.length -= skipped
                    item.dropped_head_length = skipped
                    item.events = None
                kept.append(item)
            offset = end
        return RunPiece(max(piece.offset, start), kept) if kept else None

    def _refuse(self, why: str) -> NoReturn:
        raise DataCorruptionError(
            f"log and Tier 2 contradict each other: {why} segment_id={self._segment_id}"
            f" name={self._name!r} published_length={self._base_length}"
            f" published_up_to={self._base_number}"
        )


class MergedEvents:
    """The events of a merged source, as its target counts them.

    The target's event count grows in the merge's own operation. If it grew, the source's own numbers go on from the
    first event that the target had not counted. If it was never declared what the source's bytes are, they begin with
    that event, and if the count grew by one, they are that event, however many appends brought them. If it did not
    grow, nothing is known of the events in those bytes.
    """

    def __init__(self, count_before: int, count_after: int, *, declared: int) -> None:
        """The target's event count before and after the merge, and the source's own."""
        self._first = count_before
        self._count = count_after - count_before
        self._undeclared = declared == 0

    def in_piece(self, piece: MergePiece, offset: int, *, begins: bool) -> MergePiece:
        """The piece of the source at `offset` of the target; `begins`: it is the source's beginning."""
        if self._count <= 0 or piece.first_event is None:
            return replace(piece, offset=offset, first_event=None, begins_event=False)
        return replace(
            piece,
            offset=offset,
            first_event=piece.first_event + self._first,
            begins_event=piece.begins_event or (begins and self._undeclared),
        )

    def count_in_slice(self, item: RunSlice, *, begins: bool) -> None:
        """The same for bytes that Tier 2 does not have yet."""
        known = item.events
        number: int | None
        if self._count <= 0:
            item.events = None
            return
        if known is not None:
            number = None if known.first_number is None else known.first_number + self._first
        elif self._undeclared and begins:
            number = self._first
        elif self._undeclared and self._count == 1:
            number = None
        else:
            return
        item.events = RunEvents(number, item.lowest_time_ms, item.highest_time_ms)


def _target_id(source: SegmentAggregator) -> SegmentId:
    assert source.merged_into is not None, f"not merged into anything {source.segment!r}"
    return source.merged_into.segment_id


def _removal_record(aggregator: SegmentAggregator, number: SequenceNumber) -> SegmentRecord | None:
    """The record with which it leaves Tier 2; None if it cannot be there.

    It holds the segment's final state, so it is never behind a publication that may or may not have happened.
    """
    segment = aggregator.segment
    if aggregator.base is None and not aggregator.outcome_unknown:
        return None
    return SegmentRecord(
        segment_id=aggregator.segment_id,
        name=segment.name,
        start_offset=segment.start_offset,
        length=segment.length,
        sealed=segment.sealed,
        last_modified_ms=segment.last_modified_ms,
        sequence_number=number,
    )


def _events_of(run: AppendRun) -> RunEvents | None:
    if run.events is None:
        return None
    return RunEvents(run.event_number, run.first_modified_ms, run.last_modified_ms)
