"""The records of one block of a record topic: offset, time, key, value, headers.

A block's uncompressed bytes are records one behind the other, nothing before, between or behind them:

    record     offset delta      varint           from the record before; the first one's is its offset
               timestamp delta   zigzag varint    from the record before, modulo 2**64; the first one's is its time
               tail              key, value and headers: segmentstore/codec/record_fields.py

    the tail's numbers depend on the form. PLAIN, the events of streams of records: varints; there is no null, no key is
    a key of no bytes. NULLABLE, the files of topics: zigzag varints, and a length of -1 stands for null. From the key's
    length on a record is then byte for byte what Kafka's record batches hold, so that either is made from the other by
    copying (record_transcoding.py)

Invariants: offsets grow, so every delta but the first is at least 1; a block begins with absolute numbers, so each one
is read alone; times are signed 64-bit numbers of Unix milliseconds, offsets unsigned 64-bit numbers. No number has more
bytes than it needs, so that equal records have equal bytes.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from segmentstore.codec.record_fields import (
    FieldCursor,
    Record,
    append_tail,
    append_varint,
    append_zigzag,
    wrapped,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

_UNSIGNED_END = 1 << 64


class RecordForm(Enum):
    """How lengths are written."""

    PLAIN = "plain"
    NULLABLE = "nullable"


def encode_records(records: Iterable[Record], form: RecordForm = RecordForm.PLAIN) -> bytes:
    """The bytes of one block.

    Raises ValueError if offsets do not grow, a number does not fit its field, or the form has no word for a null.
    """
    content = bytearray()
    zigzag = form is RecordForm.NULLABLE
    last: Record | None = None
    for record in records:
        _check_order(record, last)
        append_varint(content, record.offset - (last.offset if last else 0))
        append_zigzag(content, wrapped(record.timestamp_ms - (last.timestamp_ms if last else 0)))
        append_tail(content, record.key, record.value, record.headers, zigzag=zigzag)
        last = record
    return bytes(content)


def decode_records(
    block: BufferView, form: RecordForm = RecordForm.PLAIN, *, source: str = "block"
) -> Iterator[Record]:
    """The records of one block, in order. Raises CorruptedDataError where the bytes stop making sense."""
    cursor = block_cursor(block, form, source=source)
    offset = timestamp_ms = 0
    while not cursor.at_end():
        offset, timestamp_ms = read_offset_and_time(cursor, offset, timestamp_ms)
        yield Record(offset, timestamp_ms, *cursor.tail())


def read_offset_and_time(
    cursor: FieldCursor, last_offset: int, last_timestamp_ms: int
) -> tuple[int, int]:
    """Of the record at the cursor, which is then at its tail; both are 0 at the begin of a block."""
    is_first = cursor.position == 0
    delta = cursor.varint()
    offset = last_offset + delta
    timestamp_ms = wrapped(last_timestamp_ms + cursor.zigzag())
    if not (is_first or delta) or offset >= _UNSIGNED_END:
        raise cursor.damaged(f"offsets do not grow offset={offset} delta={delta}")
    return offset, timestamp_ms


def block_cursor(block: BufferView, form: RecordForm, *, source: str) -> FieldCursor:
    """At the begin of a block."""

    def damaged(why: str, position: int) -> CorruptedDataError:
        return CorruptedDataError(f"{why} source={source} position={position}")

    is_zigzag = form is RecordForm.NULLABLE
    return FieldCursor(block, damaged, zigzag=is_zigzag, takes_padding=False)


def _check_order(record: Record, last: Record | None) -> None:
    if last is not None and record.offset <= last.offset:
        raise ValueError(f"offsets do not grow last={last.offset} offset={record.offset}")
    fits = record.timestamp_ms == wrapped(record.timestamp_ms)
    if not 0 <= record.offset < _UNSIGNED_END or not fits:
        raise ValueError(
            f"number does not fit offset={record.offset} timestamp_ms={record.timestamp_ms}"
        )
