"""Brings the index up to what the volumes say, when it lags behind by some records: after a kill or a power cut.

Every write batch is indexed after it was synced, in order; so what the index lacks are exactly the records with numbers
at or above its own next number. A record below it that stands in an unindexed tail is a copy that compaction had not
yet published (the original still counts), or belongs to a batch that failed.

Invariants:

- Nothing is indexed before it is certain: the tails are synced first, since a kill leaves bytes that only the page
  cache holds.
- A batch that is not there whole is cut off before anything is indexed (`BatchTail`): no later rebuild may find it.
- Records are applied in the order of their numbers, whatever volume they stand in, and each number once.

Memory is proportional to what the index lacks: one batch after a kill, a few after a power cut. An index that is gone
is the business of rebuild.py.
"""

import logging
from dataclasses import dataclass, field

from tier2.volumes.index import (
    NEXT_SEQUENCE,
    SEQUENCE_MAX,
    VOLUME,
    BlobRow,
    IndexChanges,
    ObjectRow,
    decode_sequence,
    decode_volume_row,
    encode_sequence,
)
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.volume_files import (
    DamagedHeaderError,
    DamagedStretch,
    ScannedRecord,
    VolumeFiles,
    VolumeScan,
)
from tier2.volumes.volume_format import RECORD_HEADER_BYTES, RecordKind

_LOGGER = logging.getLogger(__name__)
_VOLUME_ROWS_MAX = 1 << 30


@dataclass(slots=True)
class ReplaySummary:
    """What a start found behind the index, or in all volumes if it had to rebuild it."""

    rebuilt: str = ""
    """Why the index was made anew; empty if it was not."""
    records: int = 0
    copies: int = 0
    """Of compaction, not published, or of a batch that failed: left alone."""
    cut_bytes: int = 0
    """Of batches that a cut left in part."""
    damaged: list[tuple[int, DamagedStretch]] = field(default_factory=list)
    """Volume and stretch."""
    unreadable: list[int] = field(default_factory=list)
    """Volumes whose header is damaged: what the index knows of them can be read."""
    missing: list[int] = field(default_factory=list)
    """Volumes that the index needs and that are not there."""
    shorter: list[int] = field(default_factory=list)
    """Volumes that end before what the index has of them."""
    references_without_blob: int = 0
    sequence_next: int = 1

    def complaints(self) -> list[str]:
        """Of volumes with objects that cannot be read now, and what to do: sentences for `/health`."""
        return [
            f"volumes of Tier 2 {what}: put them back as they were, and start again; `segmentstore tier2 verify` says"
            f" which objects are without their bytes meanwhile volumes={numbers}"
            for numbers, what in (
                (self.missing, "are missing"),
                (self.shorter, "are shorter than they were"),
                (self.unreadable, "have a damaged header"),
            )
            if numbers
        ]

    def log(self, directory: str) -> None:
        """What a person has to know of it."""
        if self.rebuilt:
            _LOGGER.warning(
                "the index of the volumes was made anew (%s) records=%d directory=%s",
                self.rebuilt,
                self.records,
                directory,
            )
        if self.cut_bytes:
            _LOGGER.warning("an unanswered write batch was cut off bytes=%d", self.cut_bytes)
        for number, stretch in self.damaged:
            _LOGGER.error(
                "volume=%d has no good record in %d bytes at offset %d: %s",
                number,
                stretch.length,
                stretch.offset,
                stretch.why,
            )
        for complaint in self.complaints():
            _LOGGER.error("%s", complaint)
        if self.references_without_blob:
            _LOGGER.error("objects without their bytes count=%d", self.references_without_blob)


@dataclass(frozen=True, slots=True)
class _TailRecord:
    volume: int
    scanned: ScannedRecord


class TailReplay:
    """One start. Blocking; runs in an executor."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles) -> None:
        self._index = index
        self._volumes = volumes
        self._changes = IndexChanges(index)
        self._summary = ReplaySummary()
        self._blobs: dict[bytes, BlobRow] = {}
        """Bytes in the tails without an object of their own."""

    def run(self) -> ReplaySummary:
        """Raises CorruptedDataError for a damaged index or a volume that is not ours, OSError."""
        summary = self._summary
        stored = self._index.get_certain(NEXT_SEQUENCE)
        summary.sequence_next = indexed = 1 if stored is None else decode_sequence(stored)
        numbers = self._volumes.numbers()
        found: list[_TailRecord] = []
        for number in numbers:
            found += self._read_tail(number, indexed)
        found.sort(key=lambda one: (one.scanned.header.sequence, one.volume))
        applied = 0
        for one in found:
            if one.scanned.header.sequence > applied:
                applied = one.scanned.header.sequence
                self._apply(one)
        self._forget_missing(set(numbers))
        if self._changes.get(NEXT_SEQUENCE) != encode_sequence(summary.sequence_next):
            self._changes.put(NEXT_SEQUENCE, encode_sequence(summary.sequence_next))
        changes = self._changes.take()
        if changes:
            # In the order in which a tree likes it.
            self._index.apply(sorted(changes.items()))
        return summary

    def _read_tail(self, number: int, indexed: int) -> list[_TailRecord]:
        summary = self._summary
        row = self._changes.volume(number)
        start = 0 if row is None else row.indexed_to
        size = self._volumes.size(number)
        if row is not None and start >= size:
            if start > size:
                summary.shorter.append(number)
            return []
        try:
            header = self._volumes.header(number)
        except DamagedHeaderError:
            summary.unreadable.append(number)
            return []
        if header is None:
            return []
        summary.sequence_next = max(summary.sequence_next, header.sequence_first)
        file = self._volumes.open_certain(number, start=start)
        items: list[ScannedRecord | DamagedStretch] = []
        try:
            scan = VolumeScan(file, secret=header.secret, size=size, offset=start)
            tail = BatchTail(scan.offset)
            for one in scan:
                tail.see(one)
                items.append(one)
        finally:
            file.close()
        end = size
        cut_at = _torn_copies_offset(items, indexed)
        if cut_at is None:
            cut_at = tail.cut_at
        if cut_at is not None:
            end = cut_at
            summary.cut_bytes += size - end
            self._volumes.cut(number, end)
        return self._sort_out(number, end, items, indexed)

    def _sort_out(
        self, number: int, end: int, items: list[ScannedRecord | DamagedStretch], indexed: int
    ) -> list[_TailRecord]:
        summary = self._summary
        found: list[_TailRecord] = []
        for one in items:
            if isinstance(one, DamagedStretch):
                if one.offset >= end:
                    continue
                summary.damaged.append((number, one))
                summary.sequence_next += numbers_lost_in(one)
                if one.record is None:
                    continue
                one = one.record
            sequence = one.header.sequence
            summary.sequence_next = max(summary.sequence_next, sequence + 1)
            if one.offset >= end:
                continue
            if one.header.kind is RecordKind.BLOB:
                if one.sound or one.record.content_hash not in self._blobs:
                    self._blobs[one.record.content_hash] = blob_row_of(number, one)
                continue
            if sequence < indexed:
                summary.copies += 1
            else:
                summary.records += 1
                found.append(_TailRecord(number, one))
            self._changes.note_written(number, end=0, lowest=sequence, highest=sequence)
            if one.header.is_deleted:
                self._changes.note_tombstones(
                    number, length=one.header.blob_offset, oldest=one.record.oldest
                )
        self._changes.note_written(number, end=end, lowest=SEQUENCE_MAX, highest=0)
        return found

    def _forget_missing(self, present: set[int]) -> None:
        for row_key, content in self._index.scan(VOLUME, VOLUME + b"\xff" * 5, _VOLUME_ROWS_MAX):
            number = int.from_bytes(row_key[len(VOLUME) :], "big")
            if number in present:
                continue
            # A power cut may bring this row back: of a new volume it would say that it is indexed already.
            self._volumes.number_above(number)
            if decode_volume_row(content).live_bytes:
                self._summary.missing.append(number)
            else:
                self._changes.forget_volume(number)

    def _apply(self, found: _TailRecord) -> None:
        changes, key, record = self._changes, found.scanned.key, found.scanned.record
        present = changes.version(key, record.version_id)
        match found.scanned.header.kind:
            case RecordKind.PUT:
                row = object_row_of(found.volume, found.scanned)
                if row.has_blob_row and not self._has_blob(found):
                    self._summary.references_without_blob += 1
                    return
                changes.put_version(key, row)
            case RecordKind.CHANGE:
                if present is not None:
                    row = object_row_of(found.volume, found.scanned)
                    changes.replace_object(*present, row)
            case RecordKind.TOMBSTONE:
                if present is not None:
                    changes.remove_version(key, *present)
            case RecordKind.BLOB:
                raise AssertionError("bytes without an object are not applied")

    def _has_blob(self, found: _TailRecord) -> bool:
        """The blob of the record has a row now: its own bytes, or those of another record.

        A put brings bytes that were there already only if it found those damaged: all are led to the new ones, as then.
        """
        scanned = found.scanned
        content_hash = scanned.record.content_hash
        known = self._changes.blob(content_hash)
        blob = self._blobs.get(content_hash)
        if scanned.header.blob_length:
            blob = blob_row_of(found.volume, scanned)
        if blob is None:
            return known is not None
        if known is None:
            self._changes.add_blob(content_hash, blob)
        elif scanned.sound and (known.volume, known.record_offset) != (
            blob.volume,
            blob.record_offset,
        ):
            self._changes.move_blob(content_hash, known, blob)
        return True


def _torn_copies_offset(items: list[ScannedRecord | DamagedStretch], indexed: int) -> int | None:
    """Where a tail of copies that no row names has its first hole: what was not yet synced is in no order."""
    holes = [one.offset for one in items if isinstance(one, DamagedStretch)]
    headers = [one.header for one in items]
    only_copies = all(header is None or header.sequence < indexed for header in headers) and all(
        one.unwritten or one.header is not None for one in items if isinstance(one, DamagedStretch)
    )
    return holes[0] if holes and only_copies else None


def numbers_lost_in(stretch: DamagedStretch) -> int:
    """How many numbers may have stood in it of which nothing is known any more: they do not return."""
    if stretch.header is not None:
        return 0
    return stretch.length // RECORD_HEADER_BYTES + 1


def blob_row_of(volume: int, scanned: ScannedRecord) -> BlobRow:
    """Where the bytes of a record are; no object row names them yet."""
    offset = scanned.offset + scanned.header.blob_offset
    return BlobRow(volume, scanned.offset, offset, scanned.header.blob_length, 0)


def object_row_of(volume: int, scanned: ScannedRecord) -> ObjectRow:
    """The row of a record that is no tombstone."""
    length = scanned.header.blob_offset + len(scanned.inline or b"")
    return ObjectRow(volume, scanned.offset, length, scanned.record, scanned.inline)


class BatchTail:
    """Follows one scan, and says where the last whole write batch of the volume ends.

    A batch is one write. A power cut keeps any part of it, so records behind a hole may be whole; yet none of them was
    acknowledged, and one may refer to another that is lost. So the batch is there whole or not at all.

    Invariant: what may have been answered is not cut. Damage that another batch follows is no torn write, since that
    batch was written after a sync; nor is damage of which every sector was written. It is reported, and stays.
    """

    def __init__(self, start: int) -> None:
        """`start`: where the scan begins, at the end of a batch."""
        self._batch_start = start
        self._torn_at: int | None = None
        """Start of the batch in which there is damage."""
        self._ends_behind_damage = 0
        """Batches that end with the damage or behind it."""
        self._open = False

    def see(self, one: ScannedRecord | DamagedStretch) -> None:
        """The next item of the scan."""
        header = one.header
        if isinstance(one, DamagedStretch):
            if one.unwritten:
                self._torn_at = self._batch_start
                self._ends_behind_damage = 0
            elif header is None:
                # It may have been the end of its batch.
                self._batch_start = one.offset + one.length
                self._open = False
        # A record whose body alone is bad says as well whether its batch ends with it.
        if header is None:
            return
        self._open = header.batch_left > 0
        if not self._open:
            self._batch_start = one.offset + header.total_length
            self._ends_behind_damage += 1

    def pass_over(self, end: int, batches: int) -> None:
        """So many whole batches came next, the last of which ends at `end`."""
        assert not self._open, "batches that begin inside another one"
        self._batch_start = end
        self._ends_behind_damage += batches

    @property
    def cut_at(self) -> int | None:
        """Where the volume has to end, or None if its last batch is whole."""
        if self._torn_at is not None and self._ends_behind_damage <= 1:
            return self._torn_at
        return self._batch_start if self._open else None
