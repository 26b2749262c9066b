"""The field encodings that all of the controller's records share.

| field | bytes |
|---|---|
| version | 1 byte, first in every record |
| unsigned | LEB128: 7 bits a byte, lowest first, high bit set on all but the last; at most 10 bytes |
| signed | zigzag (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), then as unsigned |
| fraction | IEEE 754 double, big endian |
| choice | unsigned: a member of an enumeration |
| flag | 1 byte, 0 or 1 |
| content | unsigned length, then so many bytes |
| text | content, UTF-8 |
| list | unsigned count, then the items |
| offsets | list of unsigned segment id, signed offset, in the order of the ids |

Invariants:

- Reading is exact: `end()` refuses bytes that no field has read, and a short record never reads as a smaller one.
- Bytes that do not parse raise CorruptedDataError; the caller stops instead of guessing.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

from segmentstore.contracts.errors import CorruptedDataError

Item = TypeVar("Item")
_Choice = TypeVar("_Choice", bound=IntEnum)

_UNSIGNED_BYTES_MAX = 10
_FRACTION = struct.Struct(">d")


class Record(Protocol):
    """Anything that a metadata table holds."""

    def encode(self) -> bytes: ...


class FieldWriter:
    """Builds a record, field by field; begins with its version."""

    def __init__(self, version: int) -> None:
        self._content = bytearray((version,))

    def unsigned(self, value: int) -> None:
        assert 0 <= value < 1 << 64, f"not an unsigned 64-bit number value={value}"
        while value > 0x7F:
            self._content.append(value & 0x7F | 0x80)
            value >>= 7
        self._content.append(value)

    def signed(self, value: int) -> None:
        assert -(1 << 63) <= value < 1 << 63, f"not a signed 64-bit number value={value}"
        self.unsigned(value << 1 if value >= 0 else (-value << 1) - 1)

    def fraction(self, value: float) -> None:
        self._content += _FRACTION.pack(value)

    def flag(self, value: bool) -> None:
        self._content.append(value)

    def content(self, value: bytes) -> None:
        self.unsigned(len(value))
        self._content += value

    def text(self, value: str) -> None:
        self.content(value.encode())

    def list_of(self, items: Sequence[Item], write: Callable[[Item], None]) -> None:
        self.unsigned(len(items))
        for item in items:
            write(item)

    def offsets(self, offsets: Mapping[int, int]) -> None:
        """A map from segment id to offset, in the order of the ids: equal maps have equal bytes."""
        self.unsigned(len(offsets))
        for segment_id in sorted(offsets):
            self.unsigned(segment_id)
            self.signed(offsets[segment_id])

    def end(self) -> bytes:
        return bytes(self._content)


class FieldReader:
    """Takes a record apart, field by field. Every method raises CorruptedDataError if the bytes do not fit."""

    def __init__(self, content: bytes, *, what: str, version_max: int) -> None:
        self._content = content
        self._what = what
        self._position = 0
        self.version = self._take(1)[0]
        if not 1 <= self.version <= version_max:
            raise CorruptedDataError(
                f"{what} has an unknown version version={self.version} version_max={version_max}"
            )

    def unsigned(self) -> int:
        value = 0
        for index in range(_UNSIGNED_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte <= 0x7F:
                if value >> 64:
                    break
                return value
        raise CorruptedDataError(f"{self._what} has a number of more than 64 bits")

    def choice(self, kind: type[_Choice]) -> _Choice:
        """A member of an enumeration, written as unsigned."""
        number = self.unsigned()
        try:
            return kind(number)
        except ValueError as error:
            raise CorruptedDataError(
                f"{self._what} has an unknown value of {kind.__name__} value={number}"
            ) from error

    def signed(self) -> int:
        value = self.unsigned()
        return value >> 1 if value & 1 == 0 else -(value + 1 >> 1)

    def fraction(self) -> float:
        value: float = _FRACTION.unpack(self._take(_FRACTION.size))[0]
        return value

    def flag(self) -> bool:
        byte = self._take(1)[0]
        if byte > 1:
            raise CorruptedDataError(f"{self._what} has a flag that is neither 0 nor 1 byte={byte}")
        return byte == 1

    def content(self) -> bytes:
        return self._take(self.unsigned())

    def text(self) -> str:
        try:
            return self.content().decode()
        except UnicodeDecodeError as error:
            raise CorruptedDataError(f"{self._what} has a text that is not UTF-8") from error

    def list_of(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        return tuple(self.each_of(read))

    def each_of(self, read: Callable[[], Item]) -> Iterator[Item]:
        """As list_of(), item by item, for a caller that has other work in between; read nothing else meanwhile."""
        count = self.unsigned()
        # Every item has a byte at least: a damaged count cannot make us build a huge list.
        if count > len(self._content) - self._position:
            raise CorruptedDataError(f"{self._what} has a list that is cut off count={count}")
        for _ in range(count):
            yield read()

    def offsets(self) -> dict[int, int]:
        return dict(self.list_of(lambda: (self.unsigned(), self.signed())))

    def end(self) -> None:
        rest = len(self._content) - self._position
        if rest:
            raise CorruptedDataError(f"{self._what} has bytes behind its end count={rest}")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._content):
            raise CorruptedDataError(
                f"{self._what} is cut off length={len(self._content)} needed={end}"
            )
        part = self._content[self._position : end]
        self._position = end
        return part
