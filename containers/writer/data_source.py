"""The storage writer's only view of its container: its segments, and its log."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import Operation
from segmentstore.contracts.identifiers import (
    SegmentId,
    SequenceNumber,
)

LogItem: TypeAlias = AppendRun | Operation
"""What the in-memory log hands out: runs instead of single appends, everything else as logged."""


class FlushSource(Protocol):
    """What a flush may ask of a container and tell it, also in the middle of a recovery."""

    def segment(self, segment_id: SegmentId) -> SegmentMetadata | None:
        """Active metadata, deleted and merged segments included until `segment_removed`."""

    def data(self, segment_id: SegmentId, offset: int, length: int) -> Sequence[memoryview]:
        """Views of committed bytes not yet in Tier 2. They stay valid and unchanged until
        `published` moved the storage length past them."""

    def published(
        self,
        segment_id: SegmentId,
        *,
        storage_length: int,
        sealed: bool,
        sequence_number: SequenceNumber,
    ) -> None:
        """A publication of this segment is durable: cached bytes below storage_length may be evicted,
        published attributes may leave memory."""

    def skipped(self, segment_id: SegmentId, offset: int) -> None:
        """Bytes below `offset` are truncated and will not be asked for: they never reach Tier 2."""

    def merge_completed(self, target_id: SegmentId, source_id: SegmentId) -> None:
        """The merge is published: the target serves its bytes itself, the source's index goes."""

    def segment_removed(self, segment_id: SegmentId) -> None:
        """The deletion (or merge) is published: the metadata and whatever is cached may go."""


class ActiveSegments:
    """What of FlushSource is the same for a container that runs and for one that recovers."""

    def __init__(self, by_id: Mapping[SegmentId, SegmentMetadata]) -> None:
        self._by_id = by_id

    def segment(self, segment_id: SegmentId) -> SegmentMetadata | None:
        return self._by_id.get(segment_id)

    def data(self, segment_id: SegmentId, offset: int, length: int) -> Sequence[memoryview]:
        return self._by_id[segment_id].read_index.views(offset, length)

    def published(
        self,
        segment_id: SegmentId,
        *,
        storage_length: int,
        sealed: bool,
        sequence_number: SequenceNumber,
    ) -> None:
        segment = self._by_id.get(segment_id)
        if segment is None:
            return
        segment.set_storage_length(storage_length)
        segment.sealed_in_storage = sealed
        segment.published_sequence_number = sequence_number
        segment.read_index.storage_advanced(storage_length)

    def skipped(self, segment_id: SegmentId, offset: int) -> None:
        segment = self._by_id.get(segment_id)
        if segment is not None:
            segment.read_index.skipped(offset)

    def merge_completed(self, target_id: SegmentId, source_id: SegmentId) -> None:
        target, source = self._by_id.get(target_id), self._by_id.get(source_id)
        if target is not None and source is not None:
            target.read_index.complete_merge(source.read_index)


class WriterDataSource(FlushSource, Protocol):
    """What a storage writer may ask of its container, and nothing else."""

    async def read(self, count_max: int) -> Sequence[LogItem]:
        """The next committed items in order; waits for at least one. A run that was handed out never grows again.

        Items come in order of their (first) sequence number. After recovery the replayed ones come again.
        """

    def read_nowait(self, count_max: int) -> Sequence[LogItem]:
        """The same without waiting; empty if there is none."""

    @property
    def handed_out_sequence_number(self) -> SequenceNumber:
        """Every operation at or below it is contained in items that were handed out."""

    def read_cached(self, segment_id: SegmentId, start: int, end: int) -> bytes | None:
        """A copy of committed bytes, flushed ones included, if all of [start, end) is in memory; None otherwise."""

    async def acknowledge(self, up_to: SequenceNumber) -> None:
        """Everything of every operation at or below is under a published manifest. The log may be truncated."""
