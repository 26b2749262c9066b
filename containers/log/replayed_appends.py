"""Appends as they come back from the log: the bulk of every log, and most of it small.

One record at a time is always right. Plain appends that stand together in a frame (no attributes, no events, no seal,
of segments that Tier 2 is not ahead of) are looked at one by one and applied by segment: its bytes go to the
cache, and to its run, in one piece.

Invariants:
- every record is checked as if it were alone: number, segment, offset, length. The first that does not fit, or is
  anything else, ends the stretch, and is judged by itself when what stands before it has been applied;
- only appends are applied together, so that their order among segments shows nowhere but in the order of the items of
  the in-memory log: by the first record of each;
- a stretch is begun only if the cache has room for all of it, so that it is applied whole (H38).
"""

from collections.abc import Callable

from containers.cache.cache_storage import BLOCK_BYTES_MIN
from containers.log.memory_log import MemoryLog
from containers.log.replayed_segments import ReplayedSegments, ReplayReadIndex
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.append_run import RUN_BYTES_MAX
from containers.operations.operation import Operation, OperationType, SealOperation
from containers.operations.record_codec import (
    APPEND_HEADER,
    FLAG_EVENTS,
    FLAG_SEAL,
    LENGTH_FIELD_BYTES,
    decode_attributes,
    decode_events,
)
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber

_unpack_append = APPEND_HEADER.unpack_from
_HEADER_BYTES = APPEND_HEADER.size
_REST_BYTES = _HEADER_BYTES - LENGTH_FIELD_BYTES
_APPEND = int(OperationType.APPEND)

_SMALL_BYTES = 4 * 1024
"""Longer appends gain nothing by company, and would be copied once more."""


class _Stretch:
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


class ReplayedAppends(ReplayedSegments):
    """Applies the APPEND records of a log."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        memory_log: MemoryLog,
        read_index: ReplayReadIndex,
        expect_in_storage: Callable[[SegmentId, int, memoryview], None],
        storage_known: bool,
    ) -> None:
        super().__init__(metadata=metadata, read_index=read_index, storage_known=storage_known)
        self._memory_log = memory_log
        self._expect_in_storage = expect_in_storage
        self.checkpoint_seen = False
        self.operations = 0
        self.data_bytes = 0

    # --- many at once ----------------------------------------------------------------------------

    def append_records(self, payload: memoryview, position: int) -> int:
        """Apply the plain appends that stand whole at `position` and behind it; the position behind the last of them.

        None may be taken, for whatever reason: then the record there goes to append_record, or to apply.
        """
        if not self.checkpoint_seen or not self._has_room_for(len(payload) - position):
            return position
        stretches: dict[SegmentId, _Stretch] = {}
        number = self.highest_sequence_number
        count = 0
        header_end_max = len(payload) - _HEADER_BYTES
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
            begin = position + _HEADER_BYTES
            end = begin + length
            if (
                kind != _APPEND
                or flags
                or attributes
                or not 0 < length <= _SMALL_BYTES
                or record_length != _REST_BYTES + length
                or end > len(payload)
                or record_number <= number
            ):
                break
            stretch = stretches.get(segment_id)
            if stretch is None:
                segment = self._metadata.by_id.get(segment_id)
                if segment is None or not self._takes_plain(segment, record_number, offset):
                    break
                stretch = stretches[segment_id] = _Stretch(
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
        """A run takes at most twice its bytes, and one block at least (H55)."""
        blocks_max = min(len(self._metadata.by_id), length // _HEADER_BYTES)
        return self._read_index.has_room(2 * length + blocks_max * BLOCK_BYTES_MIN)

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

    def _apply_stretch(self, stretch: _Stretch) -> None:
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

    # --- one by one ------------------------------------------------------------------------------

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
            self._expect_in_storage(segment_id, offset, data)
        segment.length = end
        segment.pending_length = end
        segment.last_sequence_number = number
        if modified > segment.last_modified_ms:
            segment.last_modified_ms = modified
        if flags & FLAG_SEAL:
            seal = SealOperation(segment)
            seal.sequence_number = number
            seal.last_modified_ms = modified
            segment.sealed = True
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
