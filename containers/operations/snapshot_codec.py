"""The bytes of a container's state: one segment's, and all of them in a metadata checkpoint. Little-endian.

Both are the *pending* state at the sequence number of the operation that carries them. Extended attributes are
not part of it: the log is truncated only where Tier 2 has them, and later ones are replayed.

Segment snapshot
----------------

A segment's part of a checkpoint, and the content of a map operation:

    u8  version = 1
    u8  flags       1 sealed, 2 sealed in storage, 4 merged, 8 deleted,
                    16 no extended attribute was ever set (so "not in memory" means "absent")
    u16 name_length
    u16 core_attribute_count
    u64 segment_id, u64 start_offset, u64 length, u64 storage_length, i64 last_modified_ms
    name (UTF-8), attributes (as in containers.operations.record_codec)

Checkpoint
----------

    u8  version = 1
    u8[3] zero
    u32 container_id
    u64 epoch, u64 highest_segment_id
    u32 segment_count
    segment snapshots in order of their ids
"""

import struct

from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.record_codec import decode_attributes, encode_attributes
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
)

_SNAPSHOT_HEADER = struct.Struct("<BBHHQQQQq")
_SNAPSHOT_VERSION = 1
_SEALED, _SEALED_IN_STORAGE, _MERGED, _DELETED, _NO_EXTENDED = 1, 2, 4, 8, 16

_CHECKPOINT_HEADER = struct.Struct("<B3xIQQI")
_CHECKPOINT_VERSION = 1


def encode_segment_snapshot(segment: SegmentMetadata) -> bytes:
    """The segment's pending state; kept until something changes it."""
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
    header = _SNAPSHOT_HEADER.pack(
        _SNAPSHOT_VERSION,
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
        return _decode_snapshot(view, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DataCorruptionError(f"segment snapshot does not parse: {error}") from error


def _decode_snapshot(view: memoryview, position: int) -> tuple[SegmentMetadata, int]:
    version, flags, name_length, core_count, segment_id, start, length, storage, modified = (
        _SNAPSHOT_HEADER.unpack_from(view, position)
    )
    if version != _SNAPSHOT_VERSION:
        raise DataCorruptionError(f"segment snapshot of unknown version {version}")
    position += _SNAPSHOT_HEADER.size
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
    values: dict[AttributeKey, AttributeValue] = {}
    for key, value in core:
        if value is None:
            raise DataCorruptionError(f"segment snapshot removes an attribute key={key.hex()}")
        values[key] = value
    segment.attributes.load_core(values)
    segment.reset_pending()
    return segment, position


def encode_checkpoint(metadata: ContainerMetadata) -> list[BufferView]:
    """The pending state of everything, in one stretch."""
    header = _CHECKPOINT_HEADER.pack(
        _CHECKPOINT_VERSION,
        metadata.container_id,
        metadata.epoch,
        metadata.highest_segment_id,
        len(metadata.by_id),
    )
    parts = [encode_segment_snapshot(metadata.by_id[key]) for key in sorted(metadata.by_id)]
    return [header, b"".join(parts)]


def decode_checkpoint(metadata: ContainerMetadata, view: memoryview) -> list[SegmentMetadata]:
    """The segments of a checkpoint, as new objects; also raises the container's numbers to its own.

    Raises DataCorruptionError.
    """
    try:
        version, container_id, epoch, highest, count = _CHECKPOINT_HEADER.unpack_from(view)
    except struct.error as error:
        raise DataCorruptionError(f"checkpoint does not parse: {error}") from error
    if version != _CHECKPOINT_VERSION:
        raise DataCorruptionError(f"checkpoint of unknown version {version}")
    if container_id != metadata.container_id:
        raise DataCorruptionError(
            f"checkpoint belongs to another container expected={metadata.container_id} found={container_id}"
        )
    del epoch  # told by the log, which is newer
    metadata.raise_numbers(sequence_number=0, segment_id=highest)
    position = _CHECKPOINT_HEADER.size
    segments: list[SegmentMetadata] = []
    for _ in range(count):
        segment, position = decode_segment_snapshot(view, position)
        segments.append(segment)
    if position != len(view):
        raise DataCorruptionError(f"checkpoint has {len(view) - position} bytes too many")
    return segments
