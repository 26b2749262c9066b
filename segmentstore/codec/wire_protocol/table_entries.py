"""Keys and values of tables on the wire.

| structure | bytes |
|---|---|
| key | int32 (4 + length + 8), int32 length, the key, int64 version |
| value | int32 (4 + length), int32 length, the value |
| entries | int32 count, then a key and a value each |
| iterator arguments | four blobs: token, prefix, first key, last key; the last three may be missing |

An empty key has no version behind it, whatever its first number says: the Java client writes it so. Its version is
read as NO_VERSION.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from segmentstore.codec.wire_protocol.fields import Field, FieldCursor, list_of, write_blob
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableKey

_LENGTHS = struct.Struct(">ii")
_VERSION = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class IteratorArguments:
    """Where an iteration goes on and what bounds it; an empty key is no bound."""

    token: bytes = b""
    prefix: bytes = b""
    first_key: bytes = b""
    last_key: bytes = b""


def _write_key(key: TableKey) -> bytes:
    length = len(key.key)
    lengths = _LENGTHS.pack(4 + length + 8, length)
    return lengths + key.key + _VERSION.pack(key.version) if length else lengths


def _read_key(cursor: FieldCursor) -> TableKey:
    outer = cursor.int32()
    key = cursor.blob()
    if not key:
        return TableKey(b"", NO_VERSION)
    if outer != 4 + len(key) + 8:
        raise ProtocolError(f"key contradicts its length outer={outer} key={len(key)}")
    return TableKey(key, cursor.int64())


def _write_entry(entry: TableEntry) -> bytes:
    length = len(entry.value)
    key = _write_key(TableKey(entry.key, entry.version))
    return key + _LENGTHS.pack(4 + length, length) + entry.value


def _read_entry(cursor: FieldCursor) -> TableEntry:
    key = _read_key(cursor)
    outer = cursor.int32()
    value = cursor.blob()
    if outer != 4 + len(value):
        raise ProtocolError(f"value contradicts its length outer={outer} value={len(value)}")
    return TableEntry(key.key, value, key.version)


def _write_iterator(arguments: IteratorArguments) -> bytes:
    blobs = (arguments.token, arguments.prefix, arguments.first_key, arguments.last_key)
    return b"".join(map(write_blob, blobs))


def _read_iterator(cursor: FieldCursor) -> IteratorArguments:
    blobs = [cursor.blob()]
    while cursor.remaining and len(blobs) < 4:
        blobs.append(cursor.blob())
    return IteratorArguments(*blobs)


Keys: TypeAlias = Annotated[
    Sequence[TableKey], list_of(Field(_write_key, _read_key), item_bytes_min=8)
]
Entries: TypeAlias = Annotated[
    Sequence[TableEntry], list_of(Field(_write_entry, _read_entry), item_bytes_min=16)
]
Iterator: TypeAlias = Annotated[IteratorArguments, Field(_write_iterator, _read_iterator)]
