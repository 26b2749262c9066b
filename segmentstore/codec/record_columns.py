"""Records of batches as columns: numbers and places of bytes, without an object per record.

    columns, _ = columns_of_batches(fetched)
    for row in range(len(columns)):
        columns.offsets[row], columns.value(row)

Every column is a memoryview of signed 64-bit numbers in the machine's order, which `numpy.frombuffer` and
`pyarrow.py_buffer` take as they are. Keys and values are places in `columns.content`: what was given, if no batch of it
is compressed, and so without a copy; else the same with the decompressed records of those batches behind it.

The loops over records are native where that was built (`native/record_columns.c`); their twins here do the same.
`require_readable()` asks whether there would be rows, and makes none; `all_have_keys()` whether each would have a key.

Invariants: a row is told only of a batch whose checksum matches and whose records all make sense; every place lies in
`content`. What decode_batches() reads and what these columns say are one. Where the native loops were built, those in
Python read no more than a few records that do not make sense, and batches at offsets that no partition has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    OFFSET_MAX,
    BatchBytes,
    BatchError,
    BatchHeader,
    BatchProblem,
    BatchRecords,
    Compression,
    batch_records,
    batch_size,
    decode_batch,
    decompress,
    decompressed_records,
    parse_header,
    record_end,
    require_offsets,
)
from segmentstore.codec.record_fields import FieldBytes, FieldCursor, Headers, Record, wrapped
from segmentstore.runtime.native import native_module

_COLUMNS: Final = 8
_NUMBER_BYTES: Final = 8
_ROWS_MIN: Final = 64
_RECORD_BYTES_GUESSED: Final = 200
_EXPLAINED_BYTES_MAX: Final = 16 * 1024
"""Of records that the loop in Python says what is wrong with: it takes more than a second for a megabyte."""


class Stop(IntEnum):
    """Why a loop over records ended; the native loops have the same numbers."""

    DONE = 0
    FULL = 1
    """There is no room for the rows of the batch that follows."""
    OTHER = 2
    """The batch that follows is left to the caller."""
    COMPRESSED = 3
    """The records that follow are to be decompressed; BatchRecords say how they lie."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records in order of their offsets."""

    content: BatchBytes
    """What the positions count in."""
    offsets: memoryview
    timestamps_ms: memoryview
    key_positions: memoryview
    key_lengths: memoryview
    """-1: null."""
    value_positions: memoryview
    value_lengths: memoryview
    """-1: null."""
    header_positions: memoryview
    """Of the header count and what it counts, as record_fields.py has it."""
    header_lengths: memoryview

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, row: int) -> bytes | None:
        """A copy."""
        return self._counted(self.key_positions[row], self.key_lengths[row])

    def value(self, row: int) -> bytes | None:
        """A copy."""
        return self._counted(self.value_positions[row], self.value_lengths[row])

    def headers(self, row: int) -> Headers:
        start = self.header_positions[row]
        place = self.content[start : start + self.header_lengths[row]]
        return FieldCursor(place, _damaged).headers()

    def record(self, row: int) -> Record:
        """The same as an object."""
        return Record(
            self.offsets[row],
            self.timestamps_ms[row],
            self.key(row),
            self.value(row),
            self.headers(row),
        )

    def _counted(self, position: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(self.content[position : position + length])


@dataclass(frozen=True, slots=True)
class ColumnLoops:
    """The loops over records: native ones, or their twins."""

    batches_to_columns: Callable[
        [FieldBytes, int, int, bytearray, int],
        tuple[int, int, int, tuple[int | None, ...] | None],
    ]
    records_to_columns: Callable[
        [FieldBytes, int, int, int, int, int | None, int, int, bytearray, int], tuple[int, int]
    ]
    are_keyed: Callable[[FieldBytes, int, int], bool | None]
    """None: the records contradict themselves."""


def columns_of_batches(
    content: BatchBytes, offset: int = 0, *, loops: ColumnLoops | None = None
) -> tuple[RecordColumns, int]:
    """The records of whole batches from `offset` on, and the offset behind the last batch, or `offset` without one.

    As decode_batches(). Raises BatchError for damage. Complexity: O(bytes).
    """
    walk = _Walk(content, offset, loops or FASTEST_LOOPS)
    with memoryview(content) as view:
        walk.batches(view)
        next_offset = max(offset, walk.next_offset(view))
    return walk.columns(), next_offset


def require_readable(batch: BatchBytes) -> None:
    """Raises BatchError if the records of a batch are not what its header says, as far as that is cheap to find out.

    The checksum was proved before. It is cheap for a batch that is not compressed where the native loop was built:
    nothing is said of any other.
    """
    if _READABLE is not None and not _READABLE(batch):
        header = parse_header(batch)
        if not header.is_control:
            _refuse_if_long(header, len(batch) - BATCH_HEADER_BYTES)
        decode_batch(batch)  # says why, or reads what the loop leaves to it


def all_have_keys(
    batch: BatchBytes,
    *,
    bytes_max: int,
    loops: ColumnLoops | None = None,
) -> bool:
    """Whether no record of a batch has a null key; a batch without a codec is judged at any length.

    The checksum was proved before, and it is no control batch. Raises BatchError if the records cannot be read:
    RecordsTooLongError for more than `bytes_max` bytes. Complexity: O(bytes), without memory for each record.
    """
    header = parse_header(batch)
    if header.compression is Compression.NONE:
        bytes_max = len(batch)
    records = decompressed_records(batch, header, bytes_max=bytes_max)
    found = (loops or FASTEST_LOOPS).are_keyed(
        records, header.record_count, header.last_offset_delta
    )
    if found is None:
        _refuse_if_long(header, len(records))
        found = are_keyed_in_python(records, header.record_count, header.last_offset_delta)
    return found


class _Walk:
    """Rows, as they are told."""

    def __init__(self, content: BatchBytes, from_offset: int, loops: ColumnLoops) -> None:
        self._content = content
        self._from_offset = from_offset
        self._loops = loops
        self._numbers = bytearray()
        self._rows = 0
        self._decompressed: list[bytes] = []
        self._shift = len(content)
        self._last_at = 0
        self._make_room(_ROWS_MIN + len(content) // _RECORD_BYTES_GUESSED)

    def batches(self, view: memoryview) -> None:
        """All of them."""
        at = 0
        while at < len(view):
            stop, following, self._rows, met = self._loops.batches_to_columns(
                view, at, self._from_offset, self._numbers, self._rows
            )
            at = following
            if stop == Stop.DONE:
                return
            if stop == Stop.FULL:
                self._make_room(2 * self._room)
                continue
            # mypy does not see that one type of tuple is meant.
            batch = BatchRecords(*met) if met else _opened(view, at)  # type: ignore[arg-type]
            if batch.record_count:
                self._one(view, at, batch)
            at = batch.end

    def next_offset(self, view: memoryview) -> int:
        """Behind the last batch; all were found to be whole."""
        at = last = 0
        while at < len(view):
            last = at
            at += batch_size(view, at)
        return parse_header(view, last).next_offset if at else 0

    def columns(self) -> RecordColumns:
        content = self._content
        if self._decompressed:
            content = b"".join([content, *self._decompressed])
        numbers = memoryview(self._numbers).cast("q")
        return RecordColumns(
            content,
            *(
                numbers[column * self._room : column * self._room + self._rows]
                for column in range(_COLUMNS)
            ),
        )

    def _one(self, view: memoryview, at: int, batch: BatchRecords) -> None:
        start = at + BATCH_HEADER_BYTES
        with view[start : batch.end] as body:
            if batch.codec:
                records: BatchBytes = decompress(body, Compression(batch.codec))
                shift = self._shift
                self._decompressed.append(bytes(records))
                self._shift += len(records)
            else:
                records, shift = bytes(body), start
        for loop in (self._loops.records_to_columns, records_to_columns_in_python):
            stop = Stop.FULL
            while stop == Stop.FULL:
                stop_number, self._rows = loop(
                    records,
                    batch.record_count,
                    batch.base_offset,
                    batch.base_timestamp,
                    batch.last_offset_delta,
                    batch.append_time,
                    shift,
                    self._from_offset,
                    self._numbers,
                    self._rows,
                )
                stop = Stop(stop_number)
                if stop == Stop.FULL:
                    self._make_room(2 * self._room)
            if stop == Stop.DONE:
                return
            _refuse_if_long(batch, len(records))
        raise AssertionError("a loop that explains what is wrong found nothing")

    @property
    def _room(self) -> int:
        """In rows."""
        return len(self._numbers) // (_COLUMNS * _NUMBER_BYTES)

    def _make_room(self, rows: int) -> None:
        larger = bytearray(rows * _COLUMNS * _NUMBER_BYTES)
        used = self._rows * _NUMBER_BYTES
        for column in range(_COLUMNS):
            to, start = column * rows * _NUMBER_BYTES, column * self._room * _NUMBER_BYTES
            larger[to : to + used] = self._numbers[start : start + used]
        self._numbers = larger


def _refuse_if_long(batch: BatchHeader | BatchRecords, byte_count: int) -> None:
    """The native loop did not read its records. If that is because of their bytes, the loop in Python would only say
    what is wrong with them: of many nothing is said, because servers read batches on their event loops."""
    was_judged = 0 <= batch.base_offset <= OFFSET_MAX - batch.last_offset_delta
    if was_judged and byte_count > _EXPLAINED_BYTES_MAX:
        raise BatchError(
            BatchProblem.INVALID,
            f"the records of a batch contradict themselves or its header offset={batch.base_offset}"
            f" record_count={batch.record_count} bytes={byte_count}",
        )


def _opened(view: memoryview, at: int) -> BatchRecords:
    try:
        return batch_records(view, at)
    except BatchError:
        raise
    except ValueError as error:
        raise BatchError(BatchProblem.INVALID, str(error)) from error


# --- the loops over records, as the native ones -------------------------------------------------------


def batches_to_columns_in_python(
    content: FieldBytes, position: int, from_offset: int, numbers: bytearray, rows: int
) -> tuple[int, int, int, None]:
    """Nothing is usual here: every batch is left to the caller."""
    del from_offset, numbers
    return (Stop.OTHER if position < len(content) else Stop.DONE), position, rows, None


def records_to_columns_in_python(
    records: FieldBytes,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    last_offset_delta: int,
    append_time: int | None,
    shift: int,
    from_offset: int,
    numbers: bytearray,
    rows: int,
) -> tuple[int, int]:
    """Rows of one batch behind the others; positions count from `shift`. Raises BatchError."""
    require_offsets(base_offset, last_offset_delta)
    room = len(numbers) // (_COLUMNS * _NUMBER_BYTES)
    cursor = FieldCursor(records, _damaged)
    last_delta = -1
    told: list[tuple[int, ...]] = []
    for _ in range(record_count):
        end = record_end(cursor)
        timestamp = wrapped(base_timestamp + cursor.zigzag())
        delta = cursor.zigzag()
        if not last_delta < delta <= last_offset_delta:
            raise cursor.damaged(f"offsets do not grow delta={delta} last_delta={last_delta}")
        last_delta = delta
        key, value, headers_at = cursor.places()
        if cursor.position != end:
            raise cursor.damaged(f"a record's length does not match its fields end={end}")
        if base_offset + delta < from_offset:
            continue
        told.append(
            (
                base_offset + delta,
                timestamp if append_time is None else append_time,
                key[0] + shift,
                key[1],
                value[0] + shift,
                value[1],
                headers_at + shift,
                end - headers_at,
            )
        )
    if not cursor.at_end():
        raise cursor.damaged("bytes follow the last record")
    if rows + len(told) > room:
        return Stop.FULL, rows
    with memoryview(numbers).cast("q") as table:
        for row, values in enumerate(told, rows):
            for column, value_of in enumerate(values):
                table[column * room + row] = value_of
    return Stop.DONE, rows + len(told)


def are_keyed_in_python(records: FieldBytes, record_count: int, last_offset_delta: int) -> bool:
    """Whether no record has a null key; all are looked at. Raises BatchError, where the native loop gives None."""
    cursor = FieldCursor(records, _damaged)
    last_delta = -1
    are_keyed = True
    for _ in range(record_count):
        end = record_end(cursor)
        cursor.zigzag()
        delta = cursor.zigzag()
        if not last_delta < delta <= last_offset_delta:
            raise cursor.damaged(f"offsets do not grow delta={delta} last_delta={last_delta}")
        last_delta = delta
        (_, key_length), _, _ = cursor.places()
        if cursor.position != end:
            raise cursor.damaged(f"a record's length does not match its fields end={end}")
        are_keyed &= key_length >= 0
    if not cursor.at_end():
        raise cursor.damaged("bytes follow the last record")
    return are_keyed


def _damaged(why: str, position: int) -> BatchError:
    return BatchError(BatchProblem.INVALID, f"{why} position={position}")


PYTHON_LOOPS: Final = ColumnLoops(
    batches_to_columns_in_python, records_to_columns_in_python, are_keyed_in_python
)


def native_loops() -> ColumnLoops | None:
    """The same natively, where they were built and are not switched off."""
    module = native_module("segmentstore.codec.native.record_columns")
    if module is None:
        return None
    return ColumnLoops(module.batches_to_columns, module.records_to_columns, module.are_keyed)


def _native_readable() -> Callable[[BatchBytes], bool] | None:
    module = native_module("segmentstore.codec.native.record_columns")
    return None if module is None else module.is_readable


FASTEST_LOOPS: Final = native_loops() or PYTHON_LOOPS
_READABLE: Final = _native_readable()
