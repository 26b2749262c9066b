"""Questions about segments that change nothing: properties, all attributes, listings.

- What memory knows of a name decides over what Tier 2 says of it: Tier 2 follows behind.
- Looking at a segment does not activate it.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial

from containers.attributes.attribute_updates import is_merged_source_key
from containers.attributes.extended_attributes import ask_tier2
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.segments.segment_handle import properties_of
from containers.segments.segment_mapper import SegmentMapper
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord


class SegmentQueries:
    """Answers for one container."""

    def __init__(
        self, *, metadata: ContainerMetadata, storage: ReadOnlyStorage, mapper: SegmentMapper
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._mapper = mapper

    async def info(self, name: str) -> SegmentProperties:
        """Raises SegmentNotFoundError."""
        if self._metadata.last_of_name(name) is None:
            record = await self._mapper.find_inactive(name)
            if record is not None and self._metadata.last_of_name(name) is None:
                return self._inactive_properties(record)
        segment = await self._mapper.resolve(name)
        try:
            if segment.is_gone():
                raise SegmentNotFoundError(name)
            return properties_of(segment, self._metadata.container_id)
        finally:
            segment.pins -= 1

    async def all_attributes(
        self, segment: SegmentMetadata
    ) -> Mapping[AttributeKey, AttributeValue]:
        """Committed values of an active, pinned segment, without its memory of merges."""
        table = segment.attributes
        values: dict[AttributeKey, AttributeValue] = {}
        if not table.complete:
            load = partial(self._storage.load_attributes, segment.segment_id, None)
            values.update(await ask_tier2(segment, load))
        for key, (value, _) in table.extended():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        values.update(table.core_values)
        return {key: value for key, value in values.items() if not is_merged_source_key(key)}

    async def list_segments(
        self, prefix: str, start_after: str, limit: int
    ) -> Sequence[SegmentProperties]:
        """Existing segments in name order, at most `limit`."""
        metadata = self._metadata
        found = self._list_active(prefix, start_after, limit)
        gone = {key for key, segment in metadata.by_id.items() if segment.is_gone()}
        taken = 0
        async with aclosing(self._storage.list_segments(prefix, start_after)) as records:
            async for record in records:
                active = metadata.last_of_name(record.name)
                if active is None and record.segment_id not in gone:
                    found[record.name] = self._inactive_properties(record)
                elif active is not None and self._is_listed(active):
                    # It may have become active since the active ones were looked at.
                    found[record.name] = properties_of(active, metadata.container_id)
                elif active is not None and active.segment_id == record.segment_id not in gone:
                    # It is becoming active right now: Tier 2 knows it, so it is not one that is being created.
                    found[record.name] = self._inactive_properties(record)
                taken += 1
                if taken >= limit + len(metadata.by_id):
                    break
        return [found[name] for name in sorted(found)[:limit]]

    def _list_active(
        self, prefix: str, start_after: str, limit: int
    ) -> dict[str, SegmentProperties]:
        metadata = self._metadata
        names = sorted(
            name for name in metadata.names() if name.startswith(prefix) and name > start_after
        )
        found: dict[str, SegmentProperties] = {}
        for name in names:
            segment = metadata.last_of_name(name)
            assert segment is not None, f"a name without a segment {name!r}"
            if self._is_listed(segment):
                found[name] = properties_of(segment, metadata.container_id)
                if len(found) == limit:
                    break
        return found

    def _is_listed(self, segment: SegmentMetadata) -> bool:
        return not segment.is_gone() and not self._mapper.is_being_created(segment.name)

    def _inactive_properties(self, record: SegmentRecord) -> SegmentProperties:
        return SegmentProperties(
            name=record.name,
            segment_id=record.segment_id,
            container_id=self._metadata.container_id,
            start_offset=record.start_offset,
            length=record.length,
            storage_length=record.length,
            sealed=record.sealed,
            sealed_in_storage=record.sealed,
            last_modified_ms=record.last_modified_ms,
            core_attributes=record.core_attributes,
            active=False,
        )
