"""The settings of the operation processor."""

from dataclasses import dataclass, field

from containers.log.frame_pipeline import FramePipelineSettings


@dataclass(frozen=True, slots=True)
class OperationProcessorSettings:
    """Bounds of the pipeline between acceptance and Tier 1."""

    append_bytes_max: int = 8 * 1024 * 1024
    table_batch_bytes_max: int = 36 * 1024 * 1024
    """Records of one batch of a table: its keys and values, and 17 bytes each."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Bytes of requests that wait to be accepted; beyond them appends fail as unavailable."""
    pipeline: FramePipelineSettings = field(default_factory=FramePipelineSettings)
