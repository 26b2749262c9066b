"""Records of batches to blocks of files, and blocks back to batches: one turn each way, without an object per record.

    batches (version 2, of any client's codec)  -- BlocksOfBatches -->  blocks, as records.py has them (NULLABLE)
    one block                                   -- batches_of_block  -->  batches, not compressed

The two forms of a record differ in front of its key: a batch counts offset and time from its base and writes the
record's length, a block counts from the record before. What is behind is the same bytes, and is copied. The loops
over records are native where that was built (`native/record_transcoding.c`); their twins here do the same, to the byte.

Invariants:

- A record is turned only if its batch's checksum matches; every field of it was found to lie inside of it.
- A batch of bytes that are not what was written raises BatchError (CORRUPT): read again, it may be whole. A batch whose
  producer wrote what no reader can read is named in `unreadable` and left out, whole: the blocks around it are made.
- Offsets and times come through as they are; gaps stay. With the append's time each record has it.
- A block joins batches as long as that brings it nearer to the target. It ends where a batch ends, unless the records
  of one batch have more than BLOCK_BYTES_MAX bytes: those are cut between records.
- Of a block, batches are cut between records: at `batch_bytes_max`, where an offset is too far from the base, and, with
  the append's time, where that changes, because a batch has one such time for all of its records.

Pure; the native loops give the interpreter away. Callers run these functions in an executor.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchBytes,
    BatchError,
    BatchProblem,
    BatchRecords,
    Compression,
    batch_records,
    decompress,
    parse_header,
    record_end,
)
from segmentstore.codec.record_columns import RecordColumns, columns_of_batches
from segmentstore.codec.record_fields import (
    FieldCursor,
    append_varint,
    append_zigzag,
    varint_bytes,
    wrapped,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.format.chunk_format import BLOCK_BYTES_MAX, BlockEntry, ChunkFlag
from tier2.format.records import RecordForm, block_cursor, read_offset_and_time

_NUMBERS_BYTES_MAX: Final = 20
"""Of what stands in front of a record's tail."""
_RECORD_BYTES_MIN: Final = 7
_DELTA_MAX: Final = (1 << 31) - 1
_OFFSET_MAX: Final = (1 << 63) - 1
_BATCH_BYTES_MAX: Final = 1 << 30
_BEFORE_LENGTH_ENDS: Final = 12
_CHECKED_FROM: Final = 21
_MAGIC: Final = 2
_APPEND_TIME_BIT: Final = 1 << 3
_HEADER_FRONT: Final = struct.Struct(">qiib")
_CHECKED_HEADER: Final = struct.Struct(">hiqqqhii")
_CHECKSUM: Final = struct.Struct(">I")


class Stop(IntEnum):
    """Why a loop over records ended; the native loops have the same numbers."""

    DONE = 0
    FULL = 1
    """What follows belongs to the next block."""
    OTHER = 2
    """What follows is left to the caller."""
    COMPRESSED = 3
    """The records that follow are to be decompressed; BatchRecords say how they lie."""


class BlockSums(NamedTuple):
    """What is known of the block in a buffer. Without a record only the first two mean something."""

    used: int = 0
    records: int = 0
    first_offset: int = 0
    last_offset: int = 0
    last_time: int = 0
    lowest_time: int = 0
    highest_time: int = 0


class RecordsPlace(NamedTuple):
    """A place in the records of one batch."""

    position: int
    left: int
    last_delta: int


class BlockFacts(NamedTuple):
    """What was found in a block."""

    records: int
    first_offset: int
    last_offset: int
    lowest_time: int
    highest_time: int


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """The bytes of one block. They are in a buffer that the next block reuses: use them before going on."""

    content: memoryview
    sums: BlockSums


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """A batch that its producer wrote so that no reader can read it."""

    base_offset: int
    next_offset: int
    cause: str


@dataclass(frozen=True, slots=True)
class RecordLoops:
    """The loops over records: native ones, or their twins."""

    batches_to_block: Callable[
        [BufferView, int, bytearray, int, BlockSums],
        tuple[int, int, tuple[int, ...], tuple[int | None, ...] | None],
    ]
    records_to_block: Callable[
        [BufferView, RecordsPlace, int, int, int, int | None, bytearray, int, BlockSums],
        tuple[int, tuple[int, ...], tuple[int, ...]],
    ]
    block_to_batches: Callable[[BufferView, bool, int], tuple[bytes, tuple[int, ...]] | None]
    facts_of_block: Callable[[BufferView], tuple[int, ...] | None]


def blocks_of_batches(
    batches: BufferView,
    *,
    target: int,
    unreadable: list[UnreadableBatch],
    loops: RecordLoops | None = None,
) -> Iterator[RecordBlock]:
    """As BlocksOfBatches, of all batches at once."""
    blocks = BlocksOfBatches(target=target, unreadable=unreadable, loops=loops)
    yield from blocks.add(batches)
    yield from blocks.finish()


class BlocksOfBatches:
    """The blocks of whole batches with growing offsets, which come in pieces; control batches have no records.

    However they are cut between batches, the blocks are the same. What cannot be read is added to `unreadable`.
    """

    def __init__(
        self, *, target: int, unreadable: list[UnreadableBatch], loops: RecordLoops | None = None
    ) -> None:
        self._turn = _Turn(target, loops or FASTEST_LOOPS)
        self._unreadable = unreadable

    def add(self, batches: BufferView) -> Iterator[RecordBlock]:
        """The blocks that are full with these. Go on to the end; the bytes may change then.

        Raises BatchError if the bytes are not batches as they were written, ValueError if their offsets do not grow or
        the last one is cut off. Complexity: O(bytes).
        """
        turn = self._turn
        at = 0
        with memoryview(batches) as view:
            while at < len(view):
                stop, at, met = turn.add_batches(view, at)
                if stop == Stop.DONE:
                    break
                if stop == Stop.FULL:
                    yield from turn.take()
                    continue
                header = parse_header(view, at) if met is None else None
                try:
                    batch = BatchRecords._make(met) if met else batch_records(view, at)
                    if batch.record_count:
                        with view[at + BATCH_HEADER_BYTES : batch.end] as body:
                            records = decompress(body, Compression(batch.codec))
                        if not turn.takes(len(records), batch):
                            yield from turn.take()
                        if len(records) > BLOCK_BYTES_MAX:
                            yield from turn.cut(records, batch)
                        else:
                            turn.join(records, batch)
                except BatchError as error:
                    if error.problem is BatchProblem.CORRUPT:
                        raise
                    header = header or parse_header(view, at)
                    self._unreadable.append(
                        UnreadableBatch(header.base_offset, header.next_offset, str(error))
                    )
                    at += header.size
                else:
                    at = batch.end

    def finish(self) -> Iterator[RecordBlock]:
        """The last one, if there is one."""
        yield from self._turn.take()


class _Turn:
    """The block that is being made."""

    def __init__(self, target: int, loops: RecordLoops) -> None:
        self._target = target
        self._loops = loops
        self._out = bytearray(2 * target + (1 << 16))
        self._sums = BlockSums()
        self._next_offset = 0
        """Behind the last block."""

    def add_batches(
        self, batches: memoryview, at: int
    ) -> tuple[int, int, tuple[int | None, ...] | None]:
        """Those that are usual and belong to this block; why it ended there, the position behind them, what is met."""
        stop, at, sums, met = self._loops.batches_to_block(
            batches, at, self._out, self._target, self._sums
        )
        self._sums = BlockSums._make(sums)
        return stop, at, met

    def takes(self, length: int, batch: BatchRecords) -> bool:
        """Whether records of so many bytes belong to this block. Raises ValueError if they do not follow it."""
        used = self._sums.used
        self._require_growth(batch.base_offset)
        if batch.base_offset + batch.last_offset_delta >= _OFFSET_MAX:
            raise ValueError(f"an offset has more than 63 bits offset={batch.base_offset}")
        return not self._sums.records or used + length - self._target <= self._target - used

    def take(self) -> Iterator[RecordBlock]:
        """The block as it is, if there is a record in it; a new one begins."""
        sums, self._sums = self._sums, BlockSums()
        if sums.records:
            self._require_growth(sums.first_offset)
            self._next_offset = sums.last_offset + 1
            with memoryview(self._out) as out, out[: sums.used] as content:
                yield RecordBlock(content, sums)

    def join(self, records: bytes, header: BatchRecords) -> None:
        """Raises BatchError."""
        count = min(header.record_count, len(records) // _RECORD_BYTES_MIN)
        self._make_room(len(records) + (count + 1) * _NUMBERS_BYTES_MAX)
        begin = RecordsPlace(0, header.record_count, -1)
        _, _, self._sums = self._turned(records, header, begin, _OFFSET_MAX, self._sums)

    def cut(self, records: bytes, header: BatchRecords) -> Iterator[RecordBlock]:
        """Into blocks of their own. Raises BatchError before the first one: all records are looked at once before."""
        if self._sums.records:
            yield from self.take()
        self._make_room(len(records) + self._target + _NUMBERS_BYTES_MAX)
        for is_made in (False, True):
            stop, place = Stop.FULL, RecordsPlace(0, header.record_count, -1)
            while stop is Stop.FULL:
                stop, place, self._sums = self._turned(
                    records, header, place, self._target, BlockSums()
                )
                if is_made:
                    yield from self.take()
            self._sums = BlockSums()

    def _turned(
        self,
        records: bytes,
        header: BatchRecords,
        place: RecordsPlace,
        bytes_stop: int,
        sums: BlockSums,
    ) -> tuple[Stop, RecordsPlace, BlockSums]:
        """What the native loop does not take, its twin explains, or takes."""
        for turn in (self._loops.records_to_block, records_to_block_in_python):
            stop, after, now = turn(
                records,
                place,
                header.base_offset,
                header.base_timestamp,
                header.last_offset_delta,
                header.append_time,
                self._out,
                bytes_stop,
                sums,
            )
            if stop != Stop.OTHER:
                return Stop(stop), RecordsPlace._make(after), BlockSums._make(now)
        raise AssertionError(f"there is no room for records used={sums.used} of={len(self._out)}")

    def _require_growth(self, offset: int) -> None:
        following = self._sums.last_offset + 1 if self._sums.records else self._next_offset
        if offset < following:
            raise ValueError(f"offsets do not grow offset={offset} following={following}")

    def _make_room(self, length: int) -> None:
        missing = self._sums.used + length - len(self._out)
        if missing > 0:
            self._out += bytes(missing)


def batches_of_block(
    content: BufferView,
    entry: BlockEntry,
    flags: ChunkFlag,
    *,
    batch_bytes_max: int,
    source: str = "block",
    loops: RecordLoops | None = None,
) -> bytes:
    """Whole batches of a block's records: of no producer, not compressed, each with its checksum.

    `flags` are those of the file's header. A record that is larger than `batch_bytes_max` is a batch of its own. Raises
    CorruptedDataError, also if the index entry says something else than the records.
    """
    has_append_time = ChunkFlag.LOG_APPEND_TIME in flags
    batches, facts = _turned_back(
        content, has_append_time, batch_bytes_max, source, loops or FASTEST_LOOPS
    )
    require_agreement(facts, entry, source=source)
    return batches


def columns_of_block(
    content: BufferView, flags: ChunkFlag, *, source: str = "block"
) -> tuple[RecordColumns, BlockFacts]:
    """A block's records as columns, over a copy of them in the form of batches; and what was found. Raises
    CorruptedDataError."""
    has_append_time = ChunkFlag.LOG_APPEND_TIME in flags
    batches, facts = _turned_back(content, has_append_time, _BATCH_BYTES_MAX, source, FASTEST_LOOPS)
    columns, _ = columns_of_batches(batches)
    return columns, facts


def tail_of_row(columns: RecordColumns, row: int) -> BatchBytes:
    """The bytes of a record from its key's length on, of columns_of_block()."""
    key_length = columns.key_lengths[row]
    start = columns.key_positions[row] - varint_bytes(key_length << 1 if key_length >= 0 else 1)
    return columns.content[start : columns.header_positions[row] + columns.header_lengths[row]]


def _turned_back(
    content: BufferView,
    has_append_time: bool,
    batch_bytes_max: int,
    source: str,
    loops: RecordLoops,
) -> tuple[bytes, BlockFacts]:
    found = loops.block_to_batches(content, has_append_time, batch_bytes_max)
    if found is None:
        found = block_to_batches_in_python(content, has_append_time, batch_bytes_max, source)
    batches, facts = found
    return batches, BlockFacts._make(facts)


def facts_of_block(
    content: BufferView, *, source: str = "block", loops: RecordLoops | None = None
) -> BlockFacts:
    """Of records that were all looked at. Raises CorruptedDataError where one does not make sense."""
    found = (loops or FASTEST_LOOPS).facts_of_block(content)
    return BlockFacts._make(found or facts_of_block_in_python(content, source))


def require_agreement(facts: BlockFacts, entry: BlockEntry, *, source: str) -> None:
    """Raises CorruptedDataError if a block's index entry says something else than its records."""
    events = entry.events
    if events is None or (
        events.first_event_number,
        events.lowest_time_ms,
        events.highest_time_ms,
    ) != (facts.first_offset, facts.lowest_time, facts.highest_time):
        raise CorruptedDataError(f"records and index disagree source={source}")


# --- the loops over records, as the native ones ------------------------------------------------------


def batches_to_block_in_python(
    batches: BufferView, position: int, out: bytearray, target: int, sums: BlockSums
) -> tuple[int, int, BlockSums, None]:
    """Nothing is usual here: every batch is left to the caller."""
    del out, target
    return (Stop.OTHER if position < len(batches) else Stop.DONE), position, sums, None


def records_to_block_in_python(
    records: BufferView,
    place: RecordsPlace,
    base_offset: int,
    base_timestamp: int,
    last_offset_delta: int,
    append_time: int | None,
    out: bytearray,
    bytes_stop: int,
    sums: BlockSums,
) -> tuple[int, RecordsPlace, BlockSums]:
    """Records of one batch behind those of the block in `out`, until `bytes_stop`. Raises BatchError."""
    cursor = FieldCursor(records, _unreadable)
    cursor.position, left, last_delta = place
    used, count, first_offset, last_offset, last_time, lowest, highest = sums
    block = bytearray()
    start = used
    while left and not (count and used >= bytes_stop):
        end = record_end(cursor)
        timestamp = wrapped(base_timestamp + cursor.zigzag())
        delta = cursor.zigzag()
        if not last_delta < delta <= last_offset_delta:
            raise cursor.damaged(f"offsets do not grow delta={delta} last_delta={last_delta}")
        tail_at = cursor.position
        cursor.padded = False
        cursor.skip_tail()
        if cursor.position != end:
            raise cursor.damaged(f"a record's length does not match its fields end={end}")
        offset = base_offset + delta
        if append_time is not None:
            timestamp = append_time
        if not count:
            first_offset, lowest, highest = offset, timestamp, timestamp
            last_offset = last_time = 0
        append_varint(block, offset - last_offset)
        append_zigzag(block, wrapped(timestamp - last_time))
        if cursor.padded:
            cursor.position = tail_at
            cursor.copy_tail(block)
        else:
            block += records[tail_at:end]
        lowest = min(lowest, timestamp)
        highest = max(highest, timestamp)
        last_offset, last_time, last_delta = offset, timestamp, delta
        count += 1
        left -= 1
        used = start + len(block)
    if not left and not cursor.at_end():
        raise cursor.damaged("bytes follow the last record")
    if used > len(out):
        return Stop.OTHER, place, sums
    out[start:used] = block
    return (
        Stop.FULL if left else Stop.DONE,
        RecordsPlace(cursor.position, left, last_delta),
        BlockSums(used, count, first_offset, last_offset, last_time, lowest, highest),
    )


def block_to_batches_in_python(
    block: BufferView, has_append_time: bool, batch_bytes_max: int, source: str = "block"
) -> tuple[bytes, BlockFacts]:
    """Raises CorruptedDataError."""
    cursor = block_cursor(block, RecordForm.NULLABLE, source=source)
    builder = BatchBuilder(has_append_time=has_append_time, bytes_max=batch_bytes_max)
    offset = timestamp = count = first = lowest = highest = 0
    while not cursor.at_end():
        offset, timestamp = read_offset_and_time(cursor, offset, timestamp)
        if offset > _OFFSET_MAX:
            raise cursor.damaged(f"an offset has more than 63 bits offset={offset}")
        tail_at = cursor.position
        cursor.skip_tail()
        builder.add(offset, timestamp, block[tail_at : cursor.position])
        if not count:
            first, lowest, highest = offset, timestamp, timestamp
        lowest = min(lowest, timestamp)
        highest = max(highest, timestamp)
        count += 1
    if not count:
        raise cursor.damaged("a block has no records")
    return builder.finished(), BlockFacts(count, first, offset, lowest, highest)


def facts_of_block_in_python(block: BufferView, source: str = "block") -> BlockFacts:
    """Raises CorruptedDataError."""
    return block_to_batches_in_python(block, False, _DELTA_MAX, source)[1]


class BatchBuilder:
    """Batches of no producer, not compressed, of records in order."""

    def __init__(self, *, has_append_time: bool, bytes_max: int) -> None:
        self._has_append_time = has_append_time
        self._bytes_max = bytes_max
        self._batches = bytearray()
        self._batch: _Batch | None = None

    def add(self, offset: int, timestamp: int, tail: BatchBytes) -> None:
        """Into a new batch where the last one is full."""
        batch = self._batch
        if batch is None or not batch.has_room(
            offset,
            timestamp,
            len(tail),
            has_append_time=self._has_append_time,
            bytes_max=self._bytes_max,
        ):
            self._end_batch()
            batch = self._batch = _Batch(offset, timestamp)
        batch.add(offset, timestamp, tail)

    def finished(self) -> bytes:
        """All of them."""
        self._end_batch()
        return bytes(self._batches)

    def _end_batch(self) -> None:
        if self._batch is not None:
            self._batches += self._batch.finished(has_append_time=self._has_append_time)
            self._batch = None


class _Batch:
    """A batch that is being made."""

    def __init__(self, base_offset: int, base_timestamp: int) -> None:
        self._base_offset = base_offset
        self._base_timestamp = base_timestamp
        self._last_offset = base_offset
        self._highest_time = base_timestamp
        self._count = 0
        self._records = bytearray()

    def has_room(
        self, offset: int, timestamp: int, tail_bytes: int, *, has_append_time: bool, bytes_max: int
    ) -> bool:
        """For one record more."""
        if offset - self._base_offset > _DELTA_MAX or self._count == _DELTA_MAX:
            return False
        if has_append_time and timestamp != self._base_timestamp:
            return False
        body = len(self._numbers(offset, timestamp)) + tail_bytes
        whole = varint_bytes(body << 1) + body
        return BATCH_HEADER_BYTES + len(self._records) + whole <= bytes_max

    def add(self, offset: int, timestamp: int, tail: BatchBytes) -> None:
        numbers = self._numbers(offset, timestamp)
        append_zigzag(self._records, len(numbers) + len(tail))
        self._records += numbers
        self._records += tail
        self._last_offset = offset
        self._highest_time = max(self._highest_time, timestamp)
        self._count += 1

    def finished(self, *, has_append_time: bool) -> bytes:
        """Header and records."""
        checked = (
            _CHECKED_HEADER.pack(
                _APPEND_TIME_BIT if has_append_time else 0,
                self._last_offset - self._base_offset,
                self._base_timestamp,
                self._highest_time,
                -1,
                -1,
                -1,
                self._count,
            )
            + self._records
        )
        size = _CHECKED_FROM + len(checked)
        front = _HEADER_FRONT.pack(self._base_offset, size - _BEFORE_LENGTH_ENDS, -1, _MAGIC)
        return front + _CHECKSUM.pack(crc32c(checked)) + checked

    def _numbers(self, offset: int, timestamp: int) -> bytearray:
        """Attributes and deltas."""
        numbers = bytearray(1)
        append_zigzag(numbers, wrapped(timestamp - self._base_timestamp))
        append_zigzag(numbers, offset - self._base_offset)
        return numbers


def _unreadable(why: str, position: int) -> BatchError:
    return BatchError(BatchProblem.INVALID, f"{why} position={position}")


PYTHON_LOOPS: Final = RecordLoops(
    batches_to_block_in_python,
    records_to_block_in_python,
    block_to_batches_in_python,
    facts_of_block_in_python,
)


def native_loops() -> RecordLoops | None:
    """The same natively, where they were built and are not switched off."""
    module = native_module("tier2.format.native.record_transcoding")
    if module is None:
        return None
    return RecordLoops(
        module.batches_to_block,
        module.records_to_block,
        module.block_to_batches,
        module.facts_of_block,
    )


FASTEST_LOOPS: Final = native_loops() or PYTHON_LOOPS
