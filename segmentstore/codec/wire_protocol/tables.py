"""Requests and replies about table segments, and how their keys and values look on the wire.

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
from typing import Annotated, ClassVar, Final, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import (
    CLIENT_LIST_ITEMS_MAX,
    Blob,
    Field,
    FieldCursor,
    Flag,
    Int32,
    Int64,
    Int64s,
    ProtocolError,
    Text,
    list_of,
    write_blob,
)
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableKey

NO_TABLE_OFFSET: Final = -1
"""As the expected length of a table: whatever it is."""

_TWO_LENGTHS = struct.Struct(">ii")
_ENTRY_VERSION = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class IteratorArguments:
    """Where an iteration goes on and what bounds it; an empty key is no bound."""

    token: bytes = b""
    prefix: bytes = b""
    first_key: bytes = b""
    last_key: bytes = b""


def _write_key(key: TableKey) -> bytes:
    length = len(key.key)
    lengths = _TWO_LENGTHS.pack(4 + length + 8, length)
    return lengths + key.key + _ENTRY_VERSION.pack(key.version) if length else lengths


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
    return key + _TWO_LENGTHS.pack(4 + length, length) + entry.value


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


_KEY: Final[Field[TableKey]] = Field(_write_key, _read_key)

Keys: TypeAlias = Annotated[Sequence[TableKey], list_of(_KEY, item_bytes_min=8)]

ClientKeys: TypeAlias = Annotated[
    Sequence[TableKey], list_of(_KEY, item_bytes_min=8, items_max=CLIENT_LIST_ITEMS_MAX)
]

ENTRY: Final[Field[TableEntry]] = Field(_write_entry, _read_entry)

Entries: TypeAlias = Annotated[Sequence[TableEntry], list_of(ENTRY, item_bytes_min=16)]

ClientEntries: TypeAlias = Annotated[
    Sequence[TableEntry], list_of(ENTRY, item_bytes_min=16, items_max=CLIENT_LIST_ITEMS_MAX)
]

Iterator: TypeAlias = Annotated[IteratorArguments, Field(_write_iterator, _read_iterator)]


@dataclass(frozen=True, slots=True)
class CreateTableSegment(Command):
    """Answer: SegmentCreated. A key length of 0 or less asks for the hash layout."""

    type: ClassVar[int] = 70
    request_id: Int64
    segment: Text
    delegation_token: Text
    sorted_deprecated: Flag = False
    key_length: Int32 = 0
    rollover_bytes: Int64 = 0


@dataclass(frozen=True, slots=True)
class DeleteTableSegment(Command):
    """Answer: SegmentDeleted."""

    type: ClassVar[int] = 71
    request_id: Int64
    segment: Text
    must_be_empty: Flag
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class GetTableSegmentInfo(Command):
    """Answer: TableSegmentInfo."""

    type: ClassVar[int] = 68
    request_id: Int64
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class TableSegmentInfo(Command):
    """The state of a table."""

    type: ClassVar[int] = 69
    request_id: Int64
    segment: Text
    start_offset: Int64
    length: Int64
    entry_count: Int64
    key_length: Int32


@dataclass(frozen=True, slots=True)
class UpdateTableEntries(Command):
    """Set entries, all or none. Answer: TableEntriesUpdated."""

    type: ClassVar[int] = 74
    request_id: Int64
    segment: Text
    delegation_token: Text
    entries: ClientEntries
    table_offset: Int64 = NO_TABLE_OFFSET


@dataclass(frozen=True, slots=True)
class TableEntriesUpdated(Command):
    """The new version of each entry, in order."""

    type: ClassVar[int] = 75
    request_id: Int64
    versions: Int64s


@dataclass(frozen=True, slots=True)
class RemoveTableKeys(Command):
    """Remove keys, all or none. Answer: TableKeysRemoved."""

    type: ClassVar[int] = 76
    request_id: Int64
    segment: Text
    delegation_token: Text
    keys: ClientKeys
    table_offset: Int64 = NO_TABLE_OFFSET


@dataclass(frozen=True, slots=True)
class TableKeysRemoved(Command):
    """The keys are gone."""

    type: ClassVar[int] = 77
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class ReadTable(Command):
    """Look up keys. Answer: TableRead."""

    type: ClassVar[int] = 78
    request_id: Int64
    segment: Text
    delegation_token: Text
    keys: ClientKeys


@dataclass(frozen=True, slots=True)
class TableRead(Command):
    """An entry for every key, in order; a missing one has version -1 and no value."""

    type: ClassVar[int] = 79
    request_id: Int64
    segment: Text
    entries: Entries


@dataclass(frozen=True, slots=True)
class ReadTableKeys(Command):
    """Some keys of an iteration. Answer: TableKeysRead."""

    type: ClassVar[int] = 83
    request_id: Int64
    segment: Text
    delegation_token: Text
    suggested_count: Int32
    iterator: Iterator


@dataclass(frozen=True, slots=True)
class TableKeysRead(Command):
    """Keys with their versions, and where the iteration goes on."""

    type: ClassVar[int] = 84
    request_id: Int64
    segment: Text
    keys: Keys
    continuation_token: Blob


@dataclass(frozen=True, slots=True)
class ReadTableEntries(Command):
    """Some entries of an iteration. Answer: TableEntriesRead."""

    type: ClassVar[int] = 85
    request_id: Int64
    segment: Text
    delegation_token: Text
    suggested_count: Int32
    iterator: Iterator


@dataclass(frozen=True, slots=True)
class TableEntriesRead(Command):
    """Entries with their versions, and where the iteration goes on."""

    type: ClassVar[int] = 86
    request_id: Int64
    segment: Text
    entries: Entries
    continuation_token: Blob


@dataclass(frozen=True, slots=True)
class TableEntriesDeltaRead(Command):
    """What changed behind a position."""

    type: ClassVar[int] = 87
    request_id: Int64
    segment: Text
    entries: Entries
    should_clear: Flag
    reached_end: Flag
    last_position: Int64


@dataclass(frozen=True, slots=True)
class ReadTableEntriesDelta(Command):
    """Changes from a position on. Answer: TableEntriesDeltaRead."""

    type: ClassVar[int] = 88
    request_id: Int64
    segment: Text
    delegation_token: Text
    from_position: Int64
    suggested_count: Int32
