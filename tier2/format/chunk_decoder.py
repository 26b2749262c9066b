"""Reads a part of a chunk image, and proves a whole one.

A ranged read of an image takes at most three fetches, and later ones of the same image take one:

    1. tail_range(size)            the end of the image: footer and, nearly always, the whole index
    2. parse_tail(tail, identity)  -> ChunkIndex, or the longer range to fetch when the index is longer
    3. plan_read(index, start, end)-> BlockRange: which bytes hold the blocks of these offsets
    4. decode_blocks(index, range, stored) -> their uncompressed bytes

All positions count from the image's first byte: for an image inside a packed object the caller adds its place there.
The functions are pure; decode_blocks and verify_chunk belong in an executor.

- parse_tail compares size, file CRC32 and start offset with what the layout recorded, so another chunk with good
  checksums is not mistaken for this one.
- verify_chunk, for `tier2 verify`, repair and tests, finds any change of a single bit of an image: everything before
  the file CRC32 is under it, the CRC32 is compared with the computed one, and the last eight bytes have only one right
  value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import decode_block
from tier2.format.chunk_format import (
    FILE_CRC_TAIL_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    SMALLEST_CHUNK_BYTES,
    BlockEntry,
    ChunkFlag,
    ChunkFooter,
    ChunkHeader,
    ChunkIndex,
    parse_footer,
    parse_header,
    parse_index,
)

TAIL_BYTES = 8192
"""Bytes of the first fetch: footer and index of up to 145 blocks, a chunk of well over 64 MB."""


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """What a layout entry records of an image, to know it again."""

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
    tail: BufferView, *, identity: ChunkIdentity, source: str = "chunk"
) -> ChunkIndex | ByteRange:
    """Read the index from the last bytes of an image, or say which longer tail holds it.

    Raises CorruptedDataError if the bytes are damaged or belong to another image than `identity`.
    """
    footer = _footer_of_tail(tail, size=identity.size, source=source)
    if footer.file_crc32 != identity.file_crc32:
        raise CorruptedDataError(
            f"another chunk than the recorded one source={source}"
            f" file_crc32={footer.file_crc32:#010x} recorded={identity.file_crc32:#010x}"
        )
    index = _index_of_tail(tail, footer, size=identity.size, record_topic=False, source=source)
    if isinstance(index, ChunkIndex) and index.start_offset != identity.start_offset:
        raise CorruptedDataError(
            f"another chunk than the recorded one source={source}"
            f" start_offset={index.start_offset} recorded={identity.start_offset}"
        )
    return index


def parse_file_tail(tail: BufferView, *, size: int, source: str = "file") -> ChunkIndex | ByteRange:
    """As parse_tail, of a file of records, of which no checksum is recorded elsewhere. Raises CorruptedDataError."""
    footer = _footer_of_tail(tail, size=size, source=source)
    return _index_of_tail(tail, footer, size=size, record_topic=True, source=source)


def _footer_of_tail(tail: BufferView, *, size: int, source: str) -> ChunkFooter:
    if size < SMALLEST_CHUNK_BYTES or not FOOTER_BYTES <= len(tail) <= size:
        raise CorruptedDataError(
            f"chunk tail is cut off source={source} bytes={len(tail)} chunk_size={size}"
        )
    return parse_footer(tail, source=source)


def _index_of_tail(
    tail: BufferView, footer: ChunkFooter, *, size: int, record_topic: bool, source: str
) -> ChunkIndex | ByteRange:
    index_position = footer.index_position
    if not HEADER_BYTES < index_position < size - FOOTER_BYTES:
        raise CorruptedDataError(
            f"index is out of place source={source} position={index_position} chunk_size={size}"
        )
    missing = size - len(tail) - index_position
    if missing > 0:
        return ByteRange(start=index_position, length=size - index_position)
    return parse_index(
        memoryview(tail)[-missing : len(tail) - FOOTER_BYTES],
        index_position=index_position,
        record_topic=record_topic,
        source=source,
    )


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


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """What verify_chunk found."""

    size: int
    header: ChunkHeader | None
    index: ChunkIndex | None
    damages: tuple[str, ...]
    """A sentence for each contradiction, in the order of the image; empty if the chunk is sound."""

    @property
    def sound(self) -> bool:
        return not self.damages


BlockExamination: TypeAlias = Callable[[BlockEntry, BufferView], str]
"""Looks into the bytes of a sound block; a sentence if they contradict what the block should hold, else empty."""


def verify_chunk(
    image: BufferView,
    *,
    identity: ChunkIdentity | None = None,
    source: str = "chunk",
    examine: BlockExamination | None = None,
) -> ChunkReport:
    """Check every byte of an image, and against `identity` if the layout's record is at hand.

    `examine` sees each sound block, in order, while it is decoded.

    Never raises for bad bytes: everything that can still be checked is checked. Complexity: O(size), decompressing
    one block at a time.
    """
    damages: list[str] = []
    header: ChunkHeader | None = None
    index: ChunkIndex | None = None
    footer: ChunkFooter | None = None
    try:
        header = parse_header(image, source=source)
    except CorruptedDataError as error:
        damages.append(str(error))
    try:
        footer = parse_footer(image, source=source)
        record_topic = header is not None and header.is_record_topic
        index = _index_of_image(image, footer, record_topic=record_topic, source=source)
    except CorruptedDataError as error:
        damages.append(str(error))
    if index is not None:
        damages += _block_damages(image, index, source, examine)
    if header is not None and index is not None:
        damages += _header_damages(header, index, source)
    if footer is not None:
        damages += _file_damages(image, footer, source)
    if identity is not None:
        damages += _identity_damages(identity, len(image), footer, index, source)
    return ChunkReport(size=len(image), header=header, index=index, damages=tuple(damages))


def _index_of_image(
    image: BufferView, footer: ChunkFooter, *, record_topic: bool, source: str
) -> ChunkIndex:
    end = len(image) - FOOTER_BYTES
    if not HEADER_BYTES < footer.index_position < end:
        raise CorruptedDataError(
            f"index is out of place source={source} position={footer.index_position}"
            f" chunk_size={len(image)}"
        )
    return parse_index(
        memoryview(image)[footer.index_position : end],
        index_position=footer.index_position,
        record_topic=record_topic,
        source=source,
    )


def _block_damages(
    image: BufferView, index: ChunkIndex, source: str, examine: BlockExamination | None
) -> list[str]:
    view = memoryview(image)
    damages = []
    for block, entry in enumerate(index.entries):
        try:
            content = decode_block(
                entry, view[entry.position : entry.end_position], source=f"{source} block={block}"
            )
        except CorruptedDataError as error:
            damages.append(str(error))
            continue
        sentence = examine(entry, content) if examine is not None else ""
        if sentence:
            damages.append(f"{sentence} source={source} block={block}")
    return damages


def _header_damages(header: ChunkHeader, index: ChunkIndex, source: str) -> list[str]:
    damages = []
    if (header.start_offset, header.end_offset) != (index.start_offset, index.end_offset):
        damages.append(
            f"header and index name other offsets source={source}"
            f" header=[{header.start_offset},{header.end_offset})"
            f" index=[{index.start_offset},{index.end_offset})"
        )
    no_events = all(entry.events is None for entry in index.entries)
    if no_events != (ChunkFlag.NO_EVENTS in header.flags):
        damages.append(f"header and index disagree about events source={source}")
    strangers = [
        block
        for block, entry in enumerate(index.entries)
        if entry.compression not in (header.compression, 0)
    ]
    if strangers:
        damages.append(
            f"blocks are compressed otherwise than the header says source={source}"
            f" compression={header.compression.name} blocks={strangers[:8]}"
        )
    return damages


def _file_damages(image: BufferView, footer: ChunkFooter, source: str) -> list[str]:
    crc32 = crc32_of(memoryview(image)[:-FILE_CRC_TAIL_BYTES])
    if crc32 == footer.file_crc32:
        return []
    stored = footer.file_crc32
    return [f"file fails its checksum source={source} {stored=:#010x} computed={crc32:#010x}"]


def _identity_damages(
    identity: ChunkIdentity,
    size: int,
    footer: ChunkFooter | None,
    index: ChunkIndex | None,
    source: str,
) -> list[str]:
    found = ChunkIdentity(
        size=size,
        file_crc32=identity.file_crc32 if footer is None else footer.file_crc32,
        start_offset=identity.start_offset if index is None else index.start_offset,
    )
    if found == identity:
        return []
    return [
        f"another chunk than the recorded one source={source} found={found} recorded={identity}"
    ]
