"""Reading a part of a chunk image: which bytes to fetch, and what they mean.

A ranged read of an image takes at most three fetches, and later ones of the same image take one:

    1. tail_range(size)            the end of the image: footer and, nearly always, the whole index
    2. parse_tail(tail, identity)  -> ChunkIndex, or the longer range to fetch when the index is longer
    3. plan_read(index, start, end)-> BlockRange: which bytes hold the blocks of these offsets
    4. decode_blocks(index, range, stored) -> their uncompressed bytes

All positions count from the image's first byte: for an image inside a packed object the caller adds its place there.
Pure; decode_blocks belongs in an executor.

H10: parse_tail compares size, file CRC32 and start offset with what the layout recorded, so another chunk with good
checksums is not mistaken for this one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import decode_block
from tier2.format.chunk_footer import parse_footer
from tier2.format.chunk_format import FOOTER_BYTES, HEADER_BYTES, SMALLEST_CHUNK_BYTES
from tier2.format.chunk_index import ChunkIndex, parse_index

TAIL_BYTES = 8192
"""Bytes of the first fetch: footer and index of up to 145 blocks, a chunk of well over 64 MB."""


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """What a layout entry records of an image, to know it again (H10)."""

    size: int
    file_crc32: int
    start_offset: int
    """In the segment the chunk was written for; after a merge only the layout knows where its bytes are."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, start + length) of an image."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Neighbouring blocks of one image and where their stored bytes are."""

    first_block: int
    block_count: int
    start: int
    """Position of the stored bytes in the image."""
    length: int
    """Of the stored bytes, checksums included."""
    start_offset: int
    """First offset in the uncompressed bytes."""
    uncompressed_length: int


def tail_range(size: int) -> ByteRange:
    """What to fetch first from an image of `size` bytes. Small images are fetched whole."""
    start = max(0, size - TAIL_BYTES)
    return ByteRange(start=start, length=size - start)


def parse_tail(
    tail: BufferView, *, identity: ChunkIdentity, record_topic: bool = False, source: str = "chunk"
) -> ChunkIndex | ByteRange:
    """Read the index from the last bytes of an image, or say which longer tail holds it.

    Raises CorruptedDataError if the bytes are damaged or belong to another image than `identity`.
    """
    size = identity.size
    if size < SMALLEST_CHUNK_BYTES or not FOOTER_BYTES <= len(tail) <= size:
        raise CorruptedDataError(
            f"chunk tail is cut off source={source} bytes={len(tail)} chunk_size={size}"
        )
    footer = parse_footer(tail, source=source)
    if footer.file_crc32 != identity.file_crc32:
        raise CorruptedDataError(
            f"another chunk than the recorded one source={source}"
            f" file_crc32={footer.file_crc32:#010x} recorded={identity.file_crc32:#010x}"
        )
    index_position = footer.index_position
    if not HEADER_BYTES < index_position < size - FOOTER_BYTES:
        raise CorruptedDataError(
            f"index is out of place source={source} position={index_position} chunk_size={size}"
        )
    missing = size - len(tail) - index_position
    if missing > 0:
        return ByteRange(start=index_position, length=size - index_position)
    index = parse_index(
        memoryview(tail)[-missing : len(tail) - FOOTER_BYTES],
        index_position=index_position,
        record_topic=record_topic,
        source=source,
    )
    if index.start_offset != identity.start_offset:
        raise CorruptedDataError(
            f"another chunk than the recorded one source={source}"
            f" start_offset={index.start_offset} recorded={identity.start_offset}"
        )
    return index


def plan_read(index: ChunkIndex, *, start_offset: int, end_offset: int) -> BlockRange:
    """The blocks that hold [start_offset, end_offset). Complexity: O(log blocks).

    Raises ValueError if that is empty or not wholly inside the chunk.
    """
    if end_offset <= start_offset:
        raise ValueError(f"empty range start_offset={start_offset} end_offset={end_offset}")
    first = index.block_at(start_offset)
    last = index.block_at(end_offset - 1)
    start = index.entries[first].position
    start_offset = index.entries[first].first_offset
    last_entry = index.entries[last]
    return BlockRange(
        first_block=first,
        block_count=last - first + 1,
        start=start,
        length=last_entry.end_position - start,
        start_offset=start_offset,
        uncompressed_length=last_entry.first_offset + last_entry.uncompressed_length - start_offset,
    )


def decode_blocks(
    index: ChunkIndex, blocks: BlockRange, stored: BufferView, *, source: str = "chunk"
) -> memoryview:
    """The uncompressed bytes of the blocks, beginning at `blocks.start_offset`.

    One block is not copied again. Raises CorruptedDataError if any of them is damaged or cut off.
    """
    parts = decode_block_list(index, blocks, stored, source=source)
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def decode_block_list(
    index: ChunkIndex, blocks: BlockRange, stored: BufferView, *, source: str = "chunk"
) -> Sequence[BufferView]:
    """As decode_blocks, one buffer for each block."""
    if len(stored) != blocks.length:
        raise CorruptedDataError(
            f"blocks are cut off source={source} position={blocks.start} bytes={len(stored)}"
            f" expected={blocks.length}"
        )
    view = memoryview(stored)
    entries = index.entries[blocks.first_block : blocks.first_block + blocks.block_count]
    return [
        decode_block(
            entry,
            view[entry.position - blocks.start : entry.end_position - blocks.start],
            source=source,
        )
        for entry in entries
    ]
