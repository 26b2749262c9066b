"""The numbers of one container under the names by which `/metrics` shows them."""

from containers.log.operation_processor import OperationProcessor
from containers.segment_mapper import SegmentMapper
from segmentstore.contracts.durable_data_log import LogStatistics
from segmentstore.contracts.identifiers import SequenceNumber
from segmentstore.contracts.storage import StorageStatistics

THROTTLE_DELAY_SECONDS_MAX = 3600.0
"""What "until something changes" is shown as."""


def container_metrics(
    *,
    processor: OperationProcessor,
    mapper: SegmentMapper,
    log: LogStatistics,
    storage: StorageStatistics,
    unflushed_bytes: int,
    acknowledged: SequenceNumber,
) -> dict[str, float]:
    """A snapshot. Names that end in `_total` are counters from the start of the process, all others are gauges."""
    written = processor.statistics()
    return {
        **mapper.metrics(),
        "append_operations_total": written.appended_operations,
        "append_bytes_total": written.appended_bytes,
        "frames_total": written.frames,
        "frame_bytes_total": written.frame_bytes,
        "queued_operations": written.queued_operations,
        "waiting_requests": written.waiting_requests,
        "tier1_outstanding_bytes": log.outstanding_bytes,
        "tier1_stored_bytes": log.stored_bytes,
        "tier1_sync_seconds": log.sync_seconds_recent,
        "tier1_cut_frames_total": log.cut_frames,
        "tier2_puts_total": storage.puts,
        "tier2_gets_total": storage.gets,
        "tier2_put_bytes_total": storage.put_bytes,
        "tier2_get_bytes_total": storage.get_bytes,
        "tier2_bytes_before_compression_total": storage.stored_bytes_before_compression,
        "tier2_bytes_after_compression_total": storage.stored_bytes_after_compression,
        "tier2_checksum_failures_total": storage.checksum_failures,
        "tier2_garbage_objects": storage.garbage_objects,
        "tier2_joined_chunks_total": storage.joined_chunks,
        "tier2_joined_bytes_total": storage.joined_bytes,
        "tier2_scrubbed_chunks_total": storage.scrubbed_chunks,
        "tier2_scrubbed_bytes_total": storage.scrubbed_bytes,
        "tier2_scrub_damages_total": storage.scrub_damages,
        "tier2_scrub_repairs_total": storage.scrub_repairs,
        "tier2_scrub_passes_total": storage.scrub_passes,
        "tier2_last_scrubbed_seconds": storage.last_scrubbed_ms / 1000,
        "unflushed_bytes": unflushed_bytes,
        "throttle_delay_seconds": min(processor.throttle.delay_seconds, THROTTLE_DELAY_SECONDS_MAX),
        "last_acknowledged_sequence_number": acknowledged,
    }
