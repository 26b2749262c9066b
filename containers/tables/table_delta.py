"""What changed in a table from a position on.

A record counts only if it is still the newest of its key: what was overwritten or removed later is skipped here and
met further on, so each distinct live key behind the position comes exactly once, whatever compaction moves meanwhile.
A page is never empty while live entries remain behind the position.
"""

import asyncio

from containers.metadata.segment_metadata import SegmentMetadata
from containers.tables.record_scan import ScannedRecord, scan_records
from containers.tables.settings import TableSettings
from containers.tables.table_reader import TableReader
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    SegmentTruncatedError,
)
from segmentstore.contracts.tables import TableDelta, TableEntry


async def read_delta(
    reader: TableReader,
    segment: SegmentMetadata,
    settings: TableSettings,
    *,
    position: int,
    count: int,
) -> TableDelta:
    """See contracts.tables.Table.read_delta."""
    should_clear = position < segment.start_offset
    start = max(position, segment.start_offset)
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
                entries[record.key] = _entry(record)
                total += record.length
        at = following
        await asyncio.sleep(0)
    return TableDelta(
        entries=list(entries.values()),
        should_clear=should_clear,
        reached_end=at >= segment.length,
        last_position=at,
    )


def _entry(record: ScannedRecord) -> TableEntry:
    return TableEntry(record.key, record.value, record.version)
