"""What is known of a scope: one record in the table of all scopes, kept after the scope is deleted.

    version 1 | unsigned state | unsigned incarnation | unsigned first segment number | signed created ms

Invariants:

- The incarnation grows with every creation of a scope of that name; it names the scope's own table, so that a scope
  created again never meets the records of the one before.
- Streams of this incarnation number their segments from `first_segment_number` on, which lies above every number that
  an earlier incarnation used: names of segments are never used twice.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter
from segmentstore.contracts.errors import CorruptedDataError

_VERSION: Final = 1


class ScopeState(IntEnum):
    """Persistent: never renumber."""

    ACTIVE = 1
    DELETING = 2
    DELETED = 3


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """One scope."""

    state: ScopeState
    incarnation: int
    first_segment_number: int
    created_ms: int

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.state)
        writer.unsigned(self.incarnation)
        writer.unsigned(self.first_segment_number)
        writer.signed(self.created_ms)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "ScopeRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="scope record", version_max=_VERSION)
        number = reader.unsigned()
        try:
            state = ScopeState(number)
        except ValueError as error:
            raise CorruptedDataError(f"scope record has an unknown state state={number}") from error
        record = cls(state, reader.unsigned(), reader.unsigned(), reader.signed())
        reader.end()
        return record
