"""Brings the index up to what the volumes say, when it lags behind by some records: after a kill or a power cut.

Every group is indexed after it was synced, in order; so what the index lacks are exactly the records with numbers at or
above its own next number. A record below it that stands in an unindexed tail is a copy that compaction had not yet
published: the original still counts.

Invariants:

- Nothing is indexed before it is certain: the tails are synced first, since a kill leaves bytes that only the page
  cache holds (H39).
- Records are applied in the order of their numbers, whatever volume they stand in.
- A reference whose blob is nowhere was never acknowledged: a cut tore it from its group. It is dropped, and
  counted.
"""

from dataclasses import dataclass, field

from tier2.volumes.blob_record import RecordKind
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_rows import NEXT_SEQUENCE, BlobRow, ObjectRow, current_key
from tier2.volumes.volume_files import VolumeFiles
from tier2.volumes.volume_scan import DamagedStretch, ScannedRecord, VolumeScan


@dataclass(slots=True)
class ReplaySummary:
    """What a start found behind the index."""

    records: int = 0
    copies: int = 0
    """Of compaction, not published: left alone."""
    damaged: list[tuple[int, DamagedStretch]] = field(default_factory=list)
    """Volume and stretch: torn tails, as a rule."""
    references_without_blob: int = 0
    sequence_next: int = 1


@dataclass(frozen=True, slots=True)
class _Found:
    volume: int
    scanned: ScannedRecord


class TailReplay:
    """One start. Blocking; runs in an executor."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles) -> None:
        self._index = index
        self._volumes = volumes
        self._changes = IndexChanges(index)
        self._summary = ReplaySummary()

    def run(self) -> ReplaySummary:
        """Raises CorruptedDataError for a volume that is not ours, OSError."""
        summary = self._summary
        stored = self._index.get(NEXT_SEQUENCE)
        summary.sequence_next = indexed = int.from_bytes(stored, "big") if stored else 1
        found: list[_Found] = []
        for number in self._volumes.numbers():
            found += self._read_tail(number, indexed)
        found.sort(key=lambda one: one.scanned.header.sequence)
        for one in found:
            self._apply(one)
        self._changes.put(NEXT_SEQUENCE, summary.sequence_next.to_bytes(8, "big"))
        self._index.apply(self._changes.take())
        return summary

    def _read_tail(self, number: int, indexed: int) -> list[_Found]:
        summary = self._summary
        header = self._volumes.header(number)
        if header is None:
            return []
        summary.sequence_next = max(summary.sequence_next, header.sequence_first)
        row = self._changes.volume(number)
        size = self._volumes.size(number)
        start = 0 if row is None else row.indexed_to
        if start >= size:
            return []
        file = self._volumes.open(number)
        found: list[_Found] = []
        try:
            file.sync_data()
            for one in VolumeScan(file, secret=header.secret, size=size, offset=start):
                if isinstance(one, DamagedStretch):
                    summary.damaged.append((number, one))
                    continue
                sequence = one.header.sequence
                summary.sequence_next = max(summary.sequence_next, sequence + 1)
                if sequence < indexed:
                    summary.copies += 1
                else:
                    summary.records += 1
                    found.append(_Found(number, one))
                self._changes.note_written(number, end=0, lowest=sequence, highest=sequence)
        finally:
            file.close()
        self._changes.note_written(number, end=size, lowest=(1 << 64) - 1, highest=0)
        return found

    def _apply(self, found: _Found) -> None:
        match found.scanned.header.kind:
            case RecordKind.PUT:
                self._apply_put(found)
            case RecordKind.CHANGE:
                self._apply_change(found)
            case RecordKind.TOMBSTONE:
                self._apply_tombstone(found)

    def _apply_put(self, found: _Found) -> None:
        changes, key, record = self._changes, found.scanned.key, found.scanned.record
        row = self._row(found)
        if row.has_blob_row and not self._has_blob(found):
            self._summary.references_without_blob += 1
            return
        current = changes.current(key)
        if current is not None:
            if record.versioned or current.record.versioned:
                replaced = None if record.versioned else changes.version(key, "")
                if replaced is not None and replaced[1] is not current:
                    changes.remove_object(*replaced)
                changes.keep_as_earlier(key, current)
            else:
                changes.remove_object(current_key(key), current)
                self._has_blob(found)  # the removal may have dropped the very blob
        changes.set_current(key, row)

    def _apply_change(self, found: _Found) -> None:
        key, record = found.scanned.key, found.scanned.record
        present = self._changes.version(key, record.version_id)
        if present is not None:
            self._changes.replace_object(*present, self._row(found))

    def _apply_tombstone(self, found: _Found) -> None:
        key = found.scanned.key
        present = self._changes.version(key, found.scanned.record.version_id)
        if present is None:
            return
        self._changes.remove_object(*present)
        if present[0] == current_key(key):
            self._changes.bring_forward(key)

    def _has_blob(self, found: _Found) -> bool:
        """The blob of the record has a row now: its own bytes, or those of another record."""
        scanned = found.scanned
        content_hash = scanned.record.content_hash
        if self._changes.blob(content_hash) is not None:
            return True
        if not scanned.header.blob_length:
            return False
        offset = scanned.offset + scanned.header.blob_offset
        blob = BlobRow(found.volume, scanned.offset, offset, scanned.record.size, 0)
        self._changes.add_blob(content_hash, blob)
        return True

    def _row(self, found: _Found) -> ObjectRow:
        scanned = found.scanned
        record, header = scanned.record, scanned.header
        inline: bytes | None = None
        if record.inline:
            inline = b""
            if header.blob_length:
                inline = self._volumes.read(
                    found.volume, scanned.offset + header.blob_offset, header.blob_length
                )
        length = header.blob_offset + (len(inline) if inline else 0)
        return ObjectRow(found.volume, scanned.offset, length, record, inline)
