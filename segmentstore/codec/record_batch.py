"""Record batches, version 2: what Kafka's producers send, what a topic's partition stores, what consumers are given.

A batch is a header of 61 bytes and records behind it. All numbers are big-endian.

| at | type | field | remark |
|---|---|---|---|
| 0 | i64 | base offset | of the first record; the server writes it (`place_batch`); not in the checksum |
| 8 | i32 | batch length | of what is behind this field: the size of the whole batch less 12 |
| 12 | i32 | leader epoch | the server writes it; not in the checksum |
| 16 | i8 | magic | 2; older formats have it in the same place |
| 17 | u32 | checksum | CRC32C of every byte from 21 to the end, as they stand there: compressed |
| 21 | i16 | attributes | bits 0-2 codec, 3 time of the append, 4 transactional, 5 control, 6 delete horizon |
| 23 | i32 | last offset delta | next offset = base offset + this + 1; stays when records between are removed |
| 27 | i64 | base timestamp | Unix milliseconds; what the records' times are counted from |
| 35 | i64 | max timestamp | the highest of the records; with bit 3 every record's: the time of the append |
| 43 | i64 | producer id | -1: none, and the next two fields mean nothing |
| 51 | i16 | producer epoch | |
| 53 | i32 | base sequence | of the first record; 0 follows 2**31 - 1 |
| 57 | i32 | record count | |
| 61 | | records | one behind the other, compressed together if a codec is set |

    record     length            number            of what follows
               attributes        i8, 0
               timestamp delta   number            from the base timestamp, modulo 2**64
               offset delta      number            from the base offset
               tail              key, value and headers: record_fields.py

    number     zigzag varint: 0, -1, 1, -2 ... become 0, 1, 2, 3 ..., 7 bits in each byte, the lowest first

| codec | behind the header |
|---|---|
| 1 gzip | members of gzip |
| 2 snappy | one raw block; or a stream of xerial: `82 SNAPPY 00`, i32, i32, then {i32 length, raw block} |
| 3 lz4 | frames of LZ4 |
| 4 zstd | frames of zstd, with or without their sizes |

Invariants:

- What the server rewrites lies outside of the checksum, so that a batch is placed without a look at its records.
- The checksum covers every record, and every field of the header but the base offset, the length, the leader epoch and
  the magic; `check_batch` proves the length and the magic by themselves. So every flipped bit of a batch is found, but
  in the two fields that the server writes.
- Bytes that are no batch raise BatchError, never another error. What is decompressed is bounded, and the time for it
  grows with the bytes of the batch and of its records, into however many parts a codec has cut them.
"""

import struct
import zlib
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

from segmentstore.codec.record_fields import (
    FieldCursor,
    append_tail,
    append_zigzag,
    wrapped,
)
from segmentstore.codec.record_fields import Record as Record  # callers know it from here

BatchBytes: TypeAlias = bytes | bytearray | memoryview

BATCH_HEADER_BYTES: Final = 61
OFFSET_MAX: Final = (1 << 63) - 1
DECODED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of the records of one batch behind decompression, unless a caller says otherwise."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
assert _HEADER.size == BATCH_HEADER_BYTES, f"batch header bytes={_HEADER.size}"
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_CHECKSUM: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")
_PRODUCER: Final = struct.Struct(">qhi")

NO_LEADER_EPOCH: Final = -1
"""Consumers take it for "there are no epochs here", and do not try to compare them."""

_LENGTH_AT: Final = 8
_LEADER_EPOCH_AT: Final = 12
_BEFORE_LENGTH_ENDS: Final = 12
_MAGIC_AT: Final = 16
_CHECKSUM_AT: Final = 17
_CHECKED_FROM: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43

_MAGIC: Final = 2
_CODEC_BITS: Final = 0b111
_APPEND_TIME_BIT: Final = 1 << 3
_TRANSACTIONAL_BIT: Final = 1 << 4
_CONTROL_BIT: Final = 1 << 5

_SEQUENCE_END: Final = 1 << 31
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LZ4_STEP_BYTES_MIN: Final = 64 * 1024
_GIVEN_BYTES_MIN: Final = 4096
"""What a member or a frame is given first, and then four times as much each time: the library copies what is behind its
end, which is then no more than a few times what it took itself."""
_SHORT_PART_BYTES: Final = 1000
_SHORT_PARTS_MAX: Final = 1000
"""Members, frames and blocks that give fewer bytes, of one batch: each takes some microseconds, and a megabyte holds
200,000. Producers send one stream; blocks of xerial have 1 KiB and more, but for the last."""
_CODEC_ERRORS: Final = (
    zlib.error,
    RuntimeError,  # lz4
    EOFError,
    cramjam.DecompressionError,
    zstandard.ZstdError,
)
_RECORD_OBJECT_BYTES: Final = 256
"""Of memory, about, that a record takes as an object beside its own bytes."""
_ROOM_FOR_ALL: Final = 1 << 63
_ZSTD_WINDOW_BYTES_MAX: Final = 128 * 1024 * 1024
"""What zstd's own command takes without being asked to."""


class BatchProblem(Enum):
    """Why some bytes are refused as a batch."""

    CORRUPT = "corrupt"
    """The checksum does not match: sent again, the batch may be whole."""
    INVALID = "invalid"
    """The bytes contradict themselves."""
    OLD_FORMAT = "old_format"
    """A message set of the versions 0 or 1."""
    UNKNOWN_COMPRESSION = "unknown_compression"


class BatchError(ValueError):
    """Some bytes are no batch, or its records cannot be read. The message says where they stop making sense."""

    def __init__(self, problem: BatchProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class RecordsTooLongError(BatchError):
    """The records of a batch take more bytes behind decompression than their reader looks at."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            BatchProblem.INVALID, f"the records of a batch are too long bytes_max={bytes_max}"
        )


class Compression(IntEnum):
    """The codec of a batch. Persistent: never renumber."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Whose clock the times of a batch are of. Persistent: never renumber."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header of one batch."""

    base_offset: int
    size: int
    """Bytes of the whole batch, the header with them."""
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> Compression:
        """Raises BatchError for a codec that does not exist; check_batch() has looked."""
        return _compression_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & _APPEND_TIME_BIT))

    @property
    def append_time(self) -> int | None:
        """The time of every record, if it is that of the append."""
        is_append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        return self.max_timestamp if is_append_time else None

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """Whether producer epoch and base sequence mean something."""
        return self.producer_id >= 0

    @property
    def next_offset(self) -> int:
        """Of the record that follows the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Of the last record."""
        return add_to_sequence(self.base_sequence, self.last_offset_delta)


class SentBatch(NamedTuple):
    """Whose batch it is, and which of them."""

    producer_id: int
    epoch: int
    sequence: int
    """Of the first record."""


class BatchRecords(NamedTuple):
    """How the records of a batch lie whose header and checksum are right: as much as loops over records need."""

    end: int
    """Of the batch."""
    codec: int
    record_count: int
    base_offset: int
    base_timestamp: int
    last_offset_delta: int
    append_time: int | None
    """Of every record, if it is that of the append."""


def add_to_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` records behind `sequence`: 0 follows 2**31 - 1."""
    return (sequence + count) % _SEQUENCE_END


def parse_header(data: BatchBytes, at: int = 0) -> BatchHeader:
    """The header of the batch that begins at `at`; its records may be missing.

    Raises BatchError: INVALID for fewer bytes or a length that no batch has, OLD_FORMAT.
    """
    if len(data) - at <= _MAGIC_AT:
        raise BatchError(
            BatchProblem.INVALID, f"too short for a batch at={at} length={len(data) - at}"
        )
    magic = data[at + _MAGIC_AT]
    if magic != _MAGIC:
        raise BatchError(
            BatchProblem.OLD_FORMAT if magic < _MAGIC else BatchProblem.INVALID,
            f"no batch of version 2 begins here at={at} magic={magic}",
        )
    if len(data) - at < BATCH_HEADER_BYTES:
        raise BatchError(
            BatchProblem.INVALID,
            f"too short for a batch's header at={at} length={len(data) - at}",
        )
    (
        base_offset,
        length,
        leader_epoch,
        _magic,
        _checksum,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _HEADER.unpack_from(data, at)
    size = length + _BEFORE_LENGTH_ENDS
    if size < BATCH_HEADER_BYTES:
        raise BatchError(
            BatchProblem.INVALID, f"a batch is shorter than its header at={at} size={size}"
        )
    return BatchHeader(
        base_offset,
        size,
        leader_epoch,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )


def sent_batch(data: BatchBytes) -> SentBatch | None:
    """What a batch that was not looked at yet says of its producer; None if it names none, or is no batch."""
    if len(data) < BATCH_HEADER_BYTES or data[_MAGIC_AT] != _MAGIC:
        return None
    sent = SentBatch._make(_PRODUCER.unpack_from(data, _PRODUCER_AT))
    return sent if sent.producer_id >= 0 else None


def batch_size(batches: memoryview, at: int) -> int:
    """What the header of the batch at `at` says, without a look at anything else."""
    (length,) = _LENGTH.unpack_from(batches, at + _LENGTH_AT)
    return int(length) + _BEFORE_LENGTH_ENDS


def check_batch(data: BatchBytes) -> BatchHeader:
    """The header of `data`, which is exactly one batch as a producer sends it, and whose checksum matches.

    The records themselves are not looked at: the checksum says that they are what the producer sent. Raises BatchError.
    """
    header = proved_header(data)
    if header.last_offset_delta != header.record_count - 1:
        raise BatchError(
            BatchProblem.INVALID,
            f"offsets of a batch do not follow one another record_count={header.record_count}"
            f" last_offset_delta={header.last_offset_delta}",
        )
    if header.has_producer and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise BatchError(
            BatchProblem.INVALID,
            f"a producer has no epoch or no sequence producer_id={header.producer_id}"
            f" producer_epoch={header.producer_epoch} base_sequence={header.base_sequence}",
        )
    return header


def place_batch(batch: bytearray, base_offset: int, *, leader_epoch: int = NO_LEADER_EPOCH) -> None:
    """Writes the two fields that are the server's. The checksum stays right."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def placed_copy(batch: BatchBytes, base_offset: int) -> bytes:
    """As place_batch(), of a batch that stays as it is; its records are copied once."""
    header = bytearray(batch[:BATCH_HEADER_BYTES])
    place_batch(header, base_offset)
    with memoryview(batch) as view, view[BATCH_HEADER_BYTES:] as records:
        return b"".join((header, records))


def stamp_append_time(batch: bytearray, now_ms: int) -> None:
    """Makes `now_ms` the time of every record of the batch, and its checksum right again. Records stay as they are."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _CHECKED_FROM)
    _ATTRIBUTES.pack_into(batch, _CHECKED_FROM, attributes | _APPEND_TIME_BIT)
    _TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _write_checksum(batch)


def stamp_producer(
    batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Says whose batch it is and which of theirs, and makes its checksum right again. Records stay as they are."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _write_checksum(batch)


def encode_batch(
    records: Sequence[Record],
    *,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    keeps_offsets: bool = False,
) -> bytes:
    """One batch of the records, which get the offsets from `base_offset` on, whatever their own say.

    With `keeps_offsets` they keep their own, which grow; there may be gaps. Raises ValueError without records, or if a
    number does not fit its field.
    """
    if not records:
        raise ValueError("a batch has at least one record")
    base_timestamp = records[0].timestamp_ms
    if keeps_offsets:
        base_offset = records[0].offset
    content = bytearray()
    delta = last_delta = -1
    for record in records:
        delta = record.offset - base_offset if keeps_offsets else last_delta + 1
        if delta <= last_delta:
            raise ValueError(f"offsets do not grow offset={record.offset}")
        _append_record(content, record, delta, record.timestamp_ms - base_timestamp)
        last_delta = delta
    body = _compress(content, compression)
    attributes = compression | is_transactional * _TRANSACTIONAL_BIT | is_control * _CONTROL_BIT
    try:
        header = _HEADER.pack(
            base_offset,
            BATCH_HEADER_BYTES - _BEFORE_LENGTH_ENDS + len(body),
            leader_epoch,
            _MAGIC,
            0,
            attributes,
            last_delta,
            base_timestamp,
            max(record.timestamp_ms for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    except struct.error as error:
        raise ValueError(f"a number does not fit a batch's header: {error}") from error
    batch = bytearray(header)
    batch += body
    _write_checksum(batch)
    return bytes(batch)


def decode_batch(data: BatchBytes, *, bytes_max: int = DECODED_BYTES_MAX) -> list[Record]:
    """The records of exactly one batch, whose checksum is proved. The markers of a control batch are records as well.

    Records between may have been removed: offsets grow, up to the last one that the header names. `bytes_max` bounds
    what the records take behind decompression. Raises BatchError.
    """
    return _decoded(data, bytes_max=bytes_max)[0]


class _Told(NamedTuple):
    """Of one batch."""

    records: list[Record]
    next_offset: int
    """Behind the last one that is told; behind the batch, if all are."""
    room: int
    """What is left of the bytes that may be told."""


def _decoded(
    data: BatchBytes,
    *,
    bytes_max: int = DECODED_BYTES_MAX,
    from_offset: int | None = None,
    room: int = _ROOM_FOR_ALL,
) -> _Told:
    """The records from an offset on, as long as there is room. All are looked at, those that are not told as well."""
    header = proved_header(data)
    append_time = header.append_time
    cursor = FieldCursor(decompressed_records(data, header, bytes_max=bytes_max), _damaged)
    first_delta = 0
    if from_offset is not None:
        require_offsets(header.base_offset, header.last_offset_delta)
        first_delta = from_offset - header.base_offset
    next_offset = header.next_offset
    records: list[Record] = []
    last_delta = -1
    for _ in range(header.record_count):
        start = cursor.position
        end = record_end(cursor)
        timestamp = wrapped(header.base_timestamp + cursor.zigzag())
        delta = cursor.zigzag()
        if not last_delta < delta <= header.last_offset_delta:
            raise cursor.damaged(f"offsets do not grow delta={delta} last_delta={last_delta}")
        tail = cursor.tail() if room > 0 and delta >= first_delta else None
        if tail is None:
            cursor.skip_tail()
        if cursor.position != end:
            raise cursor.damaged(f"a record's length does not match its fields end={end}")
        if tail is not None:
            if append_time is not None:
                timestamp = append_time
            records.append(Record(header.base_offset + delta, timestamp, *tail))
            room -= end - start + _RECORD_OBJECT_BYTES
        elif room <= 0 and next_offset == header.next_offset:
            next_offset = records[-1].offset + 1
        last_delta = delta
    if not cursor.at_end():
        raise cursor.damaged("bytes follow the last record")
    return _Told(records, next_offset, room)


def decode_batches(
    content: BatchBytes, offset: int = 0, *, told_bytes_max: int | None = None
) -> tuple[list[Record], int]:
    """The records of whole batches from `offset` on, and the offset behind the last batch, or `offset` without one.

    A batch begins below `offset` if that lies inside of it. The markers of control batches are no records. With
    `told_bytes_max` no further record is told behind so many bytes of them in memory, nor behind a batch that is
    damaged, and the offset is the one behind the last that is: from there the next call goes on. Raises BatchError for
    damage; with `told_bytes_max` of the first batch alone, and with the offsets of that batch.
    """
    records: list[Record] = []
    at, next_offset = 0, offset
    room = _ROOM_FOR_ALL if told_bytes_max is None else told_bytes_max
    with memoryview(content) as view:
        while at < len(view):
            header = parse_header(view, at)
            if not header.is_control:
                if room <= 0:
                    break
                try:
                    with view[at : at + header.size] as batch:
                        told = _decoded(batch, from_offset=offset, room=room)
                except BatchError as error:
                    if told_bytes_max is None:
                        raise
                    if next_offset > offset:
                        break
                    raise _unreadable(error, header) from error
                records += told.records
                if told.next_offset != header.next_offset:
                    return records, told.next_offset
                room = told.room
            next_offset = max(next_offset, header.next_offset)
            at += header.size
    return records, next_offset


def _unreadable(error: BatchError, header: BatchHeader) -> BatchError:
    """Who reads on from the offset behind it passes it over."""
    facts = f"first_offset={header.base_offset} next_offset={header.next_offset}"
    return BatchError(error.problem, f"{error} {facts}")


def require_offsets(base_offset: int, last_offset_delta: int) -> None:
    """Raises BatchError for a placed batch whose offsets no partition has: the base offset is in no checksum."""
    if base_offset > OFFSET_MAX - last_offset_delta:
        raise BatchError(
            BatchProblem.INVALID,
            f"offsets of a batch have more than 63 bits base_offset={base_offset}"
            f" last_offset_delta={last_offset_delta}",
        )


def batch_records(batches: memoryview, at: int) -> BatchRecords:
    """Of the batch that begins at `at`, whose checksum is proved. A control batch has no records.

    Raises BatchError; ValueError if the batch is cut off.
    """
    header = parse_header(batches, at)
    end = at + header.size
    if end > len(batches):
        raise ValueError(f"a batch is cut off offset={header.base_offset} size={header.size}")
    with batches[at:end] as batch:
        header = proved_header(batch)
    return BatchRecords(
        end,
        header.attributes & _CODEC_BITS,
        0 if header.is_control else header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.last_offset_delta,
        header.append_time,
    )


def decompressed_records(
    batch: BatchBytes, header: BatchHeader, *, bytes_max: int = DECODED_BYTES_MAX
) -> bytes:
    """The bytes of a batch's records. Raises BatchError."""
    with memoryview(batch) as view, view[BATCH_HEADER_BYTES : header.size] as body:
        return decompress(body, header.compression, bytes_max)


def record_end(cursor: FieldCursor) -> int:
    """Where the record that begins at the cursor ends; the cursor is behind its length and its attributes."""
    length = cursor.zigzag()
    end = cursor.position + length
    if length < 1 or end > cursor.end:
        raise cursor.damaged(f"a record ends outside of its batch length={length}")
    cursor.position += 1  # no bit of the attributes has a meaning
    return end


def proved_header(data: BatchBytes) -> BatchHeader:
    """Of exactly one batch whose checksum matches; records between may have been removed. Raises BatchError."""
    header = parse_header(data)
    if header.size != len(data):
        raise BatchError(
            BatchProblem.INVALID,
            f"not exactly one batch size={header.size} length={len(data)}",
        )
    (checksum,) = _CHECKSUM.unpack_from(data, _CHECKSUM_AT)
    actual = _checksum_of(data)
    if actual != checksum:
        raise BatchError(
            BatchProblem.CORRUPT,
            f"a batch fails its checksum expected={checksum:#010x} actual={actual:#010x}",
        )
    if header.record_count < 1 or header.last_offset_delta < 0:
        raise BatchError(
            BatchProblem.INVALID,
            f"a batch has no records record_count={header.record_count}"
            f" last_offset_delta={header.last_offset_delta}",
        )
    _compression_of(header.attributes)
    return header


def _checksum_of(batch: BatchBytes) -> int:
    with memoryview(batch) as view, view[_CHECKED_FROM:] as checked:
        checksum: int = crc32c(checked)
    return checksum


def _write_checksum(batch: bytearray) -> None:
    _CHECKSUM.pack_into(batch, _CHECKSUM_AT, _checksum_of(batch))


def _compression_of(attributes: int) -> Compression:
    codec = attributes & _CODEC_BITS
    if codec > Compression.ZSTD:
        raise BatchError(BatchProblem.UNKNOWN_COMPRESSION, f"a codec does not exist codec={codec}")
    return Compression(codec)


def _append_record(content: bytearray, record: Record, delta: int, time_delta: int) -> None:
    if record.timestamp_ms != wrapped(record.timestamp_ms):
        raise ValueError(f"a number has more than 64 bits timestamp_ms={record.timestamp_ms}")
    body = bytearray(1)
    append_zigzag(body, wrapped(time_delta))
    append_zigzag(body, delta)
    append_tail(body, record.key, record.value, record.headers)
    append_zigzag(content, len(body))
    content += body


def _damaged(why: str, position: int) -> BatchError:
    return BatchError(BatchProblem.INVALID, f"{why} position={position}")


def _compress(content: bytearray, compression: Compression) -> bytes:
    match compression:
        case Compression.NONE:
            return bytes(content)
        case Compression.GZIP:
            return zlib.compress(content, wbits=zlib.MAX_WBITS | 16)
        case Compression.SNAPPY:
            return _compress_xerial(content)
        case Compression.LZ4:
            compressed: bytes = lz4.frame.compress(content)
            return compressed
        case Compression.ZSTD:
            return zstandard.compress(content)


def _compress_xerial(content: bytearray) -> bytes:
    """The framing that every client reads: the raw block is read by fewer."""
    pieces: list[bytes] = [_XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    with memoryview(content) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            pieces += (struct.pack(">i", len(block)), block)
    return b"".join(pieces)


def decompress(
    body: memoryview, compression: Compression, bytes_max: int = DECODED_BYTES_MAX
) -> bytes:
    """What is behind the header of a batch.

    Raises BatchError for what the codec does not read, and RecordsTooLongError for more than `bytes_max` bytes.
    """
    try:
        content = _decompress_by(compression, body, bytes_max)
    except _CODEC_ERRORS as error:
        raise BatchError(
            BatchProblem.INVALID,
            f"the records of a batch cannot be decompressed codec={compression.name}: {error}",
        ) from error
    if len(content) > bytes_max:
        raise RecordsTooLongError(bytes_max)
    return content


def _decompress_by(compression: Compression, body: memoryview, bytes_max: int) -> bytes:
    """One byte more than `bytes_max` if there are more."""
    match compression:
        case Compression.NONE:
            return bytes(body)
        case Compression.GZIP:
            return _decompress_gzip(body, bytes_max)
        case Compression.SNAPPY:
            return _decompress_snappy(body, bytes_max)
        case Compression.LZ4:
            return _decompress_lz4(body, bytes_max)
        case Compression.ZSTD:
            return _decompress_zstd(body, bytes_max)


def _decompress_gzip(body: memoryview, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    room = bytes_max + 1
    at = short_parts = 0
    while at < len(body) and room > 0:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        room_before, given_bytes = room, _GIVEN_BYTES_MIN
        while not member.eof and room > 0:
            if at == len(body):
                raise EOFError("the end is missing")
            given = body[at : at + given_bytes]
            pieces.append(member.decompress(given, room))
            room -= len(pieces[-1])
            at += len(given) - len(member.unused_data)
            given_bytes *= 4
        short_parts = _count_short_parts(short_parts, room_before - room)
    return b"".join(pieces)


def _decompress_lz4(body: memoryview, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    room = bytes_max + 1
    at = short_parts = 0
    while at < len(body) and room > 0:
        frame = lz4.frame.LZ4FrameDecompressor()
        room_before, given_bytes = room, _GIVEN_BYTES_MIN
        # The library allocates as much as it is allowed to give.
        step = _LZ4_STEP_BYTES_MIN
        given = body[:0]
        has_more = False
        while not frame.eof and room > 0:
            if not has_more:
                if at == len(body):
                    raise EOFError("the end is missing")
                given = body[at : at + given_bytes]
                at += len(given)
                given_bytes *= 4
            step = min(max(step, 4 * len(given)), room)
            piece = frame.decompress(given, max_length=step)
            pieces.append(piece)
            room -= len(piece)
            has_more = len(piece) == step
            given = body[:0]
            if has_more:
                step *= 2
        at -= len(frame.unused_data or b"")
        short_parts = _count_short_parts(short_parts, room_before - room)
    return b"".join(pieces)


def _count_short_parts(count: int, byte_count: int) -> int:
    """With one more part, which gave so many bytes. Raises BatchError for more short ones than a batch may have."""
    if byte_count >= _SHORT_PART_BYTES:
        return count
    if count == _SHORT_PARTS_MAX:
        raise BatchError(
            BatchProblem.INVALID,
            f"the records of a batch are compressed in too many short parts count_max={_SHORT_PARTS_MAX}",
        )
    return count + 1


def _decompress_zstd(body: memoryview, bytes_max: int) -> bytes:
    """An end that is missing shows as records that are."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with decompressor.stream_reader(body, read_across_frames=True) as reader:
        return reader.read(bytes_max + 1)


def _decompress_snappy(body: memoryview, bytes_max: int) -> bytes:
    if bytes(body[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_block(body, bytes_max)
    pieces: list[bytes] = []
    room = bytes_max
    at, short_parts = _XERIAL_HEADER_BYTES, 0
    while at < len(body):
        if len(body) - at < _LENGTH.size:
            raise EOFError("the length of a block is cut")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if not 0 < length <= len(body) - at:
            raise EOFError(f"a block ends outside of its batch length={length}")
        pieces.append(_decompress_block(body[at : at + length], room))
        room -= len(pieces[-1])
        at += length
        short_parts = _count_short_parts(short_parts, len(pieces[-1]))
    return b"".join(pieces)


def _decompress_block(block: memoryview, bytes_max: int) -> bytes:
    """One raw block, whose length stands in front: looked at before there is memory for it."""
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise RecordsTooLongError(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))
