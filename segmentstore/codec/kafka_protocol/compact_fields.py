"""Fields of flexible versions: lengths take few bytes, and what a reader does not know can be skipped.

| annotation | bytes |
|---|---|
| str | unsigned varint length + 1, then UTF-8 |
| str or None | the same; 0 is None |
| bytes | unsigned varint length + 1, then so many bytes |
| Records | as bytes, 0 is None; a view of the frame: nothing is copied |
| tuple[X, ...] | unsigned varint count + 1, then so many X |
| tuple[X, ...] or None | the same; 0 is None |

Numbers, bool and UUID are as in other versions (`fields.py`). Behind the last field of a message, of each structure in
it and of its header stand the tagged fields: unsigned varint count, and for each of them varint tag, varint length, so
many bytes. None is known here: they are skipped, and none is written.

An unsigned varint: seven bits in each byte, the lowest first; 128 is set in all but the last. 32 bits at most.
"""

from typing import Final

from segmentstore.codec.kafka_protocol.fields import (
    STRING_BYTES_MAX,
    Form,
    KafkaProtocolError,
    MessageReader,
    MessageWriter,
    read_items,
    read_text,
    require_text,
    text_bytes,
)

_VARINT_BYTES_MAX: Final = 5


def _read_varint(reader: MessageReader) -> int:
    content, start = reader.content, reader.offset
    value = 0
    try:
        for place in range(_VARINT_BYTES_MAX):
            byte = content[start + place]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                reader.offset = start + place + 1
                if value > 0xFFFFFFFF:
                    break
                return value
    except IndexError as error:
        raise KafkaProtocolError("frame ends inside a varint") from error
    raise KafkaProtocolError("varint has more than 32 bits")


def _write_varint(writer: MessageWriter, value: int) -> None:
    while value >= 0x80:
        writer.write(bytes((value & 0x7F | 0x80,)))
        value >>= 7
    writer.write(bytes((value,)))


def _read_nullable_string(reader: MessageReader) -> str | None:
    length = _read_varint(reader) - 1
    if length == -1:
        return None
    # As in other versions: strings become parts of records of this store, whose lengths are shorter than a varint's.
    if length > STRING_BYTES_MAX:
        raise KafkaProtocolError(f"string is too long length={length}")
    return read_text(reader, length)


def _read_string(reader: MessageReader) -> str:
    return require_text(_read_nullable_string(reader))


def _write_string(writer: MessageWriter, value: object) -> None:
    content = text_bytes(value)
    _write_varint(writer, len(content) + 1)
    writer.write(content)


def _write_nullable_string(writer: MessageWriter, value: object) -> None:
    if value is None:
        _write_varint(writer, 0)
        return
    _write_string(writer, value)


def _read_bytes(reader: MessageReader) -> bytes:
    length = _read_varint(reader) - 1
    if length == -1:
        raise KafkaProtocolError("bytes are null where they must not be")
    return bytes(reader.take(length))


def _write_bytes(writer: MessageWriter, value: object) -> None:
    assert isinstance(value, bytes), f"not bytes value={value!r}"
    _write_varint(writer, len(value) + 1)
    writer.write(value)


def _read_records(reader: MessageReader) -> memoryview | None:
    length = _read_varint(reader) - 1
    return None if length == -1 else reader.take(length)


def _write_records(writer: MessageWriter, value: object) -> None:
    if value is None:
        _write_varint(writer, 0)
        return
    assert isinstance(value, bytes | bytearray | memoryview), f"not bytes value={value!r}"
    _write_varint(writer, len(value) + 1)
    writer.write_apart(value)


COMPACT_STRING: Final = Form(_read_string, _write_string, 1)
COMPACT_NULLABLE_STRING: Final = Form(_read_nullable_string, _write_nullable_string, 1)
COMPACT_BYTES: Final = Form(_read_bytes, _write_bytes, 1)
COMPACT_RECORDS: Final = Form(_read_records, _write_records, 1)


def compact_array_of(item: Form, *, nullable: bool) -> Form:
    """A count, then the items; read as a tuple."""
    assert item.bytes_min > 0, "items without bytes could be any number"

    def read(reader: MessageReader) -> tuple[object, ...] | None:
        count = _read_varint(reader) - 1
        if count == -1 and nullable:
            return None
        return read_items(reader, item, count)

    def write(writer: MessageWriter, value: object) -> None:
        if value is None:
            assert nullable, "list is null where it must not be"
            _write_varint(writer, 0)
            return
        assert isinstance(value, tuple), f"not a tuple value={value!r}"
        _write_varint(writer, len(value) + 1)
        for each in value:
            item.write(writer, each)

    return Form(read, write, 1)


def skip_tagged_fields(reader: MessageReader) -> None:
    """They count as items of a list."""
    count = _read_varint(reader)
    if not count:
        return
    reader.begin_items(count)
    for _ in range(count):
        _read_varint(reader)
        reader.take(_read_varint(reader))


def write_no_tagged_fields(writer: MessageWriter) -> None:
    """That there are none."""
    _write_varint(writer, 0)
