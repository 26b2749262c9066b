"""Reads a chunk image the way Tier 2 does: tail, index, planned range, blocks."""

from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_decoder import (
    ByteRange,
    ChunkIdentity,
    decode_blocks,
    parse_tail,
    plan_read,
    tail_range,
)
from tier2.format.chunk_encoder import EncodedChunk
from tier2.format.chunk_format import ChunkIndex


def image_of(chunk: EncodedChunk) -> bytes:
    return b"".join(chunk.buffers)


def identity_of(chunk: EncodedChunk) -> ChunkIdentity:
    return ChunkIdentity(
        size=chunk.size, file_crc32=chunk.file_crc32, start_offset=chunk.start_offset
    )


def read_index(image: BufferView, identity: ChunkIdentity) -> ChunkIndex:
    wanted = tail_range(identity.size)
    for _ in range(2):
        tail = memoryview(image)[wanted.start : wanted.start + wanted.length]
        found = parse_tail(tail, identity=identity)
        if isinstance(found, ChunkIndex):
            return found
        assert isinstance(found, ByteRange)
        assert found.length > wanted.length
        wanted = found
    raise AssertionError(f"no index after two fetches identity={identity}")


def read_range(image: BufferView, identity: ChunkIdentity, start: int, end: int) -> bytes:
    """Exactly the bytes of offsets [start, end)."""
    index = read_index(image, identity)
    blocks = plan_read(index, start_offset=start, end_offset=end)
    stored = memoryview(image)[blocks.start : blocks.start + blocks.length]
    content = decode_blocks(index, blocks, stored)
    return bytes(content[start - blocks.start_offset : end - blocks.start_offset])
