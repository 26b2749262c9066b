"""Pieces of a publication while it is planned: runs by where their bytes are, and moves of whole sources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.storage import MergePiece, RunEvents


@dataclass(slots=True)
class RunSlice:
    """Bytes to fetch from the container: un-published ones of one segment, on their way to this or its target."""

    owner_id: SegmentId
    owner_offset: int
    length: int
    checksum: int | None
    """CRC32C of the run as received: of its published head, its dropped head and these bytes. None: not known."""
    lowest_time_ms: int
    highest_time_ms: int
    published_head_checksum: int = 0
    """CRC32C of the bytes in front that Tier 2 has already, read there."""
    dropped_head_length: int = 0
    """Bytes right in front that were truncated before they were flushed. They are still in memory."""
    events: RunEvents | None = None
    """None: of unknown structure, as every trimmed run is."""
    views: Sequence[BufferView] = ()
    dropped_head_views: Sequence[BufferView] = ()

    def fetch(self, data: Callable[[SegmentId, int, int], Sequence[BufferView]]) -> None:
        """Ask for the bytes, and for those in front that are checked with them."""
        self.views = data(self.owner_id, self.owner_offset, self.length)
        if self.dropped_head_length:
            head_offset = self.owner_offset - self.dropped_head_length
            self.dropped_head_views = data(self.owner_id, head_offset, self.dropped_head_length)


@dataclass(slots=True)
class RunPiece:
    """New bytes of the segment, one run behind the other."""

    offset: int
    slices: list[RunSlice]

    @property
    def end(self) -> int:
        return self.offset + sum(item.length for item in self.slices)


PlannedPiece: TypeAlias = RunPiece | MergePiece
