"""The chunk: one immutable stretch of one segment, as it lies in an object.

The bytes of one chunk are its *image*. An image may be a whole object, or one of many images packed one behind the
other into an object; every position below counts from the first byte of the image. All numbers are big-endian, so
that the two magic numbers read "SH" and "EN" in a dump.

    image   := header block+ index footer

    header     64 bytes
       0  u16  magic 0x5348, "SH"
       2  u16  version, 1
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
      20  u32  uncompressed length, 1 .. BLOCK_BYTES_MAX
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
  start offset = the sum of the uncompressed lengths. (Events are no candidate: byte streams have none, and nobody
  here parses the bytes of the others.)
- Record topic: an offset counts records and blocks hold records as in tier2/format/records.py; record count <= end
  offset - start offset, since compaction leaves gaps.

Invariants, checked by whoever parses:

- Blocks lie one behind the other: the first at 64, each next one where the last one's CRC32 ends, the index where the
  last block ends, the footer where the index ends. There is at least one block and no byte belongs to nothing.
- First offsets grow, the first is the start offset; in a byte segment they grow by the uncompressed lengths and end
  at the end offset. Thus no single damaged field of header or index can move bytes to another offset unseen.
- Whoever has only the end of the image has enough to read: the index repeats the start and end offset, knows how each
  block is compressed, and has a checksum of its own. The file CRC32 can only be compared with a recorded one there.
- In a byte segment a block ends where an append ended (H76), unless one append alone exceeds BLOCK_BYTES_MAX: it is
  cut into blocks of BLOCK_BYTES_TARGET.
- An image is never changed. Another version number means another layout of everything behind byte 4.

Event fields: NO_EVENT_INFORMATION set means that nobody said where events lie in this block, and all four event fields
are zero. Otherwise BEGINS_ON_EVENT says that the block's first byte starts an event; NO_EVENT_STARTS that the whole
block is the inside of one, so position and number are zero while the times still count. The highest and lowest time
bound all events of the block, whatever their order.
"""

import struct
from enum import IntEnum, IntFlag

HEADER_BYTES = 64
FOOTER_BYTES = 16
BLOCK_ENTRY_BYTES = 56
INDEX_END_BYTES = 12
BLOCK_CHECKSUM_BYTES = 4

HEADER_MAGIC = 0x5348
FOOTER_MAGIC = 0x454E
CHUNK_VERSION = 1

BLOCK_BYTES_TARGET = 1 << 20
"""Uncompressed bytes that a writer aims at for each block."""

BLOCK_BYTES_MAX = 16 << 20
"""Uncompressed bytes of the largest block a reader accepts: it bounds what one damaged length can allocate."""

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


class Compression(IntEnum):
    """How block bytes are stored. Persistent: never renumber."""

    NONE = 0
    LZ4 = 1  # one raw LZ4 block; its uncompressed length is in the index
    ZSTD = 2  # one zstd frame with its content size


class ChunkFlag(IntFlag):
    """What a chunk holds. Persistent: never renumber."""

    RECORD_TOPIC = 1  # offsets count records; without it they count bytes
    NO_EVENTS = 2  # no index entry carries event information


class BlockFlag(IntFlag):
    """What the index knows about a block's events. Persistent: never renumber."""

    NO_EVENT_INFORMATION = 1
    BEGINS_ON_EVENT = 2
    NO_EVENT_STARTS = 4


# Plain numbers: the complement of an IntFlag holds only the flags it knows, and so would hide the others.
CHUNK_FLAGS_KNOWN = sum(int(flag) for flag in ChunkFlag)
BLOCK_FLAGS_KNOWN = sum(int(flag) for flag in BlockFlag)

assert HEADER_LAYOUT.size == HEADER_BYTES, f"header layout size={HEADER_LAYOUT.size}"
assert BLOCK_ENTRY_LAYOUT.size == BLOCK_ENTRY_BYTES, f"entry layout size={BLOCK_ENTRY_LAYOUT.size}"
assert INDEX_END_LAYOUT.size == INDEX_END_BYTES, f"index end size={INDEX_END_LAYOUT.size}"
assert FOOTER_LAYOUT.size == FOOTER_BYTES, f"footer layout size={FOOTER_LAYOUT.size}"
