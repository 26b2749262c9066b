"""The bytes of one segment's state: its part of a checkpoint, and the content of a map operation.

Little-endian:

    u8  version = 1
    u8  flags       1 sealed, 2 sealed in storage, 4 merged, 8 deleted,
                    16 no extended attribute was ever set (so "not in memory" means "absent")
    u16 name_length
    u16 core_attribute_count
    u64 segment_id, u64 start_offset, u64 length, u64 storage_length, i64 last_modified_ms
    name (UTF-8), attributes (as in containers.operations.record_codec)

It is the *pending* state at the sequence number of the operation that carries it (H28). Extended attributes are not
part of it: the log is truncated only where Tier 2 has them (H13), and later ones are replayed.
"""

import struct

from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.record_codec import decode_attributes, encode_attributes
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId

_HEADER = struct.Struct("<BBHHQQQQq")
_VERSION = 1
_SEALED, _SEALED_IN_STORAGE, _MERGED, _DELETED, _NO_EXTENDED = 1, 2, 4, 8, 16


def encode_segment_snapshot(segment: SegmentMetadata) -> bytes:
    """The segment's pending state; kept until something changes it (H29)."""
    if segment.encoded_snapshot is not None:
        return segment.encoded_snapshot
    table = segment.attributes
    core = list(table.pending_core().items()) if table.core_values or table.pending else []
    no_extended = table.complete and not table.has_extended
    flags = (
        (_SEALED if segment.pending_sealed else 0)
        | (_SEALED_IN_STORAGE if segment.sealed_in_storage else 0)
        | (_MERGED if segment.pending_merged else 0)
        | (_DELETED if segment.pending_deleted else 0)
        | (_NO_EXTENDED if no_extended else 0)
    )
    name = segment.name.encode()
    header = _HEADER.pack(
        _VERSION,
        flags,
        len(name),
        len(core),
        segment.segment_id,
        segment.pending_start_offset,
        segment.pending_length,
        segment.storage_length,
        segment.pending_last_modified_ms,
    )
    encoded = header + name
    if core:
        encoded += encode_attributes(core)
    segment.encoded_snapshot = encoded
    return encoded


def decode_segment_snapshot(view: memoryview, position: int = 0) -> tuple[SegmentMetadata, int]:
    """A new metadata object in that state (committed equals pending), and the position behind it.

    Raises DataCorruptionError.
    """
    try:
        return _decode(view, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DataCorruptionError(f"segment snapshot does not parse: {error}") from error


def _decode(view: memoryview, position: int) -> tuple[SegmentMetadata, int]:
    version, flags, name_length, core_count, segment_id, start, length, storage, modified = (
        _HEADER.unpack_from(view, position)
    )
    if version != _VERSION:
        raise DataCorruptionError(f"segment snapshot of unknown version {version}")
    position += _HEADER.size
    name = bytes(view[position : position + name_length]).decode()
    core, position = decode_attributes(view, position + name_length, core_count)
    segment = SegmentMetadata(segment_id=SegmentId(segment_id), name=name)
    segment.start_offset = start
    segment.length = length
    segment.storage_length = min(storage, length)
    segment.last_modified_ms = modified
    segment.sealed = bool(flags & _SEALED)
    segment.sealed_in_storage = bool(flags & _SEALED_IN_STORAGE)
    segment.merged = bool(flags & _MERGED)
    segment.deleted = bool(flags & _DELETED)
    segment.attributes.complete = bool(flags & _NO_EXTENDED)
    for key, value in core:
        if value is None:
            raise DataCorruptionError(f"segment snapshot removes an attribute key={key.hex()}")
        segment.attributes.core_values[key] = value
    segment.reset_pending()
    return segment, position
