"""Applies the records of a log, one after another, to an empty container.

The state after replay is what the commits that wrote the records had made of it. Only what Tier 2 lacks comes back as
data (H38): operations at or below a segment's published sequence number touch metadata alone, and bytes below its
storage length are not put into the cache.

Invariants:
- the first record applied is a metadata checkpoint; records before it belong to what it already contains;
- every later checkpoint must equal what replay has come to (H28); segments that it does not name have left memory;
- offsets fit exactly: anything else is corruption and halts the container.
"""

from collections.abc import Mapping

from containers.log.replayed_appends import ReplayedAppends
from containers.log.replayed_ends import complete_stored, forget_ended, merges_of
from containers.log.replayed_segments import compare_with_checkpoint
from containers.metadata.segment_metadata import SegmentMetadata
from containers.metadata.segment_snapshot import decode_segment_snapshot
from containers.operations.operation import (
    DeleteOperation,
    MapSegmentOperation,
    MergeOperation,
    Operation,
    OperationType,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from containers.operations.record_codec import Record
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import SegmentRecord


class Replay(ReplayedAppends):
    """The state machine of recovery. Feed `append_record(s)` and `apply` in log order, then `finish`."""

    # --- a flush in the middle (H38) ---------------------------------------------------------------

    def begin_flush(self) -> None:
        """What has left memory is not handed to anybody, and no run grows that is about to be."""
        self._memory_log.drop_segments(self._forgotten)
        for segment in self._metadata.by_id.values():
            segment.open_run = None

    def end_flush(self, records: Mapping[SegmentId, SegmentRecord]) -> None:
        """Tier 2 has these of all active segments now, and no others of them."""
        for segment_id in self._metadata.by_id:
            self.records.pop(segment_id, None)
        self.records.update(records)
        self._memory_log.drop_published()

    # --- everything else -------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Apply one decoded record that is not an append."""
        self._count(record.sequence_number)
        if record.type is OperationType.METADATA_CHECKPOINT:
            self._checkpoint(record)
            return
        if not self.checkpoint_seen:
            return
        match record.type:
            case OperationType.SEAL:
                segment = self._segment(record)
                seal = SealOperation(segment)
                seal.last_modified_ms = record.last_modified_ms
                segment.sealed = True
                segment.set_last_modified(record.last_modified_ms)
                self._applied(seal, record, segment)
            case OperationType.TRUNCATE:
                segment = self._segment(record)
                segment.set_start_offset(record.offset)
                self._applied(TruncateOperation(segment, record.offset), record, segment)
                segment.read_index.truncated(record.offset)
            case OperationType.UPDATE_ATTRIBUTES:
                segment = self._segment(record)
                segment.attributes.commit(record.attributes, record.sequence_number)
                self._applied(
                    UpdateAttributesOperation(segment, record.attributes), record, segment
                )
            case OperationType.DELETE:
                segment = self._segment(record)
                segment.deleted = segment.pending_deleted = True
                self._applied(DeleteOperation(segment), record, segment)
                segment.read_index.discard_all()  # nobody reads or flushes them any more (H38)
            case OperationType.MERGE:
                self._merge(record)
            case OperationType.MAP_SEGMENT | OperationType.MAP_TRANSACTION:
                self._map(record)
            case OperationType.STORAGE_CHECKPOINT:
                self._storage_checkpoint(record)
            case _:
                raise DataCorruptionError(f"record cannot be replayed type={record.type}")

    def _segment(self, record: Record) -> SegmentMetadata:
        segment = self._metadata.by_id.get(record.segment_id)
        if segment is None or segment.is_gone():
            raise DataCorruptionError(
                f"{record.type.name.lower()} of a segment that is not active "
                f"sequence_number={record.sequence_number} segment_id={record.segment_id}"
            )
        return segment

    def _applied(self, operation: Operation, record: Record, segment: SegmentMetadata) -> None:
        operation.sequence_number = record.sequence_number
        segment.last_sequence_number = record.sequence_number
        self._keep(operation, segment)

    def _merge(self, record: Record) -> None:
        target = self._segment(record)
        source = self._metadata.by_id.get(record.source_id)
        number = record.sequence_number
        published = number <= target.published_sequence_number
        if source is None or source.is_gone():
            raise DataCorruptionError(
                f"merge of a source that is not active sequence_number={number}"
            )
        if target.length != record.offset or source.length != record.length:
            raise DataCorruptionError(
                f"merge does not fit sequence_number={number} target={target!r} source={source!r}"
            )
        operation = MergeOperation(target, source)
        operation.offset, operation.length = record.offset, record.length
        operation.sequence_number = number
        operation.last_modified_ms = record.last_modified_ms
        operation.attributes = record.attributes
        target.attributes.commit(record.attributes, number)
        source.sealed = source.pending_sealed = source.merged = source.pending_merged = True
        source.last_sequence_number = number
        if published:
            self.forget(source)
        else:
            self._memory_log.add(operation, target, source)
            target.read_index.begin_merge(record.offset, source.read_index)
        target.set_length(record.offset + record.length)
        target.pending_length = target.length
        target.set_last_modified(record.last_modified_ms)
        target.last_sequence_number = number

    def _map(self, record: Record) -> None:
        segment, position = decode_segment_snapshot(record.snapshot)
        if position != len(record.snapshot):
            raise DataCorruptionError(f"map record is too long {record.sequence_number}")
        present = self._metadata.by_id.get(segment.segment_id)
        if present is not None:
            # Evicted and activated again: evictions are not logged. Replay knows at least as much.
            if record.created or present.length != segment.length or present.is_gone():
                raise DataCorruptionError(f"map does not fit {present!r} and {segment!r}")
            present.last_sequence_number = record.sequence_number
            return
        segment.attributes.commit(record.attributes, record.sequence_number)
        segment.last_sequence_number = record.sequence_number
        self._activate(segment)
        operation = MapSegmentOperation(
            segment, created=record.created, snapshot=bytes(record.snapshot)
        )
        operation.attributes = record.attributes
        self._applied(operation, record, segment)

    def prepare_checkpoint(self, record: Record) -> list[SegmentId]:
        """Ids that Tier 2 should be asked about before this checkpoint is applied."""
        segments = self._metadata.decode_checkpoint(record.snapshot)
        self._prepared[record.sequence_number] = segments
        by_id = self._metadata.by_id
        return [each.segment_id for each in segments if each.segment_id not in by_id]

    def _checkpoint(self, record: Record) -> None:
        segments = self._prepared.pop(record.sequence_number, None)
        if segments is None:
            segments = self._metadata.decode_checkpoint(record.snapshot)
        if not self.checkpoint_seen:
            self.checkpoint_seen = True
            for segment in segments:
                # Whatever lies before the first checkpoint is published, ends of segments included.
                if not segment.is_gone():
                    segment.last_sequence_number = record.sequence_number
                    if not self._storage_known:
                        segment.storage_length = segment.length
                        segment.sealed_in_storage = segment.sealed
                    self._activate(segment)
            return
        named = {segment.segment_id for segment in segments}
        for segment in segments:
            present = self._metadata.by_id.get(segment.segment_id)
            if present is None:
                if segment.is_gone() or not self._storage_known:
                    continue
                self._take_along(segment, record.sequence_number)
                continue
            compare_with_checkpoint(present, segment, record.sequence_number)
        if self._storage_known:
            for segment in [s for s in self._metadata.by_id.values() if s.segment_id not in named]:
                self.forget(segment)

    def _take_along(self, segment: SegmentMetadata, sequence_number: SequenceNumber) -> None:
        """A life without Tier 2 cannot tell what an earlier one evicted, and names it again (H41).

        The log may have let go of the eviction. What was evicted was in Tier 2, to the last byte: it still is, or the
        segment ends further down in the log.
        """
        stored = self.records.get(segment.segment_id)
        if segment.segment_id not in self._forgotten:
            if stored is not None and stored.length < segment.length:
                raise DataCorruptionError(f"checkpoint names an unknown segment {segment!r}")
            segment.storage_length = segment.length
        segment.last_sequence_number = sequence_number
        self._activate(segment)

    def finish(self) -> None:
        """Everything is applied: drop what is gone from both tiers, and prove that no byte is missing (H31)."""
        by_id = self._metadata.by_id
        if self._storage_known:
            forget_ended(
                merges_of(self._memory_log.items()),
                by_id=by_id,
                in_storage=self.records,
                forgotten=self._forgotten,
                forget=self.forget,
            )
        else:
            complete_stored(merges_of(self._memory_log.items()))
        self._memory_log.drop_segments(self._forgotten)
        for segment in by_id.values():
            if segment.storage_length > segment.length:
                raise DataCorruptionError(
                    f"Tier 2 has more bytes than the log acknowledged {segment!r}"
                )
            self._require_storage_kept(segment)
            segment.reset_pending()
            segment.encoded_snapshot = None
            if not segment.is_gone():
                segment.read_index.check()
        self._metadata.committed_sequence_number = SequenceNumber(self.highest_sequence_number)
        self._metadata.sequence_number = SequenceNumber(
            max(self._metadata.sequence_number, self.highest_sequence_number)
        )
