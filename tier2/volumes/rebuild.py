"""Makes a lost index anew from the volumes alone (H68), with bounded memory.

    volumes, one after the other: plain records (record_block), the newest of each key so far -> `o` rows;
                                  of all others, for each key and version id the newest so far -> `a` rows;
                                  where the bytes of each hash are -> `b` rows without references
    `a` rows in key order:        what is left of each key, with its `o` row -> `o`, `v`, `i` rows, references, sums
    `b` rows:                     those that nobody names go, the others are live
    volumes' rows, next number:   one batch

Invariants:

- Numbers decide, never the order in which records are met (H69); of two copies of one record either may be taken.
- A tombstone is a record like others: what is older than it stays away (H70).
- The last group of all is there whole or not at all (group_tail).
- Nothing is synced here. Until somebody has, a crash begins the rebuild again, from nothing (index_mark).
- Memory: one batch of records, one of plain rows, and a row for each volume.

A change of hold counts like a put: it carries the whole record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tier2.volumes.blob_record import RecordKind
from tier2.volumes.group_tail import GroupTail
from tier2.volumes.index_database import IndexDatabase, Row
from tier2.volumes.index_rows import (
    BLOB,
    NEW_VOLUME_ROW,
    NEXT_SEQUENCE,
    STAGED,
    BlobRow,
    ObjectRow,
    VolumeRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
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
from tier2.volumes.plain_rows import PlainRows
from tier2.volumes.record_block import RecordBlock, RecordBlocks
from tier2.volumes.tail_replay import ReplaySummary, blob_row_of, object_row_of
from tier2.volumes.volume_files import DamagedHeaderError, VolumeFiles
from tier2.volumes.volume_scan import DamagedStretch, ScannedRecord, VolumeScan

_BATCH_RECORDS = 10_000
_BATCH_BYTES = 32 << 20
_PLAIN_BYTES = 128 << 20
"""Of volumes, put in order at once: what comes in key order anyway, and a store of this size, is written once."""
_PAGE_ROWS = 2000


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a volume whose last group is not there whole."""

    volume: int
    cut_at: int
    size: int
    items: list[ScannedRecord | DamagedStretch]


_Staged: TypeAlias = tuple[int, ObjectRow | None]
_NEVER: _Staged = (-1, None)


class _Batch:
    """Records that are staged together."""

    def __init__(self) -> None:
        self.records: list[ScannedRecord] = []
        self._bytes = 0

    def append(self, one: ScannedRecord) -> None:
        self.records.append(one)
        self._bytes += one.header.blob_offset + len(one.inline or b"")

    @property
    def is_full(self) -> bool:
        return len(self.records) >= _BATCH_RECORDS or self._bytes >= _BATCH_BYTES


class Rebuild:
    """One rebuild into an empty index. Blocking; runs in an executor."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles, why: str) -> None:
        self._index = index
        self._volumes = volumes
        self._summary = ReplaySummary(rebuilt=why)
        self._rows: dict[int, VolumeRow] = {}
        self._tails: list[_Tail] = []
        self._sequence_highest = 0
        self._plain = PlainRows(
            index=index,
            bytes_max=_PLAIN_BYTES,
            superseded=lambda volume, length: self._add_live(volume, -length),
        )

    def run(self) -> ReplaySummary:
        """Raises ForeignVolumeError, CorruptedDataError, OSError."""
        self._index.load()
        numbers = self._volumes.numbers()
        for number in numbers:
            self._stage_volume(number)
        for tail in self._tails:
            self._settle(tail)
        self._plain.store()
        self._make_objects()
        self._count_blobs()
        changes: list[tuple[bytes, bytes | None]] = [
            (volume_key(number), encode_volume_row(row)) for number, row in self._rows.items()
        ]
        changes.append((NEXT_SEQUENCE, encode_sequence(self._summary.sequence_next)))
        self._index.apply(changes)
        self._index.loaded()
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
        file = self._volumes.open_certain(number)
        try:
            scan = VolumeScan(file, secret=header.secret, size=size, offset=0)
            self._stage_records(number, size, scan, header.secret)
        finally:
            file.close()

    def _stage_records(self, number: int, size: int, scan: VolumeScan, secret: int) -> None:
        tail = GroupTail(scan.offset)
        batch = _Batch()
        doubtful: list[ScannedRecord | DamagedStretch] = []
        items = iter(scan)
        blocks = RecordBlocks(scan, volume=number, secret=secret, memory_for=self._plain.memory_for)
        while True:
            block = None if doubtful else blocks.take()
            if block is not None:
                tail.pass_over(block.end, block.groups)
                self._take_plain(number, block)
                settled: list[ScannedRecord | DamagedStretch] = [*block.others]
            else:
                one = next(items, None)
                if one is None:
                    break
                tail.see(one)
                doubtful.append(one)
                if tail.cut_at is not None:
                    continue
                settled, doubtful = doubtful, []
            for one in settled:
                if isinstance(one, DamagedStretch):
                    self._summary.damaged.append((number, one))
                else:
                    self._note(number, one)
                    batch.append(one)
            if batch.is_full:
                self._stage(number, batch.records)
                batch = _Batch()
        self._stage(number, batch.records)
        if tail.cut_at is not None:
            self._tails.append(_Tail(number, tail.cut_at, size, doubtful))

    def _take_plain(self, number: int, block: RecordBlock) -> None:
        if not block.plain:
            return
        self._summary.records += len(block.plain)
        self._note_numbers(number, block.sequence_lowest, block.sequence_highest)
        self._add_live(number, block.plain_bytes)
        self._plain.take(block.plain, block.end - block.start)

    def _settle(self, tail: _Tail) -> None:
        """Cut off what nobody was answered: the last group of all, if it is not there whole.

        Damage in the last group of an older volume is no torn write: its good records count.
        """
        records = [one for one in tail.items if isinstance(one, ScannedRecord)]
        # A record whose body is bad still says how old it is.
        numbers = [one.header.sequence for one in tail.items if one.header is not None]
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
        if one.header.kind is RecordKind.BLOB:
            self._note_highest(sequence)
            return
        self._summary.records += 1
        self._note_numbers(number, sequence, sequence)
        if one.header.is_deleted:
            row = self._rows[number]
            self._rows[number] = replace(
                row,
                tombstone_bytes=row.tombstone_bytes + one.header.blob_offset,
                tombstone_oldest=min(row.tombstone_oldest, one.record.oldest),
            )

    def _note_numbers(self, number: int, lowest: int, highest: int) -> None:
        self._note_highest(highest)
        row = self._rows[number]
        if lowest < row.sequence_lowest or highest > row.sequence_highest:
            self._rows[number] = replace(
                row,
                sequence_lowest=min(row.sequence_lowest, lowest),
                sequence_highest=max(row.sequence_highest, highest),
            )

    def _note_highest(self, sequence: int) -> None:
        self._summary.sequence_next = max(self._summary.sequence_next, sequence + 1)
        self._sequence_highest = max(self._sequence_highest, sequence)

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
        staged: dict[bytes, _Staged] = {}
        changes: dict[bytes, bytes | None] = {}
        for row_key, content in _rows_of(self._index, STAGED):
            key, version_id = row_key[len(STAGED) :].split(b"\0", 1)
            if key != pending_key:
                self._make_object(pending_key, staged, changes)
                pending_key, staged = key, {}
                # Only between two keys: a crash begins everything again, but a page may end anywhere.
                if len(changes) >= _PAGE_ROWS:
                    self._index.apply(sorted(changes.items()))
                    changes.clear()
            changes[row_key] = None
            staged[version_id] = decode_staged_row(content)
        self._make_object(pending_key, staged, changes)
        self._index.apply(sorted(changes.items()))

    def _make_object(
        self, key: bytes | None, staged: dict[bytes, _Staged], changes: dict[bytes, bytes | None]
    ) -> None:
        """The rows of one key: its newest version, and those before it."""
        if key is None:
            return
        plain = self._index.get(current_key(key))
        if plain is not None:
            # The version without an id has two rows: what it was put as, and what became of it before or later.
            row = decode_object_row(plain)
            self._add_live(row.volume, -row.record_length)
            changes[current_key(key)] = None
            if row.record.sequence > staged.get(b"", _NEVER)[0]:
                staged[b""] = row.record.sequence, row
        versions = [row for _, row in staged.values() if row is not None]
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
