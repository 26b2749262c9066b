"""Every byte of a volume: its header, then records; a record is a header, a key, an index record and a blob.

All numbers are big-endian. Three formats stand here, from the outside in.

# The volume header: the first 64 bytes of a volume

     0  8  magic b"S4VOLUME"
     8  2  format version, 1
    10  2  reserved, zero
    12  4  number of the volume, the one in its name
    16  8  secret: seeds every checksum of the volume's records
    24  8  created, Unix milliseconds; only shown
    32  16 id of the engine that made it: a volume of another store is refused
    48  8  sequence number at which every record in it was new, or still counted: tombstones that are older are not
           there for anything in it, and a rebuild continues above it
    56  4  reserved, zero
    60  4  CRC32 of the 60 bytes before

Invariant: written and synced, with its directory, before the first record.

# A record: a header with what a rebuild needs, then key, index record and blob

     0  4  mark b"S4rc"
     4  4  header CRC32, of bytes 8 to 48, seeded with the volume's secret
     8  4  crc         CRC32 of key, index record and blob, seeded likewise
    12  8  timestamp   Unix milliseconds; only shown
    20  4  key_len
    24  8  blob_len    0 for everything but a put that brings its own bytes
    32  1  is_deleted  1: a tombstone: the key (and version) is gone
    33  1  kind        see RecordKind
    34  2  records of the same write batch that stand behind this one; 0 for the last of a batch (and for every copy)
    36  4  index record length
    40  8  sequence number of this change; the highest of a key and version wins
    48     key, index record, blob; then zeros up to a multiple of 8

The five fields named crc to is_deleted describe the blob; the rest is what lets a volume alone rebuild the index,
keep its order, know whether its last batch is whole, and be read past damage: a bad body is skipped by the
length in its good header, and only a bad header makes the scan search for the next mark, at multiples of 8.

# An index record: what is known of one version of one object

    version         u8   1
    flags           u8   bit 0 delete marker, bit 1 governance, bit 2 compliance, bit 3 legal hold,
                         bit 4 versioned, bit 5 inline: its records carry its bytes, and so does the index
    reserved        u16  zero
    size            u64  bytes of the object
    sequence        u64  number of the put that made this version; later changes of it keep it
    oldest          u64  no record of this key and version id that still counts for anything has a lower number: what
                         a tombstone has to outlive
    created_ms      u64  Unix time of the put; only shown, never compared
    retain_until_ms u64  0: no retention
    piece_bytes     u32  stretch of the blob under one checksum
    content_hash    32 bytes  SHA-256 of the object; of one whose key says which bytes it has, a hash of its key, size
                         and pieces, by another function (`digest_by_name` in objects.py)
    version_id, etag, content_type     each u16 length + UTF-8
    metadata        u16 count, then each: u16 length + name, u32 length + value (UTF-8)
    pieces          u32 count, then each: u32 CRC32 of a piece, in order

Where the blob lies is not part of it: a record's place in its volume says that, or the blob table of the index for
deduplicated content. A plain record is the put of an inline object without a version id, retention and legal hold.

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
from segmentstore.codec.crc_algebra import CRC32, flipped_bit, with_bit_flipped
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes.objects import IndexRecord, RetentionMode

VOLUME_HEADER_BYTES = 64
_VOLUME_MAGIC = b"S4VOLUME"
_VOLUME_FORMAT_VERSION = 1
_VOLUME_HEADER_LAYOUT = struct.Struct(">8sHHIQQ16sQ4s")

MARK = b"S4rc"
RECORD_HEADER_BYTES = 48
ALIGNMENT = 8
KEY_BYTES_MAX = 4096
INDEX_RECORD_BYTES_MAX = 16 << 20
_RECORD_HEADER_CHECKED_LAYOUT = struct.Struct(">IQIQBBHIQ")
_RECORD_HEADER_FRONT_LAYOUT = struct.Struct(">4sI")
RECORD_LAYOUT = struct.Struct(">4sII8xIQHHIQ")
"""The whole fixed part without its timestamp, `is_deleted` and `kind` as one number."""
_RECORD_PADDINGS = [bytes(length) for length in range(ALIGNMENT)]
_COPIED_BLOB_BYTES_MAX = 16 << 10
"""Shorter blobs are copied: fewer buffers to write cost less than the bytes do."""
_NATIVE_DIGESTS = native_module("segmentstore.runtime.native.digests")

_INDEX_RECORD_VERSION = 1
_INDEX_RECORD_FIXED_FORMAT = ">BBHQQQQQI32s"
_INDEX_RECORD_FIXED_LAYOUT = struct.Struct(_INDEX_RECORD_FIXED_FORMAT)
RECORD_FRONT = struct.Struct(">IQQ60xH")
"""Version with flags and reserved bytes as one number, size, sequence, length of the version id."""
RECORD_OLDEST = struct.Struct(">20xQ")
"""What stands behind the sequence."""
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_METADATA_EMPTY = _U16.pack(0)
_TEXT_BYTES_MAX = 0xFFFF
(
    _FLAG_DELETE_MARKER,
    _FLAG_GOVERNANCE,
    _FLAG_COMPLIANCE,
    _FLAG_LEGAL_HOLD,
    _FLAG_VERSIONED,
    _FLAG_INLINE,
) = (1 << bit for bit in range(6))
_FLAGS_KNOWN = (1 << 6) - 1
INLINE_ONLY = _INDEX_RECORD_VERSION << 24 | _FLAG_INLINE << 16
"""The first number of RECORD_FRONT of an inline object that has no version id, no retention and no hold."""


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
    body = _VOLUME_HEADER_LAYOUT.pack(
        _VOLUME_MAGIC,
        _VOLUME_FORMAT_VERSION,
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
    magic, version, reserved, number, secret, created_ms, engine_id, first, rest = (
        _VOLUME_HEADER_LAYOUT.unpack(body)
    )
    if magic != _VOLUME_MAGIC or version != _VOLUME_FORMAT_VERSION or reserved or rest != bytes(4):
        raise CorruptedDataError(f"not a volume {magic=} {version=}")
    return VolumeHeader(number, secret, created_ms, engine_id, first)


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


_TOMBSTONE_KIND = RecordKind.TOMBSTONE
_RECORD_KINDS = {kind.value: kind for kind in RecordKind}


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
    """Records of its batch behind it."""

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


BatchRecord: TypeAlias = tuple[RecordKind, int, bytes, bytes, Sequence[BufferView]]
"""Kind, sequence number, key, index record and blob. A tuple: each change makes one."""


@lru_cache(maxsize=64)
def seed_of(secret: int) -> int:
    """What every checksum of a volume starts from."""
    return crc32_of(secret.to_bytes(8, "big"))


def encode_records(
    records: Sequence[BatchRecord], *, secret: int, timestamp_ms: int
) -> list[BufferView]:
    """All records of a batch, to write one behind the other; long blobs are passed on as they are."""
    headers = encode_batch_headers(records, seed=seed_of(secret), timestamp_ms=timestamp_ms)
    buffers: list[BufferView] = []
    for header, (_, _, key, indexed, blob) in zip(headers, records, strict=True):
        blob_length = sum(map(len, blob))
        padding = padding_of(len(key) + len(indexed) + blob_length)
        if blob_length <= _COPIED_BLOB_BYTES_MAX:
            buffers.append(b"".join((header, key, indexed, *blob, padding)))
        else:
            buffers += (header + key + indexed, *blob, padding)
    return buffers


def encode_batch_headers(
    records: Sequence[BatchRecord], *, seed: int, timestamp_ms: int
) -> list[bytes]:
    """The fixed parts of all records of a batch."""
    crcs = crc32_all([(key, indexed, *blob) for _, _, key, indexed, blob in records], seed)
    headers: list[bytes] = []
    batch_left = len(records)
    for (kind, sequence, key, indexed, blob), crc in zip(records, crcs, strict=True):
        batch_left -= 1
        checked = _RECORD_HEADER_CHECKED_LAYOUT.pack(
            crc,
            timestamp_ms,
            len(key),
            sum(map(len, blob)),
            kind is _TOMBSTONE_KIND,
            kind,
            batch_left,
            len(indexed),
            sequence,
        )
        headers.append(_RECORD_HEADER_FRONT_LAYOUT.pack(MARK, crc32_of(checked, seed)) + checked)
    return headers


def encode_record_header(header: RecordHeader, secret: int) -> bytes:
    """The fixed part alone, for a body that is written piece by piece."""
    checked = _RECORD_HEADER_CHECKED_LAYOUT.pack(
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
    return _RECORD_HEADER_FRONT_LAYOUT.pack(MARK, crc32_of(checked, seed_of(secret))) + checked


def padding_of(length: int) -> bytes:
    """What stands behind a record, or a body, of so many bytes."""
    return _RECORD_PADDINGS[-length % ALIGNMENT]


def crc32_all(contents: Sequence[Sequence[BufferView]], value: int) -> list[int]:
    """Of each, as if its buffers were one, behind what `value` is the checksum of."""
    if _NATIVE_DIGESTS is None:
        return _crc32_all_in_python(contents, value)
    found: list[int] = _NATIVE_DIGESTS.crc32_all(contents, value)
    return found


def _crc32_all_in_python(contents: Sequence[Sequence[BufferView]], value: int) -> list[int]:
    found: list[int] = []
    for content in contents:
        crc = value
        for buffer in content:
            crc = crc32_of(buffer, crc)
        found.append(crc)
    return found


def decode_record_header(content: BufferView, secret: int) -> RecordHeader:
    """Raises CorruptedDataError unless the first 48 bytes are a record header of this volume."""
    if len(content) < RECORD_HEADER_BYTES:
        raise CorruptedDataError(f"record header is cut off bytes={len(content)}")
    mark, header_crc = _RECORD_HEADER_FRONT_LAYOUT.unpack_from(content)
    checked = memoryview(content)[_RECORD_HEADER_FRONT_LAYOUT.size : RECORD_HEADER_BYTES]
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
    ) = _RECORD_HEADER_CHECKED_LAYOUT.unpack(checked)
    known = _RECORD_KINDS.get(kind)
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


def record_header_without_flip(content: BufferView, secret: int) -> RecordHeader | None:
    """The header that these 48 bytes were before one of their bits was flipped; None if that is not what is wrong."""
    whole = bytes(content[:RECORD_HEADER_BYTES])
    if len(whole) < RECORD_HEADER_BYTES:
        return None
    front, checked = (
        whole[: _RECORD_HEADER_FRONT_LAYOUT.size],
        whole[_RECORD_HEADER_FRONT_LAYOUT.size :],
    )
    found = crc32_of(checked, seed_of(secret))
    said = int.from_bytes(front[len(MARK) :], "big")
    wrong_bits = (
        int.from_bytes(front[: len(MARK)], "big") ^ int.from_bytes(MARK, "big")
    ).bit_count()
    if found != said:
        bit = flipped_bit(CRC32, found ^ said, len(checked))
        if bit is not None:
            checked = with_bit_flipped(checked, bit)
        elif (found ^ said).bit_count() > 1:
            return None
        wrong_bits += 1
    if wrong_bits != 1:
        return None
    front = _RECORD_HEADER_FRONT_LAYOUT.pack(MARK, crc32_of(checked, seed_of(secret)))
    try:
        return decode_record_header(front + checked, secret)
    except CorruptedDataError:
        return None


def encode_index_record(record: IndexRecord) -> bytes:
    """Raises InvalidRequestError for text that is too long."""
    flags = (
        _FLAG_DELETE_MARKER * record.delete_marker
        | _FLAG_GOVERNANCE * (record.retention_mode is RetentionMode.GOVERNANCE)
        | _FLAG_COMPLIANCE * (record.retention_mode is RetentionMode.COMPLIANCE)
        | _FLAG_LEGAL_HOLD * record.legal_hold
        | _FLAG_VERSIONED * record.versioned
        | _FLAG_INLINE * record.inline
    )
    version_id, etag = _encode_text(record.version_id), _encode_text(record.etag)
    content_type = _encode_text(record.content_type)
    front = _index_record_front_layout(len(version_id), len(etag), len(content_type)).pack(
        _INDEX_RECORD_VERSION,
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
    return front + (_encode_metadata(record.metadata) if record.metadata else _METADATA_EMPTY) + end


@lru_cache(maxsize=256)
def _index_record_front_layout(version_id: int, etag: int, content_type: int) -> struct.Struct:
    """The fixed part and the three texts, by the bytes that they have: most objects have the same."""
    return struct.Struct(f"{_INDEX_RECORD_FIXED_FORMAT}H{version_id}sH{etag}sH{content_type}s")


def _encode_metadata(metadata: Mapping[str, str]) -> bytes:
    if len(metadata) > _TEXT_BYTES_MAX:
        raise InvalidRequestError(f"too many metadata entries count={len(metadata)}")
    parts = [_U16.pack(len(metadata))]
    for name, value in metadata.items():
        encoded_name, encoded = _encode_text(name), value.encode()
        parts += (_U16.pack(len(encoded_name)), encoded_name, _U32.pack(len(encoded)), encoded)
    return b"".join(parts)


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _TEXT_BYTES_MAX:
        raise InvalidRequestError(f"text of an object is too long bytes={len(encoded)}")
    return encoded


def decode_index_record(content: BufferView) -> IndexRecord:
    """Raises CorruptedDataError."""
    whole = bytes(content)
    try:
        return _decode_index_record(whole)
    except struct.error as error:
        raise CorruptedDataError(f"index record is cut off bytes={len(whole)}") from error
    except UnicodeDecodeError as error:
        raise CorruptedDataError("text of an index record is not UTF-8") from error


def _decode_index_record(content: bytes) -> IndexRecord:
    """Raises struct.error, UnicodeDecodeError, CorruptedDataError."""
    metadata: dict[str, str] = {}
    fixed = _INDEX_RECORD_FIXED_LAYOUT.unpack_from(content)
    version_id, position = _decode_text_at(content, _INDEX_RECORD_FIXED_LAYOUT.size)
    etag, position = _decode_text_at(content, position)
    content_type, position = _decode_text_at(content, position)
    (count,) = _U16.unpack_from(content, position)
    position += _U16.size
    for _ in range(count):
        name, position = _decode_text_at(content, position)
        metadata[name], position = _decode_text_at(content, position, _U32)
    (count,) = _U32.unpack_from(content, position)
    position += _U32.size
    pieces: tuple[int, ...] = struct.unpack_from(f">{count}I", content, position)
    position += _U32.size * count
    if position < len(content):
        raise CorruptedDataError(f"bytes behind an index record bytes={len(content) - position}")
    return _index_record_of(fixed, version_id, etag, content_type, metadata, pieces)


def _decode_text_at(content: bytes, position: int, layout: struct.Struct = _U16) -> tuple[str, int]:
    """A text, and where it ends. Raises struct.error, UnicodeDecodeError, CorruptedDataError."""
    (length,) = layout.unpack_from(content, position)
    position += layout.size
    if not length:
        return "", position
    end = position + length
    if end > len(content):
        raise CorruptedDataError(f"index record is cut off wanted={end} bytes={len(content)}")
    return content[position:end].decode(), end


def _index_record_of(
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
    if version != _INDEX_RECORD_VERSION or reserved or flags & ~_FLAGS_KNOWN:
        raise CorruptedDataError(f"not an index record {version=} {flags=:#x} {reserved=}")
    mode = None
    if flags & (_FLAG_GOVERNANCE | _FLAG_COMPLIANCE):
        if flags & _FLAG_GOVERNANCE and flags & _FLAG_COMPLIANCE:
            raise CorruptedDataError("an index record has two retention modes")
        mode = RetentionMode.GOVERNANCE if flags & _FLAG_GOVERNANCE else RetentionMode.COMPLIANCE
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
        flags & _FLAG_LEGAL_HOLD != 0,
        flags & _FLAG_VERSIONED != 0,
        flags & _FLAG_DELETE_MARKER != 0,
        flags & _FLAG_INLINE != 0,
        oldest,
    )
