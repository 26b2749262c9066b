"""Questions about segments that change nothing: properties, all attributes, listings.

- What memory knows of a name decides over what Tier 2 says of it: Tier 2 follows behind.
- Looking at a segment does not activate it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from containers.attributes.attribute_updates import (
    TABLE_INDEX_END,
    TABLE_INDEX_PREFIX,
    is_merged_source_key,
)
from containers.attributes.extended_attributes import ask_tier2
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.segments.segment_handle import properties_of
from containers.segments.segment_mapper import SegmentMapper
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord

_VALUES_PER_TURN: Final = 1_000
"""Attributes looked at between two turns of the loop."""
_BEHIND_ALL_KEYS: Final = b"\xff" * (ATTRIBUTE_KEY_BYTES_MAX + 1)


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
        """Committed values of an active, pinned segment, without what is the container's own: its memory of merges, and
        the index of a table. Others are served meanwhile, however many there are."""
        table, is_table = segment.attributes, TABLE_KEY_LENGTH in segment.attributes.core_values
        stored: Mapping[AttributeKey, AttributeValue] = {}
        if not table.complete:
            load = partial(self._load_index_left_out if is_table else self._load, segment)
            stored = await ask_tier2(segment, load)
        # Of the moment of that answer: what memory has is newer.
        core, copies = table.core(), table.copy_extended()
        layers: list[Iterable[tuple[AttributeKey, AttributeValue | None]]] = [stored.items()]
        layers += [((key, value) for key, (value, _) in part.items()) for part in copies]
        values: dict[AttributeKey, AttributeValue] = {}
        looked_at = 0
        for layer in layers:
            for key, value in layer:
                looked_at += 1
                if looked_at % _VALUES_PER_TURN == 0:
                    await asyncio.sleep(0)
                if value is None:
                    values.pop(key, None)
                elif not is_merged_source_key(key) and not (
                    is_table and key.startswith(TABLE_INDEX_PREFIX)
                ):
                    values[key] = value
        values.update(core)
        return values

    async def _load(self, segment: SegmentMetadata) -> Mapping[AttributeKey, AttributeValue]:
        return await self._storage.load_attributes(segment.segment_id, None)

    async def _load_index_left_out(
        self, segment: SegmentMetadata
    ) -> Mapping[AttributeKey, AttributeValue]:
        """Of a table. Its index is not even read: that is as long as the table has keys."""
        values: dict[AttributeKey, AttributeValue] = {}
        for start, end in ((b"", TABLE_INDEX_PREFIX), (TABLE_INDEX_END, _BEHIND_ALL_KEYS)):
            following: AttributeKey | None = AttributeKey(start)
            while following is not None:
                page = await self._storage.scan_attributes(
                    segment.segment_id,
                    start=following,
                    end=AttributeKey(end),
                    count=_VALUES_PER_TURN,
                )
                values.update(page.values)
                following = page.following
        return values

    async def list_segments(
        self, prefix: str, start_after: str, limit: int
    ) -> Sequence[SegmentProperties]:
        """Existing segments in name order, at most `limit`. O(active ones), unless one that is active is named."""
        metadata = self._metadata
        if limit == 1 and start_after < prefix:
            # How long is this segment? A name sorts before all that it is the beginning of.
            named = metadata.last_of_name(prefix)
            if named is not None and self._is_listed(named):
                return [properties_of(named, metadata.container_id)]
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
