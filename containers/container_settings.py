"""Every setting of one container, grouped by the part that reads it."""

from dataclasses import dataclass, field

from containers.attributes.attribute_fetches import AttributeFetchSettings
from containers.attributes.attribute_memory import AttributeMemorySettings
from containers.log.checkpoint_policy import CheckpointSettings
from containers.log.processor_settings import OperationProcessorSettings
from containers.log.throttler import ThrottlerSettings
from containers.reading.container_read_index import ReadIndexSettings
from containers.segment_expiry import ExpirySettings
from containers.segment_mapper import SegmentMapperSettings
from containers.tables.settings import TableSettings
from containers.writer.settings import WriterSettings


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Values only; the parts' own docstrings say what they do."""

    processor: OperationProcessorSettings = field(default_factory=OperationProcessorSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    throttler: ThrottlerSettings = field(default_factory=ThrottlerSettings)
    read_index: ReadIndexSettings = field(default_factory=ReadIndexSettings)
    mapper: SegmentMapperSettings = field(default_factory=SegmentMapperSettings)
    writer: WriterSettings = field(default_factory=WriterSettings)
    attribute_memory: AttributeMemorySettings = field(default_factory=AttributeMemorySettings)
    attribute_fetches: AttributeFetchSettings = field(default_factory=AttributeFetchSettings)
    tables: TableSettings = field(default_factory=TableSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    claim_retry_seconds: float = 2.0
    """Between two attempts to claim a root that did not answer at start (H41)."""
    housekeeping_seconds: float = 0.5
    """Between two looks at the throttle and the active set while nothing else happens."""
