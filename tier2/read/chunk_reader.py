"""Reads ranges of chunk images: the blocks that are needed, in one request, each checked before it is used.

- What the layout entry records (size, file CRC32, first offset) is compared with the image's own tail.
- A damaged answer is fetched once more; then it is CorruptedDataError, a log line and a counter, never bytes.
"""

import logging
from asyncio import get_running_loop
from concurrent.futures import Executor
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import StorageRead
from tier2.byte_cache import ByteCache
from tier2.container_objects import ContainerObjects, ObjectIdentity, ObjectKind, StorageCounters
from tier2.format.chunk_decoder import (
    BlockRange,
    ByteRange,
    ChunkIdentity,
    decode_blocks,
    parse_tail,
    plan_read,
    tail_range,
)
from tier2.format.chunk_format import BLOCK_ENTRY_BYTES, ChunkIndex
from tier2.layout_entry import LayoutEntry

_LOG = logging.getLogger(__name__)
_INLINE_BYTES_MAX = 1 << 16
_INDEX_ENTRY_MEMORY_BYTES = 4 * BLOCK_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class _Image:
    """One chunk image in its object."""

    entry: LayoutEntry

    @property
    def identity(self) -> ChunkIdentity:
        entry = self.entry
        return ChunkIdentity(
            size=entry.size, file_crc32=entry.file_crc32, start_offset=entry.chunk_offset
        )

    @property
    def key(self) -> tuple[ObjectIdentity, int]:
        return self.entry.identity, self.entry.position

    def __str__(self) -> str:
        return f"{self.entry.identity}+{self.entry.position}"


class ChunkReader:
    """Reads chunks of one container; keeps parsed indexes in a bounded cache."""

    def __init__(
        self,
        *,
        objects: ContainerObjects,
        counters: StorageCounters,
        index_cache_bytes: int,
        whole_chunk_read_bytes_max: int,
        executor: Executor | None,
    ) -> None:
        self._objects = objects
        self._counters = counters
        self._whole_bytes_max = whole_chunk_read_bytes_max
        self._executor = executor
        self._indexes: ByteCache[tuple[ObjectIdentity, int], ChunkIndex] = ByteCache(
            index_cache_bytes
        )

    async def read(self, entry: LayoutEntry, start_offset: int, end_offset: int) -> StorageRead:
        """The blocks of one layout entry that hold [start_offset, end_offset) of the segment.

        Raises ObjectNotFoundError, CorruptedDataError, StorageError.
        """
        image = _Image(entry)
        try:
            return await self._read_once(image, start_offset, end_offset)
        except CorruptedDataError as error:
            _LOG.warning("chunk %s is damaged, reading again: %s", image, error)
        self._indexes.remove(image.key)
        try:
            return await self._read_once(image, start_offset, end_offset)
        except CorruptedDataError as error:
            self._indexes.remove(image.key)
            self._counters.checksum_failures += 1
            _LOG.error("chunk %s is corrupted: %s", image, error)
            raise

    async def _read_once(self, image: _Image, start_offset: int, end_offset: int) -> StorageRead:
        entry = image.entry
        whole: bytes | None = None
        index = self._indexes.get(image.key)
        if index is None:
            index, whole = await self._load_index(image)
        shift = entry.start_offset - entry.chunk_offset
        blocks = _plan(index, start_offset - shift, end_offset - shift)
        if whole is not None:
            stored: bytes | memoryview = memoryview(whole)[
                blocks.start : blocks.start + blocks.length
            ]
        else:
            stored = await self._fetch(image, ByteRange(blocks.start, blocks.length))
        if blocks.uncompressed_length <= _INLINE_BYTES_MAX:
            content = decode_blocks(index, blocks, stored, source=str(image))
        else:
            content = await get_running_loop().run_in_executor(
                self._executor, lambda: decode_blocks(index, blocks, stored, source=str(image))
            )
        return StorageRead(blocks.start_offset + shift, content)

    async def index(self, entry: LayoutEntry) -> ChunkIndex:
        """The blocks of an image. Raises CorruptedDataError after one retry."""
        image = _Image(entry)
        for attempt in range(2):
            index = self._indexes.get(image.key)
            if index is not None:
                return index
            try:
                return (await self._load_index(image))[0]
            except CorruptedDataError as error:
                if attempt:
                    self._counters.checksum_failures += 1
                    _LOG.error("index of chunk %s is corrupted: %s", image, error)
                    raise
                _LOG.warning("index of chunk %s is damaged, reading again: %s", image, error)
        raise AssertionError("two attempts neither succeed nor fail")

    async def _load_index(self, image: _Image) -> tuple[ChunkIndex, bytes | None]:
        """The index, and the whole image if it came along."""
        size = image.entry.size
        wanted = tail_range(size)
        if size <= self._whole_bytes_max:
            wanted = ByteRange(0, size)
        tail = await self._fetch(image, wanted)
        index = parse_tail(tail, identity=image.identity, source=str(image))
        if isinstance(index, ByteRange):
            tail = await self._fetch(image, index)
            index = parse_tail(tail, identity=image.identity, source=str(image))
            if isinstance(index, ByteRange):
                raise CorruptedDataError(f"chunk tail grows when it is read source={image}")
        if index.end_offset - index.start_offset != image.entry.length:
            raise CorruptedDataError(
                f"chunk holds other offsets than recorded source={image} recorded={image.entry.length}"
                f" held={index.end_offset - index.start_offset}"
            )
        size_in_memory = len(index.entries) * _INDEX_ENTRY_MEMORY_BYTES
        self._indexes.put(image.key, index, size_in_memory)
        return index, tail if len(tail) == size else None

    async def _fetch(self, image: _Image, wanted: ByteRange) -> bytes:
        return await self._objects.get_range(
            ObjectKind.CHUNKS,
            image.entry.identity,
            image.entry.position + wanted.start,
            wanted.length,
        )

    def check(self) -> None:
        self._indexes.check()


def _plan(index: ChunkIndex, start_offset: int, end_offset: int) -> BlockRange:
    """The blocks to read for [start_offset, end_offset): not the last one if the range ends inside of it.

    A caller that reads on will ask for the rest of that block, and it would be read twice. It stays where less than
    half of the range would be left without it.
    """
    last = index.entries[index.block_at(end_offset - 1)]
    border = last.first_offset
    if end_offset < border + last.uncompressed_length and 2 * border >= start_offset + end_offset:
        end_offset = border
    return plan_read(index, start_offset=start_offset, end_offset=end_offset)
