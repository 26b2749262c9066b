"""What `/health` says of one container."""

from containers.container_life import ContainerLife
from containers.log.operation_processor import OperationProcessor
from containers.metadata.container_metadata import ContainerMetadata
from segmentstore.contracts.containers import ContainerHealth


def container_health(
    life: ContainerLife,
    metadata: ContainerMetadata,
    *,
    processor: OperationProcessor | None,
    storage_state: str,
    storage_cause: str,
    unflushed_bytes: int,
) -> ContainerHealth:
    """A snapshot; `processor` is None while the container does not run."""
    reason = ""
    delay_seconds = 0.0
    if processor is not None:
        reason = "tier1_full" if processor.log_full else processor.throttle.reason
        delay_seconds = processor.throttle.delay_seconds
    return ContainerHealth(
        container_id=metadata.container_id,
        state=life.state,
        ready=processor is not None and processor.failure is None,
        epoch=metadata.epoch,
        throttle=reason,
        throttle_delay_seconds=delay_seconds,
        storage_state=storage_state,
        active_segments=len(metadata.by_id),
        unflushed_bytes=unflushed_bytes,
        cause=life.cause_text,
        storage_cause=storage_cause,
    )
