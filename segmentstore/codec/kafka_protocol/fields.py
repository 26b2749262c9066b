"""What one field of a message looks like on the wire.

| annotation | bytes |
|---|---|
| Int8, Int16, Int32, Int64 | big endian, signed |
| UUID | 16 bytes |
| bool | one byte: 0 is false, all else is true; written as 0 or 1 |
| str | int16 length, then UTF-8 |
| str or None | the same; a length of -1 is None |
| bytes | int32 length, then so many bytes |
| bytes or None | the same; a length of -1 is None |
| Records | as bytes or None, but a view of the frame: nothing is copied |
| tuple[X, ...] | int32 count, then so many X |
| tuple[X, ...] or None | the same; a count of -1 is None |

Where None is not allowed, -1 is refused, and so is every other negative length: bytes from a network decide nothing
before they are checked. A reader raises KafkaProtocolError, and nothing else, for bytes that do not fit.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias
from uuid import UUID

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

Buffer: TypeAlias = bytes | bytearray | memoryview

_COPIED_BYTES_MAX: Final = 4096
"""Records up to this length are copied beside the fields around them; longer ones are a part of their own."""

STRING_BYTES_MAX: Final = 0x7FFF

NO_UUID: Final = UUID(int=0)

OPERATIONS_NOT_TOLD: Final = -(1 << 31)
"""An Int32 in the place of what the client may do: it did not ask, or is not told."""

_UUID_BYTES: Final = 16


class KafkaProtocolError(SegmentStoreError):
    """Bytes that are no message of the protocol, or a value that fits into none. The connection cannot go on."""

    kind = ErrorKind.INVALID


class MessageReader:
    """Reads one frame from front to back; never past its end."""

    __slots__ = ("_items_left", "content", "offset")

    def __init__(self, content: Buffer, offset: int = 0, *, items_max: int | None = None) -> None:
        """`items_max`: of all lists together; None: as many as the frame holds."""
        self.content = memoryview(content)
        self.offset = offset
        self._items_left = items_max

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self.content) - self.offset

    def take(self, length: int) -> memoryview:
        """A view of the next `length` bytes."""
        start = self.offset
        if not 0 <= length <= len(self.content) - start:
            raise KafkaProtocolError(
                f"field does not fit its frame length={length} remaining={self.remaining}"
            )
        self.offset = start + length
        return self.content[start : start + length]

    def begin_items(self, count: int) -> None:
        """So many items of a list follow. Raises KafkaProtocolError if they are more than the frame may have."""
        if self._items_left is None:
            return
        self._items_left -= count
        if self._items_left < 0:
            raise KafkaProtocolError(f"lists have too many items count={count}")

    def number(self, kind: struct.Struct) -> int:
        start = self.offset
        try:
            (value,) = kind.unpack_from(self.content, start)
        except struct.error as error:
            raise KafkaProtocolError(
                f"frame ends inside a number remaining={self.remaining}"
            ) from error
        self.offset = start + kind.size
        number: int = value
        return number


class MessageWriter:
    """Gathers a frame as few parts: what is long stays where it is."""

    __slots__ = ("_gathered", "parts")

    def __init__(self) -> None:
        self._gathered = bytearray()
        self.parts: list[Buffer] = [self._gathered]

    def write(self, content: Buffer) -> None:
        self._gathered += content

    def write_apart(self, content: Buffer) -> None:
        """Without a copy if it is long. The caller leaves these bytes as they are until the frame has been sent."""
        if len(content) <= _COPIED_BYTES_MAX:
            self._gathered += content
            return
        self._gathered = bytearray()
        self.parts += (content, self._gathered)


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a field are read and written."""

    read: Callable[[MessageReader], object]
    write: Callable[[MessageWriter, object], None]
    bytes_min: int
    """No value takes fewer: a count of more items than could follow is refused before anything is made of them."""


def _number(code: str) -> Form:
    kind = struct.Struct(code)

    def write(writer: MessageWriter, value: object) -> None:
        try:
            writer.write(kind.pack(value))
        except struct.error as error:
            raise KafkaProtocolError(f"number does not fit its field value={value!r}") from error

    return Form(lambda reader: reader.number(kind), write, kind.size)


INT8: Final = _number(">b")
INT16: Final = _number(">h")
INT32: Final = _number(">i")
INT64: Final = _number(">q")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _read_bool(reader: MessageReader) -> bool:
    return reader.take(1)[0] != 0


def _write_bool(writer: MessageWriter, value: object) -> None:
    writer.write(b"\x01" if value else b"\x00")


def read_text(reader: MessageReader, length: int) -> str:
    """Behind its length."""
    try:
        return str(reader.take(length), "utf-8")
    except UnicodeDecodeError as error:
        raise KafkaProtocolError("string is not UTF-8") from error


def text_bytes(value: object) -> bytes:
    """What follows the length of a text."""
    assert isinstance(value, str), f"not a string value={value!r}"
    try:
        content = value.encode()
    except UnicodeEncodeError as error:
        raise KafkaProtocolError(f"text cannot be written value={value!r}") from error
    if len(content) > STRING_BYTES_MAX:
        raise KafkaProtocolError(f"string is too long length={len(content)}")
    return content


def require_text(value: str | None) -> str:
    """Of a field that cannot be null."""
    if value is None:
        raise KafkaProtocolError("string is null where it must not be")
    return value


def read_items(reader: MessageReader, item: Form, count: int) -> tuple[object, ...]:
    """The items of a list, behind their count."""
    if not 0 <= count * item.bytes_min <= reader.remaining:
        raise KafkaProtocolError(
            f"list does not fit its frame count={count} remaining={reader.remaining}"
        )
    reader.begin_items(count)
    return tuple([item.read(reader) for _ in range(count)])


def _read_nullable_string(reader: MessageReader) -> str | None:
    length = reader.number(_INT16)
    return None if length == -1 else read_text(reader, length)


def _read_string(reader: MessageReader) -> str:
    return require_text(_read_nullable_string(reader))


def _write_string(writer: MessageWriter, value: object) -> None:
    content = text_bytes(value)
    writer.write(_INT16.pack(len(content)))
    writer.write(content)


def _write_nullable_string(writer: MessageWriter, value: object) -> None:
    if value is None:
        writer.write(_INT16.pack(-1))
        return
    _write_string(writer, value)


def _read_records(reader: MessageReader) -> memoryview | None:
    length = reader.number(_INT32)
    return None if length == -1 else reader.take(length)


def _write_records(writer: MessageWriter, value: object) -> None:
    if value is None:
        writer.write(_INT32.pack(-1))
        return
    assert isinstance(value, bytes | bytearray | memoryview), f"not bytes value={value!r}"
    writer.write(_INT32.pack(len(value)))
    writer.write_apart(value)


def _read_nullable_bytes(reader: MessageReader) -> bytes | None:
    view = _read_records(reader)
    return None if view is None else bytes(view)


def _read_bytes(reader: MessageReader) -> bytes:
    value = _read_nullable_bytes(reader)
    if value is None:
        raise KafkaProtocolError("bytes are null where they must not be")
    return value


def _write_bytes(writer: MessageWriter, value: object) -> None:
    assert value is not None, "bytes are null where they must not be"
    _write_records(writer, value)


def _read_uuid(reader: MessageReader) -> UUID:
    return UUID(bytes=bytes(reader.take(_UUID_BYTES)))


def _write_uuid(writer: MessageWriter, value: object) -> None:
    assert isinstance(value, UUID), f"not a UUID value={value!r}"
    writer.write(value.bytes)


UUID_FORM: Final = Form(_read_uuid, _write_uuid, _UUID_BYTES)
BOOL: Final = Form(_read_bool, _write_bool, 1)
STRING: Final = Form(_read_string, _write_string, 2)
NULLABLE_STRING: Final = Form(_read_nullable_string, _write_nullable_string, 2)
BYTES: Final = Form(_read_bytes, _write_bytes, 4)
NULLABLE_BYTES: Final = Form(_read_nullable_bytes, _write_records, 4)
RECORDS: Final = Form(_read_records, _write_records, 4)


def array_of(item: Form, *, nullable: bool) -> Form:
    """A count, then the items; read as a tuple."""
    assert item.bytes_min > 0, "items without bytes could be any number"

    def read(reader: MessageReader) -> tuple[object, ...] | None:
        count = reader.number(_INT32)
        if count == -1 and nullable:
            return None
        return read_items(reader, item, count)

    def write(writer: MessageWriter, value: object) -> None:
        if value is None:
            assert nullable, "list is null where it must not be"
            writer.write(_INT32.pack(-1))
            return
        assert isinstance(value, tuple), f"not a tuple value={value!r}"
        writer.write(_INT32.pack(len(value)))
        for each in value:
            item.write(writer, each)

    return Form(read, write, 4)


Int8: TypeAlias = Annotated[int, INT8]
Int16: TypeAlias = Annotated[int, INT16]
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, INT64]
Records: TypeAlias = Annotated[Buffer | None, RECORDS]
