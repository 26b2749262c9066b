"""The work of one task of the `compact` job: neighbouring chunks of a segment become one large chunk in zstd.

- The bytes are the same and so is what is known of events: blocks are joined, never cut (H76). Every image that is read
  is proved first, every one that is written is decoded once more; a damaged image is evidence and is never copied.
- A task that runs twice writes the same bytes under the same key (H2): nothing in them depends on when or where it ran.
- It publishes nothing: the owner looks at what was uploaded and decides (H9).
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.spark.jobs.tier2_opening import open_for_uploads
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.tier2_view import Tier2Place, open_for_reading
from tier2.format.block import decode_block
from tier2.format.chunk_encoder import EncodedChunk, encode_chunk
from tier2.format.chunk_format import HEADER_BYTES, Compression
from tier2.format.chunk_header import parse_header
from tier2.storage.chunk_joining import Block, decoded_blocks, join_blocks
from tier2.storage.image_reading import verify_image
from tier2.storage.new_chunks import NewChunk
from tier2.storage.object_names import ObjectKind, ObjectNames
from tier2.storage.run_values import LayoutEntry
from tier2.storage.swap_proposals import ProposedImage


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A window of one segment, and where its bytes go."""

    container_id: int
    segment_id: int
    segment_name: str
    entries: tuple[LayoutEntry, ...]
    """Neighbours in offset order."""
    object_key: str
    """Given out by the owner."""
    created_ms: int
    chunk_bytes_max: int
    staging_directory: str = ""
    """Where the object is left for the driver, if the workers may not write to Tier 2 themselves."""

    @property
    def length(self) -> int:
        """Uncompressed bytes."""
        return self.entries[-1].end_offset - self.entries[0].start_offset


@dataclass(frozen=True, slots=True)
class RewrittenWindow:
    """What became of it."""

    task: RewriteTask
    new: tuple[ProposedImage, ...] = ()
    """What to propose; empty if the window is as it should be, or could not be rewritten."""
    stored_bytes: int = 0
    """Of the new object."""
    staged_path: str = ""
    why_not: str = ""
    """A sentence, if the window could not be rewritten."""


def rewrite_window(place: Tier2Place, task: RewriteTask) -> RewrittenWindow:
    """Read, join, encode, upload. Raises StorageError if the store does not answer."""
    with LoopRunner() as runner:
        return runner.run(_rewrite(place, task, runner.executor))


async def _rewrite(place: Tier2Place, task: RewriteTask, executor: Executor) -> RewrittenWindow:
    try:
        async with open_for_reading(place, executor) as store:
            if len(task.entries) == 1 and await _is_zstd(store, task, task.entries[0]):
                return RewrittenWindow(task)
            images = [await _image(store, task, entry) for entry in task.entries]
        chunks, in_zstd = joined(task, images)
    except ObjectNotFoundError:
        return RewrittenWindow(task, why_not="its chunks are somewhere else by now")
    except CorruptedDataError as error:
        return RewrittenWindow(task, why_not=f"not copied, it is damaged: {error}")
    if in_zstd and len(chunks) >= len(task.entries):
        return RewrittenWindow(task)
    buffers, new = encoded_object(task, chunks)
    window = RewrittenWindow(task, tuple(new), sum(image.size for image in new))
    if task.staging_directory:
        return _staged(window, buffers)
    async with open_for_uploads(place, executor) as store:
        await store.put(task.object_key, buffers)
    return window


async def _is_zstd(store: ObjectStore, task: RewriteTask, entry: LayoutEntry) -> bool:
    """By its header alone: whether a chunk that no neighbour joins is worth a look at all."""
    head = await store.get_range(_object_key(task, entry), entry.position, HEADER_BYTES)
    return parse_header(head, source=str(entry.identity)).compression is Compression.ZSTD


async def _image(store: ObjectStore, task: RewriteTask, entry: LayoutEntry) -> bytes:
    return await store.get_range(_object_key(task, entry), entry.position, entry.size)


def joined(task: RewriteTask, images: Sequence[bytes]) -> tuple[list[NewChunk], bool]:
    """The chunks that the images of the window become, and whether all of them are in zstd already.

    O(bytes). Raises CorruptedDataError.
    """
    blocks: list[Block] = []
    in_zstd = True
    for entry, image in zip(task.entries, images, strict=True):
        index = verify_image(entry, image)
        header = parse_header(image, source=str(entry.identity))
        in_zstd = in_zstd and header.compression is Compression.ZSTD
        blocks += decoded_blocks(entry, image, index)
    chunks = join_blocks(
        task.entries[0].start_offset,
        blocks,
        chunk_bytes_max=max(task.chunk_bytes_max, task.entries[0].length),
        compression=Compression.ZSTD,
    )
    return chunks, in_zstd


def encoded_object(
    task: RewriteTask, chunks: Sequence[NewChunk]
) -> tuple[list[BufferView], list[ProposedImage]]:
    """The bytes of the object that holds the chunks, and where each lies in it. Raises CorruptedDataError."""
    buffers: list[BufferView] = []
    images: list[ProposedImage] = []
    position = 0
    for chunk in chunks:
        encoded = encode_chunk(
            start_offset=chunk.offset,
            runs=chunk.runs,
            compression=Compression.ZSTD,
            created_ms=task.created_ms,
            events=chunk.events if any(chunk.events) else None,
        )
        image = b"".join(encoded.buffers)
        _require_same_bytes(chunk, encoded, image)
        images.append(
            ProposedImage(
                chunk.offset,
                encoded.end_offset,
                task.object_key,
                position,
                encoded.size,
                encoded.file_crc32,
            )
        )
        buffers.append(image)
        position += encoded.size
    return buffers, images


def _require_same_bytes(chunk: NewChunk, encoded: EncodedChunk, image: bytes) -> None:
    """The last look before the only other copy may go (H21)."""
    view = memoryview(image)
    crc32 = 0
    for block in encoded.index.entries:
        content = decode_block(block, view[block.position : block.end_position])
        crc32 = crc32_of(content, crc32)
    if crc32 != chunk.crc32:
        raise CorruptedDataError(
            f"a chunk changed while it was encoded offset={chunk.offset} length={chunk.length}"
        )


def _staged(window: RewrittenWindow, buffers: Sequence[BufferView]) -> RewrittenWindow:
    path = Path(window.task.staging_directory) / window.task.object_key.replace("/", "_")
    with path.open("wb") as file:
        file.writelines(buffers)
    return RewrittenWindow(window.task, window.new, window.stored_bytes, str(path))


def _object_key(task: RewriteTask, entry: LayoutEntry) -> str:
    names = ObjectNames(ContainerId(task.container_id))
    return names.key(ObjectKind.CHUNKS, entry.identity)
