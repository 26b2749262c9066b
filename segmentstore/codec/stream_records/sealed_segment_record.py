"""What came after a segment: the epoch that replaced it, and how long it became.

    version 1 | unsigned replacing epoch | flag length is known | unsigned length

Invariants:

- It is written together with the epoch that replaces the segment: from that moment the segment has successors.
- The length is added once the segment is sealed and never changes afterwards.
"""

from dataclasses import dataclass
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SealedSegmentRecord:
    """The end of one segment."""

    replacing_epoch: int
    length: int | None = None
    """None until the segment is sealed."""

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.replacing_epoch)
        writer.flag(self.length is not None)
        writer.unsigned(self.length or 0)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "SealedSegmentRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="sealed segment record", version_max=_VERSION)
        replacing_epoch = reader.unsigned()
        known = reader.flag()
        length = reader.unsigned()
        reader.end()
        return cls(replacing_epoch, length if known else None)
