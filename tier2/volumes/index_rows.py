"""The rows of the index: keys by their first byte, and values.

    o key                             the current version of an object                      ObjectRow
    v key 00 (2^64 - 1 - sequence)    its earlier versions, newest first                    ObjectRow
    i key 00 version id               which of them that is: the number of its put            u64
    b SHA-256                         where the bytes of that hash are, and who names them  BlobRow
    s u32                             a volume: how far it is indexed, what of it is live   VolumeRow
    m name                            numbers of the engine

    ObjectRow   u32 volume, u64 offset of the record, u64 length of the record, u32 length of the index record,
                index record, inline bytes (only of objects that are small enough)
    BlobRow     u32 volume, u64 offset of the record, u64 offset of the blob, u64 size, u32 references
    VolumeRow   u64 indexed to, u64 live bytes, u64 lowest sequence, u64 highest sequence, u64 bytes of tombstones,
                u64 lowest `oldest` of its tombstones

While an index is rebuilt there are also (rebuild):

    a key 00 version id               the newest record seen so far: u64 sequence, then ObjectRow (none: a tombstone)

Object keys hold no zero byte. Invariants: an `i` row exists exactly for each `v` row; a blob row exists exactly while
some object row names its hash and has no inline bytes; `live bytes` of a volume is the sum of the record lengths
(without blobs) of its object rows and of the sizes of its blob rows.
"""

import struct
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.index_record import (
    RECORD_FRONT,
    IndexRecord,
    decode_index_record,
    encode_index_record,
)

OBJECT_LAYOUT = struct.Struct(">IQQI")
_PLACE = struct.Struct(">IQ")
"""What OBJECT_LAYOUT begins with."""
_BLOB = struct.Struct(">IQQQI")
_VOLUME = struct.Struct(">QQQQQQ")
_SEQUENCE = struct.Struct(">Q")
SEQUENCE_MAX = (1 << 64) - 1

CURRENT, VERSION, VERSION_ID, BLOB, VOLUME, META, STAGED = b"o", b"v", b"i", b"b", b"s", b"m", b"a"
NEXT_SEQUENCE = META + b"next_sequence"


def current_key(key: bytes) -> bytes:
    """Of the row of an object's current version."""
    return CURRENT + key


def versions_first(key: bytes) -> bytes:
    """The rows of earlier versions of a key are at or behind it, and before `versions_end`."""
    return VERSION + key + b"\0"


def versions_end(key: bytes) -> bytes:
    """See versions_first."""
    return VERSION + key + b"\1"


def version_key(key: bytes, sequence: int) -> bytes:
    """Of the row of an earlier version."""
    return versions_first(key) + (SEQUENCE_MAX - sequence).to_bytes(8, "big")


def version_id_key(key: bytes, version_id: str) -> bytes:
    """Of the row that finds an earlier version by its id."""
    return VERSION_ID + key + b"\0" + version_id.encode()


def staged_key(key: bytes, version_id: str) -> bytes:
    """Of the newest record of a key and version that a rebuild has seen."""
    return STAGED + key + b"\0" + version_id.encode()


def blob_key(content_hash: bytes) -> bytes:
    """Of a blob row."""
    return BLOB + content_hash


def volume_key(number: int) -> bytes:
    """Of a volume row."""
    return VOLUME + number.to_bytes(4, "big")


@dataclass(slots=True)
class ObjectRow:
    """A version of an object as the index has it."""

    volume: int
    record_offset: int
    record_length: int
    """Bytes of the record in its volume without a blob that has a row of its own."""
    record: IndexRecord
    inline: bytes | None = None

    @property
    def has_blob_row(self) -> bool:
        return not self.record.inline and self.record.size > 0


@dataclass(slots=True)
class BlobRow:
    """Where deduplicated bytes are."""

    volume: int
    record_offset: int
    blob_offset: int
    """From the start of the volume."""
    size: int
    references: int


@dataclass(slots=True)
class VolumeRow:
    """What the index knows of a volume."""

    indexed_to: int
    live_bytes: int
    sequence_lowest: int
    sequence_highest: int
    tombstone_bytes: int = 0
    tombstone_oldest: int = SEQUENCE_MAX
    """The lowest number of a record that a tombstone in it may be there for."""


NEW_VOLUME_ROW = VolumeRow(
    indexed_to=0, live_bytes=0, sequence_lowest=SEQUENCE_MAX, sequence_highest=0
)


def encode_object_row(row: ObjectRow, index_record: bytes | None = None) -> bytes:
    """See the module; `index_record` saves encoding the record again."""
    record = encode_index_record(row.record) if index_record is None else index_record
    fixed = OBJECT_LAYOUT.pack(row.volume, row.record_offset, row.record_length, len(record))
    return fixed + record + (row.inline or b"")


def decode_object_row(content: bytes) -> ObjectRow:
    """Raises CorruptedDataError."""
    try:
        volume, record_offset, record_length, length = OBJECT_LAYOUT.unpack_from(content)
    except struct.error as error:
        raise CorruptedDataError("object row is cut off") from error
    end = OBJECT_LAYOUT.size + length
    record = decode_index_record(content[OBJECT_LAYOUT.size : end])
    inline = content[end:] if record.inline else None
    return ObjectRow(volume, record_offset, record_length, record, inline)


RowMove: TypeAlias = tuple[bytes, bytes, bytes]
"""The key of a current version's row, the place that it names (`encode_place`), and the row with another place."""


def encode_place(volume: int, record_offset: int) -> bytes:
    """What the row of a record at that place begins with, and no other row."""
    return _PLACE.pack(volume, record_offset)


def row_at_place(content: bytes, volume: int, record_offset: int) -> bytes:
    """The same row of a record that was copied there."""
    return _PLACE.pack(volume, record_offset) + content[_PLACE.size :]


def has_version_id(content: BufferView) -> bool:
    """Whether the version of an object row has an id, without taking the row apart."""
    length: int = RECORD_FRONT.unpack_from(content, OBJECT_LAYOUT.size)[3]
    return length > 0


def plain_row_sequence(content: BufferView) -> int:
    """The number of the put that made a row, without taking the row apart."""
    sequence: int = RECORD_FRONT.unpack_from(content, OBJECT_LAYOUT.size)[2]
    return sequence


def plain_row_volume_and_length(content: BufferView) -> tuple[int, int]:
    """Where the record of a row is, and how long."""
    volume, _, length, _ = OBJECT_LAYOUT.unpack_from(content)
    return volume, length


def encode_blob_row(row: BlobRow) -> bytes:
    """See the module."""
    return _BLOB.pack(row.volume, row.record_offset, row.blob_offset, row.size, row.references)


def decode_blob_row(content: bytes) -> BlobRow:
    """Raises CorruptedDataError."""
    try:
        return BlobRow(*_BLOB.unpack(content))
    except struct.error as error:
        raise CorruptedDataError("blob row has a wrong length") from error


def encode_volume_row(row: VolumeRow) -> bytes:
    """See the module."""
    return _VOLUME.pack(
        row.indexed_to,
        row.live_bytes,
        row.sequence_lowest,
        row.sequence_highest,
        row.tombstone_bytes,
        row.tombstone_oldest,
    )


def decode_volume_row(content: bytes) -> VolumeRow:
    """Raises CorruptedDataError."""
    try:
        return VolumeRow(*_VOLUME.unpack(content))
    except struct.error as error:
        raise CorruptedDataError("volume row has a wrong length") from error


def encode_sequence(sequence: int) -> bytes:
    """Eight bytes."""
    return _SEQUENCE.pack(sequence)


def decode_sequence(content: bytes) -> int:
    """Raises CorruptedDataError."""
    try:
        sequence: int = _SEQUENCE.unpack(content)[0]
    except struct.error as error:
        raise CorruptedDataError("a number of the index has a wrong length") from error
    return sequence


def encode_staged_row(sequence: int, row: ObjectRow | None) -> bytes:
    """See the module; None for a tombstone."""
    return _SEQUENCE.pack(sequence) + (b"" if row is None else encode_object_row(row))


def decode_staged_row(content: bytes) -> tuple[int, ObjectRow | None]:
    """Raises CorruptedDataError."""
    sequence = decode_sequence(content[: _SEQUENCE.size])
    rest = content[_SEQUENCE.size :]
    return sequence, decode_object_row(rest) if rest else None
