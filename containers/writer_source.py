"""What the storage writer sees of its container, and what its progress sets in motion: eviction and log truncation."""

from collections.abc import Callable, Sequence

from containers.log.checkpoints import CheckpointPolicy
from containers.log.in_memory_log import InMemoryLog
from containers.log.log_truncation import LogTruncation
from containers.log.operation_processor import OperationProcessor
from containers.metadata.container_metadata import ContainerMetadata
from containers.operations.snapshot_codec import encode_segment_snapshot
from containers.read_index.container_read_index import ContainerReadIndex
from containers.writer.data_source import ActiveSegments, LogItem
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    SegmentId,
    SequenceNumber,
)
from segmentstore.runtime.cancellation import retrieve_exception


class ContainerWriterSource(ActiveSegments):
    """Implements containers.writer.data_source.WriterDataSource."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        memory_log: InMemoryLog,
        read_index: ContainerReadIndex,
        processor: OperationProcessor,
        log_truncation: LogTruncation,
        checkpoints: CheckpointPolicy,
        root_changes: Callable[[], int],
    ) -> None:
        """`root_changes` says how many of them are durable in Tier 2."""
        super().__init__(metadata.by_id)
        self._metadata = metadata
        self._memory_log = memory_log
        self._read_index = read_index
        self._processor = processor
        self._log_truncation = log_truncation
        self._checkpoints = checkpoints
        self._root_changes = root_changes
        self.acknowledged: SequenceNumber = NO_SEQUENCE_NUMBER

    async def read(self, count_max: int) -> Sequence[LogItem]:
        return await self._memory_log.read(count_max)

    def read_nowait(self, count_max: int) -> Sequence[LogItem]:
        return self._memory_log.read_nowait(count_max)

    @property
    def handed_out_sequence_number(self) -> SequenceNumber:
        return self._memory_log.handed_out_sequence_number

    def read_cached(self, segment_id: SegmentId, start: int, end: int) -> bytes | None:
        segment = self._metadata.by_id.get(segment_id)
        if segment is None or end > segment.length:
            return None
        return segment.read_index.read_cached(start, end - start)

    def published(
        self,
        segment_id: SegmentId,
        *,
        storage_length: int,
        sealed: bool,
        sequence_number: SequenceNumber,
    ) -> None:
        super().published(
            segment_id,
            storage_length=storage_length,
            sealed=sealed,
            sequence_number=sequence_number,
        )
        segment = self.segment(segment_id)
        if segment is not None:
            self._metadata.attribute_ledger.publications += 1
            segment.encoded_snapshot = None
            # Now, one by one: not all of them in the next checkpoint.
            encode_segment_snapshot(segment)

    def segment_removed(self, segment_id: SegmentId) -> None:
        segment = self._metadata.by_id.get(segment_id)
        if segment is not None:
            self._note_root()
            self._read_index.remove(segment_id)
            self._metadata.remove(segment)

    async def acknowledge(self, up_to: SequenceNumber) -> None:
        assert up_to >= self.acknowledged, f"acknowledge back from {self.acknowledged} to {up_to}"
        self._note_root()
        self.acknowledged = up_to
        self._processor.refresh_throttle()
        await self._log_truncation.truncate(up_to)
        if (
            up_to >= self._metadata.committed_sequence_number
            and self._checkpoints.has_new_operations()
            and self._processor.failure is None
        ):
            # Idle, and everything is in Tier 2: a checkpoint lets the log shrink to nothing.
            self._processor.checkpoint().add_done_callback(retrieve_exception)

    async def wait_until_log_begins_at(self, checkpoint: SequenceNumber) -> None:
        """Returns when nothing before that checkpoint, or a later one, would be replayed."""
        await self._log_truncation.wait_until_it_begins_at(checkpoint)

    def _note_root(self) -> None:
        """What leaves memory or the log is in this manifest: the log says so first, in every checkpoint, so that an
        older one is known for what it is."""
        self._metadata.root_changes = self._root_changes()
