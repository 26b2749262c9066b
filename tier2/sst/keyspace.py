"""Keys and values of the SSTs: what is stored below a manifest, in the order in which it lies there.

- Everything of a segment lies together and its record comes first. As ids are never given again, a *removed record*
  removes the whole range behind it: a merge of SSTs drops it, and no caller reads it without reading the record first
  (the attributes of a deleted segment have nowhere to return from).
- Layout entries are found by their end: the first key above (id, offset) is the chunk that holds `offset`.
- References are derived, not counted: an object is alive while a key with its identity is.
- A filter answers for the *group* of a key, so that one look says whether an SST knows anything of a segment or object.
- The id of a record and the end of a layout entry are in their keys.

Keys. All numbers are big-endian, so that the order of bytes is the order of numbers.

    "c" name (UTF-8)                             -> segment id           the catalog
    "g" kind (u8) identity (20)                  -> garbage record       dropped objects that wait for their grace
    "p" name (ASCII)                             -> snapshot record      manifest versions kept for backups
    "r" identity (20) segment id (u64) end (u64) -> nothing              which layout entries name an object
    "s" segment id (u64) 0                       -> segment record
    "s" segment id (u64) 1 attribute key         -> attribute value
    "s" segment id (u64) 2 end offset (u64)      -> layout entry

Values. All numbers are big-endian.

    segment id      u64
    segment record  u8 version (1), u8 flags (1 sealed, 2 no extended attribute ever), u16 name length,
                    u64 start offset, u64 length, i64 last modified (Unix ms), u64 sequence number,
                    u16 core attribute count, name (UTF-8), then per core attribute: u8 key length, key, value
    attribute value u8 kind: 0, then i64; or 1, then u16 length and the bytes
    layout entry    see tier2/layout_entry.py
    garbage record  u64 manifest version that recorded it
    snapshot record see tier2/manifest/snapshots.py
"""

import struct
from collections.abc import Mapping

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import SegmentRecord
from tier2.container_objects import IDENTITY_BYTES, ObjectIdentity, ObjectKind

CATALOG = b"c"
GARBAGE = b"g"
SNAPSHOT = b"p"
REFERENCE = b"r"
SEGMENT = b"s"
KEYSPACES = (CATALOG, GARBAGE, SNAPSHOT, REFERENCE, SEGMENT)
"""In key order."""

_RECORD_KIND, _ATTRIBUTE_KIND, _LAYOUT_KIND = 0, 1, 2
_SEGMENT_KEY = struct.Struct(">cQB")
_LAYOUT_KEY = struct.Struct(">cQBQ")
_REFERENCE_TAIL = struct.Struct(">QQ")
_SEGMENT_GROUP_BYTES = 9
_REFERENCE_GROUP_BYTES = 1 + IDENTITY_BYTES
_RECORD_KEY_BYTES = _SEGMENT_KEY.size

_RECORD_VERSION = 1
_RECORD_SEALED, _RECORD_HAS_NO_EXTENDED_ATTRIBUTE = 1, 2
_RECORD_LAYOUT = struct.Struct(">BBHQQqQH")

_NUMBER_ATTRIBUTE = struct.Struct(">Bq")
_BYTES_ATTRIBUTE = struct.Struct(">BH")
_IS_NUMBER, _IS_BYTES = 0, 1


def catalog_key(name: str) -> bytes:
    """Where the catalog has a name."""
    return CATALOG + name.encode()


def name_of(key: bytes) -> str:
    """The name in a catalog key."""
    return key[1:].decode()


def record_key(segment_id: SegmentId) -> bytes:
    """Where a segment's record is."""
    return _SEGMENT_KEY.pack(SEGMENT, segment_id, _RECORD_KIND)


def is_record_key(key: bytes) -> bool:
    """Whether a key of any keyspace is the one of a segment record."""
    return len(key) == _RECORD_KEY_BYTES and key.startswith(SEGMENT) and key[-1] == _RECORD_KIND


def record_group(key: bytes) -> bytes:
    """What all keys of the segment begin with."""
    return key[:_SEGMENT_GROUP_BYTES]


def attribute_key(segment_id: SegmentId, key: AttributeKey) -> bytes:
    """Where an extended attribute is."""
    return _SEGMENT_KEY.pack(SEGMENT, segment_id, _ATTRIBUTE_KIND) + key


def attribute_range(segment_id: SegmentId) -> tuple[bytes, bytes]:
    """All extended attributes of a segment: first key, and the one behind the last."""
    return (
        _SEGMENT_KEY.pack(SEGMENT, segment_id, _ATTRIBUTE_KIND),
        _SEGMENT_KEY.pack(SEGMENT, segment_id, _LAYOUT_KIND),
    )


def attribute_of(key: bytes) -> AttributeKey:
    """The attribute that a key names."""
    return AttributeKey(key[_RECORD_KEY_BYTES:])


def past_attributes(key: bytes | None) -> bytes | None:
    """Where a walk over layouts goes on that came to `key`: behind the attributes of a segment, if it is one of them.

    A table keeps its index in attributes, as long as it has keys.
    """
    if key is None or key[:1] != SEGMENT or key[9:10] != bytes([_ATTRIBUTE_KIND]):
        return key
    return attribute_range(segment_of(key))[1]


def layout_key(segment_id: SegmentId, end_offset: int) -> bytes:
    """Where the layout entry with that end is."""
    return _LAYOUT_KEY.pack(SEGMENT, segment_id, _LAYOUT_KIND, end_offset)


def is_layout_key(key: bytes) -> bool:
    """Whether a key of any keyspace is the one of a layout entry."""
    return len(key) == _LAYOUT_KEY.size and key.startswith(SEGMENT) and key[9] == _LAYOUT_KIND


def layout_range(
    segment_id: SegmentId, above: int, up_to: int | None = None
) -> tuple[bytes, bytes]:
    """Entries whose end lies in (above, up_to]; to the last one for None."""
    first = layout_key(segment_id, above + 1)
    if up_to is None:
        return first, _SEGMENT_KEY.pack(SEGMENT, segment_id, _LAYOUT_KIND + 1)
    return first, layout_key(segment_id, up_to) + b"\0"


def end_offset_of(layout: bytes) -> int:
    """The end offset in a layout entry's key, or in where a scan goes on behind one: that is a byte longer."""
    return int.from_bytes(layout[_RECORD_KEY_BYTES : _LAYOUT_KEY.size], "big")


def segment_of(key: bytes) -> SegmentId:
    """The segment that a key of its range belongs to."""
    return SegmentId(int.from_bytes(key[1:_SEGMENT_GROUP_BYTES], "big"))


def reference_key(identity: ObjectIdentity, segment_id: SegmentId, end_offset: int) -> bytes:
    """Says that a layout entry names an object."""
    return REFERENCE + identity.encode() + _REFERENCE_TAIL.pack(segment_id, end_offset)


def reference_range(identity: ObjectIdentity) -> tuple[bytes, bytes]:
    """All references to an object: first key, and one behind the last."""
    first = REFERENCE + identity.encode()
    return first, first + b"\xff" * (_REFERENCE_TAIL.size + 1)


def reference_of(key: bytes) -> tuple[ObjectIdentity, SegmentId, int]:
    """Object, segment and end offset of a reference."""
    segment_id, end_offset = _REFERENCE_TAIL.unpack_from(key, _REFERENCE_GROUP_BYTES)
    identity = ObjectIdentity.decode(key[1:_REFERENCE_GROUP_BYTES])
    return identity, SegmentId(segment_id), end_offset


def garbage_key(kind: ObjectKind, identity: ObjectIdentity) -> bytes:
    """Where an object's garbage record is."""
    return GARBAGE + bytes((kind,)) + identity.encode()


def garbage_of(key: bytes) -> tuple[ObjectKind, ObjectIdentity]:
    """The object that a garbage record speaks of."""
    return ObjectKind(key[1]), ObjectIdentity.decode(key[2:])


def snapshot_key(name: str) -> bytes:
    """Where a snapshot's record is."""
    return SNAPSHOT + name.encode("ascii")


def snapshot_name_of(key: bytes) -> str:
    """The name of a snapshot."""
    return key[1:].decode("ascii")


def range_of(keyspace: bytes) -> tuple[bytes, bytes]:
    """All keys of one keyspace."""
    return keyspace, bytes((keyspace[0] + 1,))


def group_of(key: bytes) -> bytes:
    """What a filter is asked for: the segment or the object; the name itself in the catalog."""
    first = key[:1]
    if first == SEGMENT:
        return key[:_SEGMENT_GROUP_BYTES]
    if first == REFERENCE:
        return key[:_REFERENCE_GROUP_BYTES]
    return first if first == GARBAGE else key


def encode_id(segment_id: SegmentId) -> bytes:
    """The value of a catalog entry."""
    return segment_id.to_bytes(8, "big")


def decode_id(value: bytes) -> SegmentId:
    """Raises CorruptedDataError."""
    if len(value) != 8:
        raise CorruptedDataError(f"segment id has a wrong size bytes={len(value)}")
    return SegmentId(int.from_bytes(value, "big"))


def encode_record(record: SegmentRecord, *, no_extended_attribute: bool) -> bytes:
    """A record's bytes. What the record itself says of extended attributes is not looked at."""
    name = record.name.encode()
    flags = (_RECORD_SEALED if record.sealed else 0) | (
        _RECORD_HAS_NO_EXTENDED_ATTRIBUTE if no_extended_attribute else 0
    )
    head = _RECORD_LAYOUT.pack(
        _RECORD_VERSION,
        flags,
        len(name),
        record.start_offset,
        record.length,
        record.last_modified_ms,
        record.sequence_number,
        len(record.core_attributes),
    )
    if not record.core_attributes:
        return head + name
    parts = [head, name]
    for key, value in sorted(record.core_attributes.items()):
        parts += (bytes((len(key),)), key, encode_attribute(value))
    return b"".join(parts)


def decode_record(segment_id: SegmentId, value: bytes) -> SegmentRecord:
    """Raises CorruptedDataError."""
    try:
        version, flags, name_length, start, length, modified, sequence, count = (
            _RECORD_LAYOUT.unpack_from(value)
        )
        if version != _RECORD_VERSION:
            raise CorruptedDataError(f"segment record has an unknown version version={version}")
        position = _RECORD_LAYOUT.size + name_length
        name = value[_RECORD_LAYOUT.size : position].decode()
        attributes: Mapping[AttributeKey, AttributeValue] = {}
        if count:
            attributes, position = _decode_core_attributes(value, position, count)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptedDataError(f"segment record is damaged id={segment_id}") from error
    if position != len(value) or start > length:
        raise CorruptedDataError(
            f"segment record is damaged id={segment_id} end={position} bytes={len(value)}"
            f" start_offset={start} length={length}"
        )
    return SegmentRecord(
        segment_id=segment_id,
        name=name,
        start_offset=start,
        length=length,
        sealed=bool(flags & _RECORD_SEALED),
        last_modified_ms=modified,
        sequence_number=SequenceNumber(sequence),
        core_attributes=attributes,
        extended_attribute_count_is_zero=bool(flags & _RECORD_HAS_NO_EXTENDED_ATTRIBUTE),
    )


def _decode_core_attributes(
    value: bytes, position: int, count: int
) -> tuple[dict[AttributeKey, AttributeValue], int]:
    attributes: dict[AttributeKey, AttributeValue] = {}
    for _ in range(count):
        key_end = position + 1 + value[position]
        attributes[AttributeKey(value[position + 1 : key_end])], position = _decode_attribute_at(
            value, key_end
        )
    return attributes, position


def encode_attribute(value: AttributeValue) -> bytes:
    """See the module; decode_attribute() is the way back."""
    if isinstance(value, int):
        return _NUMBER_ATTRIBUTE.pack(_IS_NUMBER, value)
    return _BYTES_ATTRIBUTE.pack(_IS_BYTES, len(value)) + value


def decode_attribute(content: bytes) -> AttributeValue:
    """Raises CorruptedDataError."""
    try:
        value, end = _decode_attribute_at(content, 0)
    except (struct.error, IndexError) as error:
        raise CorruptedDataError(f"attribute value is cut off bytes={len(content)}") from error
    if end != len(content):
        raise CorruptedDataError(f"attribute value has a tail end={end} bytes={len(content)}")
    return value


def _decode_attribute_at(content: bytes, position: int) -> tuple[AttributeValue, int]:
    kind = content[position]
    if kind == _IS_NUMBER:
        number: int = _NUMBER_ATTRIBUTE.unpack_from(content, position)[1]
        return number, position + _NUMBER_ATTRIBUTE.size
    if kind != _IS_BYTES:
        raise CorruptedDataError(f"attribute value has an unknown kind kind={kind}")
    length = _BYTES_ATTRIBUTE.unpack_from(content, position)[1]
    end = position + _BYTES_ATTRIBUTE.size + length
    if end > len(content):
        raise CorruptedDataError(f"attribute value is cut off end={end} bytes={len(content)}")
    return content[position + _BYTES_ATTRIBUTE.size : end], end


def encode_garbage(root_version: int) -> bytes:
    """The value of a garbage record."""
    return root_version.to_bytes(8, "big")


def decode_garbage(value: bytes) -> int:
    """The manifest version that recorded it. Raises CorruptedDataError."""
    if len(value) != 8:
        raise CorruptedDataError(f"garbage record has a wrong size bytes={len(value)}")
    return int.from_bytes(value, "big")
