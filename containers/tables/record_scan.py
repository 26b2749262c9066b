"""The records of a table segment in the order in which they were written, a stretch at a time."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

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


IsWanted: TypeAlias = Callable[[bytes, int], bool]
"""Of the key of a record that is no removal, and its offset: whether anybody wants it."""


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
    removals. Raises SegmentTruncatedError, StorageError,
    CorruptedDataError (also if no record begins at `position`).
    """
    if position >= end:
        return [], position
    content = await reader.read_bytes(position, min(length_max, end - position))
    records, parsed = _parse(content, position, is_wanted)
    if not parsed:
        length = _length_at(content, position, end)
        if length > len(content):
            content = await reader.read_bytes(position, length)
        records, parsed = _parse(content, position, is_wanted)
        if not parsed:
            content = await reader.read_bytes(position, _length_at(content, position, end))
            records, parsed = _parse(content, position, is_wanted)
    return records, position + parsed


def _length_at(content: bytes, position: int, end: int) -> int:
    """How many bytes have to be read to get further."""
    if len(content) < RECORD_HEADER_BYTES:
        return min(RECORD_HEADER_BYTES, end - position)
    return min(decode_header(content, 0, position).length, end - position)


def _parse(
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
