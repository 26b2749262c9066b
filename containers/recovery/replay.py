"""Replay: applies the records of a log, one after another, to an empty container.

Recovery gives `Replay` every record in the order of the log and then calls `finish()`: appends one by one
(`append_record`) or many together (`append_records`), all other records by `apply`, checkpoints among them.
`ReplayedOverlap` has checksums of replayed bytes that Tier 2 has already, for the storage writer to compare before it
goes on.

The state after replay is what the commits that wrote the records had made of it. Only what Tier 2 lacks comes back as
data: operations at or below a segment's published sequence number touch metadata alone, and bytes below its
storage length are not put into the cache.

Invariants:
- the first record applied is a metadata checkpoint; records before it belong to what it already contains;
- every later checkpoint must equal what replay has come to; segments that it does not name have left memory;
- offsets fit exactly: anything else is corruption and halts the container;
- what Tier 2 says goes before what the log says it was told: a storage length comes from the manifest, and may
  be ahead of the length until replay gets there;
- a segment that Tier 2 had and has no more ends further down in the log, or the container halts at the end.
"""

from collections.abc import Mapping

from crc32c import crc32c

from containers.cache.cache_storage import BLOCK_BYTES_MIN
from containers.log.in_memory_log import InMemoryLog
from containers.metadata.append_run import RUN_BYTES_MAX
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    DeleteOperation,
    MapSegmentOperation,
    MergeOperation,
    Operation,
    OperationType,
    SealOperation,
    SegmentOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    commit_fields,
)
from containers.operations.record_codec import (
    APPEND_HEADER,
    FLAG_EVENTS,
    FLAG_SEAL,
    LENGTH_FIELD_BYTES,
    Record,
    decode_attributes,
    decode_events,
)
from containers.operations.snapshot_codec import decode_checkpoint, decode_segment_snapshot
from containers.read_index.container_read_index import ContainerReadIndex
from containers.writer.reconciler import ExpectedBytes, Reconciler
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import ClaimedManifest, SegmentRecord

_unpack_append = APPEND_HEADER.unpack_from
_APPEND_TYPE = int(OperationType.APPEND)
_APPEND_HEADER_BYTES = APPEND_HEADER.size
_APPEND_REST_BYTES = _APPEND_HEADER_BYTES - LENGTH_FIELD_BYTES

_SMALL_APPEND_BYTES_MAX = 4 * 1024
"""Longer appends gain nothing by company, and would be copied once more."""

OVERLAP_BYTES_MAX = 1024 * 1024


class _AppendStretch:
    """Appends of one segment that stand one behind the other, whatever stands between them in the log."""

    __slots__ = (
        "end",
        "first_modified_ms",
        "first_number",
        "last_modified_ms",
        "last_number",
        "offset",
        "parts",
        "segment",
    )

    def __init__(
        self, segment: SegmentMetadata, *, number: int, offset: int, modified_ms: int
    ) -> None:
        self.segment = segment
        self.offset = self.end = offset
        self.first_number = self.last_number = number
        self.first_modified_ms = self.last_modified_ms = modified_ms
        self.parts: list[memoryview] = []


class Replay:
    """The state machine of recovery. Feed `append_record(s)` and `apply` in log order, then `finish`.

    One append at a time is always right. Plain appends that stand together in a frame (no attributes, no events, no
    seal, of segments that Tier 2 is not ahead of) are looked at one by one and applied by segment: its bytes go to the
    cache, and to its run, in one piece.

    Invariants of appends that are applied together:
    - every record is checked as if it were alone: number, segment, offset, length. The first that does not fit, or is
      anything else, ends the stretch, and is judged by itself when what stands before it has been applied;
    - only appends are applied together, so that their order among segments shows nowhere but in the order of the items
      of the in-memory log: by the first record of each;
    - a stretch is begun only if the cache has room for all of it, so that it is applied whole.
    """

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        memory_log: InMemoryLog,
        read_index: ContainerReadIndex,
        storage_known: bool,
    ) -> None:
        self._metadata = metadata
        self._memory_log = memory_log
        self._read_index = read_index
        self._storage_known = storage_known
        self.overlap = ReplayedOverlap()
        """Replayed bytes that Tier 2 has."""
        self.highest_sequence_number = 0
        self.checkpoint_seen = False
        self.operations = 0
        self.data_bytes = 0
        self.records: dict[SegmentId, SegmentRecord] = {}
        """What Tier 2 has of every segment that was met."""
        self._prepared: dict[int, list[SegmentMetadata]] = {}
        """Segments of checkpoints that are about to be applied, by sequence number."""
        self._dropped_up_to: dict[SegmentId, int] = {}
        """Up to which sequence number; the same id may be active again behind it."""
        self._missing_in_storage: dict[SegmentId, int] = {}
        """Segments that Tier 2 had and has no more: they end further down in the log, so their bytes stay out."""

    # --- segments --------------------------------------------------------------------------------

    def add_stored_records(self, records: Mapping[SegmentId, SegmentRecord]) -> None:
        """What Tier 2 says of segments that the next records may name."""
        self.records.update(records)

    def _activate(self, segment: SegmentMetadata) -> None:
        stored = self.records.get(segment.segment_id)
        if stored is not None:
            if stored.length < segment.storage_length:
                raise DataCorruptionError(
                    "Tier 2 lost bytes that the log says it had "
                    f"segment={segment!r} storage_length={stored.length}"
                )
            segment.storage_length = (
                stored.length
            )  # may be ahead of `length` until replay gets there
            segment.published_sequence_number = stored.sequence_number
            segment.sealed_in_storage = stored.sealed
        elif self._storage_known:
            segment.published_sequence_number = SequenceNumber(0)
            if segment.storage_length > 0:
                self._missing_in_storage[segment.segment_id] = segment.storage_length
        self._metadata.add(segment)
        self._read_index.open(segment)

    def _storage_checkpoint(self, record: Record) -> None:
        for segment_id, length in record.storage_lengths:
            segment = self._metadata.by_id.get(segment_id)
            if segment is None or length <= segment.storage_length:
                continue
            if self._storage_known:
                # Right only if the segment is gone by the end of the log: judged there.
                self._missing_in_storage[segment_id] = length
                segment.read_index.discard_all()
            else:
                segment.storage_length = length
                if length >= segment.start_offset:
                    segment.read_index.storage_advanced(length)

    def drop_segment(self, segment: SegmentMetadata) -> None:
        """The segment has left memory, or Tier 2 has followed its end."""
        self._dropped_up_to[segment.segment_id] = self.highest_sequence_number
        self._read_index.remove(segment.segment_id)
        self._metadata.remove(segment)

    def _require_storage_kept(self, segment: SegmentMetadata) -> None:
        """What the log says was in Tier 2 is there, unless the segment has ended."""
        if not self._storage_known or segment.is_gone():
            return
        logged = self._missing_in_storage.get(segment.segment_id, 0)
        if logged > segment.storage_length:
            raise DataCorruptionError(
                f"Tier 2 lost bytes that the log says it had {segment!r} logged={logged}"
            )
        if segment.storage_length > 0 and segment.segment_id not in self.records:
            raise DataCorruptionError(f"Tier 2 lost a segment that it had {segment!r}")

    # --- a flush in the middle ---------------------------------------------------------------

    def may_be_flushed(self, segment: SegmentMetadata, claimed: ClaimedManifest) -> bool:
        """Whether Tier 2 cannot have seen the segment's end, which would lie further down in the log.

        It has not if it has the segment, if it never knew an id as high, or if replay is past everything that it knew.
        """
        segment_id = segment.segment_id
        if segment_id in self._missing_in_storage:
            return False
        return (
            segment_id in self.records
            or segment_id > claimed.highest_segment_id
            or self.highest_sequence_number > claimed.highest_sequence_number
        )

    def left_storage(self, segment: SegmentMetadata) -> None:
        """A flush has published its end."""
        self.drop_segment(segment)
        self.records.pop(segment.segment_id, None)

    def begin_flush(self) -> None:
        """What has left memory is not handed out, and no run grows that is about to be."""
        self._memory_log.drop_segments(self._dropped_up_to)
        for segment in self._metadata.by_id.values():
            segment.open_run = None

    def end_flush(self, records: Mapping[SegmentId, SegmentRecord]) -> None:
        """Tier 2 has these of all active segments now, and no others of them."""
        for segment_id in self._metadata.by_id:
            self.records.pop(segment_id, None)
        self.records.update(records)
        self._memory_log.drop_published()

    # --- appends, many at once -------------------------------------------------------------------

    def append_records(self, payload: memoryview, position: int) -> int:
        """Apply the plain appends that stand whole at `position` and behind it; the position behind the last of them.

        None may be taken, for whatever reason: then the record there goes to append_record, or to apply.
        """
        if not self.checkpoint_seen or not self._has_room_for(len(payload) - position):
            return position
        stretches: dict[SegmentId, _AppendStretch] = {}
        number = self.highest_sequence_number
        count = 0
        header_end_max = len(payload) - _APPEND_HEADER_BYTES
        while position <= header_end_max:
            (
                record_length,
                kind,
                flags,
                attributes,
                record_number,
                segment_id,
                offset,
                modified,
                length,
            ) = _unpack_append(payload, position)
            begin = position + _APPEND_HEADER_BYTES
            end = begin + length
            if (
                kind != _APPEND_TYPE
                or flags
                or attributes
                or not 0 < length <= _SMALL_APPEND_BYTES_MAX
                or record_length != _APPEND_REST_BYTES + length
                or end > len(payload)
                or record_number <= number
            ):
                break
            stretch = stretches.get(segment_id)
            if stretch is None:
                segment = self._metadata.by_id.get(segment_id)
                if segment is None or not self._takes_plain(segment, record_number, offset):
                    break
                stretch = stretches[segment_id] = _AppendStretch(
                    segment, number=record_number, offset=offset, modified_ms=modified
                )
            elif stretch.end != offset:
                break
            stretch.parts.append(payload[begin:end])
            stretch.end = end_offset = offset + length
            stretch.last_number = number = record_number
            stretch.last_modified_ms = modified
            count += 1
            position = end
            if (offset ^ end_offset) >= RUN_BYTES_MAX:
                break  # the run ends here, and the next stretch begins another
        for stretch in stretches.values():
            self._apply_stretch(stretch)
        self.highest_sequence_number = number
        self.operations += count
        return position

    def _has_room_for(self, length: int) -> bool:
        """A run takes at most twice its bytes, and one block at least."""
        blocks_max = min(len(self._metadata.by_id), length // _APPEND_HEADER_BYTES)
        return self._read_index.cache.has_room(2 * length + blocks_max * BLOCK_BYTES_MIN)

    def _takes_plain(self, segment: SegmentMetadata, number: int, offset: int) -> bool:
        """The append fits, and all of it goes to the cache and to the storage writer."""
        return (
            segment.length == offset
            and not segment.sealed
            and not segment.is_gone()
            and number > segment.published_sequence_number
            and offset >= segment.storage_length
            and segment.segment_id not in self._missing_in_storage
        )

    def _apply_stretch(self, stretch: _AppendStretch) -> None:
        segment, offset, end = stretch.segment, stretch.offset, stretch.end
        data = memoryview(b"".join(stretch.parts))
        segment.read_index.insert_recovered(offset, data)
        self.data_bytes += len(data)
        # The first by itself: a run that it begins has its number and its time.
        size = len(stretch.parts[0])
        number, modified = SequenceNumber(stretch.first_number), stretch.first_modified_ms
        add_append = self._memory_log.add_append
        add_append(segment, offset, offset + size, data[:size], number, modified, None)
        if size < len(data):
            number, modified = SequenceNumber(stretch.last_number), stretch.last_modified_ms
            add_append(segment, offset + size, end, data[size:], number, modified, None)
        segment.length = segment.pending_length = end
        segment.last_sequence_number = number
        segment.set_last_modified(modified)

    # --- appends, one by one ---------------------------------------------------------------------

    def append_record(self, view: memoryview) -> None:
        """Apply one APPEND record, given whole. Raises CacheFullError, having changed nothing."""
        (_, _, flags, count, number, segment_id, offset, modified, length) = _unpack_append(view)
        if not self.checkpoint_seen:
            self._count(number)
            return
        segment = self._metadata.by_id.get(segment_id)
        if segment is None or segment.length != offset or segment.sealed or segment.is_gone():
            raise DataCorruptionError(
                f"append does not fit sequence_number={number} segment_id={segment_id} "
                f"offset={offset} segment={segment!r}"
            )
        changes = None
        position = APPEND_HEADER.size
        if count:
            changes, position = decode_attributes(view, position, count)
        events = None
        if flags & FLAG_EVENTS:
            events, position = decode_events(view, position)
        if position + length != len(view):
            raise DataCorruptionError(f"append record length differs sequence_number={number}")
        end = offset + length
        data = view[position:]
        is_published = number <= segment.published_sequence_number
        if not is_published:
            self._insert(segment, offset, data)
        self._count(number)
        if changes is not None:
            if is_published:
                segment.attributes.commit_published(changes)
            else:
                segment.attributes.commit(changes, number)
        if not is_published:
            self._memory_log.add_append(
                segment,
                offset=offset,
                end=end,
                data=data,
                sequence_number=number,
                last_modified_ms=modified,
                attributes=changes,
                events=events,
            )
        elif length:
            self.overlap.add(segment_id, offset, data)
        segment.length = end
        segment.pending_length = end
        segment.last_sequence_number = number
        if modified > segment.last_modified_ms:
            segment.last_modified_ms = modified
        if flags & FLAG_SEAL:
            seal = SealOperation(segment)
            seal.sequence_number = number
            seal.last_modified_ms = modified
            commit_fields(seal)
            self._keep(seal, segment)

    def _insert(self, segment: SegmentMetadata, offset: int, data: memoryview) -> None:
        length = min(len(data), offset + len(data) - segment.storage_length)
        if length <= 0 or segment.segment_id in self._missing_in_storage:
            return
        segment.read_index.insert_recovered(offset, data)
        self.data_bytes += length

    def _keep(self, operation: Operation, *segments: SegmentMetadata) -> None:
        """Hand it to the storage writer again, unless Tier 2 has it."""
        if operation.sequence_number > segments[0].published_sequence_number:
            self._memory_log.add(operation, *segments)

    def _count(self, number: int) -> None:
        if number <= self.highest_sequence_number:
            raise DataCorruptionError(
                f"sequence numbers go back from {self.highest_sequence_number} to {number}"
            )
        self.highest_sequence_number = number
        self.operations += 1

    # --- other records ---------------------------------------------------------------------------

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
                self._applied(seal, record, segment)
            case OperationType.TRUNCATE:
                segment = self._segment(record)
                self._applied(TruncateOperation(segment, record.offset), record, segment)
                if not self._storage_known:
                    # This life flushes nothing, and the next one replays them: there may be more than fits.
                    segment.read_index.skipped(record.offset)
                segment.read_index.truncated(record.offset)
            case OperationType.UPDATE_ATTRIBUTES:
                segment = self._segment(record)
                self._applied(
                    UpdateAttributesOperation(segment, record.attributes), record, segment
                )
            case OperationType.DELETE:
                segment = self._segment(record)
                segment.pending_deleted = True
                self._applied(DeleteOperation(segment), record, segment)
                segment.read_index.discard_all()  # no read and no flush needs its bytes any more
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

    def _applied(
        self, operation: SegmentOperation, record: Record, segment: SegmentMetadata
    ) -> None:
        operation.sequence_number = record.sequence_number
        commit_fields(operation)
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
        self._metadata.merged(source, target)
        if not published:
            self._memory_log.add(operation, target, source)
            target.read_index.begin_merge(record.offset, source.read_index)
        commit_fields(operation)
        target.pending_length = target.length
        source.pending_sealed = source.pending_merged = True
        if published:
            self.drop_segment(source)

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
        self._activate(segment)
        operation = MapSegmentOperation(
            segment, created=record.created, snapshot=bytes(record.snapshot)
        )
        operation.attributes = record.attributes
        self._applied(operation, record, segment)

    # --- checkpoints -----------------------------------------------------------------------------

    def prepare_checkpoint(self, record: Record) -> list[SegmentId]:
        """Ids that Tier 2 should be asked about before this checkpoint is applied."""
        segments = decode_checkpoint(self._metadata, record.snapshot)
        self._prepared[record.sequence_number] = segments
        by_id = self._metadata.by_id
        return [each.segment_id for each in segments if each.segment_id not in by_id]

    def _checkpoint(self, record: Record) -> None:
        segments = self._prepared.pop(record.sequence_number, None)
        if segments is None:
            segments = decode_checkpoint(self._metadata, record.snapshot)
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
                self._restore_evicted(segment, record.sequence_number)
                continue
            compare_with_checkpoint(present, segment, record.sequence_number)
        if self._storage_known:
            for segment in [s for s in self._metadata.by_id.values() if s.segment_id not in named]:
                self.drop_segment(segment)

    def _restore_evicted(self, segment: SegmentMetadata, sequence_number: SequenceNumber) -> None:
        """An owner without Tier 2 cannot tell what an earlier one evicted, and names it again.

        The log may have let go of the eviction. What was evicted was in Tier 2, to the last byte: it still is, or the
        segment ends further down in the log.
        """
        stored = self.records.get(segment.segment_id)
        if segment.segment_id not in self._dropped_up_to:
            if stored is not None and stored.length < segment.length:
                raise DataCorruptionError(f"checkpoint names an unknown segment {segment!r}")
            segment.storage_length = segment.length
        segment.last_sequence_number = sequence_number
        self._activate(segment)

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """After the last record: forget segments that neither tier has any more, and prove that no byte is missing."""
        by_id = self._metadata.by_id
        if self._storage_known:
            self._forget_ended()
        else:
            self._complete_stored()
        self._memory_log.drop_segments(self._dropped_up_to)
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

    def _merges(self) -> list[MergeOperation]:
        """Those among the items of the in-memory log, in order."""
        return [item for item in self._memory_log.items() if isinstance(item, MergeOperation)]

    def _forget_ended(self) -> None:
        """Drop deleted segments, and the sources that were merged into them, if Tier 2 has none of them."""
        by_id, merges = self._metadata.by_id, self._merges()
        # A target that Tier 2 never had takes its published sources along: the storage writer needs it for that.
        needed: set[SegmentId] = set()
        for merge in merges:
            source_id = merge.source.segment_id
            if source_id in self.records or source_id in needed:
                needed.add(merge.segment.segment_id)
        for segment in [segment for segment in by_id.values() if segment.deleted]:
            if segment.segment_id not in self.records and segment.segment_id not in needed:
                self.drop_segment(segment)
        # Targets before their sources: chains end at their last target.
        for merge in reversed(merges):
            source = by_id.get(merge.source.segment_id)
            target_left = self._dropped_up_to.get(merge.segment.segment_id, 0)
            if source is not None and merge.sequence_number <= target_left:
                self.drop_segment(source)

    def _complete_stored(self) -> None:
        """The log need not have the bytes of a source any more whose target is in Tier 2 up to the merge's end."""
        for merge in self._merges():
            target, source = merge.segment, merge.source
            if target.storage_length >= merge.offset + merge.length:
                target.read_index.complete_merge(source.read_index)


def compare_with_checkpoint(
    present: SegmentMetadata, listed: SegmentMetadata, number: SequenceNumber
) -> None:
    """A checkpoint never says anything else than replay up to it."""
    ours = (present.length, present.start_offset, present.sealed, present.is_gone())
    theirs = (listed.length, listed.start_offset, listed.sealed, listed.is_gone())
    if ours != theirs or present.attributes.core() != listed.attributes.core():
        raise DataCorruptionError(
            f"checkpoint contradicts replay sequence_number={number} "
            f"replayed={present!r} checkpoint={listed!r}"
        )


class ReplayedOverlap:
    """Collects checksums while the log is replayed.

    Per segment only the newest contiguous stretch is kept, and at most `OVERLAP_BYTES_MAX` of it: enough to see that
    Tier 2 continues where the log says it does, without reading everything again.
    """

    def __init__(self) -> None:
        self.by_segment: dict[SegmentId, ExpectedBytes] = {}

    def add(self, segment_id: SegmentId, offset: int, data: memoryview) -> None:
        """The next replayed bytes of a segment."""
        overlap = self.by_segment.get(segment_id)
        if (
            overlap is None
            or overlap.offset + overlap.length != offset
            or overlap.length + len(data) > OVERLAP_BYTES_MAX
        ):
            self.by_segment[segment_id] = ExpectedBytes(offset, len(data), crc32c(data))
            return
        overlap.checksum = crc32c(data, overlap.checksum)
        overlap.length += len(data)

    def hand_to(self, reconciler: Reconciler, by_id: Mapping[SegmentId, SegmentMetadata]) -> None:
        """What is there, of segments that have not ended, before anything is built on it."""
        for segment_id, expected in self.by_segment.items():
            segment = by_id.get(segment_id)
            if segment is None or segment.is_gone() or expected.offset < segment.start_offset:
                continue
            reconciler.expect(segment_id, expected.offset, expected.length, expected.checksum)
