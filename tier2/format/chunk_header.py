"""The first 64 bytes of a chunk image: what it is and which offsets it holds. Layout: tier2/format/chunk_format.py."""

from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_format import (
    CHUNK_FLAGS_KNOWN,
    CHUNK_VERSION,
    HEADER_BYTES,
    HEADER_LAYOUT,
    HEADER_MAGIC,
    HEADER_RESERVED,
    ChunkFlag,
    Compression,
)


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


def encode_header(header: ChunkHeader) -> bytes:
    """The 64 bytes of the header."""
    return HEADER_LAYOUT.pack(
        HEADER_MAGIC,
        CHUNK_VERSION,
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
    if version != CHUNK_VERSION:
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
    _check_counts(header, source)
    return header


_COMPRESSIONS = frozenset(int(compression) for compression in Compression)


def _check_counts(header: ChunkHeader, source: str) -> None:
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
