"""Encodes and uploads the objects of one publication or merge, a bounded number at a time.

- Encoding runs in the executor, so the next object is encoded while others are on their way.
- Every object gets its identity before its first put and is listed from then on: whatever happens next, somebody
  knows that it may exist (H5).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, SegmentStoreError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import WallClock
from tier2.format.block import decode_block
from tier2.format.chunk_encoder import EncodedChunk, encode_chunk
from tier2.format.chunk_format import Compression
from tier2.storage.container_objects import ContainerObjects
from tier2.storage.counters import StorageCounters
from tier2.storage.identity_source import IdentitySource
from tier2.storage.new_chunks import ChunkPlace, NewChunk, gather_into_objects
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.root import RunPart
from tier2.storage.root_publisher import ObjectReference
from tier2.storage.run_part import PartImage
from tier2.storage.settings import StorageSettings

_JOIN_BYTES_MAX = 1 << 16
"""Images up to this size become one buffer: a copy is cheaper than five more slices of a write."""

J = TypeVar("J")


class Uploader:
    """Puts chunks and run parts under fresh identities. One publication or merge uses one uploader."""

    def __init__(
        self,
        *,
        objects: ContainerObjects,
        identities: IdentitySource,
        settings: StorageSettings,
        counters: StorageCounters,
        wall_clock: WallClock,
        executor: Executor | None,
    ) -> None:
        self._objects = objects
        self._identities = identities
        self._settings = settings
        self._counters = counters
        self._wall_clock = wall_clock
        self._executor = executor
        self.uploaded: list[ObjectReference] = []
        """Everything that may exist in the store because of this uploader."""

    async def upload_chunks(self, chunks: Sequence[NewChunk]) -> None:
        """Store all chunks and set their places. Raises StorageError or StorageFullError; some may be stored then."""
        packs = await asyncio.get_running_loop().run_in_executor(
            self._executor, gather_into_objects, chunks, self._settings
        )
        await run_bounded(packs, self._upload_pack, self._settings.upload_count_max)

    async def upload_one_by_one(
        self, chunks: Sequence[NewChunk], rest: Callable[[], Awaitable[object]]
    ) -> None:
        """The same for which nobody waits: one object at a time, and a `rest` behind each of its pieces."""
        for pack in gather_into_objects(chunks, self._settings):
            identity, buffers = self._take(ObjectKind.CHUNKS), list[BufferView]()
            for chunk in pack:
                buffers += await self._encode(identity, [chunk], sum(map(len, buffers)))
                await rest()
            await self._put_pack(identity, pack, buffers)
            await rest()

    async def _upload_pack(self, chunks: list[NewChunk]) -> None:
        identity = self._take(ObjectKind.CHUNKS)
        await self._put_pack(identity, chunks, await self._encode(identity, chunks, 0))

    async def _encode(
        self, identity: ObjectIdentity, chunks: Sequence[NewChunk], position: int
    ) -> list[BufferView]:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor,
            _encode_pack,
            identity,
            chunks,
            position,
            self._settings.compression,
            self._wall_clock.now_ms(),
        )

    async def _put_pack(
        self, identity: ObjectIdentity, chunks: Sequence[NewChunk], buffers: list[BufferView]
    ) -> None:
        await self._objects.put(ObjectKind.CHUNKS, identity, buffers)
        self._counters.stored_bytes_before_compression += sum(chunk.length for chunk in chunks)
        self._counters.stored_bytes_after_compression += sum(map(len, buffers))

    async def upload_images(self, images: Sequence[bytes]) -> ObjectIdentity:
        """Store finished chunk images one behind the other, as one object."""
        identity = self._take(ObjectKind.CHUNKS)
        await self._objects.put(ObjectKind.CHUNKS, identity, images)
        return identity

    async def upload_parts(self, images: Iterable[PartImage]) -> list[RunPart]:
        """Store parts of one run, in key order."""
        parts = [(image, image.named(self._take(ObjectKind.RUN))) for image in images]
        await run_bounded(parts, self._upload_part, self._settings.upload_count_max)
        return [part for _, part in parts]

    async def _upload_part(self, part: tuple[PartImage, RunPart]) -> None:
        image, named = part
        await self._objects.put(ObjectKind.RUN, named.identity, image.buffers)

    def _take(self, kind: ObjectKind) -> ObjectIdentity:
        identity = self._identities.take()
        self.uploaded.append((kind, identity))
        return identity


def _encode_pack(
    identity: ObjectIdentity,
    chunks: Sequence[NewChunk],
    position: int,
    compression: Compression,
    created_ms: int,
) -> list[BufferView]:
    """The object's bytes from `position` on; tells every chunk its place in it."""
    buffers: list[BufferView] = []
    for chunk in chunks:
        encoded = encode_chunk(
            start_offset=chunk.offset,
            runs=chunk.runs,
            compression=compression if chunk.compression is None else chunk.compression,
            created_ms=created_ms,
            events=chunk.events if any(chunk.events) else None,
        )
        assert encoded.uncompressed_length == chunk.length, (
            f"chunk lost bytes encoded={encoded.uncompressed_length} length={chunk.length}"
        )
        if chunk.crc32 is not None:
            _verify_encoded(chunk, encoded)
        if encoded.size <= _JOIN_BYTES_MAX:
            buffers.append(b"".join(encoded.buffers))
        else:
            buffers += encoded.buffers
        chunk.place = ChunkPlace(identity, position, encoded.size, encoded.file_crc32)
        position += encoded.size
    return buffers


def _verify_encoded(chunk: NewChunk, encoded: EncodedChunk) -> None:
    """The last look at bytes that replace others: decoded again they must be what was read (H21).

    Block by block: to join all of an image would keep the interpreter from everybody else for milliseconds.
    """
    crc32 = 0
    pieces = iter(encoded.buffers[1:])
    for entry in encoded.index.entries:
        stored: list[BufferView] = []
        missing = entry.end_position - entry.position
        while missing > 0:
            stored.append(next(pieces))
            missing -= len(stored[-1])
        crc32 = crc32_of(decode_block(entry, b"".join(stored)), crc32)
    if crc32 != chunk.crc32:
        raise CorruptedDataError(
            f"a chunk changed while it was encoded offset={chunk.offset} length={chunk.length}"
            f" read={chunk.crc32} encoded={crc32}"
        )


async def run_bounded(
    jobs: Iterable[J], work: Callable[[J], Coroutine[object, object, None]], workers: int
) -> None:
    """Do every job, at most `workers` at once; the first error ends all and is raised alone."""
    waiting = deque(jobs)

    async def worker() -> None:
        while waiting:
            await work(waiting.popleft())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(waiting))):
                group.create_task(worker())
    except* SegmentStoreError as errors:
        raise _first_of(errors) from errors


def _first_of(errors: BaseExceptionGroup[SegmentStoreError]) -> SegmentStoreError:
    first = errors.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
