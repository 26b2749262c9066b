"""What one field of a command looks like on the wire.

| annotation | bytes |
|---|---|
| Int32, Int64, Int8 | big endian, signed |
| Flag | one byte: 0 is false, all else is true; written as 0 or 1 |
| Text | uint16 length, then modified UTF-8 |
| Uuid | sixteen bytes, never interpreted |
| Blob | int32 length, then so many bytes |
| Rest | everything up to the end of the frame |
| Framed | a whole event: int32 0, int32 length, so many bytes; the value is what follows the two numbers |
| Texts, Int64s | int32 count, then so many items; lists of clients have CLIENT_LIST_ITEMS_MAX at most |

Modified UTF-8 is text as Java's DataOutput writes it. It differs from UTF-8 in two ways: NUL is C0 80, and a character
above U+FFFF is written as its two surrogates of three bytes each. Decoding accepts plain UTF-8 as well, which other
clients send.

Every reader raises ProtocolError, and nothing else, for bytes that do not fit.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Generic, TypeAlias, TypeVar

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

TEXT_BYTES_MAX: Final = 0xFFFF
CLIENT_LIST_ITEMS_MAX: Final = 10_000
"""Of a list that any client may send: a frame holds millions, which would be read in one stretch of many seconds."""

_INT8 = struct.Struct(">b")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UINT16 = struct.Struct(">H")
_TWO_INT32 = struct.Struct(">ii")

Value = TypeVar("Value")


class ProtocolError(SegmentStoreError):
    """Bytes that are no frame of the protocol, or a value that fits into none. The connection cannot go on."""

    kind = ErrorKind.INVALID


class FieldCursor:
    """Reads one payload from front to back; never past its end."""

    __slots__ = ("_content", "offset")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.offset = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._content) - self.offset

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        start = self.offset
        if not 0 <= length <= len(self._content) - start:
            raise ProtocolError(
                f"field does not fit its frame length={length} remaining={self.remaining}"
            )
        self.offset = start + length
        return self._content[start : start + length]

    def int8(self) -> int:
        return self._number(_INT8)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def text(self) -> str:
        return decode_text(self.take(self._number(_UINT16)))

    def blob(self) -> bytes:
        return self.take(self.int32())

    def count(self, item_bytes_min: int) -> int:
        """The length of a list; more items than bytes can hold are refused before anything is made of them."""
        count = self.int32()
        if not 0 <= count * item_bytes_min <= self.remaining:
            raise ProtocolError(f"list does not fit its frame count={count} bytes={self.remaining}")
        return count

    def _number(self, kind: struct.Struct) -> int:
        start = self.offset
        try:
            (value,) = kind.unpack_from(self._content, start)
        except struct.error as error:
            raise ProtocolError(f"frame ends inside a number remaining={self.remaining}") from error
        self.offset = start + kind.size
        number: int = value
        return number


@dataclass(frozen=True, slots=True)
class Field(Generic[Value]):
    """How a value is written and read."""

    write: Callable[[Value], bytes]
    read: Callable[[FieldCursor], Value]


def list_of(
    field: Field[Value], *, item_bytes_min: int, items_max: int | None = None
) -> Field[Sequence[Value]]:
    """An int32 count, then the items, so many at most. Read as a tuple.

    Without `items_max` it may have as many as the frame holds: then its sender has to be one of the store's own.
    """

    def write(items: Sequence[Value]) -> bytes:
        _require_count(len(items))
        return _INT32.pack(len(items)) + b"".join([field.write(item) for item in items])

    def read(cursor: FieldCursor) -> tuple[Value, ...]:
        count = cursor.count(item_bytes_min)
        _require_count(count)
        return tuple([field.read(cursor) for _ in range(count)])

    def _require_count(count: int) -> None:
        if items_max is not None and count > items_max:
            raise ProtocolError(f"list has too many items count={count} items_max={items_max}")

    return Field(write, read)


def write_text(text: str) -> bytes:
    """Raises ProtocolError for text of more than TEXT_BYTES_MAX bytes."""
    content = encode_text(text)
    if len(content) > TEXT_BYTES_MAX:
        raise ProtocolError(f"text is too long length={len(content)}")
    return _UINT16.pack(len(content)) + content


def write_blob(content: bytes) -> bytes:
    """An int32 length, then the bytes."""
    return _INT32.pack(len(content)) + content


def _write_uuid(content: bytes) -> bytes:
    if len(content) != 16:
        raise ProtocolError(f"id has not sixteen bytes length={len(content)}")
    return content


def _write_framed(content: bytes) -> bytes:
    return _TWO_INT32.pack(0, len(content)) + content


def _read_framed(cursor: FieldCursor) -> bytes:
    kind = cursor.int32()
    if kind != 0:
        raise ProtocolError(f"not an event type={kind}")
    return cursor.blob()


INT32: Final[Field[int]] = Field(_INT32.pack, FieldCursor.int32)
INT64: Final[Field[int]] = Field(_INT64.pack, FieldCursor.int64)
TEXT: Final[Field[str]] = Field(write_text, FieldCursor.text)

Int8: TypeAlias = Annotated[int, Field(_INT8.pack, FieldCursor.int8)]
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, INT64]
Flag: TypeAlias = Annotated[bool, Field(_INT8.pack, lambda cursor: cursor.int8() != 0)]
Text: TypeAlias = Annotated[str, TEXT]
Uuid: TypeAlias = Annotated[bytes, Field(_write_uuid, lambda cursor: cursor.take(16))]
Blob: TypeAlias = Annotated[bytes, Field(write_blob, FieldCursor.blob)]
Rest: TypeAlias = Annotated[bytes, Field(bytes, lambda cursor: cursor.take(cursor.remaining))]
Framed: TypeAlias = Annotated[bytes, Field(_write_framed, _read_framed)]
Texts: TypeAlias = Annotated[Sequence[str], list_of(TEXT, item_bytes_min=2)]
Int64s: TypeAlias = Annotated[Sequence[int], list_of(INT64, item_bytes_min=8)]


def encode_text(text: str) -> bytes:
    """Raises ProtocolError for a lone surrogate."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    try:
        units = text.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text is not encodable text={text[:40]!r}") from error
    halves = (units[start : start + 2] for start in range(0, len(units), 2))
    surrogates = "".join(chr(int.from_bytes(half, "big")) for half in halves)
    return surrogates.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_text(content: bytes) -> str:
    """Raises ProtocolError for bytes that are neither modified nor plain UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        # C0 occurs in no well-formed UTF-8, so the pair cannot be part of another character.
        text = content.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise ProtocolError(f"text is not UTF-8 bytes={content[:40].hex()}") from error
