"""Reads one table: entries by key, records in the order in which they were written, and what changed since a position.

An entry is found by the index and the bytes that it points at.

- Only committed places are followed, so nothing pending is ever shown.
- Compaction may move a record and truncate where it was while it is being read: the index is asked again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from containers.attributes.extended_attributes import AttributeFetches
from containers.container_settings import TableSettings
from containers.metadata.segment_metadata import SegmentMetadata
from containers.tables.table_index import Place, decode_place, index_key
from containers.tables.table_record import RECORD_HEADER_BYTES, decode_header
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.tables import TableDelta, TableEntry
from segmentstore.runtime.waiting import gather_all


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
            entries.append(_entry_of_record(key, record, version))
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
            entries = await gather_all(
                self._entry_at(key, place)
                for key, place in in_offset_order[first : first + at_once]
            )
            found += [entry for entry in entries if entry is not None]
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
            return _entry_of_record(key, record, place.version)
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


def _entry_of_record(key: bytes, record: bytes, version: int) -> TableEntry:
    if not record.startswith(key, RECORD_HEADER_BYTES):
        raise CorruptedDataError(f"table index points at another key version={version}")
    return TableEntry(key, record[RECORD_HEADER_BYTES + len(key) :], version)


class ScannedRecord(NamedTuple):
    """One record as it was written."""

    offset: int
    length: int
    key: bytes
    value: bytes
    removed: bool
    version: int


IsWanted: TypeAlias = Callable[[bytes, int], bool]
"""Of the key of a record that is no removal, and its offset: whether the caller wants it."""


async def scan_records(
    reader: TableReader,
    position: int,
    *,
    end: int,
    length_max: int,
    is_wanted: IsWanted | None = None,
) -> tuple[list[ScannedRecord], int]:
    """The whole records in about `length_max` bytes from `position` (a record's beginning) on, and where they end.

    At least one record is passed if position < end, the committed length. With `is_wanted` only those that are, and no
    removals. Raises SegmentTruncatedError, StorageError, CorruptedDataError (also if no record begins at `position`).
    """
    if position >= end:
        return [], position
    content = await reader.read_bytes(position, min(length_max, end - position))
    records, parsed = _parse_records(content, position, is_wanted)
    if not parsed:
        length = _length_to_read(content, position, end)
        if length > len(content):
            content = await reader.read_bytes(position, length)
        records, parsed = _parse_records(content, position, is_wanted)
        if not parsed:
            content = await reader.read_bytes(position, _length_to_read(content, position, end))
            records, parsed = _parse_records(content, position, is_wanted)
        if not parsed:
            # Batches are committed whole, so a record ends at or before `end`. A caller would ask here for ever.
            raise CorruptedDataError(f"no whole record of the table offset={position} end={end}")
    return records, position + parsed


def _length_to_read(content: bytes, position: int, end: int) -> int:
    """How many bytes have to be read to get further."""
    if len(content) < RECORD_HEADER_BYTES:
        return min(RECORD_HEADER_BYTES, end - position)
    return min(decode_header(content, 0, position).length, end - position)


def _parse_records(
    content: bytes, offset: int, is_wanted: IsWanted | None
) -> tuple[list[ScannedRecord], int]:
    records: list[ScannedRecord] = []
    position = 0
    while len(content) - position >= RECORD_HEADER_BYTES:
        key_length, value_length, removed, version = decode_header(
            content, position, offset + position
        )
        key_at = position + RECORD_HEADER_BYTES
        value_at = key_at + key_length
        end = value_at + value_length
        if end > len(content):
            break
        key = content[key_at:value_at]
        if is_wanted is None or (not removed and is_wanted(key, offset + position)):
            records.append(
                ScannedRecord(
                    offset=offset + position,
                    length=end - position,
                    key=key,
                    value=content[value_at:end],
                    removed=removed,
                    version=version,
                )
            )
        position = end
    return records, position


async def read_delta(
    reader: TableReader,
    segment: SegmentMetadata,
    settings: TableSettings,
    *,
    position: int,
    count: int,
) -> TableDelta:
    """See contracts.tables.Table.read_delta.

    A record counts only if it is still the newest of its key: what was overwritten or removed later is skipped here and
    met further on, so each distinct live key behind the position comes exactly once, whatever compaction moves
    meanwhile. A page is never empty while live entries remain behind the position.
    """
    # Behind the end there was a longer table of that name: what its client knows of it is void as well.
    should_clear = not segment.start_offset <= position <= segment.length
    start = segment.start_offset if should_clear else position
    entries: dict[bytes, TableEntry] = {}
    total = 0
    at = start
    while at < segment.length and len(entries) < count and total < settings.page_bytes_max:
        try:
            records, following = await scan_records(
                reader, at, end=segment.length, length_max=settings.scan_bytes
            )
        except SegmentTruncatedError:
            # Compaction went past us: what was live there stands further on now.
            at = max(at, segment.start_offset)
            should_clear = should_clear or position < segment.start_offset
            continue
        except CorruptedDataError as error:
            if at == start:
                raise InvalidRequestError(
                    f"no record of the table begins there position={position}"
                ) from error
            raise
        places = await reader.places([record.key for record in records if not record.removed])
        for record in records:
            if len(entries) >= count or total >= settings.page_bytes_max:
                following = record.offset
                break
            if record.removed:
                entries.pop(record.key, None)
                continue
            place = places[record.key]
            if place is not None and place.offset == record.offset:
                entries[record.key] = TableEntry(record.key, record.value, record.version)
                total += record.length
        at = following
        await asyncio.sleep(0)
    return TableDelta(
        entries=list(entries.values()),
        should_clear=should_clear,
        reached_end=at >= segment.length,
        last_position=at,
    )
