"""Values of the sorted runs, each with its bytes. All numbers are big-endian.

    segment id      u64
    segment record  u8 version (1), u8 flags (1 sealed, 2 no extended attribute ever), u16 name length,
                    u64 start offset, u64 length, i64 last modified (Unix ms), u64 sequence number,
                    u16 core attribute count, name (UTF-8), then per core attribute: u8 key length, key, value
    attribute value u8 kind: 0, then i64; or 1, then u16 length and the bytes
    layout entry    identity (20), u64 start offset in the segment, u64 position and u64 size of the image in the
                    object, u32 file CRC32 of the image, u64 the image's own first offset; for moved bytes then
                    u8 events (0 as the image says, 1 the entry begins on one, 2 those of the image do not count),
                    u64 what to add to the image's event numbers. Both are left out where they are zero
    garbage record  u64 root version that recorded it
    pin record      see tier2/storage/pins.py

The id of a record and the end of a layout entry are in their keys. After a merge the image's own first offset is still
the source's, and so are its event numbers: the entry alone says where the bytes are in the segment (H10, H76).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import SegmentRecord
from tier2.storage.object_names import IDENTITY_BYTES, ObjectIdentity

_VERSION = 1
_SEALED, _NO_EXTENDED_ATTRIBUTE = 1, 2
_RECORD = struct.Struct(">BBHQQqQH")
_ENTRY = struct.Struct(f">{IDENTITY_BYTES}sQQQIQ")
_ENTRY_EVENTS = struct.Struct(">BQ")
_NUMBER = struct.Struct(">Bq")
_BYTES = struct.Struct(">BH")
_IS_NUMBER, _IS_BYTES = 0, 1


class EntryEvents(IntEnum):
    """What a layout entry says of the events in its image. Persistent: never renumber."""

    AS_IN_IMAGE = 0
    BEGINS_ON_ONE = 1
    """The entry begins with an event, whatever the image knows of its first block."""
    NOT_COUNTED = 2
    """The segment does not count the image's events: their numbers mean nothing here."""


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Where the bytes [start_offset, end_offset) of a segment lie."""

    start_offset: int
    end_offset: int
    identity: ObjectIdentity
    position: int
    size: int
    file_crc32: int
    chunk_offset: int
    events: EntryEvents = EntryEvents.AS_IN_IMAGE
    event_shift: int = 0
    """What to add to the image's event numbers to have the segment's."""

    @property
    def length(self) -> int:
        return self.end_offset - self.start_offset

    def encode(self) -> bytes:
        place = _ENTRY.pack(
            self.identity.encode(),
            self.start_offset,
            self.position,
            self.size,
            self.file_crc32,
            self.chunk_offset,
        )
        if not self.events and not self.event_shift:
            return place
        return place + _ENTRY_EVENTS.pack(self.events, self.event_shift)

    @staticmethod
    def decode(end_offset: int, value: bytes) -> "LayoutEntry":
        """Raises CorruptedDataError."""
        if len(value) not in (_ENTRY.size, _ENTRY.size + _ENTRY_EVENTS.size):
            raise CorruptedDataError(f"layout entry has a wrong size bytes={len(value)}")
        identity, start, position, size, crc, chunk_offset = _ENTRY.unpack_from(value)
        if start >= end_offset:
            raise CorruptedDataError(f"layout entry is empty start={start} end={end_offset}")
        events, shift = 0, 0
        if len(value) > _ENTRY.size:
            events, shift = _ENTRY_EVENTS.unpack_from(value, _ENTRY.size)
            if events not in _ENTRY_EVENTS_KNOWN:
                raise CorruptedDataError(f"layout entry of an unknown kind events={events}")
        return LayoutEntry(
            start,
            end_offset,
            ObjectIdentity.decode(identity),
            position,
            size,
            crc,
            chunk_offset,
            EntryEvents(events),
            shift,
        )


_ENTRY_EVENTS_KNOWN = frozenset(int(events) for events in EntryEvents)


def encode_attribute(value: AttributeValue) -> bytes:
    """See the module; decode_attribute() is the way back."""
    if isinstance(value, int):
        return _NUMBER.pack(_IS_NUMBER, value)
    return _BYTES.pack(_IS_BYTES, len(value)) + value


def _decode_attribute_at(content: bytes, position: int) -> tuple[AttributeValue, int]:
    kind = content[position]
    if kind == _IS_NUMBER:
        number: int = _NUMBER.unpack_from(content, position)[1]
        return number, position + _NUMBER.size
    if kind != _IS_BYTES:
        raise CorruptedDataError(f"attribute value has an unknown kind kind={kind}")
    length = _BYTES.unpack_from(content, position)[1]
    end = position + _BYTES.size + length
    if end > len(content):
        raise CorruptedDataError(f"attribute value is cut off end={end} bytes={len(content)}")
    return content[position + _BYTES.size : end], end


def decode_attribute(content: bytes) -> AttributeValue:
    """Raises CorruptedDataError."""
    try:
        value, end = _decode_attribute_at(content, 0)
    except (struct.error, IndexError) as error:
        raise CorruptedDataError(f"attribute value is cut off bytes={len(content)}") from error
    if end != len(content):
        raise CorruptedDataError(f"attribute value has a tail end={end} bytes={len(content)}")
    return value


def encode_record(record: SegmentRecord, *, no_extended_attribute: bool) -> bytes:
    """A record's bytes. What the record itself says of extended attributes is not looked at."""
    name = record.name.encode()
    flags = (_SEALED if record.sealed else 0) | (
        _NO_EXTENDED_ATTRIBUTE if no_extended_attribute else 0
    )
    head = _RECORD.pack(
        _VERSION,
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
        version, flags, name_length, start, length, modified, sequence, count = _RECORD.unpack_from(
            value
        )
        if version != _VERSION:
            raise CorruptedDataError(f"segment record has an unknown version version={version}")
        position = _RECORD.size + name_length
        name = value[_RECORD.size : position].decode()
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
        sealed=bool(flags & _SEALED),
        last_modified_ms=modified,
        sequence_number=SequenceNumber(sequence),
        core_attributes=attributes,
        extended_attribute_count_is_zero=bool(flags & _NO_EXTENDED_ATTRIBUTE),
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


def encode_id(segment_id: SegmentId) -> bytes:
    """The value of a catalog entry."""
    return segment_id.to_bytes(8, "big")


def decode_id(value: bytes) -> SegmentId:
    """Raises CorruptedDataError."""
    if len(value) != 8:
        raise CorruptedDataError(f"segment id has a wrong size bytes={len(value)}")
    return SegmentId(int.from_bytes(value, "big"))


def decode_garbage(value: bytes) -> int:
    """The root version that recorded it. Raises CorruptedDataError."""
    if len(value) != 8:
        raise CorruptedDataError(f"garbage record has a wrong size bytes={len(value)}")
    return int.from_bytes(value, "big")


def encode_garbage(root_version: int) -> bytes:
    """The value of a garbage record."""
    return root_version.to_bytes(8, "big")
