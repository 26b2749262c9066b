"""Compaction by key: which records of a topic's files survive, because no newer one has their key.

    newest = NewestOffsets(keys_max=..., secret=...)
    blocks of the files that were not compacted yet, in order  -- newest.note_block, until there is no room -->
    blocks of all files below newest.end_offset                -- surviving_batches --> batches --> RecordFileBuilder

A pass notes the newest offset of each key in files that no pass has seen, and then filters every file below them. Keys
are kept as digests of 16 bytes, at most `keys_max` of them or those of one block: where there is no room for the keys
of the next block the pass ends before it, and the next pass goes on there. So any number of keys is compacted with
bounded memory, in as many passes as their number needs.

What survives:

- of each key the record with the highest offset below `newest.end_offset`, under its own offset;
- every record at or behind `newest.end_offset`, and every one whose key was not noted: an older pass has kept it;
- of records that say that a key has no value any more (tombstones), those at or behind `tombstones_end`. A caller sets
  it to an offset that a pass had reached `delete.retention.ms` ago: consumers that had read older values by then have
  had so long to read the tombstone, and those values went in that pass at the latest;
- of these, a tombstone whose key was pinned: a file that would be empty keeps its last record, though it is superseded,
  and without the tombstone that value would be the key's last one again;
- no record without a key: there is nothing to compact it by;
- the last record of a block of which the caller says so, whatever it is: a consumer goes on behind the last record that
  it is given, and would never come to the end of a partition whose last records went.

Invariants: offsets and times stay, so consumers see gaps and never another order. The newest value of a key is never
removed, whatever the passes are and wherever they break off: each only removes records that a newer one of the same
key stands behind. Two keys of one digest would remove a live record; the digest is keyed by a secret that no producer
knows, and at 2**40 keys two are alike with a chance of 2**-49.

Pure. The fields of records are found by the native loops where they were built; digests and decisions are Python's.
Both steps together: 0.27 M records of 100 bytes a second. Callers run them in an executor.
"""

from hashlib import blake2b
from typing import Final

from segmentstore.codec.record_columns import RecordColumns
from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_format import BlockEntry, ChunkFlag
from tier2.format.record_transcoding import (
    BatchBuilder,
    batches_of_block,
    columns_of_block,
    require_agreement,
    tail_of_row,
)

_DIGEST_BYTES: Final = 16


class NewestOffsets:
    """The newest offset of each key that was noted, with bounded memory: some 130 bytes a key."""

    def __init__(self, *, keys_max: int, secret: bytes, start_offset: int = 0) -> None:
        """Older passes have reached `start_offset`: what survived them below it is noted no more."""
        self._keys_max = keys_max
        self._secret = secret
        self._newest: dict[bytes, int] = {}
        self._pinned: set[bytes] = set()
        self.end_offset = start_offset
        """Behind the last record that was noted."""

    def __len__(self) -> int:
        return len(self._newest)

    def note_block(self, content: BufferView, *, source: str = "block") -> bool:
        """Note the keys of a block's records from `end_offset` on; blocks come in order.

        False if there may be no room for them: nothing is noted then. There always is for one block. Raises
        CorruptedDataError.
        """
        columns, facts = columns_of_block(content, ChunkFlag(0), source=source)
        if self._newest and len(self._newest) + facts.records > self._keys_max:
            return False
        batches, newest, digest = memoryview(columns.content), self._newest, self._digest
        for offset, at, length in zip(
            columns.offsets, columns.key_positions, columns.key_lengths, strict=True
        ):
            if length >= 0 and offset >= self.end_offset:
                newest[digest(batches[at : at + length])] = offset
        self.end_offset = max(self.end_offset, facts.last_offset + 1)
        return True

    def is_newest(self, key: BufferView, offset: int) -> bool:
        """Whether no newer record of the key was noted."""
        return offset >= self._newest.get(self._digest(key), 0)

    def pin(self, key: BufferView) -> None:
        """A file in front holds one record alone, of this key, which may be superseded: tombstones of the key stay."""
        self._pinned.add(self._digest(key))

    def is_pinned(self, key: BufferView) -> bool:
        return bool(self._pinned) and self._digest(key) in self._pinned

    def _digest(self, key: BufferView) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()


def all_survive(
    content: BufferView,
    entry: BlockEntry,
    flags: ChunkFlag,
    newest: NewestOffsets,
    *,
    tombstones_end: int,
    keeps_last: bool = False,
    source: str = "block",
) -> bool:
    """Whether no record of a block goes; as surviving_batches(). Raises CorruptedDataError."""
    columns, facts = columns_of_block(content, flags, source=source)
    require_agreement(facts, entry, source=source)
    survivors = _surviving_rows(
        columns, newest, tombstones_end=tombstones_end, keeps_last=keeps_last
    )
    return len(survivors) == len(columns)


def surviving_batches(
    content: BufferView,
    entry: BlockEntry,
    flags: ChunkFlag,
    newest: NewestOffsets,
    *,
    tombstones_end: int,
    batch_bytes_max: int,
    keeps_last: bool = False,
    source: str = "block",
) -> bytes:
    """Batches of the records of a block that survive, as batches_of_block() makes them; no bytes if none does.

    `keeps_last`: the last record survives, whatever it is.

    Raises CorruptedDataError.
    """
    columns, facts = columns_of_block(content, flags, source=source)
    require_agreement(facts, entry, source=source)
    survivors = _surviving_rows(
        columns, newest, tombstones_end=tombstones_end, keeps_last=keeps_last
    )
    if len(survivors) == len(columns):
        return batches_of_block(
            content, entry, flags, batch_bytes_max=batch_bytes_max, source=source
        )
    has_append_time = ChunkFlag.LOG_APPEND_TIME in flags
    builder = BatchBuilder(has_append_time=has_append_time, bytes_max=batch_bytes_max)
    for row in survivors:
        builder.add(columns.offsets[row], columns.timestamps_ms[row], tail_of_row(columns, row))
    return builder.finished()


def _surviving_rows(
    columns: RecordColumns, newest: NewestOffsets, *, tombstones_end: int, keeps_last: bool
) -> list[int]:
    batches = memoryview(columns.content)
    survivors: list[int] = []
    rows = zip(
        columns.offsets,
        columns.key_positions,
        columns.key_lengths,
        columns.value_lengths,
        strict=True,
    )
    kept_row = len(columns) - 1 if keeps_last else -1
    for row, (offset, at, length, value_length) in enumerate(rows):
        if offset < newest.end_offset and row != kept_row:
            if length < 0:
                continue
            key = batches[at : at + length]
            if not newest.is_newest(key, offset):
                continue
            if value_length < 0 and offset < tombstones_end and not newest.is_pinned(key):
                continue
        survivors.append(row)
    return survivors


def last_batch(content: BufferView, flags: ChunkFlag, *, source: str = "block") -> bytes:
    """A batch of a block's last record alone, for a file that would be empty without it. Raises CorruptedDataError."""
    columns, _ = columns_of_block(content, flags, source=source)
    row = len(columns) - 1
    builder = BatchBuilder(has_append_time=ChunkFlag.LOG_APPEND_TIME in flags, bytes_max=0)
    builder.add(columns.offsets[row], columns.timestamps_ms[row], tail_of_row(columns, row))
    return builder.finished()
