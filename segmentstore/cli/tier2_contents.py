"""What a container's Tier 2 holds, counted without its owner: the report of a recovery."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from tier2.storage.reader import ContainerReader

METADATA_PREFIX = "_system/_tables/"
"""Of the tables in which the controller keeps scopes and streams."""


@dataclass(slots=True)
class Tier2Contents:
    """Of one container."""

    segments: int = 0
    segment_bytes: int = 0
    """From each start offset to the end of what was flushed."""
    sealed: int = 0
    truncated: int = 0
    newest_ms: int = 0
    """Unix time of the last change that was flushed; 0 without one."""
    has_streams: bool = False


async def contents_of(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> Tier2Contents:
    """O(segments). Raises StorageError, CorruptedDataError."""
    contents = Tier2Contents()
    async with aclosing(reader.list_segments("", "")) as records:
        async for record in records:
            contents.segments += 1
            contents.segment_bytes += record.length - record.start_offset
            contents.sealed += record.sealed
            contents.truncated += record.start_offset > 0
            contents.newest_ms = max(contents.newest_ms, record.last_modified_ms)
            contents.has_streams |= record.name.startswith(METADATA_PREFIX)
            progress(1)
    return contents
