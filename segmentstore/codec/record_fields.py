"""A record of a topic, and its fields as bytes: what record batches and the blocks of files have in common.

    varint     7 bits in each byte, the lowest first; the high bit says that another byte follows. 64 bits at most, so
               ten bytes at most
    zigzag     0, -1, 1, -2, 2 ... are the varints 0, 1, 2, 3, 4 ...

    tail       key length      number, -1: null    then the key
               value length    number, -1: null    then the value
               header count    number              for each: name length, name, value length (-1: null), value

    number     a zigzag varint, so that there is a word for null; a plain varint where the form of a record says so

In front of the tail the forms differ: see record_batch.py and tier2/format/records.py. With zigzag the tail is the same
bytes in both, so that one is made from the other by copying.

Invariants: a cursor reads nothing outside of its bytes, and what it does not understand raises the error of its form,
never another one. A header's name is text: bytes that are no UTF-8 show as U+FFFD, as in Kafka's own consumer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

FieldBytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

VARINT_BYTES_MAX: Final = 10
_UNSIGNED_END: Final = 1 << 64
_SIGNED_END: Final = 1 << 63
_NULL: Final = 1
"""-1 as a zigzag varint."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic. A null value under a key is a tombstone: the key has no value any more."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    """Names and values, in the order they were given; names may repeat."""


def wrapped(value: int) -> int:
    """As a signed 64-bit number: between far times a delta wraps round, and back when it is added."""
    return (value + _SIGNED_END) % _UNSIGNED_END - _SIGNED_END


def append_varint(content: bytearray, value: int) -> None:
    """Of a number from 0 to 2**64 - 1."""
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)


def append_zigzag(content: bytearray, value: int) -> None:
    """Of a signed 64-bit number."""
    append_varint(content, value << 1 if value >= 0 else (-value << 1) - 1)


def varint_bytes(value: int) -> int:
    """How many bytes it has."""
    return max(1, (value.bit_length() + 6) // 7)


def append_tail(
    content: bytearray,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    zigzag: bool = True,
) -> None:
    """Raises ValueError for a null without zigzag."""
    _append_counted(content, key, zigzag=zigzag)
    _append_counted(content, value, zigzag=zigzag)
    append_varint(content, len(headers) << zigzag)
    for name, header in headers:
        _append_counted(content, name.encode(), zigzag=zigzag)
        _append_counted(content, header, zigzag=zigzag)


def _append_counted(content: bytearray, data: bytes | None, *, zigzag: bool) -> None:
    if data is None:
        if not zigzag:
            raise ValueError("a plain record has no null: give a key, a value or a header no bytes")
        content.append(_NULL)
        return
    append_varint(content, len(data) << zigzag)
    content += data


class FieldCursor:
    """A place in the bytes of some records; `damage` makes the error for what it does not understand."""

    __slots__ = ("_content", "_damage", "_takes_padding", "_zigzag", "end", "padded", "position")

    def __init__(
        self,
        content: FieldBytes,
        damage: Callable[[str, int], Exception],
        *,
        zigzag: bool = True,
        takes_padding: bool = True,
    ) -> None:
        self._content = content
        self.end = len(content)
        self._damage = damage
        self._zigzag = zigzag
        self._takes_padding = takes_padding
        self.position = 0
        self.padded = False
        """Whether a number had more bytes than it needs; never cleared here."""

    def at_end(self) -> bool:
        return self.position == self.end

    def varint(self) -> int:
        content, start = self._content, self.position
        if start < self.end and content[start] < 0x80:
            self.position = start + 1
            return content[start]
        value = 0
        for place in range(start, min(start + VARINT_BYTES_MAX, self.end)):
            byte = content[place]
            value |= (byte & 0x7F) << 7 * (place - start)
            if byte < 0x80:
                if value >= _UNSIGNED_END:
                    break
                if byte == 0:
                    if not self._takes_padding:
                        break
                    self.padded = True
                self.position = place + 1
                return value
        raise self.damaged("no number")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def tail(self) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers."""
        key = self._counted()
        value = self._counted()
        return key, value, self.headers()

    def headers(self) -> Headers:
        """The end of a tail."""
        count = self._count()
        return tuple([self._header() for _ in range(count)]) if count else ()

    def places(self) -> tuple[tuple[int, int], tuple[int, int], int]:
        """Of a tail: position and length of key and value (-1: null), and the position of its headers."""
        key_length = self._skip_counted()
        key_at = self.position - max(0, key_length)
        value_length = self._skip_counted()
        value_at = self.position - max(0, value_length)
        headers_at = self.position
        self._skip_headers()
        return (key_at, key_length), (value_at, value_length), headers_at

    def skip_tail(self) -> None:
        """The same, without a copy of anything."""
        self._skip_counted()
        self._skip_counted()
        self._skip_headers()

    def _skip_headers(self) -> None:
        for _ in range(self._count()):
            if self._skip_counted() < 0:
                raise self.damaged("a header has no name")
            self._skip_counted()

    def copy_tail(self, to: bytearray) -> None:
        """The same, with every number as short as it can be. Of a form with zigzag alone."""
        self._copy_counted(to)
        self._copy_counted(to)
        count = self._count()
        append_zigzag(to, count)
        for _ in range(2 * count):
            self._copy_counted(to)

    def damaged(self, why: str) -> Exception:
        return self._damage(why, self.position)

    def _header(self) -> tuple[str, bytes | None]:
        name = self._counted()
        if name is None:
            raise self.damaged("a header has no name")
        return name.decode(errors="replace"), self._counted()

    def _counted(self) -> bytes | None:
        length = self._skip_counted()
        if length < 0:
            return None
        return bytes(self._content[self.position - length : self.position])

    def _copy_counted(self, to: bytearray) -> None:
        length = self._skip_counted()
        append_zigzag(to, length)
        if length > 0:
            to += self._content[self.position - length : self.position]

    def _skip_counted(self) -> int:
        length = self.zigzag() if self._zigzag else self.varint()
        if length > 0:
            end = self.position + length
            if end > self.end:
                raise self.damaged(f"a field ends outside of its record length={length}")
            self.position = end
        elif length < -1:
            raise self.damaged(f"a length is negative length={length}")
        return length

    def _count(self) -> int:
        """Of headers, which have two bytes at least."""
        count = self.zigzag() if self._zigzag else self.varint()
        if count < 0 or 2 * count > self.end - self.position:
            raise self.damaged(f"no count of headers count={count}")
        return count
