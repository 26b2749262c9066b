"""The bytes of a table segment: one record per update or removal.

All numbers are big-endian:

    u8   version of the format = 1
    i32  key length, 1 to KEY_BYTES_MAX
    i32  value length, with the key's ENTRY_BYTES_MAX at most; or -1 for a removal
    i64  entry version: -1 for "where this record stands", else where the entry was first written (a copy made
         by compaction keeps it)
    key, value

A record is as long as its header says, and the next one stands behind it.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.tables import ENTRY_BYTES_MAX, KEY_BYTES_MAX, TableEntry

_HEADER = struct.Struct(">Biiq")
_FORMAT = 1
_REMOVED = -1
_HERE = -1

RECORD_HEADER_BYTES = _HEADER.size

_pack_header = _HEADER.pack


class RecordHeader(NamedTuple):
    """What a record's header says; `version` is resolved: an offset."""

    key_length: int
    value_length: int
    """0 for a removal."""
    removed: bool
    version: int

    @property
    def length(self) -> int:
        """Bytes of the whole record."""
        return RECORD_HEADER_BYTES + self.key_length + self.value_length


def encode_update(key: bytes, value: bytes) -> bytes:
    """The record of a new value; its version will be the offset where it is put."""
    return _pack_header(_FORMAT, len(key), len(value), _HERE) + key + value


def encode_updates(entries: Sequence[TableEntry]) -> tuple[bytes, list[int]]:
    """The records of all of them, one behind the other, and how long each is."""
    parts: list[bytes] = []
    lengths: list[int] = []
    header, key_length, value_length, length = b"", -1, -1, 0
    for entry in entries:
        key, value = entry.key, entry.value
        if len(key) != key_length or len(value) != value_length:
            # Most often all of a group are alike.
            key_length, value_length = len(key), len(value)
            header = _pack_header(_FORMAT, key_length, value_length, _HERE)
            length = RECORD_HEADER_BYTES + key_length + value_length
        parts += (header, key, value)
        lengths.append(length)
    return b"".join(parts), lengths


def encode_removal(key: bytes) -> bytes:
    """The record that says that a key is gone."""
    return _pack_header(_FORMAT, len(key), _REMOVED, _HERE) + key


def encode_copy(key: bytes, value: bytes, version: int) -> bytes:
    """The record of an entry that moves and keeps its version."""
    return _pack_header(_FORMAT, len(key), len(value), version) + key + value


def decode_header(content: bytes, position: int, offset: int) -> RecordHeader:
    """The header at `position` of `content`, which has it whole; `offset` is where it stands in the segment.

    Raises CorruptedDataError, also for a record longer than any that is written: its reader would read so much.
    """
    found, key_length, value_length, version = _HEADER.unpack_from(content, position)
    if (
        found != _FORMAT
        or not 0 < key_length <= KEY_BYTES_MAX
        or not _REMOVED <= value_length <= ENTRY_BYTES_MAX - key_length
    ):
        raise CorruptedDataError(
            f"table record is damaged offset={offset} format={found} key_length={key_length}"
            f" value_length={value_length}"
        )
    removed = value_length == _REMOVED
    return RecordHeader(
        key_length, 0 if removed else value_length, removed, offset if version == _HERE else version
    )
