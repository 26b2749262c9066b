"""What one task reads: a range of one segment, from Tier 2 or from the service. Plain values that travel by pickle.

Invariants:

- A range holds the events that begin in [start, end); the last one may end behind it, and belongs to it as a whole.
- Offsets are the contract: which objects hold them is looked up when they are read, since compaction may have replaced
  whatever was there before. `blocks` is a hint that is filled only for readers that cannot look it up.
- Ranges of one plan do not overlap, and leave nothing out.
- `start` is any offset: a filter or a user may have named it. Where Tier 2 does not say where the event around it
  begins, the reader walks from `walk_from`, and leaves out what begins before `start`.
"""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.storage import SegmentRecord


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """Where one block lies, and what is known of its events."""

    object_key: str
    """Below the place of Tier 2."""
    position: int
    """Of the stored bytes in the object; four bytes of CRC32 (big-endian) follow them."""
    stored_length: int
    """Without that checksum."""
    compression: int
    """As the chunk format numbers it: 0 none, 1 LZ4 block, 2 zstd."""
    offset: int
    """In the segment; of the block's first byte."""
    length: int
    """Uncompressed."""
    first_event_offset: int | None
    """In the segment; None if no event begins in the block."""
    event_number: int
    """Of that event."""
    lowest_time_ms: int
    """Of its appends, Unix milliseconds; 0 if unknown."""


@dataclass(frozen=True)
class SegmentRange(InputPartition):
    """A range of one segment. One that is nothing else is with the service alone as yet."""

    scope: str | None
    stream: str | None
    segment_id: int | None
    """In its stream; None (as scope and stream) for a segment that is no stream's."""
    segment_name: str
    container_id: int
    """Whose manifest leads to the segment; -1 if Tier 2 is not read at all."""
    start: int
    end: int
    """Exclusive."""
    content: str = "raw"
    """raw, record or bytes: see Content in options.py, where `auto` was decided by the stream."""
    walk_from: int | None = None
    """An event begins there, at or before `start`; None: at `start` itself."""
    own_id: int | None = None
    """Of a segment that is no stream's, in its container: one that is made again by that name has another."""

    @property
    def length(self) -> int:
        """Bytes of the segment in the range."""
        return self.end - self.start

    @property
    def walk_start(self) -> int:
        """Where an event is known to begin, at or before `start`."""
        return self.start if self.walk_from is None else self.walk_from

    def is_of(self, record: SegmentRecord) -> bool:
        """Whether that is the segment. Raises SegmentNotFoundError if it was made again since the plan."""
        if self.own_id is not None and record.segment_id > self.own_id:
            raise SegmentNotFoundError(self.segment_name)
        # Ids only grow: one before it is what a process shows that sees less than the plan did.
        return self.own_id in (None, record.segment_id)


@dataclass(frozen=True)
class BlockRange(SegmentRange):
    """A range that Tier 2 holds."""

    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None
    """Blocks wholly before or behind these bounds (inclusive) need not be read: block_reader.py leaves them out."""
    blocks: tuple[BlockLocation, ...] = ()
    """Empty unless they were asked for."""
