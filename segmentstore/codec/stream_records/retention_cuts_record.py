"""The cuts of a stream that retention chooses from.

    version 1; list of cuts, oldest first: signed time in ms, unsigned bytes before the cut, offsets

Invariants:

- Times never go down from one cut to the next, nor do bytes: a wall clock that went back repeats the last time (H77).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION = 1


@dataclass(frozen=True, slots=True)
class RetentionCut:
    """Where the stream ended at some time."""

    time_ms: int
    bytes_before: int
    """Bytes that the stream has taken up to here since retention began to watch it."""
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RetentionCutsRecord:
    """All cuts of one stream; its name stands in the key."""

    cuts: tuple[RetentionCut, ...] = ()

    def encode(self) -> bytes:
        fields = FieldWriter(_VERSION)

        def write(cut: RetentionCut) -> None:
            fields.signed(cut.time_ms)
            fields.unsigned(cut.bytes_before)
            fields.offsets(cut.offsets)

        fields.list_of(self.cuts, write)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "RetentionCutsRecord":
        fields = FieldReader(content, what="retention cuts", version_max=_VERSION)
        record = RetentionCutsRecord(
            fields.list_of(
                lambda: RetentionCut(fields.signed(), fields.unsigned(), fields.offsets())
            )
        )
        fields.end()
        return record

    def check(self) -> None:
        """Proves that the cuts are in order; O(n)."""
        for earlier, later in zip(self.cuts, self.cuts[1:], strict=False):
            assert earlier.time_ms <= later.time_ms, f"times go down {earlier} {later}"
            assert earlier.bytes_before <= later.bytes_before, f"bytes go down {earlier} {later}"
