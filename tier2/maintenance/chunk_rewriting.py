"""Neighbouring chunks of a segment become fewer, larger ones: for the owner's compactor, and for a compactor outside.

    images of a window -> proved -> blocks -> joined into chunks -> encoded, decoded once more and compared -> an object

- The bytes are the same and so is what is known of events: blocks are joined, never cut, each with what the segment,
  not the image, says of it. A chunk never mixes blocks of known and unknown structure.
- A damaged image is evidence and is never copied.
- A compactor outside (`rewrite_chunks`) writes nothing: it gets the bytes of an object, and what to propose to the
  owner, which decides (tier2/maintenance/chunk_swap.py). The same window gives the same bytes, wherever it runs.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.storage import ProposedImage
from tier2.container_objects import ObjectKind, ObjectNames
from tier2.format.chunk_format import HEADER_BYTES, Compression, lowest_time_of, parse_header
from tier2.layout_entry import LayoutEntry
from tier2.publish.chunk_upload import NewChunk, encode_pack
from tier2.read.chunk_images import Block, decoded_blocks, read_images, read_proved
from tier2.store_reader import ContainerReader

JOINED_TIMES_MAX = 16_384
"""Different times in a row of one joined chunk: their blocks have an index of 0.9 MB."""


def join_blocks(
    offset: int, blocks: Iterable[Block], *, chunk_bytes_max: int, compression: Compression
) -> list[NewChunk]:
    """Chunks of neighbouring blocks from `offset` on, each with the checksum of what was read. O(bytes)."""
    chunks: list[NewChunk] = []
    times = 0
    for content, events in blocks:
        chunk = chunks[-1] if chunks else None
        if chunk is not None:
            times += lowest_time_of(chunk.events[-1]) != lowest_time_of(events)
        if (
            chunk is None
            or chunk.length + len(content) > chunk_bytes_max
            or times >= JOINED_TIMES_MAX
            or (chunk.events[-1] is None) != (events is None)
        ):
            chunk, times = NewChunk(offset, compression=compression, crc32=0), 0
            chunks.append(chunk)
        chunk.runs.append(content)
        chunk.events.append(events)
        chunk.length += len(content)
        chunk.crc32 = crc32_of(content, chunk.crc32 or 0)
        offset += len(content)
    return chunks


@dataclass(frozen=True, slots=True)
class RewrittenChunks:
    """The object to upload, and its images as they are proposed to the owner."""

    buffers: Sequence[BufferView]
    images: Sequence[ProposedImage]

    @property
    def size(self) -> int:
        return sum(image.size for image in self.images)


async def rewrite_chunks(
    reader: ContainerReader,
    entries: Sequence[LayoutEntry],
    *,
    object_key: str,
    chunk_bytes_max: int,
    created_ms: int,
) -> RewrittenChunks | None:
    """What neighbouring chunks of one segment become in zstd; None if they are in zstd and would not become fewer.

    `object_key`: given out by the owner. A chunk longer than `chunk_bytes_max` keeps its length. O(bytes).

    Raises CorruptedDataError, ObjectNotFoundError, StorageError.
    """
    names = reader.components.names
    identity = names.identity(ObjectKind.CHUNKS, object_key)
    if identity is None:
        raise InvalidRequestError(f"not a key of chunks of this container key={object_key!r}")
    if len(entries) == 1 and await _header_says_zstd(reader, entries[0]):
        return None
    offload = reader.components.offload
    parts: dict[int, list[Block]] = {}
    all_in_zstd = True
    async with aclosing(read_images(entries, reader.components)) as found:
        async for images in found:
            for entry, image, index in images:
                header = parse_header(image, source=str(entry.identity))
                all_in_zstd &= header.compression is Compression.ZSTD
                parts[entry.start_offset] = await offload(decoded_blocks, entry, image, index)
    chunks = join_blocks(
        entries[0].start_offset,
        [block for _, blocks in sorted(parts.items()) for block in blocks],
        chunk_bytes_max=max(chunk_bytes_max, entries[0].length),
        compression=Compression.ZSTD,
    )
    if all_in_zstd and len(chunks) >= len(entries):
        return None
    buffers = await offload(encode_pack, identity, chunks, 0, Compression.ZSTD, created_ms)
    return RewrittenChunks(buffers, [_proposed_chunk(chunk, object_key) for chunk in chunks])


async def _header_says_zstd(reader: ContainerReader, entry: LayoutEntry) -> bool:
    """Whether a chunk that no neighbour joins need not be read at all."""
    header = await read_proved(
        (ObjectKind.CHUNKS, entry.identity),
        entry.position,
        HEADER_BYTES,
        lambda head: parse_header(head, source=str(entry.identity)),
        reader.components,
    )
    return header.compression is Compression.ZSTD


def _proposed_chunk(chunk: NewChunk, object_key: str) -> ProposedImage:
    place = chunk.place
    assert place is not None, f"the chunk was not encoded offset={chunk.offset}"
    return ProposedImage(
        start_offset=chunk.offset,
        end_offset=chunk.offset + chunk.length,
        object_key=object_key,
        position=place.position,
        size=place.size,
        file_crc32=place.file_crc32,
    )


def proposed_images(
    container_id: ContainerId, entries: Iterable[LayoutEntry]
) -> list[ProposedImage]:
    """The images of a layout, as a proposal names what it wants replaced."""
    names = ObjectNames(container_id)
    return [
        ProposedImage(
            start_offset=entry.start_offset,
            end_offset=entry.end_offset,
            object_key=names.key(ObjectKind.CHUNKS, entry.identity),
            position=entry.position,
            size=entry.size,
            file_crc32=entry.file_crc32,
        )
        for entry in entries
    ]
