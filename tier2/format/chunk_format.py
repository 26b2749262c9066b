"""The format of a chunk, byte by byte; header, index and footer written and parsed.

A chunk is one immutable stretch of one segment, as it lies in an object. The bytes of one chunk are its *image*. An
image may be a whole object, or one of many images packed one behind the other into an object; every position below
counts from the first byte of the image. All numbers are big-endian, so that the two magic numbers read "SH" and "EN" in
a dump.

    image   := header block+ index footer

    header     64 bytes
       0  u16  magic 0x5348, "SH"
       2  u16  version: 1 of a byte segment, 2 of a record topic
       4  u32  flags, see ChunkFlag; the others are zero
       8  u8   compression that the writer was asked for, see Compression
       9  i64  created, Unix time in milliseconds
      17  u64  record count, see below
      25  u64  start offset, inclusive
      33  u64  end offset, exclusive
      41  23   reserved, zero

    block      stored length + 4 bytes
       0       the block's bytes as the index entry's compression says
       n  u32  CRC32 of those stored bytes

    index      56 bytes for each block, then 12 bytes
       0  u64  first offset of the block
       8  u64  position of the block's first byte in the image
      16  u32  stored length, without the CRC32
      20  u32  uncompressed length, 1 .. BLOCK_BYTES_MAX (of a record topic 1 .. RECORD_BLOCK_BYTES_MAX)
      24  u8   compression of this block: the header's, or NONE because it did not shrink
      25  u8   flags, see BlockFlag
      26  u16  reserved, zero
      28  u32  position, in the uncompressed block, of the first event that starts in it
      32  u64  number of that event in the segment
      40  i64  lowest time of the block's events, Unix milliseconds
      48  i64  highest time of the block's events
     then
       0  u64  end offset, as in the header
       8  u32  CRC32 of the index from its first byte to here

    footer     16 bytes
       0  u64  position of the index in the image
       8  u32  file CRC32: of every byte of the image before this field
      12  u16  magic 0x454E, "EN"
      14  u16  reserved, zero

What an offset and a record are depends on the chunk's kind:

- Byte segment (no RECORD_TOPIC flag): an offset counts bytes and a record is one byte, so record count = end offset -
  start offset = the sum of the uncompressed lengths. (Events are no candidate: byte streams have none, and no code
  here parses the bytes of the others.)
- Record topic (RECORD_TOPIC flag): an offset counts records and blocks hold records as in tier2/format/records.py, in
  the form NULLABLE; record count <= end offset - start offset, since compaction leaves gaps. Each record is an event:
  every block begins on one, whose number is its offset. Version 1 is not used for topics: its records had no null.

Invariants, checked by every parser:

- Blocks lie one behind the other: the first at 64, each next one where the last one's CRC32 ends, the index where the
  last block ends, the footer where the index ends. There is at least one block and no byte belongs to nothing.
- First offsets grow, the first is the start offset; in a byte segment they grow by the uncompressed lengths and end
  at the end offset. Thus no single damaged field of header or index can move bytes to another offset unseen.
- A reader that has only the end of the image has enough: the index repeats the start and end offset, knows how each
  block is compressed, and has a checksum of its own. The file CRC32 can only be compared with a recorded one there.
- In a byte segment a block ends where an append ended, unless one append alone exceeds BLOCK_BYTES_MAX: it is
  cut into blocks of BLOCK_BYTES_TARGET.
- An image is never changed. Another version number means another layout of everything behind byte 4.

Event fields: NO_EVENT_INFORMATION set means that the writer did not say where events lie in this block, and all four
event fields are zero. Otherwise BEGINS_ON_EVENT says that the block's first byte starts an event; NO_EVENT_STARTS that
the whole block is the inside of one, so position and number are zero while the times still count. The highest and
lowest time bound all events of the block, whatever their order.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from itertools import chain

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

HEADER_BYTES = 64
FOOTER_BYTES = 16
BLOCK_ENTRY_BYTES = 56
INDEX_END_BYTES = 12
BLOCK_CHECKSUM_BYTES = 4

HEADER_MAGIC = 0x5348
FOOTER_MAGIC = 0x454E
CHUNK_VERSION = 1
RECORD_FILE_VERSION = 2

BLOCK_BYTES_TARGET = 1 << 20
"""Uncompressed bytes that a writer aims at for each block."""

BLOCK_BYTES_MAX = 16 << 20
"""Uncompressed bytes of the largest block a reader accepts: it bounds what one damaged length can allocate."""

RECORD_BLOCK_BYTES_MAX = 257 << 20
"""The same of a record topic, where one record is never cut: more than any batch may become (record_batch.py)."""

BLOCK_COUNT_MAX = 1 << 20
"""Blocks of the largest chunk a reader accepts, for the same reason."""

HEADER_RESERVED = bytes(23)
HEADER_LAYOUT = struct.Struct(">HHIBqQQQ23s")
BLOCK_ENTRY_LAYOUT = struct.Struct(">QQIIBBHIQqq")
INDEX_END_LAYOUT = struct.Struct(">QI")
FOOTER_LAYOUT = struct.Struct(">QIHH")
CHECKSUM_LAYOUT = struct.Struct(">I")

FILE_CRC_TAIL_BYTES = 8
"""Bytes at the end of the image that the file CRC32 does not cover: itself, the magic and the reserved bytes."""

SMALLEST_CHUNK_BYTES = (
    HEADER_BYTES + 1 + BLOCK_CHECKSUM_BYTES + BLOCK_ENTRY_BYTES + INDEX_END_BYTES + FOOTER_BYTES
)

assert HEADER_LAYOUT.size == HEADER_BYTES, f"header layout size={HEADER_LAYOUT.size}"
assert BLOCK_ENTRY_LAYOUT.size == BLOCK_ENTRY_BYTES, f"entry layout size={BLOCK_ENTRY_LAYOUT.size}"
assert INDEX_END_LAYOUT.size == INDEX_END_BYTES, f"index end size={INDEX_END_LAYOUT.size}"
assert FOOTER_LAYOUT.size == FOOTER_BYTES, f"footer layout size={FOOTER_LAYOUT.size}"


class Compression(IntEnum):
    """How block bytes are stored. Persistent: never renumber."""

    NONE = 0
    LZ4 = 1  # one raw LZ4 block; its uncompressed length is in the index
    ZSTD = 2  # one zstd frame with its content size


class ChunkFlag(IntFlag):
    """What a chunk holds. Persistent: never renumber."""

    RECORD_TOPIC = 1  # offsets count records; without it they count bytes
    NO_EVENTS = 2  # no index entry carries event information
    LOG_APPEND_TIME = 4  # of a record topic: times are those of the append, not the producer's


class BlockFlag(IntFlag):
    """What the index knows about a block's events. Persistent: never renumber."""

    NO_EVENT_INFORMATION = 1
    BEGINS_ON_EVENT = 2
    NO_EVENT_STARTS = 4


# Plain numbers: the complement of an IntFlag holds only the flags it knows, and so would hide the others.
CHUNK_FLAGS_KNOWN = sum(int(flag) for flag in ChunkFlag)
BLOCK_FLAGS_KNOWN = sum(int(flag) for flag in BlockFlag)
_COMPRESSIONS = frozenset(int(compression) for compression in Compression)


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The named fields of a header."""

    flags: ChunkFlag
    compression: Compression
    created_ms: int
    record_count: int
    start_offset: int
    end_offset: int
    """Exclusive."""

    @property
    def is_record_topic(self) -> bool:
        return ChunkFlag.RECORD_TOPIC in self.flags

    @property
    def version(self) -> int:
        return RECORD_FILE_VERSION if self.is_record_topic else CHUNK_VERSION


def encode_header(header: ChunkHeader) -> bytes:
    """The 64 bytes of the header."""
    return HEADER_LAYOUT.pack(
        HEADER_MAGIC,
        header.version,
        header.flags,
        header.compression,
        header.created_ms,
        header.record_count,
        header.start_offset,
        header.end_offset,
        HEADER_RESERVED,
    )


def parse_header(content: BufferView, *, source: str = "chunk") -> ChunkHeader:
    """Read the first 64 bytes of an image; `source` names it in errors.

    Raises CorruptedDataError if they are no header of this version or contradict themselves.
    """
    if len(content) < HEADER_BYTES:
        raise CorruptedDataError(f"chunk header is cut off source={source} bytes={len(content)}")
    magic, version, flags, compression, created_ms, record_count, start, end, reserved = (
        HEADER_LAYOUT.unpack_from(content)
    )
    if magic != HEADER_MAGIC:
        raise CorruptedDataError(f"not a chunk header source={source} magic={magic:#06x}")
    if version not in (CHUNK_VERSION, RECORD_FILE_VERSION):
        raise CorruptedDataError(f"unknown chunk version source={source} version={version}")
    if flags & ~CHUNK_FLAGS_KNOWN:
        raise CorruptedDataError(f"unknown chunk flags source={source} flags={flags:#010x}")
    if compression not in _COMPRESSIONS:
        raise CorruptedDataError(f"unknown compression source={source} compression={compression}")
    if reserved != HEADER_RESERVED:
        raise CorruptedDataError(f"reserved header bytes are not zero source={source}")
    header = ChunkHeader(
        flags=ChunkFlag(flags),
        compression=Compression(compression),
        created_ms=created_ms,
        record_count=record_count,
        start_offset=start,
        end_offset=end,
    )
    if version != header.version:
        raise CorruptedDataError(
            f"another version than that of its kind source={source} version={version}"
        )
    if ChunkFlag.LOG_APPEND_TIME in header.flags and not header.is_record_topic:
        raise CorruptedDataError(f"only topics say whose their times are source={source}")
    _check_header_counts(header, source)
    return header


def _check_header_counts(header: ChunkHeader, source: str) -> None:
    length = header.end_offset - header.start_offset
    agrees = (
        0 < header.record_count <= length
        if header.is_record_topic
        else 0 < header.record_count == length
    )
    if not agrees:
        raise CorruptedDataError(
            f"chunk header contradicts itself source={source} start_offset={header.start_offset}"
            f" end_offset={header.end_offset} record_count={header.record_count}"
        )


@dataclass(frozen=True, slots=True)
class EventInformation:
    """Where the events of some bytes lie: of one run when it is written, of one block when it is read."""

    first_event_position: int | None
    """Of the first event that starts in these bytes, from their first byte; 0: they begin on an event; None: they
    lie inside one event."""
    first_event_number: int
    """Number of that event in its segment; 0 if none starts here."""
    lowest_time_ms: int
    highest_time_ms: int
    """Unix time; both are 0 where no times are known."""


def lowest_time_of(events: EventInformation | None) -> int:
    """The time that readers give to the events of a block; 0 if none is known."""
    return 0 if events is None else events.lowest_time_ms


def joined_times(parts: Sequence[EventInformation]) -> tuple[int, int]:
    """Lowest and highest time of bytes that lie behind one another; none at all if some of them have none.

    What is said of some must not be taken for a bound of all: by the highest time bytes expire.
    """
    if not all(part.highest_time_ms for part in parts):
        return 0, 0
    return (
        min(part.lowest_time_ms for part in parts),
        max(part.highest_time_ms for part in parts),
    )


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """What the index says about one block."""

    first_offset: int
    position: int
    """Of the stored bytes, from the first byte of the image."""
    stored_length: int
    """Without the CRC32 behind them."""
    uncompressed_length: int
    compression: Compression
    events: EventInformation | None = None

    @property
    def end_position(self) -> int:
        """Where the next block, or the index, begins."""
        return self.position + self.stored_length + BLOCK_CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The blocks of one chunk, in offset order, without a gap."""

    entries: Sequence[BlockEntry]
    end_offset: int

    @property
    def start_offset(self) -> int:
        return self.entries[0].first_offset

    def block_at(self, offset: int) -> int:
        """Number of the block that holds the offset. Complexity: O(log blocks). Raises ValueError if none does."""
        if not self.start_offset <= offset < self.end_offset:
            raise ValueError(
                f"offset is outside the chunk offset={offset} start_offset={self.start_offset}"
                f" end_offset={self.end_offset}"
            )
        return bisect_right(self.entries, offset, key=_first_offset_of) - 1

    def block_end_offset(self, block: int) -> int:
        """First offset behind the block."""
        following = block + 1
        if following < len(self.entries):
            return self.entries[following].first_offset
        return self.end_offset


def _first_offset_of(entry: BlockEntry) -> int:
    return entry.first_offset


def encode_index(index: ChunkIndex) -> bytes:
    """The bytes of the index with its end and checksum."""
    packed = b"".join(_encode_block_entry(entry) for entry in index.entries)
    crc32 = crc32_of(index.end_offset.to_bytes(8, "big"), crc32_of(packed))
    return packed + INDEX_END_LAYOUT.pack(index.end_offset, crc32)


def _encode_block_entry(entry: BlockEntry) -> bytes:
    events = entry.events
    if events is None:
        flags, position, number, lowest, highest = BlockFlag.NO_EVENT_INFORMATION, 0, 0, 0, 0
    else:
        lowest, highest = events.lowest_time_ms, events.highest_time_ms
        position, number = events.first_event_position or 0, events.first_event_number
        if events.first_event_position is None:
            flags = BlockFlag.NO_EVENT_STARTS
        elif position == 0:
            flags = BlockFlag.BEGINS_ON_EVENT
        else:
            flags = BlockFlag(0)
    return BLOCK_ENTRY_LAYOUT.pack(
        entry.first_offset,
        entry.position,
        entry.stored_length,
        entry.uncompressed_length,
        entry.compression,
        flags,
        0,
        position,
        number,
        lowest,
        highest,
    )


def parse_index(
    content: BufferView, *, index_position: int, record_topic: bool, source: str = "chunk"
) -> ChunkIndex:
    """Read an index: exactly the bytes between `index_position` and the footer.

    Raises CorruptedDataError if the checksum fails or the entries contradict each other or their place.
    """
    entry_bytes = len(content) - INDEX_END_BYTES
    count, rest = divmod(entry_bytes, BLOCK_ENTRY_BYTES)
    if not 1 <= count <= BLOCK_COUNT_MAX or rest:
        raise CorruptedDataError(f"chunk index has a bad size source={source} bytes={len(content)}")
    end_offset, stored_crc32 = INDEX_END_LAYOUT.unpack_from(content, entry_bytes)
    crc32 = crc32_of(memoryview(content)[: entry_bytes + 8])
    if crc32 != stored_crc32:
        raise CorruptedDataError(
            f"chunk index fails its checksum source={source} position={index_position}"
            f" stored={stored_crc32:#010x} computed={crc32:#010x}"
        )
    entries = [
        _parse_block_entry(
            fields,
            RECORD_BLOCK_BYTES_MAX if record_topic else BLOCK_BYTES_MAX,
            f"{source} block={block}",
        )
        for block, fields in enumerate(
            BLOCK_ENTRY_LAYOUT.iter_unpack(memoryview(content)[:entry_bytes])
        )
    ]
    index = ChunkIndex(entries=entries, end_offset=end_offset)
    _check_block_places(index, index_position, source)
    _check_block_offsets(index, record_topic=record_topic, source=source)
    return index


def _parse_block_entry(fields: tuple[int, ...], uncompressed_max: int, source: str) -> BlockEntry:
    first_offset, position, stored, uncompressed, compression, flags, reserved = fields[:7]
    if compression not in _COMPRESSIONS or flags & ~BLOCK_FLAGS_KNOWN or reserved:
        raise CorruptedDataError(
            f"unknown block kind source={source} compression={compression} flags={flags}"
            f" reserved={reserved}"
        )
    kind = Compression(compression)
    shrinks = stored == uncompressed if kind is Compression.NONE else stored < uncompressed
    if not shrinks or stored == 0 or uncompressed > uncompressed_max:
        raise CorruptedDataError(
            f"bad block lengths source={source} compression={kind.name} stored={stored}"
            f" uncompressed={uncompressed} {uncompressed_max=}"
        )
    return BlockEntry(
        first_offset=first_offset,
        position=position,
        stored_length=stored,
        uncompressed_length=uncompressed,
        compression=kind,
        events=_parse_event_fields(BlockFlag(flags), fields[7:], uncompressed, source),
    )


def _parse_event_fields(
    flags: BlockFlag, fields: tuple[int, ...], uncompressed: int, source: str
) -> EventInformation | None:
    position, number, lowest, highest = fields
    agrees = {
        int(BlockFlag.NO_EVENT_INFORMATION): not any(fields),
        int(BlockFlag.NO_EVENT_STARTS): position == 0 and number == 0,
        int(BlockFlag.BEGINS_ON_EVENT): position == 0,
        0: 0 < position < uncompressed,
    }.get(int(flags), False)
    if not agrees or lowest > highest:
        raise CorruptedDataError(
            f"event fields contradict each other source={source} flags={int(flags)}"
            f" position={position} number={number} lowest={lowest} highest={highest}"
        )
    if BlockFlag.NO_EVENT_INFORMATION in flags:
        return None
    return EventInformation(
        first_event_position=None if BlockFlag.NO_EVENT_STARTS in flags else position,
        first_event_number=number,
        lowest_time_ms=lowest,
        highest_time_ms=highest,
    )


def _check_block_places(index: ChunkIndex, index_position: int, source: str) -> None:
    expected = HEADER_BYTES
    for block, entry in enumerate(index.entries):
        if entry.position != expected:
            raise CorruptedDataError(
                f"block is out of place source={source} block={block} position={entry.position}"
                f" expected={expected}"
            )
        expected = entry.end_position
    if index_position != expected:
        raise CorruptedDataError(
            f"index is out of place source={source} position={index_position} expected={expected}"
        )


def _check_block_offsets(index: ChunkIndex, *, record_topic: bool, source: str) -> None:
    ends = chain((entry.first_offset for entry in index.entries[1:]), (index.end_offset,))
    for block, (entry, end) in enumerate(zip(index.entries, ends, strict=True)):
        length = end - entry.first_offset
        if length <= 0 or (not record_topic and length != entry.uncompressed_length):
            raise CorruptedDataError(
                f"offsets do not follow each other source={source} block={block}"
                f" first_offset={entry.first_offset} next={end}"
                f" uncompressed_length={entry.uncompressed_length}"
            )


@dataclass(frozen=True, slots=True)
class ChunkFooter:
    """The named fields of a footer."""

    index_position: int
    file_crc32: int


def encode_footer(*, index_position: int, crc32_before_footer: int) -> tuple[bytes, int]:
    """The 16 bytes of the footer and the file CRC32 in it, which covers the index position too."""
    position = index_position.to_bytes(8, "big")
    file_crc32 = crc32_of(position, crc32_before_footer)
    return FOOTER_LAYOUT.pack(index_position, file_crc32, FOOTER_MAGIC, 0), file_crc32


def parse_footer(content: BufferView, *, source: str = "chunk") -> ChunkFooter:
    """Read a footer from the last 16 bytes of `content`; `source` names the image in errors.

    Raises CorruptedDataError if they are no footer.
    """
    start = len(content) - FOOTER_BYTES
    if start < 0:
        raise CorruptedDataError(f"chunk footer is cut off source={source} bytes={len(content)}")
    index_position, file_crc32, magic, reserved = FOOTER_LAYOUT.unpack_from(content, start)
    if magic != FOOTER_MAGIC:
        raise CorruptedDataError(f"not a chunk footer source={source} magic={magic:#06x}")
    if reserved != 0:
        raise CorruptedDataError(f"reserved footer bytes are not zero source={source}")
    return ChunkFooter(index_position=index_position, file_crc32=file_crc32)
