"""One epoch of a stream: the segments that took events side by side.

    version 1 | unsigned epoch | unsigned reference epoch | signed created ms | list of segments (see stream_segment.py)

Invariants:

- The segments stand in the order of the key space and cover it without gap or overlap.
- No segment was created in a later epoch; epochs are numbered from 0 without gaps, and a record never changes.
- The reference epoch is the epoch whose shape this one repeats (a transaction that is committed behind a scale); its
  own number otherwise.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.stream_records.stream_segment import StreamSegment

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch."""

    epoch: int
    reference_epoch: int
    created_ms: int
    segments: tuple[StreamSegment, ...]

    def segment(self, segment_id: int) -> StreamSegment | None:
        """The segment of that id; None if it is not part of this epoch. O(segments)."""
        return next((each for each in self.segments if each.segment_id == segment_id), None)

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.epoch)
        writer.unsigned(self.reference_epoch)
        writer.signed(self.created_ms)
        writer.list_of(self.segments, lambda segment: segment.write(writer))
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "EpochRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="epoch record", version_max=_VERSION)
        epoch = reader.unsigned()
        reference_epoch = reader.unsigned()
        created_ms = reader.signed()
        segments = reader.list_of(lambda: StreamSegment.read(reader))
        reader.end()
        return cls(epoch, reference_epoch, created_ms, segments)

    def check(self) -> None:
        """The segments partition the key space and none comes from the future; O(segments)."""
        assert self.segments, f"an epoch without segments epoch={self.epoch}"
        assert self.segments[0].low == 0.0, f"a gap at the start of the key space {self}"
        assert self.segments[-1].high == 1.0, f"a gap at the end of the key space {self}"
        for left, right in pairwise(self.segments):
            assert left.high == right.low, f"a gap or an overlap left={left} right={right}"
        for segment in self.segments:
            segment.check()
            assert segment.creation_epoch <= self.epoch, f"a segment from the future {segment}"
