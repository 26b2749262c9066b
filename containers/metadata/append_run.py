"""Committed appends of one segment that stand one behind the other, as one item of the in-memory log.

A run grows in place while it is the newest item of its segment and the storage writer has not taken it, so that the
memory of the log does not grow with the number of appends. Between its first and last sequence number there may
be operations of *other* segments; whatever else happens to its own segment closes it.

Invariants:
- both ends are append boundaries, so Tier-2 blocks and chunks may end at run ends;
- `checksum` is the CRC32C of exactly its bytes, chained from the bytes as they were received;
- either every byte of it belongs to declared events, and it begins and ends between two, or none does;
- a closed run never changes.
"""

from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SegmentId,
    SequenceNumber,
)

RUN_BYTES_MAX = 256 * 1024
"""A power of two. The append with which a segment reaches or passes a multiple of it is the last of its run."""


class _AppendFields:
    """What an append meets of the run that it goes to: first in memory, so that it is one cache line or two."""

    __slots__ = (
        "checksum",
        "end",
        "events",
        "last_modified_ms",
        "last_sequence_number",
    )


class AppendRun(_AppendFields):
    """A stretch [offset, offset + length) of one segment, its bytes in the cache."""

    __slots__ = (
        "attributes",
        "event_number",
        "first_modified_ms",
        "first_sequence_number",
        "offset",
        "segment_id",
    )

    def __init__(
        self,
        *,
        segment_id: SegmentId,
        offset: int,
        end: int,
        checksum: int,
        sequence_number: SequenceNumber,
        last_modified_ms: int,
    ) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.end = end
        self.checksum = checksum
        self.first_sequence_number = sequence_number
        self.last_sequence_number = sequence_number
        self.first_modified_ms = last_modified_ms
        self.last_modified_ms = last_modified_ms
        self.events: int | None = None
        """How many whole events the run is; None: bytes of unknown structure."""
        self.event_number = 0
        """Events of the segment before the run, counted from the segment's creation. Means nothing without `events`."""
        self.attributes: dict[AttributeKey, AttributeValue | None] | None = None
        """Values after the last append of the run, of those attributes that its appends changed."""

    @property
    def length(self) -> int:
        return self.end - self.offset
