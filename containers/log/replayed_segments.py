"""The segments that a replay has brought back so far, and what Tier 2 has of each.

Invariants:
- what Tier 2 says goes before what the log says it was told: a storage length comes from the root (H31), and may be
  ahead of the length until replay gets there;
- a segment that Tier 2 had and has no more ends further down in the log, or the container halts at the end.
"""

from collections.abc import Mapping
from typing import Protocol

from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.record_codec import Record
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import ClaimedRoot, SegmentRecord


class ReplayReadIndex(Protocol):
    """What replay needs of the container's read index."""

    def open(self, metadata: SegmentMetadata) -> object: ...

    def remove(self, segment_id: SegmentId) -> None: ...

    def has_room(self, size_bytes: int) -> bool: ...


class ReplayedSegments:
    """Activates and forgets segments as the log says."""

    def __init__(
        self, *, metadata: ContainerMetadata, read_index: ReplayReadIndex, storage_known: bool
    ) -> None:
        self._metadata = metadata
        self._read_index = read_index
        self._storage_known = storage_known
        self.highest_sequence_number = 0
        self.records: dict[SegmentId, SegmentRecord] = {}
        """What Tier 2 has of every segment that was met."""
        self._prepared: dict[int, list[SegmentMetadata]] = {}
        """Segments of checkpoints that are about to be applied, by sequence number."""
        self._forgotten: dict[SegmentId, int] = {}
        """Up to which sequence number; the same id may be active again behind it."""
        self._missing_in_storage: dict[SegmentId, int] = {}
        """Segments that Tier 2 had and has no more: they end further down in the log, so their bytes stay out (H38)."""

    def learn(self, records: Mapping[SegmentId, SegmentRecord]) -> None:
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
                segment.read_index.storage_advanced(length)

    def forget(self, segment: SegmentMetadata) -> None:
        """The segment has left memory, or Tier 2 has followed its end."""
        self._forgotten[segment.segment_id] = self.highest_sequence_number
        self._read_index.remove(segment.segment_id)
        self._metadata.remove(segment)

    def _require_storage_kept(self, segment: SegmentMetadata) -> None:
        """What the log says was in Tier 2 is there, unless the segment has ended (H31)."""
        if not self._storage_known or segment.is_gone():
            return
        logged = self._missing_in_storage.get(segment.segment_id, 0)
        if logged > segment.storage_length:
            raise DataCorruptionError(
                f"Tier 2 lost bytes that the log says it had {segment!r} logged={logged}"
            )
        if segment.storage_length > 0 and segment.segment_id not in self.records:
            raise DataCorruptionError(f"Tier 2 lost a segment that it had {segment!r}")

    def may_be_flushed(self, segment: SegmentMetadata, claimed: ClaimedRoot) -> bool:
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
        self.forget(segment)
        self.records.pop(segment.segment_id, None)


def compare_with_checkpoint(
    present: SegmentMetadata, listed: SegmentMetadata, number: SequenceNumber
) -> None:
    """A checkpoint never says anything else than replay up to it (H28)."""
    ours = (present.length, present.start_offset, present.sealed, present.is_gone())
    theirs = (listed.length, listed.start_offset, listed.sealed, listed.is_gone())
    if ours != theirs or present.attributes.core() != listed.attributes.core():
        raise DataCorruptionError(
            f"checkpoint contradicts replay sequence_number={number} "
            f"replayed={present!r} checkpoint={listed!r}"
        )
