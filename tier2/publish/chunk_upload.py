"""Chunks on their way into the store: cut from the pieces of a publication, gathered into objects, encoded, uploaded.

- A chunk holds one segment's neighbouring bytes, cut only between runs of appended bytes.
- A long chunk is an object of its own; all short ones of a publication share packed objects, so that the number of puts
  does not grow with the number of small segments.
- A bounded number of objects is encoded and uploaded at a time. Encoding runs in the executor, so the next object is
  encoded while others are on their way.
- Every object gets its identity before its first put and is listed in its uploader from then on: whatever happens next,
  the uploader knows that it may exist.

An uploader stores the parts of new SSTs in the same way.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, SegmentStoreError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.storage import MergePiece, RunEvents
from segmentstore.runtime.clock import WallClock
from tier2.container_objects import (
    ContainerObjects,
    IdentitySource,
    ObjectIdentity,
    ObjectKind,
    ObjectReference,
    StorageCounters,
)
from tier2.format.block import decode_block
from tier2.format.chunk_encoder import EncodedChunk, encode_chunk
from tier2.format.chunk_format import Compression, EventInformation
from tier2.layout_entry import EntryEvents, LayoutEntry
from tier2.settings import StorageSettings
from tier2.sst.sst_format import SstPart, SstPartImage

_JOINED_IMAGE_BYTES_MAX = 1 << 16
"""Images up to this size become one buffer: a copy is cheaper than five more slices of a write."""

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where an uploaded chunk image lies."""

    identity: ObjectIdentity
    position: int
    size: int
    file_crc32: int


@dataclass(slots=True)
class NewChunk:
    """Bytes on their way into an object. `place` is set once, when the object is stored."""

    offset: int
    """First offset, in the segment the bytes were written to."""
    runs: list[BufferView] = field(default_factory=list)
    events: list[EventInformation | None] = field(default_factory=list)
    """One for each run; None where nothing is known."""
    length: int = 0
    place: ChunkPlace | None = None
    compression: Compression | None = None
    """None: as the settings say."""
    crc32: int | None = None
    """Of the bytes as they were read. If given, the encoded image is decoded and compared before it is stored."""

    @property
    def replaces_others(self) -> bool:
        """Whether its bytes were read from chunks that were published, each run a block of them."""
        return self.crc32 is not None


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk, old or new, at its place in a segment's layout."""

    start_offset: int
    length: int
    chunk: NewChunk | LayoutEntry
    events: EntryEvents = EntryEvents.AS_IN_IMAGE
    event_shift: int = 0

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.length

    def moved(self, piece: MergePiece) -> "PlacedChunk":
        """The same bytes as a part of the segment that `piece` moves their segment into."""
        events, shift = EntryEvents.NOT_COUNTED, 0
        if piece.first_event is not None and self.events is not EntryEvents.NOT_COUNTED:
            events, shift = self.events, self.event_shift + piece.first_event
            if piece.begins_event and self.start_offset == 0:
                events = EntryEvents.BEGINS_ON_ONE
        return PlacedChunk(self.start_offset + piece.offset, self.length, self.chunk, events, shift)

    def entry(self) -> LayoutEntry:
        """As it goes into the layout; a new chunk must have been stored."""
        chunk = self.chunk
        if isinstance(chunk, LayoutEntry):
            assert chunk.length == self.length, f"length changed {chunk.length} -> {self.length}"
            return replace(
                chunk,
                start_offset=self.start_offset,
                end_offset=self.end_offset,
                events=self.events,
                event_shift=self.event_shift,
            )
        place = chunk.place
        assert place is not None, f"chunk was not stored offset={chunk.offset}"
        return LayoutEntry(
            self.start_offset,
            self.end_offset,
            place.identity,
            place.position,
            place.size,
            place.file_crc32,
            chunk.offset,
            self.events,
            self.event_shift,
        )


def cut_into_chunks(
    offset: int,
    runs: Sequence[BufferView],
    events: Sequence[RunEvents | None],
    chunk_bytes_max: int,
) -> Iterator[NewChunk]:
    """Chunks of at most `chunk_bytes_max` bytes, except where one run alone is longer."""
    chunk = NewChunk(offset)
    for run, described in zip(runs, events, strict=True):
        if not len(run):
            continue
        if chunk.length and chunk.length + len(run) > chunk_bytes_max:
            yield chunk
            chunk = NewChunk(chunk.offset + chunk.length)
        chunk.runs.append(run)
        chunk.events.append(None if described is None else _events_of_run(described))
        chunk.length += len(run)
    if chunk.length:
        yield chunk


def _events_of_run(described: RunEvents) -> EventInformation:
    """In the words of the chunk format."""
    return EventInformation(
        first_event_position=None if described.first_number is None else 0,
        first_event_number=described.first_number or 0,
        lowest_time_ms=described.lowest_time_ms,
        highest_time_ms=described.highest_time_ms,
    )


def gather_into_objects(
    chunks: Sequence[NewChunk], settings: StorageSettings
) -> list[list[NewChunk]]:
    """Which chunks share an object, in the order in which they lie there."""
    objects: list[list[NewChunk]] = []
    pack: list[NewChunk] = []
    pack_bytes = 0
    for chunk in chunks:
        if chunk.length >= settings.solo_chunk_bytes_min:
            objects.append([chunk])
            continue
        if pack and (
            pack_bytes + chunk.length > settings.pack_bytes_max
            or len(pack) == settings.pack_chunks_max
        ):
            objects.append(pack)
            pack, pack_bytes = [], 0
        pack.append(chunk)
        pack_bytes += chunk.length
    if pack:
        objects.append(pack)
    return objects


class Uploader:
    """Puts chunks and SST parts under fresh identities. One publication or merge uses one uploader."""

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
        self.handed_over = False
        """A commit has what becomes of it."""

    async def upload_chunks(self, chunks: Sequence[NewChunk]) -> None:
        """Store all chunks and set their places. Raises StorageError or StorageFullError; some may be stored then."""
        packs = await asyncio.get_running_loop().run_in_executor(
            self._executor, gather_into_objects, chunks, self._settings
        )
        await run_bounded(packs, self._upload_pack, self._settings.upload_count_max)

    async def upload_one_by_one(
        self, chunks: Sequence[NewChunk], rest: Callable[[], Awaitable[object]]
    ) -> None:
        """The same for which no caller waits: one object at a time, and a `rest` behind each of its pieces."""
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
            encode_pack,
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

    async def upload_parts(self, images: Iterable[SstPartImage]) -> list[SstPart]:
        """Store parts of one SST, in key order."""
        parts = [(image, image.named(self._take(ObjectKind.SST))) for image in images]
        await run_bounded(parts, self._upload_part, self._settings.upload_count_max)
        return [part for _, part in parts]

    async def _upload_part(self, part: tuple[SstPartImage, SstPart]) -> None:
        image, named = part
        await self._objects.put(ObjectKind.SST, named.identity, image.buffers)

    def _take(self, kind: ObjectKind) -> ObjectIdentity:
        identity = self._identities.take()
        self.uploaded.append((kind, identity))
        return identity


def encode_pack(
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
            joins_times=not chunk.replaces_others,
        )
        assert encoded.uncompressed_length == chunk.length, (
            f"chunk lost bytes encoded={encoded.uncompressed_length} length={chunk.length}"
        )
        if chunk.crc32 is not None:
            _verify_encoded(chunk, encoded)
        if encoded.size <= _JOINED_IMAGE_BYTES_MAX:
            buffers.append(b"".join(encoded.buffers))
        else:
            buffers += encoded.buffers
        chunk.place = ChunkPlace(identity, position, encoded.size, encoded.file_crc32)
        position += encoded.size
    return buffers


def _verify_encoded(chunk: NewChunk, encoded: EncodedChunk) -> None:
    """The last look at bytes that replace others: decoded again they must be what was read.

    Block by block: to join all of an image would keep the interpreter from all other threads for milliseconds.
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

    failed: SegmentStoreError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(waiting))):
                group.create_task(worker())
    except* SegmentStoreError as errors:
        failed = _first_error_of(errors)
    if failed is not None:
        raise failed


def _first_error_of(errors: BaseExceptionGroup[SegmentStoreError]) -> SegmentStoreError:
    first = errors.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
