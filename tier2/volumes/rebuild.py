"""Makes a lost index anew from the volumes alone (H68), with bounded memory.

    volumes, one after the other: for each key and version id the record with the highest number so far -> `r` rows;
                                  where the bytes of each hash are -> `b` rows without references
    `r` rows in key order:        what is left of each key -> `o`, `v` and `i` rows, references, live bytes
    `b` rows:                     those that nobody names go, the others are live
    volumes' rows, next number, end of the rebuild: one batch

Invariants:

- Numbers decide, never the order in which records are met (H69); of two copies of one record either may be taken.
- A tombstone is a record like others: what is older than it stays away (H70).
- The last group of all is there whole or not at all (group_tail).
- The index says that it is being rebuilt until all is there: a crash in the middle begins it again, from nothing.
- Memory: one batch of records, and a row for each volume.

A change of hold counts like a put: it carries the whole record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tier2.volumes.blob_record import RecordKind
from tier2.volumes.group_tail import GroupTail
from tier2.volumes.index_database import IndexDatabase, Row
from tier2.volumes.index_rows import (
    BLOB,
    NEW_VOLUME_ROW,
    NEXT_SEQUENCE,
    REBUILDING,
    STAGED,
    BlobRow,
    ObjectRow,
    VolumeRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_staged_row,
    encode_blob_row,
    encode_object_row,
    encode_sequence,
    encode_staged_row,
    encode_volume_row,
    staged_key,
    version_id_key,
    version_key,
    volume_key,
)
from tier2.volumes.tail_replay import ReplaySummary, blob_row_of, object_row_of
from tier2.volumes.volume_files import DamagedHeaderError, VolumeFiles
from tier2.volumes.volume_scan import DamagedStretch, ScannedRecord, VolumeScan

_BATCH_RECORDS = 10_000
_BATCH_BYTES = 32 << 20
_PAGE_ROWS = 2000


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a volume whose last group is not there whole."""

    volume: int
    cut_at: int
    size: int
    items: list[ScannedRecord | DamagedStretch]


class Rebuild:
    """One rebuild into an empty index. Blocking; runs in an executor."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles, why: str) -> None:
        self._index = index
        self._volumes = volumes
        self._summary = ReplaySummary(rebuilt=why)
        self._rows: dict[int, VolumeRow] = {}
        self._tails: list[_Tail] = []
        self._sequence_highest = 0

    def run(self) -> ReplaySummary:
        """Raises ForeignVolumeError, CorruptedDataError, OSError."""
        self._index.apply([(REBUILDING, b"1")])
        numbers = self._volumes.numbers()
        for number in numbers:
            self._stage_volume(number)
        for tail in self._tails:
            self._settle(tail)
        self._make_objects()
        self._count_blobs()
        changes: list[tuple[bytes, bytes | None]] = [
            (volume_key(number), encode_volume_row(row)) for number, row in self._rows.items()
        ]
        changes.append((NEXT_SEQUENCE, encode_sequence(self._summary.sequence_next)))
        changes.append((REBUILDING, None))
        self._index.apply(changes)
        self._index.sync()
        return self._summary

    # --- volumes ---------------------------------------------------------------------------------

    def _stage_volume(self, number: int) -> None:
        try:
            header = self._volumes.header(number)
        except DamagedHeaderError:
            self._summary.unreadable.append(number)
            return
        if header is None:
            return
        self._summary.sequence_next = max(self._summary.sequence_next, header.sequence_first)
        size = self._volumes.size(number)
        self._rows[number] = replace(NEW_VOLUME_ROW, indexed_to=size)
        file = self._volumes.open(number)
        try:
            file.sync_data()
            scan = VolumeScan(file, secret=header.secret, size=size, offset=0)
            self._stage_records(number, size, scan)
        finally:
            file.close()

    def _stage_records(self, number: int, size: int, scan: VolumeScan) -> None:
        tail = GroupTail(scan.offset)
        batch: list[ScannedRecord] = []
        batch_bytes = 0
        doubtful: list[ScannedRecord | DamagedStretch] = []
        for one in scan:
            tail.see(one)
            doubtful.append(one)
            if tail.cut_at is not None:
                continue
            for settled in doubtful:
                if isinstance(settled, DamagedStretch):
                    self._summary.damaged.append((number, settled))
                    continue
                self._note(number, settled)
                batch.append(settled)
                batch_bytes += settled.header.blob_offset + len(settled.inline or b"")
            doubtful.clear()
            if len(batch) >= _BATCH_RECORDS or batch_bytes >= _BATCH_BYTES:
                self._stage(number, batch)
                batch, batch_bytes = [], 0
        self._stage(number, batch)
        if tail.cut_at is not None:
            self._tails.append(_Tail(number, tail.cut_at, size, doubtful))

    def _settle(self, tail: _Tail) -> None:
        """Cut off what nobody was answered: the last group of all, if it is not there whole.

        Damage in the last group of an older volume is no torn write: its good records count.
        """
        records = [one for one in tail.items if isinstance(one, ScannedRecord)]
        numbers = [one.header.sequence for one in records]
        if all(number > self._sequence_highest for number in numbers):
            self._volumes.cut(tail.volume, tail.cut_at)
            self._summary.cut_bytes += tail.size - tail.cut_at
            self._summary.sequence_next = max(
                [self._summary.sequence_next, *(n + 1 for n in numbers)]
            )
            row = self._rows[tail.volume]
            self._rows[tail.volume] = replace(row, indexed_to=tail.cut_at)
            return
        for one in tail.items:
            if isinstance(one, DamagedStretch):
                self._summary.damaged.append((tail.volume, one))
            else:
                self._note(tail.volume, one)
        self._stage(tail.volume, records)

    def _note(self, number: int, one: ScannedRecord) -> None:
        sequence = one.header.sequence
        self._summary.sequence_next = max(self._summary.sequence_next, sequence + 1)
        self._sequence_highest = max(self._sequence_highest, sequence)
        if one.header.kind is RecordKind.BLOB:
            return
        self._summary.records += 1
        row = self._rows[number]
        row = replace(
            row,
            sequence_lowest=min(row.sequence_lowest, sequence),
            sequence_highest=max(row.sequence_highest, sequence),
        )
        if one.header.is_deleted:
            row = replace(
                row,
                tombstone_bytes=row.tombstone_bytes + one.header.blob_offset,
                tombstone_oldest=min(row.tombstone_oldest, one.record.oldest),
            )
        self._rows[number] = row

    def _stage(self, number: int, batch: Sequence[ScannedRecord]) -> None:
        """Take what is newer than what was seen before. `batch` is in the order of the volume."""
        wanted = [one for one in batch if one.header.kind is not RecordKind.BLOB]
        keys = [staged_key(one.key, one.record.version_id) for one in wanted]
        changes: dict[bytes, bytes | None] = {}
        newest = {
            key: -1 if content is None else decode_staged_row(content)[0]
            for key, content in zip(keys, self._index.get_many(keys), strict=True)
        }
        for key, one in zip(keys, wanted, strict=True):
            sequence = one.header.sequence
            if sequence <= newest[key]:
                continue
            newest[key] = sequence
            row = None
            if not one.header.is_deleted:
                row = object_row_of(number, one)
            changes[key] = encode_staged_row(sequence, row)
        for one in batch:
            if one.header.blob_length and not one.record.inline:
                row_key = blob_key(one.record.content_hash)
                changes[row_key] = encode_blob_row(blob_row_of(number, one))
        if changes:
            self._index.apply(sorted(changes.items()))

    # --- objects ---------------------------------------------------------------------------------

    def _make_objects(self) -> None:
        pending_key: bytes | None = None
        versions: list[ObjectRow] = []
        changes: dict[bytes, bytes | None] = {}
        for row_key, content in _rows_of(self._index, STAGED):
            key = row_key[len(STAGED) : row_key.index(b"\0")]
            if key != pending_key:
                self._make_object(pending_key, versions, changes)
                pending_key, versions = key, []
                # Only between two keys: a crash begins everything again, but a page may end anywhere.
                if len(changes) >= _PAGE_ROWS:
                    self._index.apply(sorted(changes.items()))
                    changes.clear()
            changes[row_key] = None
            row = decode_staged_row(content)[1]
            if row is not None:
                versions.append(row)
        self._make_object(pending_key, versions, changes)
        self._index.apply(sorted(changes.items()))

    def _make_object(
        self, key: bytes | None, versions: list[ObjectRow], changes: dict[bytes, bytes | None]
    ) -> None:
        """The rows of one key: its newest version, and those before it."""
        if key is None:
            return
        kept = [row for row in versions if self._refer(row, changes)]
        kept.sort(key=lambda row: row.record.sequence, reverse=True)
        for place, row in enumerate(kept):
            self._add_live(row.volume, row.record_length)
            record = row.record
            if place == 0:
                changes[current_key(key)] = encode_object_row(row)
                continue
            changes[version_key(key, record.sequence)] = encode_object_row(row)
            row_key = version_id_key(key, record.version_id)
            changes[row_key] = encode_sequence(record.sequence)

    def _refer(self, row: ObjectRow, changes: dict[bytes, bytes | None]) -> bool:
        """Name the row's blob once more; False if it is nowhere."""
        if not row.has_blob_row:
            return True
        row_key = blob_key(row.record.content_hash)
        content = changes[row_key] if row_key in changes else self._index.get(row_key)
        if content is None:
            self._summary.references_without_blob += 1
            return False
        blob = decode_blob_row(content)
        changes[row_key] = encode_blob_row(replace(blob, references=blob.references + 1))
        return True

    def _count_blobs(self) -> None:
        unnamed: list[tuple[bytes, bytes | None]] = []
        for row_key, content in _rows_of(self._index, BLOB):
            blob: BlobRow = decode_blob_row(content)
            if blob.references:
                self._add_live(blob.volume, blob.size)
                continue
            unnamed.append((row_key, None))
            if len(unnamed) >= _PAGE_ROWS:
                self._index.apply(unnamed)
                unnamed = []
        self._index.apply(unnamed)

    def _add_live(self, number: int, by: int) -> None:
        row = self._rows[number]
        self._rows[number] = replace(row, live_bytes=row.live_bytes + by)


def _rows_of(index: IndexDatabase, first_byte: bytes) -> Iterator[Row]:
    """All rows of one kind, in key order, while those that were passed may change."""
    first, end = first_byte, bytes([first_byte[0] + 1])
    while True:
        rows = index.scan(first, end, _PAGE_ROWS)
        yield from rows
        if len(rows) < _PAGE_ROWS:
            return
        first = rows[-1][0] + b"\0"
