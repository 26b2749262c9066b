"""The last 16 bytes of a chunk image: where the index is and the file CRC32. Layout: tier2/format/chunk_format.py."""

from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_format import FOOTER_BYTES, FOOTER_LAYOUT, FOOTER_MAGIC


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
