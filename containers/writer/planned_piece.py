"""Pieces of a publication while it is planned: runs by where their bytes are, and moves of whole sources."""

from collections.abc import Sequence
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
    """CRC32C of exactly these bytes as they were received; None if the run was trimmed."""
    lowest_time_ms: int
    highest_time_ms: int
    events: RunEvents | None = None
    """None: of unknown structure, as every trimmed run is."""
    views: Sequence[BufferView] = ()


@dataclass(slots=True)
class RunPiece:
    """New bytes of the segment, one run behind the other."""

    offset: int
    slices: list[RunSlice]

    @property
    def end(self) -> int:
        return self.offset + sum(item.length for item in self.slices)


PlannedPiece: TypeAlias = RunPiece | MergePiece
