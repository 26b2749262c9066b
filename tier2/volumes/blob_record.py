"""One record of a volume: a blob's header with what a rebuild needs besides, then key, index record, blob.

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
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module

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
    group_left: int = 0
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


GroupRecord: TypeAlias = tuple[RecordKind, int, bytes, bytes, Sequence[BufferView]]
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
    records: Sequence[GroupRecord], *, secret: int, timestamp_ms: int
) -> list[BufferView]:
    """All records of a group, to write one behind the other; long blobs are passed on as they are."""
    headers = encode_group_headers(records, seed=seed_of(secret), timestamp_ms=timestamp_ms)
    buffers: list[BufferView] = []
    for header, (_, _, key, indexed, blob) in zip(headers, records, strict=True):
        blob_length = sum(map(len, blob))
        padding = padding_of(len(key) + len(indexed) + blob_length)
        if blob_length <= _COPIED_BYTES_MAX:
            buffers.append(b"".join((header, key, indexed, *blob, padding)))
        else:
            buffers += (header + key + indexed, *blob, padding)
    return buffers


def encode_group_headers(
    records: Sequence[GroupRecord], *, seed: int, timestamp_ms: int
) -> list[bytes]:
    """The fixed parts of all records of a group."""
    crcs = crc32_all([(key, indexed, *blob) for _, _, key, indexed, blob in records], seed)
    headers: list[bytes] = []
    group_left = len(records)
    for (kind, sequence, key, indexed, blob), crc in zip(records, crcs, strict=True):
        group_left -= 1
        checked = _CHECKED.pack(
            crc,
            timestamp_ms,
            len(key),
            sum(map(len, blob)),
            kind is _TOMBSTONE,
            kind,
            group_left,
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
        header.group_left,
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
        group_left,
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
        group_left=group_left,
    )
