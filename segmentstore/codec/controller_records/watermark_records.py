"""How far the writers of a stream are in time: the mark of each writer, and the watermarks that readers get.

Times are in whatever unit the stream's writers use.

## Writer mark: WriterMarkRecord

The newest time that a writer noted, and the position at which it did.

    version 1; signed time; flag alive; offsets

## Watermark: Watermark

An event of a stream's mark segment that ties a time to a position, as Pravega's readers expect it.

    u8  0                         format of the serializer
    u8  version 0, u8 1           one revision follows
    u8  revision 0, u32 length    of everything behind this field
    i64 lower time bound          no writer has noted an earlier newest time
    i64 upper time bound          no writer has noted a later time
    compact count                 of the segments in the stream cut, each one:
        u8 0, u8 0, u8 1, u8 0, u32 24
        i64 segment id, f64 low key, f64 high key
        i64 offset
    text scope, text stream       u16 length and UTF-8 each; 0.13 and older do not look behind the cut

Numbers are big endian. A compact count takes 1 byte up to 0x7F, 2 bytes with the high bits 10 up to 0x3FFF, else 4
bytes with the high bits 11. In the segment a watermark stands behind the header of an event: u32 0, u32 length.

- Segments stand in the order of their ids, so that equal watermarks have equal bytes.
- Decoding takes what encoding gives, and also records without scope and stream.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.controller_records.stream_records import SegmentWithRange
from segmentstore.codec.event_frame import frame_event
from segmentstore.contracts.errors import CorruptedDataError

_WRITER_MARK_VERSION = 1
_WATERMARK_HEADER = struct.Struct(">BBBBI")
_TIME_BOUNDS = struct.Struct(">qq")
_CUT_SEGMENT = struct.Struct(">BBBBIqddq")
_CUT_SEGMENT_REVISION_BYTES = 24
_UINT16 = struct.Struct(">H")
_LONG_COUNT = struct.Struct(">I")
_SEGMENT_COUNT_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMarkRecord:
    """One writer's mark; stream and writer stand in its key."""

    time: int
    alive: bool
    """False once the writer was closed: its last mark counts, but no watermark waits for the next."""
    position: Mapping[int, int]

    def encode(self) -> bytes:
        fields = FieldWriter(_WRITER_MARK_VERSION)
        fields.signed(self.time)
        fields.flag(self.alive)
        fields.offsets(self.position)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "WriterMarkRecord":
        fields = FieldReader(content, what="writer mark", version_max=_WRITER_MARK_VERSION)
        record = WriterMarkRecord(
            time=fields.signed(), alive=fields.flag(), position=fields.offsets()
        )
        fields.end()
        return record


@dataclass(frozen=True, slots=True)
class Watermark:
    """Times in whatever unit the stream's writers note them; offsets by segment."""

    lower_time: int
    upper_time: int
    cut: Mapping[SegmentWithRange, int]
    scope: str = ""
    stream: str = ""

    def encode(self) -> bytes:
        """The bytes without the event's header."""
        body = bytearray(_TIME_BOUNDS.pack(self.lower_time, self.upper_time))
        body += _encode_count(len(self.cut))
        for segment in sorted(self.cut):
            body += _CUT_SEGMENT.pack(
                0,
                0,
                1,
                0,
                _CUT_SEGMENT_REVISION_BYTES,
                segment.segment_id,
                segment.low,
                segment.high,
                self.cut[segment],
            )
        for text in (self.scope, self.stream):
            content = text.encode()
            body += _UINT16.pack(len(content)) + content
        return _WATERMARK_HEADER.pack(0, 0, 1, 0, len(body)) + bytes(body)

    def encode_event(self) -> bytes:
        """The bytes as they stand in the mark segment."""
        return frame_event(self.encode())

    @staticmethod
    def decode(content: bytes) -> "Watermark":
        """Take `encode` back. Raises CorruptedDataError."""
        try:
            return _decode_watermark(content)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CorruptedDataError(
                f"watermark does not parse length={len(content)}: {error}"
            ) from error


def _decode_watermark(content: bytes) -> Watermark:
    *tags, length = _WATERMARK_HEADER.unpack_from(content)
    end = _WATERMARK_HEADER.size + length
    if tags != [0, 0, 1, 0] or end != len(content):
        raise CorruptedDataError(f"watermark has an unknown header tags={tags} length={length}")
    lower_time, upper_time = _TIME_BOUNDS.unpack_from(content, _WATERMARK_HEADER.size)
    count, position = _decode_count(content, _WATERMARK_HEADER.size + _TIME_BOUNDS.size)
    cut: dict[SegmentWithRange, int] = {}
    for _ in range(count):
        *tags, revision_bytes, segment_id, low, high, offset = _CUT_SEGMENT.unpack_from(
            content, position
        )
        if tags != [0, 0, 1, 0] or revision_bytes != _CUT_SEGMENT_REVISION_BYTES:
            raise CorruptedDataError(f"watermark has an unknown segment tags={tags}")
        cut[SegmentWithRange(segment_id, low, high)] = offset
        position += _CUT_SEGMENT.size
    texts: list[str] = []
    while position < end and len(texts) < 2:
        text_bytes = _UINT16.unpack_from(content, position)[0]
        position += _UINT16.size
        texts.append(content[position : position + text_bytes].decode())
        position += text_bytes
    if position != end:
        raise CorruptedDataError(f"watermark ends elsewhere position={position} end={end}")
    scope, stream = [*texts, "", ""][:2]
    return Watermark(lower_time, upper_time, cut, scope, stream)


def _encode_count(count: int) -> bytes:
    assert 0 <= count < _SEGMENT_COUNT_MAX, f"count does not fit count={count}"
    if count <= 0x7F:
        return bytes((count,))
    if count <= 0x3FFF:
        return _UINT16.pack(count | 0x8000)
    return _LONG_COUNT.pack(count | 0xC000_0000)


def _decode_count(content: bytes, position: int) -> tuple[int, int]:
    first = content[position]
    if first <= 0x7F:
        return first, position + 1
    if first < 0xC0:
        return _UINT16.unpack_from(content, position)[0] & 0x3FFF, position + 2
    return _LONG_COUNT.unpack_from(content, position)[0] & 0x3FFF_FFFF, position + 4
