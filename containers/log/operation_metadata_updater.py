"""Judges an operation against everything accepted so far, and moves the pending state on if it is good.

One synchronous step per operation: check, reserve room (an append's bytes are copied into the cache here), assign
offset and sequence number, change the pending fields. A refusal changes nothing.
"""

from collections.abc import Sequence

from containers.attributes.attribute_updates import (
    AttributeUpdatesOrFunction,
    add_events,
    encode_merge,
    evaluate_updates,
    merged_source_key,
)
from containers.cache.cache_entry import NO_ROOM
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AppendOperation,
    AttributeChanges,
    DeleteOperation,
    MapSegmentOperation,
    MapTransactionOperation,
    MergeOperation,
    MetadataCheckpointOperation,
    SealOperation,
    StorageCheckpointOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from containers.operations.snapshot_codec import encode_checkpoint, encode_segment_snapshot
from segmentstore.codec.container_hash import transaction_parent
from segmentstore.contracts.errors import (
    BadOffsetError,
    MergeRefusedError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.segments import AttributeUpdate

_COUNT_NEAR_ITS_END = 1 << 62
"""From here on a count of events is looked at more closely; what an append adds is far below."""


class OperationMetadataUpdater:
    """Accepts operations. Every method raises the contract error that says why not, or gives the numbered operation."""

    def __init__(self, *, metadata: ContainerMetadata) -> None:
        self.metadata = metadata

    def accept_append(
        self,
        segment: SegmentMetadata,
        data: bytes,
        *,
        expected_offset: int | None,
        updates: AttributeUpdatesOrFunction,
        seal: bool,
        events: int | None,
        now_ms: int,
    ) -> AppendOperation:
        """Also raises CacheFullError and UnknownAttributesError: nothing is wrong, but it has to wait."""
        offset = segment.pending_length
        if segment.pending_sealed or segment.pending_deleted:  # what is merged is sealed
            self._require_writable(segment)
        if expected_offset is not None and expected_offset != offset:
            raise BadOffsetError(segment.name, expected=offset, given=expected_offset)
        changes: AttributeChanges | None = None
        if callable(updates):
            data, changes = updates(segment)
        elif updates:
            changes = evaluate_updates(segment.attributes, segment.name, updates)
        if events is not None:
            changes = count_events(segment, changes or (), events)
        operation = AppendOperation(segment, data)
        end = segment.open_entry.add(offset, data)
        if end == NO_ROOM:
            end = segment.read_index.stage(data)
        number = self.metadata.next_sequence_number()
        operation.sequence_number = number
        operation.offset = offset
        operation.result = segment.pending_length = end
        if now_ms > segment.pending_last_modified_ms:
            segment.pending_last_modified_ms = now_ms
        operation.last_modified_ms = segment.pending_last_modified_ms  # never goes back
        segment.pending_operations += 1
        segment.encoded_snapshot = None
        if changes is not None:
            operation.events = events
            operation.attributes = changes
            segment.attributes.accept(changes, number)
        if seal:
            operation.seal = True
            segment.pending_sealed = True
        return operation

    def accept_seal(self, segment: SegmentMetadata, *, now_ms: int) -> SealOperation | None:
        """None if it is sealed already: the caller waits for a barrier instead."""
        self._require_present(segment)
        if segment.pending_sealed:
            return None
        operation = SealOperation(segment)
        self._number(operation)
        operation.last_modified_ms = _modify(segment, now_ms)
        operation.result = segment.pending_length
        segment.pending_sealed = True
        return operation

    def accept_truncate(self, segment: SegmentMetadata, offset: int) -> TruncateOperation | None:
        """None if the start offset is there already."""
        self._require_present(segment)
        if not 0 <= offset <= segment.pending_length:
            raise BadOffsetError(segment.name, expected=segment.pending_length, given=offset)
        if offset <= segment.pending_start_offset:
            return None
        operation = TruncateOperation(segment, offset)
        self._number(operation)
        operation.result = offset
        segment.pending_start_offset = offset
        return operation

    def accept_merge(
        self,
        target: SegmentMetadata,
        source: SegmentMetadata,
        *,
        updates: Sequence[AttributeUpdate],
        seal_source: bool,
        now_ms: int,
    ) -> MergeOperation:
        """The target also remembers the source and counts its events. Also raises UnknownAttributesError."""
        if target is source:
            raise MergeRefusedError(f"a segment cannot be merged into itself name={target.name!r}")
        self._require_present(source)
        self._require_writable(target)
        if not (source.pending_sealed or seal_source):
            raise SegmentNotSealedError(source.name)
        if source.pending_start_offset > 0:
            raise SegmentTruncatedError(source.name, start_offset=source.pending_start_offset)
        changes: AttributeChanges = evaluate_updates(target.attributes, target.name, updates)
        events = source.attributes.pending_value(EVENT_COUNT)
        if isinstance(events, int) and all(update.key != EVENT_COUNT for update in updates):
            counted = target.attributes.pending_value(EVENT_COUNT)
            # A source may have any count, unlike an append.
            total = add_events(target.name, counted, max(events, 0))
            changes = [*changes, (EVENT_COUNT, total)]
        operation = MergeOperation(target, source)
        self._number(operation)
        operation.offset = target.pending_length
        operation.length = source.pending_length
        operation.last_modified_ms = _modify(target, now_ms)
        target.pending_length += source.pending_length
        operation.result = target.pending_length
        memory = encode_merge(operation.result, source.segment_id)
        operation.attributes = [*changes, (merged_source_key(source.name), memory)]
        self.metadata.merged(source, target)
        target.attributes.accept(operation.attributes, operation.sequence_number)
        source.pending_sealed = source.pending_merged = True
        source.pending_operations += 1
        source.encoded_snapshot = None
        return operation

    def accept_delete(self, segment: SegmentMetadata) -> DeleteOperation:
        self._require_present(segment)
        operation = DeleteOperation(segment)
        self._number(operation)
        segment.pending_deleted = True
        return operation

    def accept_attributes(
        self, segment: SegmentMetadata, updates: Sequence[AttributeUpdate]
    ) -> UpdateAttributesOperation:
        """Sealed segments take attributes. Also raises UnknownAttributesError."""
        self._require_present(segment)
        changes = evaluate_updates(segment.attributes, segment.name, updates)
        operation = UpdateAttributesOperation(segment, changes)
        self._number(operation)
        segment.attributes.accept(changes, operation.sequence_number)
        return operation

    def accept_map(
        self, segment: SegmentMetadata, *, created: bool, attributes: AttributeChanges
    ) -> MapSegmentOperation:
        """The segment becomes active now; users see it when the operation has committed."""
        snapshot = encode_segment_snapshot(segment)
        parent_name = transaction_parent(segment.name)
        operation: MapSegmentOperation
        if parent_name:
            operation = MapTransactionOperation(
                segment, created=created, snapshot=snapshot, parent_name=parent_name
            )
        else:
            operation = MapSegmentOperation(segment, created=created, snapshot=snapshot)
        operation.attributes = attributes
        self._number(operation)
        segment.attributes.accept(attributes, operation.sequence_number)
        return operation

    def accept_checkpoint(self) -> MetadataCheckpointOperation:
        """The pending state of this very moment becomes an operation."""
        operation = MetadataCheckpointOperation(
            encode_checkpoint(self.metadata), root_changes=self.metadata.root_changes
        )
        operation.sequence_number = self.metadata.next_sequence_number()
        return operation

    def accept_storage_checkpoint(self) -> StorageCheckpointOperation:
        by_id = self.metadata.by_id
        operation = StorageCheckpointOperation(
            [(key, by_id[key].storage_length) for key in sorted(by_id)],
            root_changes=self.metadata.root_changes,
        )
        operation.sequence_number = self.metadata.next_sequence_number()
        return operation

    def _number(
        self,
        operation: SealOperation
        | TruncateOperation
        | MergeOperation
        | DeleteOperation
        | UpdateAttributesOperation
        | MapSegmentOperation,
    ) -> None:
        operation.sequence_number = self.metadata.next_sequence_number()
        operation.segment.pending_operations += 1
        operation.segment.encoded_snapshot = None

    @staticmethod
    def _require_present(segment: SegmentMetadata) -> None:
        if segment.pending_deleted or segment.pending_merged:
            raise SegmentNotFoundError(segment.name)

    @staticmethod
    def _require_writable(segment: SegmentMetadata) -> None:
        if segment.pending_deleted or segment.pending_merged:
            raise SegmentNotFoundError(segment.name)
        if segment.pending_sealed:
            raise SegmentSealedError(segment.name, length=segment.pending_length)


def count_events(
    segment: SegmentMetadata, changes: AttributeChanges, events: int
) -> AttributeChanges:
    """The changes, and the segment's event count after an append of `events`. Raises BadAttributeUpdateError."""
    current = segment.attributes.pending_value(EVENT_COUNT)
    for key, value in changes:
        if key == EVENT_COUNT:
            current = value
    if current.__class__ is int and 0 <= current < _COUNT_NEAR_ITS_END:  # nearly every append
        return [*changes, (EVENT_COUNT, current + events)]
    return [*changes, (EVENT_COUNT, add_events(segment.name, current, events))]


def _modify(segment: SegmentMetadata, now_ms: int) -> int:
    """The segment's new last-modified time in milliseconds; it never goes back, whatever the clock does."""
    segment.pending_last_modified_ms = max(segment.pending_last_modified_ms, now_ms)
    return segment.pending_last_modified_ms
