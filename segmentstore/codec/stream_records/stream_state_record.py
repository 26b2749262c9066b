"""Where a stream stands in its life, and its counters. Every transition rewrites this record, under its version.

    version 1 | unsigned state | unsigned current epoch | unsigned last epoch | unsigned next segment number
              | signed created ms

Invariants:

- current epoch <= last epoch; both only grow. Every epoch up to the last one has a record.
- The current epoch's segments are those that writers are sent to. The last epoch is ahead of it only while a
  transition (scaling, committing behind a scale) is under way.
- The next segment number lies above every number in use; a record is never taken back, also when a stream is deleted.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter
from segmentstore.contracts.errors import CorruptedDataError

_VERSION: Final = 1


class StreamState(IntEnum):
    """Persistent: never renumber."""

    CREATING = 1
    ACTIVE = 2
    SCALING = 3
    TRUNCATING = 4
    SEALING = 5
    SEALED = 6
    DELETING = 7
    COMMITTING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStateRecord:
    """One stream's state."""

    state: StreamState
    current_epoch: int
    last_epoch: int
    next_segment_number: int
    created_ms: int

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.state)
        writer.unsigned(self.current_epoch)
        writer.unsigned(self.last_epoch)
        writer.unsigned(self.next_segment_number)
        writer.signed(self.created_ms)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "StreamStateRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="stream state", version_max=_VERSION)
        number = reader.unsigned()
        try:
            state = StreamState(number)
        except ValueError as error:
            raise CorruptedDataError(f"stream state is unknown state={number}") from error
        record = cls(
            state=state,
            current_epoch=reader.unsigned(),
            last_epoch=reader.unsigned(),
            next_segment_number=reader.unsigned(),
            created_ms=reader.signed(),
        )
        reader.end()
        return record

    def check(self) -> None:
        """The counters fit each other."""
        assert self.current_epoch <= self.last_epoch, f"current epoch is ahead {self}"
        assert self.next_segment_number >= 1, f"a stream without segments {self}"
