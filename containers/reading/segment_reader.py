"""A read, step by step: each step looks at the segment as it is then, not as it was when the read began (H19)."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from containers.reading.read_result_entry import (
    CachedEntry,
    EndOfSegmentEntry,
    TruncatedEntry,
    WaitingEntry,
)
from segmentstore.contracts.errors import BadOffsetError
from segmentstore.contracts.segments import ReadResultEntryKind

if TYPE_CHECKING:
    from containers.reading.segment_read_index import SegmentReadIndex

PIECE_BYTES_MAX = 1024 * 1024
"""One entry has at most this many bytes: a copy of about 50 us."""

StepEntry = CachedEntry | WaitingEntry | EndOfSegmentEntry | TruncatedEntry


async def read_entries(
    index: "SegmentReadIndex", offset: int, max_length: int
) -> AsyncGenerator[StepEntry, None]:
    """Entries from `offset` on until max_length bytes were delivered or an entry without bytes came.

    Raises BadOffsetError from the first step for an offset that is negative or past the length, and from any step
    what the index was told by gone().
    """
    end = offset + max_length
    while True:
        entry = next_entry(index, offset, end)
        if offset >= end:
            return
        yield entry
        if not entry.length_taken:
            return
        offset += entry.length_taken


def next_entry(index: "SegmentReadIndex", offset: int, end: int) -> StepEntry:
    """What a read of [offset, end) meets now."""
    index.raise_if_gone()
    metadata = index.metadata
    if not 0 <= offset <= metadata.length:
        raise BadOffsetError(metadata.name, expected=metadata.length, given=offset)
    if offset < metadata.start_offset:
        return TruncatedEntry(name=metadata.name, offset=offset, start_offset=metadata.start_offset)
    end = min(end, offset + PIECE_BYTES_MAX)
    if offset < metadata.length:
        content = index.copy_for_reader(offset, min(end, metadata.length))
        if content:
            return CachedEntry(offset=offset, content=content)
        kind = ReadResultEntryKind.STORAGE
    elif metadata.sealed:
        return EndOfSegmentEntry(offset=offset)
    else:
        kind = ReadResultEntryKind.FUTURE
    return WaitingEntry(kind=kind, index=index, offset=offset, length_max=end - offset)
