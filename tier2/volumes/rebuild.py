"""Makes a lost index anew from the volumes alone, with bounded memory.

    volumes, one after the other: plain records (volume_format.py), the newest of each key so far -> `o` rows;
                                  of all others, for each key and version id the newest so far -> `a` rows;
                                  where the bytes of each hash are -> `b` rows without references
    `a` rows in key order:        what is left of each key, with its `o` row -> `o`, `v`, `i` rows, references, sums
    `b` rows:                     those that nothing names go, the others are live
    volumes' rows, next number:   one batch

Plain records are taken by the block (`RecordBlocks`): the row of one is the record's own bytes behind a checksum and
four numbers, which are written over what stands there before them in memory; nothing of it is taken apart, or copied.
Their rows go into the index by the ten thousand, in key order (`PlainRows`). All other records are read by the scan,
one by one.

Invariants:

- Numbers decide, never the order in which records are met; of two copies of one record either may be taken.
- A tombstone is a record like others: what is older than it stays away.
- The last write batch of all is there whole or not at all (`BatchTail` in recovery.py).
- Nothing is synced here. Until a sync has followed, a crash begins the rebuild again, from nothing (opening.py).
- Memory: one batch of records, one of plain rows, and a row for each volume.

A change of hold counts like a put: it carries the whole record.
"""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes.index import (
    BLOB,
    CURRENT,
    NEW_VOLUME_ROW,
    NEXT_SEQUENCE,
    OBJECT_LAYOUT,
    SEQUENCE_MAX,
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
    plain_row_sequence,
    plain_row_volume_and_length,
    rows_of_kind,
    staged_key,
    version_id_key,
    version_key,
    volume_key,
)
from tier2.volumes.index_database import (
    CHECKSUM_LAYOUT,
    FORMAT,
    IndexDatabase,
    NewRow,
    checksum_of,
    value_of,
)
from tier2.volumes.recovery import (
    BatchTail,
    ReplaySummary,
    blob_row_of,
    numbers_lost_in,
    object_row_of,
)
from tier2.volumes.volume_files import (
    DamagedHeaderError,
    DamagedStretch,
    ScannedRecord,
    VolumeFiles,
    VolumeScan,
)
from tier2.volumes.volume_format import (
    ALIGNMENT,
    INLINE_ONLY,
    MARK,
    RECORD_FRONT,
    RECORD_HEADER_BYTES,
    RECORD_LAYOUT,
    RecordKind,
    seed_of,
)

_STAGED_BATCH_RECORDS = 10_000
_STAGED_BATCH_BYTES = 32 << 20
_PLAIN_ROWS_BYTES = 128 << 20
"""Of volumes, put in order at once: what comes in key order anyway, and a store of this size, is written once."""
_INDEX_PAGE_ROWS = 2000

STRETCH_BYTES_MAX = 8 << 20
"""What is read at once, at most."""
_STRETCH_BYTES_MIN = 2 << 20
"""And at first: so much stays near the processor until its rows are stored."""
_STRETCH_CUT_OFF_SHARE = 4
"""Where more than one in so many bytes is the front of a batch that is cut off, a stretch is too short."""
_BLOCK_RECORD_BYTES_MAX = 1 << 20
"""A longer one is left to the scan, which reads it piece by piece."""
_HEADER_CRC_FROM = 8
_PLAIN_PUT_KIND = RecordKind.PUT.value

_PLAIN_BATCH_ROWS = 2000
"""The database uses the pages of so many for the next batch again."""
_ORDER_STEP_BYTES_MAX = 2 << 20
"""After so much more it is looked whether the rows follow those that are stored."""
_ORDER_LOOKED_SHARE = 8
"""At one row in so many."""
_ORDER_STRAYS_SHARE = 10
"""One of these in so many need not."""

Walked: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Whole batches, where the last of them ends in the volume; and of what is in them: rows, others, bytes of the records
of the rows, and the lowest and the highest number of these."""
Walk: TypeAlias = Callable[[memoryview, int, int, int, list[NewRow], Callable[[int], bool]], Walked]
"""Of a stretch, where that begins in the volume, the number and the seed of the volume: rows of plain records are put
into the list, and the places of others in the volume are called with; where that returns False it ends."""

_StagedRow: TypeAlias = tuple[int, ObjectRow | None]
_NEVER_STAGED: _StagedRow = (-1, None)


@dataclass(frozen=True, slots=True)
class _TornTail:
    """The end of a volume whose last batch is not there whole."""

    volume: int
    cut_at: int
    size: int
    items: list[ScannedRecord | DamagedStretch]


class _StagedBatch:
    """Records that are staged together."""

    def __init__(self) -> None:
        self.records: list[ScannedRecord] = []
        self._bytes = 0

    def append(self, one: ScannedRecord) -> None:
        self.records.append(one)
        self._bytes += one.header.blob_offset + len(one.inline or b"")

    @property
    def is_full(self) -> bool:
        return len(self.records) >= _STAGED_BATCH_RECORDS or self._bytes >= _STAGED_BATCH_BYTES


@dataclass(slots=True)
class RecordBlock:
    """What whole batches at the front of a scan hold."""

    start: int
    end: int
    """Where the first of them begins in the volume, and the last one ends."""
    batches: int = 0
    plain: list[NewRow] = field(default_factory=list)
    """Rows of the current version, as the index has them: views of that memory."""
    plain_bytes: int = 0
    """Length of their records."""
    others: list[ScannedRecord] = field(default_factory=list)
    sequence_lowest: int = SEQUENCE_MAX
    """Of the plain ones."""
    sequence_highest: int = 0


class Rebuild:
    """One rebuild into an empty index. Blocking; runs in an executor."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles, why: str) -> None:
        self._index = index
        self._volumes = volumes
        self._summary = ReplaySummary(rebuilt=why)
        self._rows: dict[int, VolumeRow] = {}
        self._tails: list[_TornTail] = []
        self._sequences_first: dict[int, int] = {}
        """Of each volume: what its header says."""
        self._sequence_highest = 0
        self._numbers_lost = 0
        self._plain = PlainRows(
            index=index,
            bytes_max=_PLAIN_ROWS_BYTES,
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
        self._summary.sequence_next += self._numbers_lost
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
        self._sequences_first[number] = header.sequence_first
        size = self._volumes.size(number)
        self._rows[number] = replace(NEW_VOLUME_ROW, indexed_to=size)
        file = self._volumes.open_certain(number)
        try:
            scan = VolumeScan(file, secret=header.secret, size=size, offset=0)
            self._stage_records(number, size, scan, header.secret)
        finally:
            file.close()

    def _stage_records(self, number: int, size: int, scan: VolumeScan, secret: int) -> None:
        tail = BatchTail(scan.offset)
        batch = _StagedBatch()
        doubtful: list[ScannedRecord | DamagedStretch] = []
        items = iter(scan)
        blocks = RecordBlocks(scan, volume=number, secret=secret, memory_for=self._plain.memory_for)
        while True:
            block = None if doubtful else blocks.take()
            if block is not None:
                tail.pass_over(block.end, block.batches)
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
                record = self._record_in(number, one)
                if record is not None:
                    self._note(number, record)
                    batch.append(record)
            if batch.is_full:
                self._stage(number, batch.records)
                batch = _StagedBatch()
        self._stage(number, batch.records)
        if tail.cut_at is not None:
            self._tails.append(_TornTail(number, tail.cut_at, size, doubtful))

    def _take_plain(self, number: int, block: RecordBlock) -> None:
        if not block.plain:
            return
        self._summary.records += len(block.plain)
        self._note_numbers(number, block.sequence_lowest, block.sequence_highest)
        self._add_live(number, block.plain_bytes)
        self._plain.take(block.plain, block.end - block.start)

    def _settle(self, tail: _TornTail) -> None:
        """Cut off the last batch of all if it is not there whole: no caller was told that it is durable.

        Damage in the last batch of an older volume is no torn write: its good records count. So is damage in a batch
        with numbers that were given before another volume was made: what was torn had been cut off by then.
        """
        # A record whose body is bad still says how old it is.
        numbers = [one.header.sequence for one in tail.items if one.header is not None]
        later = [first for volume, first in self._sequences_first.items() if volume != tail.volume]
        certain = max([self._sequence_highest, *(first - 1 for first in later)])
        if all(number > certain for number in numbers):
            self._volumes.cut(tail.volume, tail.cut_at)
            self._summary.cut_bytes += tail.size - tail.cut_at
            self._summary.sequence_next = max(
                [self._summary.sequence_next, *(n + 1 for n in numbers)]
            )
            row = self._rows[tail.volume]
            self._rows[tail.volume] = replace(row, indexed_to=tail.cut_at)
            return
        found = [self._record_in(tail.volume, one) for one in tail.items]
        records = [one for one in found if one is not None]
        for record in records:
            self._note(tail.volume, record)
        self._stage(tail.volume, records)

    def _record_in(self, number: int, one: ScannedRecord | DamagedStretch) -> ScannedRecord | None:
        """What counts of an item of a scan, and its damage noted."""
        if isinstance(one, ScannedRecord):
            return one
        self._summary.damaged.append((number, one))
        self._numbers_lost += numbers_lost_in(one)
        return one.record

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
                # Bytes that are bad are better than none, and give way to good ones.
                if one.sound or (row_key not in changes and self._index.get(row_key) is None):
                    changes[row_key] = encode_blob_row(blob_row_of(number, one))
        if changes:
            self._index.apply(sorted(changes.items()))

    # --- objects ---------------------------------------------------------------------------------

    def _make_objects(self) -> None:
        pending_key: bytes | None = None
        staged: dict[bytes, _StagedRow] = {}
        changes: dict[bytes, bytes | None] = {}
        for row_key, content in rows_of_kind(self._index, STAGED, page_rows=_INDEX_PAGE_ROWS):
            key, version_id = row_key[len(STAGED) :].split(b"\0", 1)
            if key != pending_key:
                self._make_object(pending_key, staged, changes)
                pending_key, staged = key, {}
                # Only between two keys: a crash begins everything again, but a page may end anywhere.
                if len(changes) >= _INDEX_PAGE_ROWS:
                    self._index.apply(sorted(changes.items()))
                    changes.clear()
            changes[row_key] = None
            staged[version_id] = decode_staged_row(content)
        self._make_object(pending_key, staged, changes)
        self._index.apply(sorted(changes.items()))

    def _make_object(
        self, key: bytes | None, staged: dict[bytes, _StagedRow], changes: dict[bytes, bytes | None]
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
            if row.record.sequence > staged.get(b"", _NEVER_STAGED)[0]:
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
        for row_key, content in rows_of_kind(self._index, BLOB, page_rows=_INDEX_PAGE_ROWS):
            blob: BlobRow = decode_blob_row(content)
            if blob.references:
                self._add_live(blob.volume, blob.size)
                continue
            unnamed.append((row_key, None))
            if len(unnamed) >= _INDEX_PAGE_ROWS:
                self._index.apply(unnamed)
                unnamed = []
        self._index.apply(unnamed)

    def _add_live(self, number: int, by: int) -> None:
        row = self._rows[number]
        self._rows[number] = replace(row, live_bytes=row.live_bytes + by)


class RecordBlocks:
    """Takes blocks of records from the front of a scan: from a stretch of a volume that stands in memory.

    The walk over them is native where that was built (`native/record_walk.c`), and does the same.

    Invariants:

    - Whole write batches only, from the start of one: what is taken cannot turn out to be torn later.
    - Every record that is taken has a good header and a good body, as in a scan. The first one that has not, or that
      the stretch cuts off, ends the block in front of its batch: the scan says what is wrong with it.
    """

    def __init__(
        self,
        scan: VolumeScan,
        *,
        volume: int,
        secret: int,
        memory_for: Callable[[int], memoryview],
    ) -> None:
        """Rows are made in what `memory_for` gives."""
        self._scan = scan
        self._volume = volume
        self._seed = seed_of(secret)
        self._memory_for = memory_for
        self._walk = FASTEST_WALK
        self._stretch = _STRETCH_BYTES_MIN

    def take(self) -> RecordBlock | None:
        """The whole batches that stand next, and the scan goes on behind them; None if it has to take the next one.

        To be called where a batch begins. Raises OSError.
        """
        if self._scan.next_length() > _BLOCK_RECORD_BYTES_MAX:
            return None
        while True:
            block = self._next()
            is_all = self._stretch >= min(STRETCH_BYTES_MAX, self._scan.bytes_left)
            cut_off = self._stretch - (block.end - block.start)
            if not is_all and cut_off * _STRETCH_CUT_OFF_SHARE > self._stretch:
                self._stretch *= 2
            if block.batches or is_all:
                self._scan.pass_to(block.end)
                return block if block.batches else None

    def _next(self) -> RecordBlock:
        scan, start = self._scan, self._scan.offset
        content = scan.stretch_into(self._memory_for(min(self._stretch, scan.bytes_left)))
        rows: list[NewRow] = []
        others: list[ScannedRecord] = []

        def take_other(offset: int) -> bool:
            try:
                others.append(scan.record_at(offset))
            except CorruptedDataError:
                return False
            return True

        batches, end, rows_kept, others_kept, plain_bytes, lowest, highest = self._walk(
            content, start, self._volume, self._seed, rows, take_other
        )
        del rows[rows_kept:], others[others_kept:]
        return RecordBlock(start, end, batches, rows, plain_bytes, others, lowest, highest)


def walk_in_python(
    content: memoryview,
    start: int,
    volume: int,
    seed: int,
    rows: list[NewRow],
    take_other: Callable[[int], bool],
) -> Walked:
    """See Walk."""
    # Everything that is looked up per record is a local name here: at 500,000 records a second each look counts.
    header_of, front_of, write_row = (
        RECORD_LAYOUT.unpack_from,
        RECORD_FRONT.unpack_from,
        OBJECT_LAYOUT.pack_into,
    )
    front_bytes, before_row = RECORD_FRONT.size, OBJECT_LAYOUT.size
    write_checksum, before_checksum = CHECKSUM_LAYOUT.pack_into, before_row + CHECKSUM_LAYOUT.size
    position = row_bytes = others = batches = 0
    lowest, highest = SEQUENCE_MAX, 0
    size = len(content)
    kept: Walked = 0, start, 0, 0, 0, lowest, highest
    while position + RECORD_HEADER_BYTES <= size:
        mark, header_crc, crc, key_length, blob_length, kind, left, length, sequence = header_of(
            content, position
        )
        body = position + RECORD_HEADER_BYTES
        if mark != MARK or header_crc != crc32_of(
            content[position + _HEADER_CRC_FROM : body], seed
        ):
            break
        front = body + key_length
        end = front + length + blob_length
        following = end + (position - end) % ALIGNMENT
        if following > size:
            break
        plain = False
        if kind == _PLAIN_PUT_KIND and length >= front_bytes:
            flags, object_bytes, its_sequence, id_length = front_of(content, front)
            plain = (
                flags == INLINE_ONLY
                and not id_length
                and object_bytes == blob_length
                and its_sequence == sequence
            )
        if plain:
            if crc != crc32_of(content[body:end], seed):
                break
            key = CURRENT + content[body:front]
            row = front - before_row
            write_row(content, row, volume, start + position, end - position, length)
            begin = front - before_checksum
            write_checksum(content, begin, checksum_of(key, content[row:end]))
            rows.append((key, content[begin:end]))
            row_bytes += end - position
            if sequence < lowest:
                lowest = sequence
            if sequence > highest:
                highest = sequence
        elif take_other(start + position):
            others += 1
        else:
            break
        position = following
        if not left:
            batches += 1
            kept = batches, start + position, len(rows), others, row_bytes, lowest, highest
    return kept


def native_walk() -> Walk | None:
    """The same natively, where it was built and is not switched off."""
    module = native_module("tier2.volumes.native.record_walk")
    # What an older version was built into may lie there still, and makes rows without checksums.
    if module is None or getattr(module, "ROW_FORMAT", 0) != FORMAT:
        return None
    found: Walk = module.walk
    return found


FASTEST_WALK = native_walk() or walk_in_python


class PlainRows:
    """Collects, sorts and stores the rows of plain records, by the ten thousand, in key order.

    Invariants:

    - The row of the highest number of a key stays, in whatever order they come; of two with one number either
      may.
    - Memory: `bytes_max` bytes that rows are made in, where they were read, and what Python needs for so many of them.
      The system gives memory when it is first written, which costs as much as reading what it is filled with: rows
      that come in about the order of their keys use a part of it, again and again.
    - No row that was made in this memory is good after `store`: a caller that keeps one longer copies it.
    """

    def __init__(
        self, *, index: IndexDatabase, bytes_max: int, superseded: Callable[[int, int], None]
    ) -> None:
        """`superseded` is told the volume and the length of the record of each row that does not stay."""
        self._index = index
        memory = mmap.mmap(-1, bytes_max, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = memoryview(memory)
        self._used = 0
        """Bytes of it in which there are rows that are not stored."""
        self._superseded = superseded
        self._rows: list[NewRow] = []
        self._highest_stored = b""
        self._highest_looked_at = b""
        """Of those that are not stored."""
        self._step = min(_ORDER_STEP_BYTES_MAX, bytes_max // 8)
        self._look_at = self._step
        self._seen = self._looked = self._strays = 0
        """Rows that were seen, those of them that were looked at, and those of these that do not follow."""

    def memory_for(self, length: int) -> memoryview:
        """Where a piece of a volume is read to, to make rows in: good until the next call unless they are taken.

        At most `bytes_max` bytes. Raises OSError.
        """
        is_full = self._used + length > len(self._memory)
        if is_full or (self._used >= self._look_at and self._follow()):
            self.store()
        end = self._used + length
        assert end <= len(self._memory), f"{self._used=} {length=} {len(self._memory)=}"
        return self._memory[self._used : end]

    def take(self, rows: list[NewRow], length: int) -> None:
        """Each key any number of times; they lie in the first `length` bytes of the newest memory."""
        self._rows += rows
        self._used += length

    def store(self) -> None:
        """Everything that was taken is in the index. Raises OSError."""
        rows, self._rows = self._rows, []
        rows.sort(key=itemgetter(0))
        repeated = len({key for key, _ in rows}) < len(rows)
        if rows:
            self._highest_stored = max(self._highest_stored, rows[-1][0])
        if repeated:
            rows = self._newest_of_each(rows)
        for first in range(0, len(rows), _PLAIN_BATCH_ROWS):
            self._store(rows[first : first + _PLAIN_BATCH_ROWS])
        self._used = 0
        self._highest_looked_at = b""
        self._look_at = self._step
        self._seen = self._looked = self._strays = 0

    def _follow(self) -> bool:
        """Nearly all rows come behind those that are stored: more of them would not be stored any better.

        Where nothing is stored yet, behind those that came before them. Rows in no order at all are so collected
        before the first of them are stored: an index that is filled in order takes half as long.
        """
        self._look_at += self._step
        newest = [key for key, _ in self._rows[self._seen :: _ORDER_LOOKED_SHARE]]
        self._seen = len(self._rows)
        highest = self._highest_stored or self._highest_looked_at
        self._highest_looked_at = max([self._highest_looked_at, *newest])
        if not highest:
            return False
        self._looked += len(newest)
        self._strays += sum(key <= highest for key in newest)
        return self._strays * _ORDER_STRAYS_SHARE <= self._looked

    def _store(self, rows: list[NewRow]) -> None:
        newer: list[tuple[bytes, bytes | None]] = []
        for present in self._index.add(rows):
            key, row = present[0], value_of(present)
            stored = self._index.get(key)
            assert stored is not None, f"a row is there and is not {key=!r}"
            lost: BufferView = row
            if plain_row_sequence(row) > plain_row_sequence(stored):
                newer.append((key, bytes(row)))
                lost = stored
            self._superseded(*plain_row_volume_and_length(lost))
        if newer:
            self._index.apply(newer)

    def _newest_of_each(self, rows: list[NewRow]) -> list[NewRow]:
        newest: dict[bytes, NewRow] = {}
        for one in rows:
            key = one[0]
            before = newest.get(key)
            if before is not None:
                if plain_row_sequence(value_of(before)) >= plain_row_sequence(value_of(one)):
                    one, before = before, one
                self._superseded(*plain_row_volume_and_length(value_of(before)))
            newest[key] = one
        return list(newest.values())
