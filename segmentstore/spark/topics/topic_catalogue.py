"""Topics as Tier 2 alone shows them: the catalogue's table (topics/topic_records.py) and the partitions' segments.

Invariants: the service is never asked, so what it has not flushed is not seen; a topic that is being created or deleted
is not there.
"""

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.spark.streams.tier2_catalog import Tier2Table
from segmentstore.spark.tier2_access import Tier2Reader
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    TopicRecord,
    TopicState,
    decode_topic,
)


class TopicMissingError(SegmentStoreError):
    """There is no such topic, or none that can be read."""

    kind = ErrorKind.NOT_FOUND


class Tier2TopicCatalogue:
    """Of one store."""

    def __init__(self, view: Tier2Reader) -> None:
        self._view = view

    async def find(self, name: str) -> TopicRecord | None:
        """None if there is no such topic. Raises StorageError."""
        container = await self._view.container(self._view.container_id(CATALOGUE_TABLE))
        value: bytes | None = None
        if container is not None:
            table = Tier2Table(container=container, name=CATALOGUE_TABLE)
            (value,) = await table.get([name])
        record = None if value is None else decode_topic(value, name=name)
        return record if record is not None and record.state is TopicState.ACTIVE else None
