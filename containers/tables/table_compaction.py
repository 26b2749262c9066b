"""Moves live records from the head of a table to its end, and truncates what is left behind.

A slice at a time: the records at the head that are still the newest of their keys are appended again with their
versions, in an operation that is refused if any of them has been overwritten meanwhile; when it is durable,
nothing points below the slice's end any more, and the segment is truncated there.

Where live records are is found in the segment, or, for a small table whose whole index is in memory, there: a few keys
that are overwritten all the time leave a long head of which nothing has to be read.
"""

import asyncio
import logging

from containers.attributes.attribute_updates import TABLE_INDEX_PREFIX
from containers.container_settings import TableSettings
from containers.log.operation_processor import OperationProcessor
from containers.metadata.segment_metadata import SegmentMetadata
from containers.tables.table_batch import CopyBatch, OutdatedCopyError, counter
from containers.tables.table_index import (
    Place,
    decode_place,
    index_key,
    stands_at,
)
from containers.tables.table_reader import ScannedRecord, TableReader, scan_records
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import TABLE_ENTRY_COUNT, TABLE_LIVE_BYTES
from segmentstore.contracts.tables import TableEntry

_LOGGER = logging.getLogger(__name__)


class TableCompaction:
    """Compacts the tables of one container, one round at a time."""

    def __init__(self, *, processor: OperationProcessor, settings: TableSettings) -> None:
        self._processor = processor
        self._settings = settings
        self.moved_bytes = 0

    def is_due(self, segment: SegmentMetadata) -> bool:
        """Whether too small a share of the table's bytes is live."""
        return (
            segment.length - segment.start_offset >= self._settings.compact_bytes_min
            and self._is_wasteful(segment, segment.start_offset)
            and not segment.pending_sealed
            and not segment.is_pending_gone()
        )

    def _is_wasteful(self, segment: SegmentMetadata, start_offset: int) -> bool:
        """Whether too small a share would be live if the segment began there."""
        live = counter(segment.attributes.committed_value(TABLE_LIVE_BYTES))
        return live < (segment.length - start_offset) * self._settings.utilisation_min

    async def compact(self, segment: SegmentMetadata, reader: TableReader) -> None:
        """One round over a pinned table. What goes wrong is left to the next round."""
        try:
            await self._compact(segment, reader)
        except SegmentStoreError as error:
            _LOGGER.info("table %r is not compacted now: %s", segment.name, error)

    async def _compact(self, segment: SegmentMetadata, reader: TableReader) -> None:
        live = _live_places(segment, self._settings.known_count_max)
        begin = segment.start_offset
        if live is None:
            position = await self._compact_scanned(segment, reader)
        else:
            position = await self._compact_known(segment, reader, live)
        if position > begin:
            await self._processor.truncate(segment, position)

    async def _compact_known(
        self, segment: SegmentMetadata, reader: TableReader, live: list[tuple[bytes, Place]]
    ) -> int:
        """Where nothing points below any more; `live` are all keys by the offsets of their records.

        Whatever changes meanwhile is written behind them, so the list stays a lower bound.
        """
        end = segment.length
        first = moved_bytes = 0
        while first < len(live):
            position = live[first][1].offset
            if (
                moved_bytes >= self._settings.round_bytes_max
                or not self._is_wasteful(segment, position)
                or self._processor.throttle.is_active
            ):
                return position
            following, slice_bytes = first, 0
            while following < len(live) and slice_bytes < self._settings.slice_bytes:
                slice_bytes += live[following][1].length
                following += 1
            await self._move(segment, reader, await _read(reader, live[first:following]))
            moved_bytes += slice_bytes
            first = following
        return end

    async def _compact_scanned(self, segment: SegmentMetadata, reader: TableReader) -> int:
        """Where nothing points below any more."""
        settings = self._settings
        begin = position = segment.start_offset
        end = min(segment.length, begin + settings.round_bytes_max)
        while position < end and self.is_due(segment) and not self._processor.throttle.is_active:
            # Most have been overwritten long ago: no need to ask Tier 2, or to make a batch, for those.
            updates, following = await scan_records(
                reader,
                position,
                end=segment.length,
                length_max=settings.slice_bytes,
                is_wanted=lambda key, offset: not _is_known_to_be_dead(segment, key, offset),
            )
            await self._move(segment, reader, updates)
            position = following
        return position

    async def _move(
        self, segment: SegmentMetadata, reader: TableReader, updates: list[ScannedRecord]
    ) -> None:
        """Returns when no committed place is among the records any more, those known to be dead included."""
        while True:
            await reader.places([record.key for record in updates])
            batch = _live_batch(segment, updates)
            if batch is None:
                continue  # some left memory again before it was their turn
            if not batch.index_keys:
                # What overwrote them is accepted; it has to be durable before its predecessors go.
                await asyncio.shield(self._processor.barrier(segment))
                return
            try:
                await asyncio.shield(
                    self._processor.append(segment, batch.data, attribute_updates=batch.evaluate)
                )
            except OutdatedCopyError:
                continue
            self.moved_bytes += len(batch.data)
            return


def _live_places(segment: SegmentMetadata, count_max: int) -> list[tuple[bytes, Place]] | None:
    """All keys by the offsets of their records, if that many at most exist and memory has them all. O(count_max)."""
    attributes = segment.attributes
    count = counter(attributes.committed_value(TABLE_ENTRY_COUNT))
    if count > count_max or attributes.extended_count > 2 * count_max:
        return None
    live = [
        (key[len(TABLE_INDEX_PREFIX) :], decode_place(value))
        for key, (value, _) in attributes.extended()
        if value is not None and key.startswith(TABLE_INDEX_PREFIX)
    ]
    if len(live) < count:
        return None
    live.sort(key=lambda each: each[1].offset)
    return live


async def _read(reader: TableReader, places: list[tuple[bytes, Place]]) -> list[ScannedRecord]:
    """The records that stand there, without those of keys that have been removed or written again since."""
    entries = {entry.key: entry for entry in await reader.entries_at(places)}
    return [
        ScannedRecord(place.offset, place.length, key, entry.value, False, place.version)
        for key, place in places
        if (entry := entries.get(key)) is not None and entry.version == place.version
    ]


def _is_known_to_be_dead(segment: SegmentMetadata, key: bytes, offset: int) -> bool:
    """Memory says that something newer is accepted; what is dead once stays so."""
    attributes = segment.attributes
    index = index_key(key)
    value = attributes.pending_value(index)
    if value is None:
        return attributes.is_known(index)
    return not stands_at(value, offset)


def _live_batch(segment: SegmentMetadata, records: list[ScannedRecord]) -> CopyBatch | None:
    """The records that are the newest after everything accepted so far; None if the index does not know of some."""
    attributes = segment.attributes
    entries: list[TableEntry] = []
    places: list[Place] = []
    for record in records:
        key = index_key(record.key)
        if not attributes.is_known(key):
            return None
        value = attributes.pending_value(key)
        if value is None:
            continue
        place = decode_place(value)
        if place.offset == record.offset:
            entries.append(TableEntry(record.key, record.value, place.version))
            places.append(place)
    return CopyBatch(entries, places)
