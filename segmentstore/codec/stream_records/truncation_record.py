"""The head of a truncated stream.

    version 1 | offsets head | flag is under way | offsets previous head

Invariants:

- The head covers the key space and never goes back.
- While a truncation is under way the previous head says where to begin deleting; an empty one means the first epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TruncationRecord:
    """Where a stream begins."""

    head: Mapping[int, int]
    """Segment id -> first readable offset."""
    previous_head: Mapping[int, int] | None = None
    """None: nothing is under way."""

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.offsets(self.head)
        writer.flag(self.previous_head is not None)
        writer.offsets(self.previous_head or {})
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "TruncationRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="truncation record", version_max=_VERSION)
        head = reader.offsets()
        under_way = reader.flag()
        previous_head = reader.offsets()
        reader.end()
        return cls(head, previous_head if under_way else None)
