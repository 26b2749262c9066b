"""Committed entries of one table, from the index and the bytes it points at.

- Only committed places are followed, so nothing pending is ever shown.
- Compaction may move a record and truncate where it was while it is being read: the index is asked again.
"""

import asyncio
from collections.abc import Sequence

from containers.attributes.attribute_fetches import AttributeFetches
from containers.metadata.segment_metadata import SegmentMetadata
from containers.tables.settings import TableSettings
from containers.tables.table_index import Place, decode_place, index_key
from containers.tables.table_record import RECORD_HEADER_BYTES
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.tables import TableEntry


class TableReader:
    """Reads one active, pinned table."""

    __slots__ = ("_fetches", "_segment", "_settings")

    def __init__(
        self, *, segment: SegmentMetadata, fetches: AttributeFetches, settings: TableSettings
    ) -> None:
        self._segment = segment
        self._fetches = fetches
        self._settings = settings

    def get_nowait(self, keys: Sequence[bytes]) -> list[TableEntry | None] | None:
        """See contracts.tables.Table.get_nowait."""
        segment = self._segment
        if segment.deleted or segment.merged:
            raise SegmentNotFoundError(segment.name)
        attributes = segment.attributes
        copy_cached = segment.read_index.copy_cached
        entries: list[TableEntry | None] = []
        for key in keys:
            name = index_key(key)
            value = attributes.committed_value(name)
            if value is None:
                if not attributes.is_known(name):
                    return None
                entries.append(None)
                continue
            offset, length, version = decode_place(value)
            record = copy_cached(offset, offset + length)
            if len(record) != length:
                return None
            entries.append(_entry(key, record, version))
        return entries

    async def get(self, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """See contracts.tables.Table.get. One request for all that the index lacks."""
        found = self.get_nowait(keys)
        if found is not None:
            return found
        places = await self.places(keys)
        distinct = [(key, place) for key, place in places.items() if place is not None]
        entries = await self.entries_at(distinct)
        by_key = {entry.key: entry for entry in entries}
        return [by_key.get(key) for key in keys]

    async def places(self, keys: Sequence[bytes]) -> dict[bytes, Place | None]:
        """Where the newest records are; None for a missing key. Each is right at some moment of the call."""
        names = {index_key(key): key for key in keys}
        values = await self._fetches.values(self._segment, list(names))
        if self._segment.is_gone():
            raise SegmentNotFoundError(self._segment.name)
        return {
            key: None if (value := values[name]) is None else decode_place(value)
            for name, key in names.items()
        }

    async def entries_at(self, places: Sequence[tuple[bytes, Place]]) -> list[TableEntry]:
        """The entries of those keys, read where they were found; without the keys that were removed meanwhile."""
        found: list[TableEntry] = []
        at_once = self._settings.reads_at_once
        in_offset_order = sorted(places, key=lambda each: each[1].offset)
        for first in range(0, len(places), at_once):
            results = await asyncio.gather(
                *(
                    self._entry_at(key, place)
                    for key, place in in_offset_order[first : first + at_once]
                ),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    found.append(result)
        return found

    async def _entry_at(self, key: bytes, place: Place | None) -> TableEntry | None:
        while place is not None:
            try:
                record = await self.read_bytes(place.offset, place.length)
            except SegmentTruncatedError:
                moved = (await self.places([key]))[key]
                if moved == place:
                    raise
                place = moved
                continue
            return _entry(key, record, place.version)
        return None

    async def read_bytes(self, offset: int, length: int) -> bytes:
        """Exactly those committed bytes. Raises SegmentTruncatedError, StorageError."""
        index = self._segment.read_index
        content = index.copy_cached(offset, offset + length)
        if len(content) == length:
            return content
        parts: list[bytes] = []
        while length:
            part = await index.wait_for_bytes(offset, length)
            assert part, f"no byte at {offset} of {self._segment!r}"
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)


def _entry(key: bytes, record: bytes, version: int) -> TableEntry:
    if not record.startswith(key, RECORD_HEADER_BYTES):
        raise CorruptedDataError(f"table index points at another key version={version}")
    return TableEntry(key, record[RECORD_HEADER_BYTES + len(key) :], version)
