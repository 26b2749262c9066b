"""The rows of the index: keys by their first byte, and values.

    o key                             the current version of an object                      ObjectRow
    v key 00 (2^64 - 1 - sequence)    its earlier versions, newest first                    ObjectRow
    b SHA-256                         where the bytes of that hash are, and who names them  BlobRow
    s u32                             a volume: how far it is indexed, what of it is live   VolumeRow
    m name                            numbers of the engine

    ObjectRow   u32 volume, u64 offset of the record, u64 length of the record, u32 length of the index record,
                index record, inline bytes (only of objects that are small enough)
    BlobRow     u32 volume, u64 offset of the record, u64 offset of the blob, u64 size, u32 references
    VolumeRow   u64 indexed to, u64 live bytes, u64 lowest sequence, u64 highest sequence

Object keys hold no zero byte. Invariants: a blob row exists exactly while some object row names its hash and has no
inline bytes; `live bytes` of a volume is the sum of the record lengths (without blobs) of its object rows and of the
sizes of its blob rows.
"""

import struct
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from tier2.volumes.index_record import IndexRecord, decode_index_record, encode_index_record

_OBJECT = struct.Struct(">IQQI")
_BLOB = struct.Struct(">IQQQI")
_VOLUME = struct.Struct(">QQQQ")
_SEQUENCE_MAX = (1 << 64) - 1

CURRENT, VERSION, BLOB, VOLUME, META = b"o", b"v", b"b", b"s", b"m"
NEXT_SEQUENCE = META + b"next_sequence"
ENGINE_ID = META + b"engine_id"


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
    return versions_first(key) + (_SEQUENCE_MAX - sequence).to_bytes(8, "big")


def blob_key(content_hash: bytes) -> bytes:
    """Of a blob row."""
    return BLOB + content_hash


def volume_key(number: int) -> bytes:
    """Of a volume row."""
    return VOLUME + number.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class BlobRow:
    """Where deduplicated bytes are."""

    volume: int
    record_offset: int
    blob_offset: int
    """From the start of the volume."""
    size: int
    references: int


@dataclass(frozen=True, slots=True)
class VolumeRow:
    """What the index knows of a volume."""

    indexed_to: int
    live_bytes: int
    sequence_lowest: int
    sequence_highest: int


def encode_object_row(row: ObjectRow) -> bytes:
    """See the module."""
    record = encode_index_record(row.record)
    fixed = _OBJECT.pack(row.volume, row.record_offset, row.record_length, len(record))
    return fixed + record + (row.inline or b"")


def decode_object_row(content: bytes) -> ObjectRow:
    """Raises CorruptedDataError."""
    try:
        volume, record_offset, record_length, length = _OBJECT.unpack_from(content)
    except struct.error as error:
        raise CorruptedDataError("object row is cut off") from error
    end = _OBJECT.size + length
    record = decode_index_record(memoryview(content)[_OBJECT.size : end])
    return ObjectRow(
        volume=volume,
        record_offset=record_offset,
        record_length=record_length,
        record=record,
        inline=content[end:] if record.inline else None,
    )


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
    return _VOLUME.pack(row.indexed_to, row.live_bytes, row.sequence_lowest, row.sequence_highest)


def decode_volume_row(content: bytes) -> VolumeRow:
    """Raises CorruptedDataError."""
    try:
        return VolumeRow(*_VOLUME.unpack(content))
    except struct.error as error:
        raise CorruptedDataError("volume row has a wrong length") from error
