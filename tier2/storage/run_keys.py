"""Keys of the sorted runs: what is stored under a root, in the order in which it lies there.

    "c" name (UTF-8)                             -> segment id           the catalog
    "g" kind (u8) identity (20)                  -> garbage record       dropped objects that wait for their grace
    "p" name (ASCII)                             -> pin record           root versions kept for backups
    "r" identity (20) segment id (u64) end (u64) -> nothing              which layout entries name an object
    "s" segment id (u64) 0                       -> segment record
    "s" segment id (u64) 1 attribute key         -> attribute value
    "s" segment id (u64) 2 end offset (u64)      -> layout entry

All numbers are big-endian, so that the order of bytes is the order of numbers.

- Everything of a segment lies together and its record comes first. As ids are never given again, a *removed record*
  removes the whole range behind it: merging a run drops it, and nobody reads it without reading the record first
  (H67: the attributes of a deleted segment have nowhere to return from).
- Layout entries are found by their end: the first key above (id, offset) is the chunk that holds `offset`.
- References are derived, not counted (H12): an object is alive while a key with its identity is.
- A filter answers for the *group* of a key, so that one look says whether a run knows anything of a segment or object.
"""

import struct

from segmentstore.contracts.identifiers import AttributeKey, SegmentId
from tier2.storage.object_names import IDENTITY_BYTES, ObjectIdentity, ObjectKind

CATALOG = b"c"
GARBAGE = b"g"
PIN = b"p"
REFERENCE = b"r"
SEGMENT = b"s"
KEYSPACES = (CATALOG, GARBAGE, PIN, REFERENCE, SEGMENT)
"""In key order."""

_RECORD, _ATTRIBUTE, _LAYOUT = 0, 1, 2
_SEGMENT_KEY = struct.Struct(">cQB")
_LAYOUT_KEY = struct.Struct(">cQBQ")
_REFERENCE_TAIL = struct.Struct(">QQ")
_SEGMENT_GROUP_BYTES = 9
_REFERENCE_GROUP_BYTES = 1 + IDENTITY_BYTES
_RECORD_KEY_BYTES = _SEGMENT_KEY.size


def catalog_key(name: str) -> bytes:
    """Where the catalog has a name."""
    return CATALOG + name.encode()


def name_of(key: bytes) -> str:
    """The name in a catalog key."""
    return key[1:].decode()


def record_key(segment_id: SegmentId) -> bytes:
    """Where a segment's record is."""
    return _SEGMENT_KEY.pack(SEGMENT, segment_id, _RECORD)


def is_record_key(key: bytes) -> bool:
    """Whether a key of any keyspace is the one of a segment record."""
    return len(key) == _RECORD_KEY_BYTES and key.startswith(SEGMENT) and key[-1] == _RECORD


def record_group(key: bytes) -> bytes:
    """What all keys of the segment begin with."""
    return key[:_SEGMENT_GROUP_BYTES]


def attribute_key(segment_id: SegmentId, key: AttributeKey) -> bytes:
    """Where an extended attribute is."""
    return _SEGMENT_KEY.pack(SEGMENT, segment_id, _ATTRIBUTE) + key


def attribute_range(segment_id: SegmentId) -> tuple[bytes, bytes]:
    """All extended attributes of a segment: first key, and the one behind the last."""
    return (
        _SEGMENT_KEY.pack(SEGMENT, segment_id, _ATTRIBUTE),
        _SEGMENT_KEY.pack(SEGMENT, segment_id, _LAYOUT),
    )


def attribute_of(key: bytes) -> AttributeKey:
    """The attribute that a key names."""
    return AttributeKey(key[_RECORD_KEY_BYTES:])


def layout_key(segment_id: SegmentId, end_offset: int) -> bytes:
    """Where the layout entry with that end is."""
    return _LAYOUT_KEY.pack(SEGMENT, segment_id, _LAYOUT, end_offset)


def is_layout_key(key: bytes) -> bool:
    """Whether a key of any keyspace is the one of a layout entry."""
    return len(key) == _LAYOUT_KEY.size and key.startswith(SEGMENT) and key[9] == _LAYOUT


def layout_range(
    segment_id: SegmentId, above: int, up_to: int | None = None
) -> tuple[bytes, bytes]:
    """Entries whose end lies in (above, up_to]; to the last one for None."""
    first = layout_key(segment_id, above + 1)
    if up_to is None:
        return first, _SEGMENT_KEY.pack(SEGMENT, segment_id, _LAYOUT + 1)
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


def pin_key(name: str) -> bytes:
    """Where a pin is."""
    return PIN + name.encode("ascii")


def pin_name_of(key: bytes) -> str:
    """The name of a pin."""
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
