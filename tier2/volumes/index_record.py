"""What is known of one version of one object; and its bytes.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.contracts.identifiers import BufferView

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


class RetentionMode(Enum):
    """How strictly an object is kept until its date."""

    GOVERNANCE = "GOVERNANCE"
    """Whoever may bypass governance can delete it earlier."""
    COMPLIANCE = "COMPLIANCE"
    """Nobody can, and the date can only move away."""


@dataclass(slots=True)
class IndexRecord:
    """One version of an object. Never changed once it has its numbers; not frozen, since that triples its cost."""

    size: int
    sequence: int
    content_hash: bytes
    etag: str
    created_ms: int
    piece_bytes: int
    pieces: tuple[int, ...] = ()
    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str = ""
    retention_mode: RetentionMode | None = None
    retain_until_ms: int = 0
    legal_hold: bool = False
    versioned: bool = False
    """It has a version id. The one version without an id has the id ""."""
    delete_marker: bool = False
    inline: bool = False
    """Small enough to stand in the index: every record of it carries its bytes, and it has no blob row."""
    oldest: int = 0
    """The lowest number that a record of this key and version id may have (H70)."""

    def number(self, sequence: int, oldest: int) -> None:
        """Of a draft, whose put is judged: nobody else has it yet. A copy would cost as much as all its bytes do."""
        self.sequence = sequence
        self.oldest = oldest

    def is_locked(self, now_ms: int, *, bypass_governance: bool) -> bool:
        """Whether it must be neither removed nor overwritten now."""
        if self.legal_hold:
            return True
        if self.retention_mode is None or now_ms >= self.retain_until_ms:
            return False
        return self.retention_mode is RetentionMode.COMPLIANCE or not bypass_governance

    def check(self) -> None:
        expected = -(-self.size // self.piece_bytes) if self.piece_bytes else 0
        assert len(self.pieces) == expected, (
            f"checksums do not cover the blob size={self.size} pieces={len(self.pieces)}"
        )
        assert not (self.delete_marker and self.size), f"a delete marker of {self.size} bytes"


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
