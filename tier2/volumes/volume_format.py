"""The first 64 bytes of a volume.

     0  8  magic b"S4VOLUME"
     8  2  format version, 1
    10  2  reserved, zero
    12  4  number of the volume, the one in its name
    16  8  secret: seeds every checksum of the volume's records (H71)
    24  8  created, Unix milliseconds; only shown
    32  16 id of the engine that made it: a volume of another store is refused
    48  8  sequence number at which every record in it was new, or still counted: tombstones that are older are not
           there for anything in it (H70), and a rebuild continues above it
    56  4  reserved, zero
    60  4  CRC32 of the 60 bytes before

Big-endian. Invariant: written and synced, with its directory, before the first record.

One record of a volume: a blob's header with what a rebuild needs besides, then key, index record, blob.

     0  4  mark b"S4rc"
     4  4  header CRC32, of bytes 8 to 48, seeded with the volume's secret
     8  4  crc         CRC32 of key, index record and blob, seeded likewise
    12  8  timestamp   Unix milliseconds; only shown (H69)
    20  4  key_len
    24  8  blob_len    0 for everything but a put that brings its own bytes
    32  1  is_deleted  1: a tombstone: the key (and version) is gone
    33  1  kind        see RecordKind
    34  2  records of the same group that stand behind this one; 0 for the last of a group (and for every copy)
    36  4  index record length
    40  8  sequence number of this change; the highest of a key and version wins (H69)
    48     key, index record, blob; then zeros up to a multiple of 8

Big-endian. The five fields named crc to is_deleted describe the blob; the rest is what lets a volume alone
rebuild the index (H68), keep its order (H69), know whether its last group is whole, and be read past damage (H71): a
bad body is skipped by the length in its good header, and only a bad header makes the scan search for the next mark, at
multiples of 8.

What is known of one version of one object; and its bytes.

    version         u8   1
    flags           u8   bit 0 delete marker, bit 1 governance, bit 2 compliance, bit 3 legal hold,
                         bit 4 versioned, bit 5 inline: its records carry its bytes, and so does the index
    reserved        u16  zero
    size            u64  bytes of the object
    sequence        u64  number of the put that made this version; later changes of it keep it (H69)
    oldest          u64  no record of this key and version id that still counts for anything has a lower number: what
                         a tombstone has to outlive (H70)
    created_ms      u64  Unix time of the put; only shown, never compared
    retain_until_ms u64  0: no retention
    piece_bytes     u32  stretch of the blob under one checksum
    content_hash    32 bytes  SHA-256 of the object; of one whose key says which bytes it has, a hash of its key, size
                         and pieces, by another function (content.digest_by_name)
    version_id, etag, content_type     each u16 length + UTF-8
    metadata        u16 count, then each: u16 length + name, u32 length + value (UTF-8)
    pieces          u32 count, then each: u32 CRC32 of a piece, in order

All numbers are big-endian. Where the blob lies is not part of it: a record's place in its volume says that, or the
blob table of the index for deduplicated content.

Invariants: `pieces` covers the whole blob; a delete marker has size 0 and no pieces; both retention modes at once and
unknown flags are refused.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes.objects import IndexRecord, RetentionMode

VOLUME_HEADER_BYTES = 64
_LAYOUT = struct.Struct(">8sHHIQQ16sQ4s")
_MAGIC = b"S4VOLUME"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class VolumeHeader:
    """The named fields."""

    number: int
    secret: int
    created_ms: int
    engine_id: bytes
    sequence_first: int


def encode_volume_header(header: VolumeHeader) -> bytes:
    """The 64 bytes."""
    body = _LAYOUT.pack(
        _MAGIC,
        _VERSION,
        0,
        header.number,
        header.secret,
        header.created_ms,
        header.engine_id,
        header.sequence_first,
        bytes(4),
    )
    return body + crc32_of(body).to_bytes(4, "big")


def decode_volume_header(content: BufferView) -> VolumeHeader:
    """Raises CorruptedDataError."""
    if len(content) < VOLUME_HEADER_BYTES:
        raise CorruptedDataError(f"volume header is cut off bytes={len(content)}")
    body = memoryview(content)[:60]
    if crc32_of(body) != int.from_bytes(content[60:64], "big"):
        raise CorruptedDataError("volume header fails its checksum")
    magic, version, reserved, number, secret, created_ms, engine_id, first, rest = _LAYOUT.unpack(
        body
    )
    if magic != _MAGIC or version != _VERSION or reserved or rest != bytes(4):
        raise CorruptedDataError(f"not a volume {magic=} {version=}")
    return VolumeHeader(number, secret, created_ms, engine_id, first)


_NATIVE = native_module("segmentstore.runtime.native.digests")

MARK = b"S4rc"
RECORD_HEADER_BYTES = 48
ALIGNMENT = 8
KEY_BYTES_MAX = 4096
INDEX_RECORD_BYTES_MAX = 16 << 20
_CHECKED = struct.Struct(">IQIQBBHIQ")
_FRONT = struct.Struct(">4sI")
RECORD_LAYOUT = struct.Struct(">4sII8xIQHHIQ")
"""The whole fixed part without its timestamp, `is_deleted` and `kind` as one number."""
_PADDINGS = [bytes(length) for length in range(ALIGNMENT)]
_COPIED_BYTES_MAX = 16 << 10
"""Shorter blobs are copied: fewer buffers to write cost less than the bytes do."""


class RecordKind(IntEnum):
    """What a record does. Persistent: never renumber."""

    PUT = 1
    """A version of an object; with its bytes, or (blob_len 0, size above 0) a reference to a blob of the same hash."""
    CHANGE = 2
    """The same version with other hold or retention."""
    TOMBSTONE = 3
    """The key, or the version named in the index record, is gone."""
    BLOB = 4
    """Bytes alone, for references elsewhere: has no key, and changes no object."""


_TOMBSTONE = RecordKind.TOMBSTONE
_KINDS = {kind.value: kind for kind in RecordKind}


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The fixed part of a record."""

    crc: int
    timestamp_ms: int
    key_length: int
    blob_length: int
    kind: RecordKind
    index_record_length: int
    sequence: int
    batch_left: int = 0
    """Records of its group behind it."""

    @property
    def is_deleted(self) -> bool:
        return self.kind is RecordKind.TOMBSTONE

    @property
    def body_length(self) -> int:
        return self.key_length + self.index_record_length + self.blob_length

    @property
    def total_length(self) -> int:
        """With the zeros behind it."""
        length = RECORD_HEADER_BYTES + self.body_length
        return length + (-length % ALIGNMENT)

    @property
    def blob_offset(self) -> int:
        """Of the blob, from the start of the record."""
        return RECORD_HEADER_BYTES + self.key_length + self.index_record_length


@lru_cache(maxsize=64)
def seed_of(secret: int) -> int:
    """What every checksum of a volume starts from."""
    return crc32_of(secret.to_bytes(8, "big"))


BatchRecord: TypeAlias = tuple[RecordKind, int, bytes, bytes, Sequence[BufferView]]
"""Kind, sequence number, key, index record and blob. A tuple: each change makes one."""


def crc32_all(contents: Sequence[Sequence[BufferView]], value: int) -> list[int]:
    """Of each, as if its buffers were one, behind what `value` is the checksum of."""
    if _NATIVE is None:
        return _crc32_all(contents, value)
    found: list[int] = _NATIVE.crc32_all(contents, value)
    return found


def _crc32_all(contents: Sequence[Sequence[BufferView]], value: int) -> list[int]:
    found: list[int] = []
    for content in contents:
        crc = value
        for buffer in content:
            crc = crc32_of(buffer, crc)
        found.append(crc)
    return found


def encode_records(
    records: Sequence[BatchRecord], *, secret: int, timestamp_ms: int
) -> list[BufferView]:
    """All records of a group, to write one behind the other; long blobs are passed on as they are."""
    headers = encode_batch_headers(records, seed=seed_of(secret), timestamp_ms=timestamp_ms)
    buffers: list[BufferView] = []
    for header, (_, _, key, indexed, blob) in zip(headers, records, strict=True):
        blob_length = sum(map(len, blob))
        padding = padding_of(len(key) + len(indexed) + blob_length)
        if blob_length <= _COPIED_BYTES_MAX:
            buffers.append(b"".join((header, key, indexed, *blob, padding)))
        else:
            buffers += (header + key + indexed, *blob, padding)
    return buffers


def encode_batch_headers(
    records: Sequence[BatchRecord], *, seed: int, timestamp_ms: int
) -> list[bytes]:
    """The fixed parts of all records of a group."""
    crcs = crc32_all([(key, indexed, *blob) for _, _, key, indexed, blob in records], seed)
    headers: list[bytes] = []
    batch_left = len(records)
    for (kind, sequence, key, indexed, blob), crc in zip(records, crcs, strict=True):
        batch_left -= 1
        checked = _CHECKED.pack(
            crc,
            timestamp_ms,
            len(key),
            sum(map(len, blob)),
            kind is _TOMBSTONE,
            kind,
            batch_left,
            len(indexed),
            sequence,
        )
        headers.append(_FRONT.pack(MARK, crc32_of(checked, seed)) + checked)
    return headers


def padding_of(length: int) -> bytes:
    """What stands behind a record, or a body, of so many bytes."""
    return _PADDINGS[-length % ALIGNMENT]


def encode_record_header(header: RecordHeader, secret: int) -> bytes:
    """The fixed part alone, for a body that is written piece by piece."""
    checked = _CHECKED.pack(
        header.crc,
        header.timestamp_ms,
        header.key_length,
        header.blob_length,
        header.is_deleted,
        header.kind,
        header.batch_left,
        header.index_record_length,
        header.sequence,
    )
    return _FRONT.pack(MARK, crc32_of(checked, seed_of(secret))) + checked


def decode_record_header(content: BufferView, secret: int) -> RecordHeader:
    """Raises CorruptedDataError unless the first 48 bytes are a record header of this volume."""
    if len(content) < RECORD_HEADER_BYTES:
        raise CorruptedDataError(f"record header is cut off bytes={len(content)}")
    mark, header_crc = _FRONT.unpack_from(content)
    checked = memoryview(content)[_FRONT.size : RECORD_HEADER_BYTES]
    if mark != MARK or header_crc != crc32_of(checked, seed_of(secret)):
        raise CorruptedDataError("not a record of this volume")
    (
        crc,
        timestamp_ms,
        key_length,
        blob_length,
        is_deleted,
        kind,
        batch_left,
        index_record_length,
        sequence,
    ) = _CHECKED.unpack(checked)
    known = _KINDS.get(kind)
    if known is None or bool(is_deleted) != (known is RecordKind.TOMBSTONE):
        raise CorruptedDataError(f"record header contradicts itself {kind=} {is_deleted=}")
    if key_length > KEY_BYTES_MAX or index_record_length > INDEX_RECORD_BYTES_MAX:
        raise CorruptedDataError(
            f"record header is out of bounds {key_length=} {index_record_length=}"
        )
    return RecordHeader(
        crc=crc,
        timestamp_ms=timestamp_ms,
        key_length=key_length,
        blob_length=blob_length,
        kind=known,
        index_record_length=index_record_length,
        sequence=sequence,
        batch_left=batch_left,
    )


_FIXED_FORMAT = ">BBHQQQQQI32s"
_FIXED = struct.Struct(_FIXED_FORMAT)
RECORD_FRONT = struct.Struct(">IQQ60xH")
"""Version with flags and reserved bytes as one number, size, sequence, length of the version id."""
RECORD_OLDEST = struct.Struct(">20xQ")
"""What stands behind the sequence."""
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_NO_METADATA = _SHORT.pack(0)
_FORMAT_VERSION = 1

_DELETE_MARKER, _GOVERNANCE, _COMPLIANCE, _LEGAL_HOLD, _VERSIONED, _INLINE = (
    1 << bit for bit in range(6)
)
_KNOWN_FLAGS = (1 << 6) - 1
INLINE_ONLY = _FORMAT_VERSION << 24 | _INLINE << 16
"""The first number of RECORD_FRONT of an inline object that has no version id, no retention and no hold."""
_TEXT_BYTES_MAX = 0xFFFF
_USUAL_ETAG_BYTES = 32
"""Sixteen bytes of a hash, in hexadecimal."""
_USUAL_TYPE_BYTES_MAX = 100
_USUAL_BYTES = _FIXED.size + 4 * _SHORT.size + 2 * _LONG.size + _USUAL_ETAG_BYTES
"""What `_usual` reads, without the type: four lengths, the count of pieces, a piece, the etag."""


def encode_index_record(record: IndexRecord) -> bytes:
    """Raises InvalidRequestError for text that is too long."""
    if (
        len(record.pieces) != 1
        or record.metadata
        or record.versioned
        or record.version_id
        or record.retention_mode
        or record.legal_hold
        or record.delete_marker
    ):
        return _encode(record)
    etag, content_type = _encoded(record.etag), _encoded(record.content_type)
    return _usual_writer(len(etag), len(content_type)).pack(
        _FORMAT_VERSION,
        _INLINE if record.inline else 0,
        0,
        record.size,
        record.sequence,
        record.oldest,
        record.created_ms,
        record.retain_until_ms,
        record.piece_bytes,
        record.content_hash,
        0,
        len(etag),
        etag,
        len(content_type),
        content_type,
        0,
        1,
        record.pieces[0],
    )


def _encode(record: IndexRecord) -> bytes:
    """Of any shape."""
    flags = (
        _DELETE_MARKER * record.delete_marker
        | _GOVERNANCE * (record.retention_mode is RetentionMode.GOVERNANCE)
        | _COMPLIANCE * (record.retention_mode is RetentionMode.COMPLIANCE)
        | _LEGAL_HOLD * record.legal_hold
        | _VERSIONED * record.versioned
        | _INLINE * record.inline
    )
    version_id, etag = _encoded(record.version_id), _encoded(record.etag)
    content_type = _encoded(record.content_type)
    front = _front(len(version_id), len(etag), len(content_type)).pack(
        _FORMAT_VERSION,
        flags,
        0,
        record.size,
        record.sequence,
        record.oldest,
        record.created_ms,
        record.retain_until_ms,
        record.piece_bytes,
        record.content_hash,
        len(version_id),
        version_id,
        len(etag),
        etag,
        len(content_type),
        content_type,
    )
    pieces = record.pieces
    end = struct.pack(f">I{len(pieces)}I", len(pieces), *pieces)
    return front + (_metadata(record.metadata) if record.metadata else _NO_METADATA) + end


@lru_cache(maxsize=256)
def _front(version_id: int, etag: int, content_type: int) -> struct.Struct:
    """The fixed part and the three texts, by the bytes that they have: most objects have the same."""
    return struct.Struct(f"{_FIXED_FORMAT}H{version_id}sH{etag}sH{content_type}s")


@lru_cache(maxsize=256)
def _usual_writer(etag: int, content_type: int) -> struct.Struct:
    """All of a record of one piece, without a version id and metadata."""
    return struct.Struct(f"{_FIXED_FORMAT}HH{etag}sH{content_type}sHII")


def _metadata(metadata: Mapping[str, str]) -> bytes:
    if len(metadata) > _TEXT_BYTES_MAX:
        raise InvalidRequestError(f"too many metadata entries count={len(metadata)}")
    parts = [_SHORT.pack(len(metadata))]
    for name, value in metadata.items():
        encoded_name, encoded = _encoded(name), value.encode()
        parts += (_SHORT.pack(len(encoded_name)), encoded_name, _LONG.pack(len(encoded)), encoded)
    return b"".join(parts)


def _encoded(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _TEXT_BYTES_MAX:
        raise InvalidRequestError(f"text of an object is too long bytes={len(encoded)}")
    return encoded


def _text_at(content: bytes, position: int, layout: struct.Struct = _SHORT) -> tuple[str, int]:
    """A text, and where it ends. Raises struct.error, UnicodeDecodeError, CorruptedDataError."""
    (length,) = layout.unpack_from(content, position)
    position += layout.size
    if not length:
        return "", position
    end = position + length
    if end > len(content):
        raise CorruptedDataError(f"index record is cut off wanted={end} bytes={len(content)}")
    return content[position:end].decode(), end


def decode_index_record(content: BufferView) -> IndexRecord:
    """Raises CorruptedDataError."""
    whole = bytes(content)
    try:
        return _usual(whole) or _decoded(whole)
    except struct.error as error:
        raise CorruptedDataError(f"index record is cut off bytes={len(whole)}") from error
    except UnicodeDecodeError as error:
        raise CorruptedDataError("text of an index record is not UTF-8") from error


def _usual(content: bytes) -> IndexRecord | None:
    """By one look, if it is what most records are: of one piece, with an etag of the usual length, and a short type."""
    type_length = len(content) - _USUAL_BYTES
    if not 0 <= type_length <= _USUAL_TYPE_BYTES_MAX:
        return None
    parts = _usual_layout(type_length).unpack(content)
    id_length, etag_length, etag, its_type_length, content_type, count, pieces = parts[10:17]
    if (id_length, etag_length, its_type_length, count, pieces) != (
        0,
        _USUAL_ETAG_BYTES,
        type_length,
        0,
        1,
    ):
        return None
    return _record(parts[:10], "", etag.decode(), content_type.decode(), {}, parts[17:])


@lru_cache(maxsize=_USUAL_TYPE_BYTES_MAX + 1)
def _usual_layout(content_type: int) -> struct.Struct:
    return struct.Struct(f"{_FIXED_FORMAT}HH{_USUAL_ETAG_BYTES}sH{content_type}sHII")


def _decoded(content: bytes) -> IndexRecord:
    metadata: dict[str, str] = {}
    fixed = _FIXED.unpack_from(content)
    version_id, position = _text_at(content, _FIXED.size)
    etag, position = _text_at(content, position)
    content_type, position = _text_at(content, position)
    (count,) = _SHORT.unpack_from(content, position)
    position += _SHORT.size
    for _ in range(count):
        name, position = _text_at(content, position)
        metadata[name], position = _text_at(content, position, _LONG)
    (count,) = _LONG.unpack_from(content, position)
    position += _LONG.size
    pieces: tuple[int, ...] = struct.unpack_from(f">{count}I", content, position)
    position += _LONG.size * count
    if position < len(content):
        raise CorruptedDataError(f"bytes behind an index record bytes={len(content) - position}")
    return _record(fixed, version_id, etag, content_type, metadata, pieces)


def _record(
    fixed: tuple[Any, ...],
    version_id: str,
    etag: str,
    content_type: str,
    metadata: dict[str, str],
    pieces: tuple[int, ...],
) -> IndexRecord:
    (
        version,
        flags,
        reserved,
        size,
        sequence,
        oldest,
        created_ms,
        retain_until_ms,
        piece_bytes,
        content_hash,
    ) = fixed
    if version != _FORMAT_VERSION or reserved or flags & ~_KNOWN_FLAGS:
        raise CorruptedDataError(f"not an index record {version=} {flags=:#x} {reserved=}")
    mode = None
    if flags & (_GOVERNANCE | _COMPLIANCE):
        if flags & _GOVERNANCE and flags & _COMPLIANCE:
            raise CorruptedDataError("an index record has two retention modes")
        mode = RetentionMode.GOVERNANCE if flags & _GOVERNANCE else RetentionMode.COMPLIANCE
    # By position: names cost a third more.
    return IndexRecord(
        size,
        sequence,
        content_hash,
        etag,
        created_ms,
        piece_bytes,
        pieces,
        content_type,
        metadata,
        version_id,
        mode,
        retain_until_ms,
        flags & _LEGAL_HOLD != 0,
        flags & _VERSIONED != 0,
        flags & _DELETE_MARKER != 0,
        flags & _INLINE != 0,
        oldest,
    )
