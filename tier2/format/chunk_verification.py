"""Proves a whole chunk image, for `tier2 verify`, repair and tests.

Any change of a single bit of an image is found: everything before the file CRC32 is under it, the CRC32 is compared
with the computed one, and the last eight bytes have only one right value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import decode_block
from tier2.format.chunk_footer import ChunkFooter, parse_footer
from tier2.format.chunk_format import FILE_CRC_TAIL_BYTES, FOOTER_BYTES, HEADER_BYTES, ChunkFlag
from tier2.format.chunk_header import ChunkHeader, parse_header
from tier2.format.chunk_index import BlockEntry, ChunkIndex, parse_index
from tier2.format.chunk_reader import ChunkIdentity


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
        index = _read_index(image, footer, record_topic=record_topic, source=source)
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


def _read_index(
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
