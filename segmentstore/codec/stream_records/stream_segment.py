"""One segment of a stream: its id and the part of the key space that it owns.

    unsigned segment id | fraction low | fraction high | signed created ms

Invariants:

- 0 <= low < high <= 1; the range holds its lower bound and not its upper one.
- The id never changes and is never used again: creation epoch in the upper, number in the lower 32 bits.
"""

from dataclasses import dataclass

from segmentstore.codec.stream_names import creation_epoch_of, number_of
from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """A segment as an epoch lists it."""

    segment_id: int
    low: float
    high: float
    created_ms: int

    @property
    def number(self) -> int:
        return number_of(self.segment_id)

    @property
    def creation_epoch(self) -> int:
        return creation_epoch_of(self.segment_id)

    def overlaps(self, other: "StreamSegment") -> bool:
        """Whether some routing key falls into both."""
        return self.low < other.high and other.low < self.high

    def write(self, writer: FieldWriter) -> None:
        writer.unsigned(self.segment_id)
        writer.fraction(self.low)
        writer.fraction(self.high)
        writer.signed(self.created_ms)

    @classmethod
    def read(cls, reader: FieldReader) -> "StreamSegment":
        """Raises CorruptedDataError."""
        return cls(reader.unsigned(), reader.fraction(), reader.fraction(), reader.signed())

    def check(self) -> None:
        """The range is one."""
        assert 0.0 <= self.low < self.high <= 1.0, f"range is not in the key space {self}"
