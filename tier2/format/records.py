"""The records of one block of a record topic: offset, time, key, value, headers.

A block's uncompressed bytes are records one behind the other, nothing before, between or behind them:

    record     offset delta      varint           from the record before; the first one's is its offset
               timestamp delta   zigzag varint    from the record before, modulo 2**64; the first one's is its time
               key length        number
               key               bytes
               value length      number
               value             bytes
               header count      number
               headers           for each: name length number, name, value length number, value

    number     depends on the form. PLAIN, the events of streams of records: a varint; there is no null, no key is a key
               of no bytes. NULLABLE, the files of topics: a zigzag varint, and a length of -1 stands for null: a key,
               a value or a header's value that is not there. From the key's length on a record is then byte for byte
               what Kafka's record batches (version 2) hold, so that either is made from the other by copying

    varint     7 bits in each byte, the lowest first; the high bit says that another byte follows. 64 bits at most,
               and never longer than needed, so that equal records have equal bytes
    zigzag     0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ...: clocks go back, so a time delta may be negative

Invariants: offsets grow, so every delta but the first is at least 1; a block begins with absolute numbers, so each one
is read alone; times are signed 64-bit numbers of Unix milliseconds, offsets unsigned 64-bit numbers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

_VARINT_BYTES_MAX = 10
_UNSIGNED_END = 1 << 64
_SIGNED_END = 1 << 63
_NULL = 1
"""-1 as a zigzag varint."""


class RecordForm(Enum):
    """How lengths are written."""

    PLAIN = "plain"
    NULLABLE = "nullable"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic. A null value under a key is a tombstone: the key has no value any more."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    """Names and values, in the order they were given; names may repeat."""


def encode_records(
    records: Iterable[Record], form: RecordForm = RecordForm.PLAIN, *, after: Record | None = None
) -> bytes:
    """The bytes of one block, or of what follows the record `after` in one.

    Raises ValueError if offsets do not grow, a number does not fit its field, or the form has no word for a null.
    """
    content = bytearray()
    zigzag = form is RecordForm.NULLABLE
    last = after
    for record in records:
        _check_order(record, last)
        _append_varint(content, record.offset - (last.offset if last else 0))
        _append_varint(
            content, _zigzag(_wrapped(record.timestamp_ms - (last.timestamp_ms if last else 0)))
        )
        _append_bytes(content, record.key, zigzag=zigzag)
        _append_bytes(content, record.value, zigzag=zigzag)
        _append_varint(content, len(record.headers) << zigzag)
        for name, value in record.headers:
            _append_bytes(content, name, zigzag=zigzag)
            _append_bytes(content, value, zigzag=zigzag)
        last = record
    return bytes(content)


def decode_records(
    block: BufferView, form: RecordForm = RecordForm.PLAIN, *, source: str = "block"
) -> Iterator[Record]:
    """The records of one block, in order. Raises CorruptedDataError where the bytes stop making sense."""
    cursor = _Cursor(memoryview(block), source, zigzag=form is RecordForm.NULLABLE)
    offset = 0
    timestamp_ms = 0
    first = True
    while not cursor.at_end():
        delta = cursor.varint()
        offset += delta
        timestamp_ms = _wrapped(timestamp_ms + _unzigzag(cursor.varint()))
        if not (first or delta) or offset >= _UNSIGNED_END:
            raise cursor.damaged(f"offsets do not grow offset={offset} delta={delta}")
        key = cursor.counted_bytes()
        value = cursor.counted_bytes()
        headers = tuple(cursor.header() for _ in range(cursor.count()))
        yield Record(offset, timestamp_ms, key, value, headers)
        first = False


class _Cursor:
    """A place in a block."""

    __slots__ = ("_position", "_source", "_view", "_zigzag")

    def __init__(self, view: memoryview, source: str, *, zigzag: bool) -> None:
        self._zigzag = zigzag
        self._view = view
        self._source = source
        self._position = 0

    def at_end(self) -> bool:
        return self._position == len(self._view)

    def varint(self) -> int:
        view, start = self._view, self._position
        value = 0
        for place in range(start, min(start + _VARINT_BYTES_MAX, len(view))):
            byte = view[place]
            value |= (byte & 0x7F) << 7 * (place - start)
            if byte < 0x80:
                if value >= _UNSIGNED_END or (byte == 0 and place > start):
                    break
                self._position = place + 1
                return value
        raise self.damaged("bad varint")

    def counted_bytes(self) -> bytes | None:
        length = self._number()
        if length == -1:
            return None
        start = self._position
        self._position = start + self._bounded(length, 1)
        return bytes(self._view[start : self._position])

    def header(self) -> tuple[bytes, bytes | None]:
        name = self.counted_bytes()
        if name is None:
            raise self.damaged("a header has no name")
        return name, self.counted_bytes()

    def count(self) -> int:
        """Of headers, which have two bytes at least."""
        return self._bounded(self._number(), 2)

    def _number(self) -> int:
        value = self.varint()
        return _unzigzag(value) if self._zigzag else value

    def _bounded(self, count: int, bytes_each: int) -> int:
        """The count, if that many things of so many bytes can still follow."""
        if count < 0 or count * bytes_each > len(self._view) - self._position:
            raise self.damaged(f"record is cut off {count=}")
        return count

    def damaged(self, why: str) -> CorruptedDataError:
        return CorruptedDataError(f"{why} source={self._source} position={self._position}")


def _check_order(record: Record, last: Record | None) -> None:
    if last is not None and record.offset <= last.offset:
        raise ValueError(f"offsets do not grow last={last.offset} offset={record.offset}")
    fits = -_SIGNED_END <= record.timestamp_ms < _SIGNED_END
    if not 0 <= record.offset < _UNSIGNED_END or not fits:
        raise ValueError(
            f"number does not fit offset={record.offset} timestamp_ms={record.timestamp_ms}"
        )


def _append_varint(content: bytearray, value: int) -> None:
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)


def _append_bytes(content: bytearray, value: bytes | None, *, zigzag: bool) -> None:
    if value is None:
        if not zigzag:
            raise ValueError("a plain record has no null: give a key, a value or a header no bytes")
        content.append(_NULL)
        return
    _append_varint(content, len(value) << zigzag)
    content += value


def _wrapped(value: int) -> int:
    """As a signed 64-bit number: between far times the delta wraps round, and back when it is added."""
    return (value + _SIGNED_END) % _UNSIGNED_END - _SIGNED_END


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -((value + 1) >> 1)
