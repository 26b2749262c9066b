"""A stretch of a target whose bytes are still those of a merged source.

From the commit of the merge until it is published, the bytes of the target at [offset, end) are read through the
source's index: from its cache entries, or from Tier 2 under the source's id (H57).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from containers.reading.segment_read_index import SegmentReadIndex


class MergeRedirect:
    """[offset, end) of the target is [0, end - offset) of the source."""

    __slots__ = ("end", "offset", "source")

    def __init__(self, *, offset: int, end: int, source: "SegmentReadIndex") -> None:
        self.offset = offset
        self.end = end
        self.source = source

    def __repr__(self) -> str:
        source_id = self.source.metadata.segment_id
        return f"<redirect [{self.offset}, {self.end}) to segment {source_id}>"
