"""Checksums of replayed bytes that Tier 2 has already, for the storage writer to compare before it goes on (H16).

Per segment only the newest contiguous stretch is kept, and at most `OVERLAP_BYTES_MAX` of it: enough to see that Tier 2
continues where the log says it does, without reading everything again.
"""

from dataclasses import dataclass

from crc32c import crc32c

from segmentstore.contracts.identifiers import SegmentId

OVERLAP_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class Overlap:
    """A stretch [offset, offset + length) and the CRC32C of its bytes."""

    offset: int
    length: int
    checksum: int


class ReplayedOverlap:
    """Collects while the log is replayed."""

    def __init__(self) -> None:
        self.by_segment: dict[SegmentId, Overlap] = {}

    def add(self, segment_id: SegmentId, offset: int, data: memoryview) -> None:
        """The next replayed bytes of a segment."""
        overlap = self.by_segment.get(segment_id)
        if (
            overlap is None
            or overlap.offset + overlap.length != offset
            or overlap.length + len(data) > OVERLAP_BYTES_MAX
        ):
            self.by_segment[segment_id] = Overlap(offset, len(data), crc32c(data))
            return
        overlap.checksum = crc32c(data, overlap.checksum)
        overlap.length += len(data)
