"""Blocks of one segment from Tier 2, pruned by their times: many in one request, each checked and decompressed.

Blocks that lie wholly outside of the bounds of time that Spark's filters gave are left out here (`_is_within`).

Invariants:

- Offsets are followed, not objects: where an object is gone the newest manifest is asked where the bytes are now, and
  only if that still names the object is it loss (H8).
- A block is given out only if its checksum held; a damaged answer is fetched once more before it is an error.
- Memory is one request's bytes and what they decompress to, and what small chunks before it brought.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.storage import StoredBlock
from segmentstore.spark.tier2_access import Tier2Reader
from tier2.format.block import decode_block
from tier2.format.chunk_format import BLOCK_CHECKSUM_BYTES, BlockEntry, Compression
from tier2.store_reader import ContainerReader


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """Bytes of a segment and what is known of the events that begin in them."""

    offset: int
    first_event_offset: int | None
    event_number: int | None
    """Of that event; None if nobody counted."""
    lowest_time_ms: int
    """0 if unknown."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block and its bytes."""

    facts: BlockInfo
    content: BufferView

    @property
    def end_offset(self) -> int:
        """Behind the last byte."""
        return self.facts.offset + len(self.content)


GROUP_BYTES: Final = 4 << 20
"""Uncompressed bytes fetched and parsed together: what makes Arrow batches of one to four megabytes."""

JOINED_BYTES_MIN: Final = 1 << 20
"""What small chunks bring is parsed together from here on: small batches cost Spark twice as much a row."""

_GAP_BYTES_MAX: Final = 128 << 10
"""Read and thrown away rather than asked for in another request."""

_ATTEMPTS_MAX: Final = 8


class BlockReader:
    """The published bytes of one segment."""

    def __init__(
        self,
        *,
        view: Tier2Reader,
        container: ContainerReader,
        segment_id: SegmentId,
        executor: Executor | None,
    ) -> None:
        """`segment_id` is the container's number of the segment, not that in its stream."""
        self._store = view.store
        self._container = container
        self._segment_id = segment_id
        self._executor = executor

    async def read(
        self,
        start: int,
        end: int,
        stop: int,
        lowest_time_ms: int | None = None,
        highest_time_ms: int | None = None,
    ) -> AsyncGenerator[Sequence[Block], None]:
        """The blocks that hold [start, end), some at a time, whole ones at both sides. Hold it in `aclosing`.

        Those behind `stop` and those wholly outside the times are left out, unless an event that began before goes
        on there.
        Raises SegmentTruncatedError, CorruptedDataError, StorageError.
        """
        offset = start
        attempts = 0
        held: list[Block] = []
        while offset < end:
            version = self._container.manifest.version
            try:
                async with aclosing(
                    self._groups(offset, end, stop, lowest_time_ms, highest_time_ms)
                ) as groups:
                    async for group in groups:
                        held += await self._fetch(group)
                        offset = held[-1].end_offset
                        attempts = 0
                        if sum(len(block.content) for block in held) >= JOINED_BYTES_MIN:
                            yield held
                            held = []
                break
            except ObjectNotFoundError as error:
                attempts += 1
                await self._container.refresh()
                if self._container.manifest.version == version:
                    raise CorruptedDataError(
                        f"an object that the current root names is missing version={version}: {error}"
                    ) from error
                if attempts == _ATTEMPTS_MAX:
                    raise StorageError(
                        f"the root moved on during every attempt to read below it offset={offset}"
                    ) from error
        if held:
            yield held

    async def _groups(
        self,
        start: int,
        end: int,
        stop: int,
        lowest_time_ms: int | None,
        highest_time_ms: int | None,
    ) -> AsyncGenerator[list[StoredBlock], None]:
        group: list[StoredBlock] = []
        size = 0
        continues = False
        async with aclosing(self._container.list_blocks(self._segment_id, start, end)) as blocks:
            async for block in blocks:
                if block.offset >= stop and (block.begins_on_event or not continues):
                    break
                within = _is_within(block, lowest_time_ms, highest_time_ms)
                if not within and not (continues and not block.begins_on_event):
                    continues = False
                    continue
                continues = within or block.first_event_offset is None
                if group and (size + block.length > GROUP_BYTES or not _joins(group, block)):
                    yield group
                    group, size = [], 0
                group.append(block)
                size += block.length
        if group:
            yield group

    async def _fetch(self, group: Sequence[StoredBlock]) -> list[Block]:
        first, last = group[0], group[-1]
        length = last.position + last.stored_length + BLOCK_CHECKSUM_BYTES - first.position
        loop = asyncio.get_running_loop()
        for attempt in range(2):
            stored = await self._store.get_range(first.object_key, first.position, length)
            try:
                return await loop.run_in_executor(self._executor, _decode, group, stored)
            except CorruptedDataError:
                if attempt:
                    raise
        raise AssertionError("two attempts neither succeed nor fail")


def facts_of(block: StoredBlock) -> BlockInfo:
    """What is known of a block's events."""
    return BlockInfo(
        offset=block.offset,
        first_event_offset=block.first_event_offset,
        event_number=None if block.first_event_offset is None else block.event_number,
        lowest_time_ms=block.lowest_time_ms,
    )


def _decode(group: Sequence[StoredBlock], stored: bytes) -> list[Block]:
    view = memoryview(stored)
    start = group[0].position
    blocks: list[Block] = []
    for block in group:
        position = block.position - start
        content: BufferView = decode_block(
            BlockEntry(
                first_offset=block.offset,
                position=block.position,
                stored_length=block.stored_length,
                uncompressed_length=block.length,
                compression=Compression(block.compression),
            ),
            view[position : position + block.stored_length + BLOCK_CHECKSUM_BYTES],
            source=block.object_key,
        )
        blocks.append(Block(facts_of(block), content))
    return blocks


def _joins(group: Sequence[StoredBlock], block: StoredBlock) -> bool:
    """Whether one request may bring the block along."""
    last = group[-1]
    gap = block.position - (last.position + last.stored_length + BLOCK_CHECKSUM_BYTES)
    return block.object_key == last.object_key and 0 <= gap <= _GAP_BYTES_MAX


def _is_within(block: StoredBlock, lowest_time_ms: int | None, highest_time_ms: int | None) -> bool:
    if lowest_time_ms is None and highest_time_ms is None:
        return True
    if not block.times_known:
        return True
    if lowest_time_ms is not None and block.highest_time_ms < lowest_time_ms:
        return False
    return highest_time_ms is None or block.lowest_time_ms <= highest_time_ms
