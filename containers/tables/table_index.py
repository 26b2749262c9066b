"""The index of a table segment: its extended attributes.

    attribute key      0x01, then the key of the table
    attribute value    u64 offset and u32 length of the newest record; after compaction also u64 version, which
                       without it is the offset. Big-endian. A removed key has no attribute.

and, among its core attributes, so that they are always in memory:

    TABLE_KEY_LENGTH   0 for the hash layout, else the length of every key; who has it is a table
    SEGMENT_TYPE       TABLE, for those who look at Pravega's attribute
    ENTRY_COUNT        keys that exist
    LIVE_BYTES         bytes of their newest records

Records and index change in one operation, so whatever brings the one back brings the other (H15, H66).
"""

import struct
from typing import Final, NamedTuple

from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
)

TABLE: Final = 1
"""Value of SEGMENT_TYPE."""

ENTRY_COUNT: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00table\x00\x01")
LIVE_BYTES: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00table\x00\x02")

INDEX_PREFIX: Final = b"\x01"
INDEX_END: Final = b"\x02"

_PLACE = struct.Struct(">QI")
_MOVED = struct.Struct(">QIQ")
_OFFSET = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_PLACE_BYTES = _PLACE.size


class Place(NamedTuple):
    """Where the newest record of a key is."""

    offset: int
    length: int
    version: int


def index_key(key: bytes) -> AttributeKey:
    """The attribute that says where the record of a table's key is."""
    return AttributeKey(INDEX_PREFIX + key)


def encode_place(offset: int, length: int) -> bytes:
    """A record whose version is its offset."""
    return _PLACE.pack(offset, length)


def encode_moved(offset: int, length: int, version: int) -> bytes:
    """A record that compaction put there."""
    return _MOVED.pack(offset, length, version)


def decode_place(value: AttributeValue) -> Place:
    """Raises CorruptedDataError."""
    if isinstance(value, bytes):
        if len(value) == _PLACE_BYTES:
            offset, length = _PLACE.unpack(value)
            return Place(offset, length, offset)
        if len(value) == _MOVED.size:
            return Place(*_MOVED.unpack(value))
    raise CorruptedDataError(f"table index is damaged value={value!r}")


def record_length_of(value: AttributeValue) -> int:
    """How long the newest record is. Raises CorruptedDataError."""
    if isinstance(value, bytes) and len(value) == _PLACE_BYTES:
        length: int = _LENGTH.unpack_from(value, _OFFSET.size)[0]
        return length
    return decode_place(value).length


def stands_at(value: AttributeValue, offset: int) -> bool:
    """Whether that is where the newest record is. Raises CorruptedDataError for a value that is no place."""
    if not isinstance(value, bytes) or len(value) < _PLACE_BYTES:
        return decode_place(value).offset == offset
    return value.startswith(_OFFSET.pack(offset))


def is_table(segment: SegmentMetadata) -> bool:
    """Whether the segment was created as a table.

    Only this attribute says so, which nothing but a creation can set: SEGMENT_TYPE is anybody's to write.
    """
    return TABLE_KEY_LENGTH in segment.attributes.core_values


def key_length_of(segment: SegmentMetadata) -> int:
    """0 for the hash layout."""
    value = segment.attributes.core_values.get(TABLE_KEY_LENGTH, 0)
    assert isinstance(value, int), f"key length of {segment!r} is {value!r}"
    return value
