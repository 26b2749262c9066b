"""The newest time that a writer noted, and the position at which it did.

    version 1; signed time; flag alive; offsets

The time is in whatever unit the stream's writers use.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMarkRecord:
    """One writer's mark; stream and writer stand in its key."""

    time: int
    alive: bool
    """False once the writer was closed: its last mark counts, but nobody waits for the next."""
    position: Mapping[int, int]

    def encode(self) -> bytes:
        fields = FieldWriter(_VERSION)
        fields.signed(self.time)
        fields.flag(self.alive)
        fields.offsets(self.position)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "WriterMarkRecord":
        fields = FieldReader(content, what="writer mark", version_max=_VERSION)
        record = WriterMarkRecord(
            time=fields.signed(), alive=fields.flag(), position=fields.offsets()
        )
        fields.end()
        return record
