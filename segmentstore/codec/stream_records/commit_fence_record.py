"""Which version of an application's commits a stream has taken last.

    commit fence  version 1; text application id; signed version; flag lasting; signed time of the commit in ms

The time is that of the wall clock. A lasting fence is kept for as long as its stream; another one for as long as
finished transactions are remembered.
"""

from dataclasses import dataclass

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFenceRecord:
    """Commits of this version and below are replays."""

    application_id: str
    version: int
    is_lasting: bool
    committed_ms: int

    def encode(self) -> bytes:
        fields = FieldWriter(_VERSION)
        fields.text(self.application_id)
        fields.signed(self.version)
        fields.flag(self.is_lasting)
        fields.signed(self.committed_ms)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "CommitFenceRecord":
        fields = FieldReader(content, what="commit fence record", version_max=_VERSION)
        record = CommitFenceRecord(
            application_id=fields.text(),
            version=fields.signed(),
            is_lasting=fields.flag(),
            committed_ms=fields.signed(),
        )
        fields.end()
        return record
