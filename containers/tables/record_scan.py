"""The records of a table segment in the order in which they were written, a stretch at a time."""

from typing import NamedTuple

from containers.tables.table_reader import TableReader
from containers.tables.table_record import RECORD_HEADER_BYTES, decode_header


class ScannedRecord(NamedTuple):
    """One record as it was written."""

    offset: int
    length: int
    key: bytes
    value: bytes
    removed: bool
    version: int


async def scan_records(
    reader: TableReader, position: int, *, end: int, length_max: int
) -> tuple[list[ScannedRecord], int]:
    """The whole records in about `length_max` bytes from `position` (a record's beginning) on, and where they end.

    At least one record if position < end, the committed length. Raises SegmentTruncatedError, StorageError,
    CorruptedDataError (also if no record begins at `position`).
    """
    if position >= end:
        return [], position
    content = await reader.read_bytes(position, min(length_max, end - position))
    records, parsed = _parse(content, position)
    if not records:
        length = _length_at(content, position, end)
        if length > len(content):
            content = await reader.read_bytes(position, length)
        records, parsed = _parse(content, position)
        if not records:
            content = await reader.read_bytes(position, _length_at(content, position, end))
            records, parsed = _parse(content, position)
    return records, position + parsed


def _length_at(content: bytes, position: int, end: int) -> int:
    """How many bytes have to be read to get further."""
    if len(content) < RECORD_HEADER_BYTES:
        return min(RECORD_HEADER_BYTES, end - position)
    return min(decode_header(content, 0, position).length, end - position)


def _parse(content: bytes, offset: int) -> tuple[list[ScannedRecord], int]:
    records: list[ScannedRecord] = []
    position = 0
    while len(content) - position >= RECORD_HEADER_BYTES:
        header = decode_header(content, position, offset + position)
        if position + header.length > len(content):
            break
        key_at = position + RECORD_HEADER_BYTES
        value_at = key_at + header.key_length
        records.append(
            ScannedRecord(
                offset=offset + position,
                length=header.length,
                key=content[key_at:value_at],
                value=content[value_at : position + header.length],
                removed=header.removed,
                version=header.version,
            )
        )
        position += header.length
    return records, position
