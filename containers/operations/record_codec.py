"""The bytes of an operation: one record of the log.

All numbers are little-endian. Every record begins with the same four fields:

    u32 record_length     bytes of the record behind this field
    u8  type              OperationType
    u8  flags
    u16 attribute_count
    u64 sequence_number

and goes on by type:

    APPEND                u64 segment_id, u64 offset, i64 last_modified_ms, u32 data_length,
                          attributes, [u32 events], data
                          flags: 1 = the append seals the segment, 2 = `events` whole events were declared
    SEAL                  u64 segment_id, i64 last_modified_ms
    TRUNCATE              u64 segment_id, u64 offset
    MERGE                 u64 segment_id, u64 source_id, u64 offset, u64 length, i64 last_modified_ms, attributes
    DELETE                u64 segment_id
    UPDATE_ATTRIBUTES     u64 segment_id, attributes
    MAP_SEGMENT           u64 segment_id, u32 snapshot_length, snapshot, attributes
                          flags: 1 = created (otherwise reactivated)
    MAP_TRANSACTION       as MAP_SEGMENT, then u16 length and UTF-8 of the parent's name, which nothing reads
    METADATA_CHECKPOINT   a checkpoint (containers.operations.snapshot_codec); [u64 root_changes]
                          flags: 1 = `root_changes` is there: some were known
    STORAGE_CHECKPOINT    u32 count, then per segment: u64 segment_id, u64 storage_length; [u64 root_changes]
                          flags: 1 = `root_changes` is there: some were known

    attribute = u8 key_length (0: a u16 with the length follows), key, u8 kind, then by kind:
                0 removed: nothing; 1 number: i64; 2 bytes: u16 length, bytes

Checksums are the frame's business; a record that does not parse in a good frame is corruption.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from containers.operations.operation import (
    AppendOperation,
    AttributeChanges,
    DeleteOperation,
    MapSegmentOperation,
    MapTransactionOperation,
    MergeOperation,
    MetadataCheckpointOperation,
    Operation,
    OperationType,
    SealOperation,
    StorageCheckpointOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    NO_SEGMENT,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    SequenceNumber,
)

PREFIX = struct.Struct("<IBBHQ")
"""record_length, type, flags, attribute_count, sequence_number"""

APPEND_HEADER = struct.Struct("<IBBHQQQqI")
"""PREFIX, then segment_id, offset, last_modified_ms, data_length"""

LENGTH_FIELD_BYTES = 4
FLAG_SEAL = 1
FLAG_EVENTS = 2
FLAG_CREATED = 1
FLAG_ROOT_CHANGES = 1

_EMPTY = memoryview(b"")

_ID = struct.Struct("<Q")
_ID_TIME = struct.Struct("<Qq")
_ID_OFFSET = struct.Struct("<QQ")
_MERGE = struct.Struct("<QQQQq")
_LENGTH = struct.Struct("<I")
_SHORT = struct.Struct("<H")
_NUMBER = struct.Struct("<q")

_SHORT_KEY_BYTES_MAX = 255
_KEY_LENGTHS = [bytes((length,)) for length in range(_SHORT_KEY_BYTES_MAX + 1)]
"""Longer keys are those of tables, which are as long as an attribute of a user may not be."""

_APPEND = int(OperationType.APPEND)
_APPEND_REST = APPEND_HEADER.size - LENGTH_FIELD_BYTES
_pack_append = APPEND_HEADER.pack


def encode_append_header(operation: AppendOperation) -> bytes:
    """Everything of an append's record before its data."""
    attributes = operation.attributes
    if attributes is None:
        return _pack_append(
            _APPEND_REST + operation.length,
            _APPEND,
            FLAG_SEAL if operation.seal else 0,
            0,
            operation.sequence_number,
            operation.segment.segment_id,
            operation.offset,
            operation.last_modified_ms,
            operation.length,
        )
    encoded = encode_attributes(attributes)
    flags = FLAG_SEAL if operation.seal else 0
    if operation.events is not None:  # never without attributes: they count in one
        flags |= FLAG_EVENTS
        encoded += _LENGTH.pack(operation.events)
    header = _pack_append(
        _APPEND_REST + len(encoded) + operation.length,
        _APPEND,
        flags,
        len(attributes),
        operation.sequence_number,
        operation.segment.segment_id,
        operation.offset,
        operation.last_modified_ms,
        operation.length,
    )
    return header + encoded


def encode_record(operation: Operation) -> list[BufferView]:
    """The record of any operation, as buffers that stand one behind the other."""
    flags = 0
    count = 0
    body: list[BufferView]
    match operation:
        case AppendOperation():
            return [encode_append_header(operation), operation.data]
        case SealOperation():
            body = [_ID_TIME.pack(operation.segment.segment_id, operation.last_modified_ms)]
        case TruncateOperation():
            body = [_ID_OFFSET.pack(operation.segment.segment_id, operation.offset)]
        case MergeOperation():
            count = len(operation.attributes)
            body = [
                _MERGE.pack(
                    operation.segment.segment_id,
                    operation.source.segment_id,
                    operation.offset,
                    operation.length,
                    operation.last_modified_ms,
                ),
                encode_attributes(operation.attributes),
            ]
        case DeleteOperation():
            body = [_ID.pack(operation.segment.segment_id)]
        case UpdateAttributesOperation():
            count = len(operation.attributes)
            body = [_ID.pack(operation.segment.segment_id), encode_attributes(operation.attributes)]
        case MapSegmentOperation():
            flags = FLAG_CREATED if operation.created else 0
            count = len(operation.attributes)
            body = [
                _ID.pack(operation.segment.segment_id),
                _LENGTH.pack(len(operation.snapshot)),
                operation.snapshot,
                encode_attributes(operation.attributes),
            ]
            if isinstance(operation, MapTransactionOperation):
                parent = operation.parent_name.encode()
                body += [_SHORT.pack(len(parent)), parent]
        case MetadataCheckpointOperation():
            body = list(operation.payload)
            if operation.root_changes:
                flags = FLAG_ROOT_CHANGES
                body.append(_ID.pack(operation.root_changes))
        case StorageCheckpointOperation():
            body = [_LENGTH.pack(len(operation.lengths))]
            body.append(b"".join(_ID_OFFSET.pack(*pair) for pair in operation.lengths))
            if operation.root_changes:
                flags = FLAG_ROOT_CHANGES
                body.append(_ID.pack(operation.root_changes))
        case _:
            raise AssertionError(f"operation is not logged: {operation!r}")
    length = PREFIX.size - LENGTH_FIELD_BYTES + sum(len(part) for part in body)
    prefix = PREFIX.pack(length, operation.type, flags, count, operation.sequence_number)
    return [prefix, *body]


def encode_attributes(changes: AttributeChanges) -> bytes:
    """Attribute changes in the order given."""
    parts: list[bytes] = []
    for key, value in changes:
        length = len(key)
        parts.append(
            _KEY_LENGTHS[length]
            if length <= _SHORT_KEY_BYTES_MAX
            else b"\x00" + _SHORT.pack(length)
        )
        parts.append(key)
        if value is None:
            parts.append(b"\x00")
        elif isinstance(value, int):
            parts.append(b"\x01")
            parts.append(_NUMBER.pack(value))
        else:
            parts.append(b"\x02")
            parts.append(_SHORT.pack(len(value)))
            parts.append(value)
    return b"".join(parts)


def decode_attributes(
    view: memoryview, position: int, count: int
) -> tuple[list[tuple[AttributeKey, AttributeValue | None]], int]:
    """`count` changes from `position` on, and the position behind them."""
    changes: list[tuple[AttributeKey, AttributeValue | None]] = []
    for _ in range(count):
        key_length = view[position]
        position += 1
        if key_length == 0:
            key_length = _SHORT.unpack_from(view, position)[0]
            position += _SHORT.size
            if key_length <= _SHORT_KEY_BYTES_MAX:
                raise DataCorruptionError(f"short attribute key in a long form length={key_length}")
        key_end = position + key_length
        key = AttributeKey(bytes(view[position:key_end]))
        kind = view[key_end]
        position = key_end + 1
        value: AttributeValue | None
        if kind == 0:
            value = None
        elif kind == 1:
            value = _NUMBER.unpack_from(view, position)[0]
            position += 8
        elif kind == 2:
            length = _SHORT.unpack_from(view, position)[0]
            value = bytes(view[position + 2 : position + 2 + length])
            position += 2 + length
        else:
            raise DataCorruptionError(f"unknown attribute kind in a record kind={kind}")
        changes.append((key, value))
    return changes, position


def decode_events(view: memoryview, position: int) -> tuple[int, int]:
    """How many events an append declares, and the position behind that. Raises struct.error."""
    return _LENGTH.unpack_from(view, position)[0], position + _LENGTH.size


@dataclass(slots=True)
class Record:
    """A decoded record; fields that its type does not have keep their defaults."""

    type: OperationType
    sequence_number: SequenceNumber
    segment_id: SegmentId = NO_SEGMENT
    source_id: SegmentId = NO_SEGMENT
    offset: int = 0
    length: int = 0
    last_modified_ms: int = 0
    seal: bool = False
    events: int | None = None
    created: bool = False
    attributes: Sequence[tuple[AttributeKey, AttributeValue | None]] = ()
    data: memoryview = _EMPTY
    snapshot: memoryview = _EMPTY
    parent_name: str = ""
    storage_lengths: Sequence[tuple[SegmentId, int]] = ()
    root_changes: int = 0


def decode_record(view: memoryview) -> Record:
    """Parse one whole record, its length field included.

    Raises DataCorruptionError: the frame's checksum was good, so these bytes were written like this.
    """
    try:
        return _decode_record(view)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise DataCorruptionError(f"record does not parse length={len(view)}: {error}") from error


def _decode_record(view: memoryview) -> Record:
    length, kind, flags, count, number = PREFIX.unpack_from(view)
    if length + LENGTH_FIELD_BYTES != len(view):
        raise DataCorruptionError(f"record length differs said={length} given={len(view) - 4}")
    record = Record(OperationType(kind), SequenceNumber(number))
    position = PREFIX.size
    match record.type:
        case OperationType.APPEND:
            segment_id, record.offset, record.last_modified_ms, data_length = struct.unpack_from(
                "<QQqI", view, position
            )
            record.segment_id = SegmentId(segment_id)
            record.seal = bool(flags & FLAG_SEAL)
            record.attributes, position = decode_attributes(view, APPEND_HEADER.size, count)
            if flags & FLAG_EVENTS:
                record.events, position = decode_events(view, position)
            record.data = view[position : position + data_length]
            position += data_length
        case OperationType.SEAL:
            segment_id, record.last_modified_ms = _ID_TIME.unpack_from(view, position)
            record.segment_id = SegmentId(segment_id)
            position += _ID_TIME.size
        case OperationType.TRUNCATE:
            segment_id, record.offset = _ID_OFFSET.unpack_from(view, position)
            record.segment_id = SegmentId(segment_id)
            position += _ID_OFFSET.size
        case OperationType.MERGE:
            segment_id, source_id, record.offset, record.length, record.last_modified_ms = (
                _MERGE.unpack_from(view, position)
            )
            record.segment_id, record.source_id = SegmentId(segment_id), SegmentId(source_id)
            record.attributes, position = decode_attributes(view, position + _MERGE.size, count)
        case OperationType.DELETE:
            record.segment_id = SegmentId(_ID.unpack_from(view, position)[0])
            position += _ID.size
        case OperationType.UPDATE_ATTRIBUTES:
            record.segment_id = SegmentId(_ID.unpack_from(view, position)[0])
            record.attributes, position = decode_attributes(view, position + _ID.size, count)
        case OperationType.MAP_SEGMENT | OperationType.MAP_TRANSACTION:
            position = _decode_map(view, position, record, flags=flags, count=count)
        case OperationType.METADATA_CHECKPOINT:
            end = len(view)
            if flags & FLAG_ROOT_CHANGES:
                end -= _ID.size
                (record.root_changes,) = _ID.unpack_from(view, end)
            record.snapshot = view[position:end]
            position = len(view)
        case OperationType.STORAGE_CHECKPOINT:
            entries = _LENGTH.unpack_from(view, position)[0]
            position += _LENGTH.size
            end = position + entries * _ID_OFFSET.size
            record.storage_lengths = [
                (SegmentId(a), b) for a, b in _ID_OFFSET.iter_unpack(view[position:end])
            ]
            position = end
            if flags & FLAG_ROOT_CHANGES:
                (record.root_changes,) = _ID.unpack_from(view, position)
                position += _ID.size
    if position != len(view):
        raise DataCorruptionError(f"record has {len(view) - position} bytes too many")
    return record


def _decode_map(view: memoryview, position: int, record: Record, *, flags: int, count: int) -> int:
    record.segment_id = SegmentId(_ID.unpack_from(view, position)[0])
    record.created = bool(flags & FLAG_CREATED)
    position += _ID.size
    snapshot_length = _LENGTH.unpack_from(view, position)[0]
    position += _LENGTH.size
    record.snapshot = view[position : position + snapshot_length]
    position += snapshot_length
    record.attributes, position = decode_attributes(view, position, count)
    if record.type is OperationType.MAP_TRANSACTION:
        parent_length = _SHORT.unpack_from(view, position)[0]
        position += _SHORT.size
        record.parent_name = bytes(view[position : position + parent_length]).decode()
        position += parent_length
    return position
