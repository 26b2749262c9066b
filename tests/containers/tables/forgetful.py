"""A container that soon drops the indices of its tables from memory, and makes it happen."""

from containers.container_settings import AttributeMemorySettings, ContainerSettings, TableSettings
from containers.segment_container import StreamSegmentContainer
from tests.containers.node import FAST_FLUSH

FORGETFUL = ContainerSettings(
    writer=FAST_FLUSH,
    attribute_memory=AttributeMemorySettings(
        bytes_max=200_000, look_seconds=0.002, throttle_factor=1e9
    ),
    tables=TableSettings(compact_seconds=10_000.0),
    housekeeping_seconds=0.01,
)


def key(number: int) -> bytes:
    return b"key-%06d" % number


async def forget(container: StreamSegmentContainer) -> None:
    """Publish everything and drop it from memory, as the hand of the clock would in time."""
    await container.flush()
    for segment in container.container_metadata.by_id.values():
        table = segment.attributes
        for _ in range(2):
            table.sweep(segment.published_sequence_number, table.extended_count)
