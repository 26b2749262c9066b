"""The next free segment number: of a stream that was deleted, or above all deleted streams of a scope.

    version 1 | unsigned number

Invariant: it outlives the stream, and only grows. A stream created again under the same name starts from here, so no
name of a segment is ever used twice.
"""

from dataclasses import dataclass
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentNumberRecord:
    """A lower bound of the numbers to use."""

    number: int

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.number)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "SegmentNumberRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="segment number", version_max=_VERSION)
        record = cls(reader.unsigned())
        reader.end()
        return record
