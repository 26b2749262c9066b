"""Blocks of one segment from Tier 2, pruned by their times: many in one request, each checked and decompressed.

Blocks that lie wholly outside of the bounds of time that Spark's filters gave are left out here (`BlockPruning`).

Invariants:

- Offsets are followed, not objects: where an object is gone the newest manifest is asked where the bytes are now, and
  only if that still names the object is it loss.
- A block is given out only if its checksum held; a damaged answer is fetched once more before it is an error.
- A block without a time of its own has that of the last block before it in which an event begins and that has one,
  whether that was read, left out, or lies before the start: where reading begins and what is left out changes no time.
- Whether an event goes on in a block is known, however often reading begins again in between.
- Memory is one request's bytes and what they decompress to, and what small chunks before it brought.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.tier2_access import Tier2Reader
from tier2.outside_access import (
    BLOCK_CHECKSUM_BYTES,
    BlockEntry,
    Compression,
    ContainerReader,
    decode_block,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """Bytes of a segment and what is known of the events that begin in them."""

    offset: int
    first_event_offset: int | None
    event_number: int | None
    """Of that event; None if it was not counted."""
    lowest_time_ms: int
    """Of the block, or of one before it; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block and its bytes."""

    facts: BlockInfo
    content: BufferView

    @property
    def end_offset(self) -> int:
        """Behind the last byte."""
        return self.facts.offset + len(self.content)


PlacedBlock = tuple[StoredBlock, int | None]
"""A block, and its time where that may be the one of a block before it."""

GROUP_BYTES: Final = 4 << 20
"""Uncompressed bytes fetched and parsed together: what makes Arrow batches of one to four megabytes."""

JOINED_BYTES_MIN: Final = 1 << 20
"""What small chunks bring is parsed together from here on: small batches cost Spark twice as much a row."""

_GAP_BYTES_MAX: Final = 128 << 10
"""Read and thrown away rather than asked for in another request."""

_ATTEMPTS_MAX: Final = 8


@dataclass(slots=True, kw_only=True)
class BlockPruning:
    """Which blocks may hold an event of the asked times, one block after the other."""

    lowest_time_ms: int | None
    highest_time_ms: int | None
    time_ms: int
    """Of the last block with one in which an event begins; 0 without such a block."""
    continues: bool = False
    """An event that is wanted began before, and may go on in the next block."""

    def admits(self, block: StoredBlock, *, goes_on_at: int) -> bool:
        """Whether the next block is to be read; `goes_on_at`: where the bytes end that were read before it."""
        self.time_ms = _own_time_ms(block) or self.time_ms
        # Compaction may have joined it with what was read before: then it begins with an event that is known already.
        is_inside = self.continues and (not block.begins_on_event or block.offset < goes_on_at)
        within = self.is_within(block)
        self.continues = within or (is_inside and block.first_event_offset is None)
        return within or is_inside

    def is_within(self, block: StoredBlock) -> bool:
        """Whether events that begin in the block may be wanted."""
        if not block.times_known:
            return True
        if self.lowest_time_ms is not None and block.highest_time_ms < self.lowest_time_ms:
            return False
        return self.highest_time_ms is None or block.lowest_time_ms <= self.highest_time_ms


class BlockReader:
    """The published bytes of one segment."""

    def __init__(
        self,
        *,
        view: Tier2Reader,
        container: ContainerReader,
        segment_id: SegmentId,
        executor: Executor | None,
        carries_times_from: int | None = None,
    ) -> None:
        """`segment_id` is the container's number of the segment, not that in its stream.

        With `carries_times_from`, where the segment begins, a block without a time gets that of one before it.
        """
        self._store = view.store
        self._container = container
        self._segment_id = segment_id
        self._executor = executor
        self._carries_times_from = carries_times_from

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
        Raises SegmentTruncatedError, SegmentNotFoundError, CorruptedDataError, StorageError.
        """
        offset = start
        attempts = 0
        held: list[Block] = []
        pruning = BlockPruning(
            lowest_time_ms=lowest_time_ms, highest_time_ms=highest_time_ms, time_ms=0
        )
        is_first = True
        while offset < end:
            version = self._container.manifest.version
            try:
                if is_first and self._carries_times_from is not None:
                    pruning.time_ms = await time_before(
                        self._container,
                        self._segment_id,
                        offset,
                        head=self._carries_times_from,
                        end=end,
                    )
                is_first = False
                async with aclosing(self._groups(offset, end, stop, replace(pruning))) as groups:
                    async for group, behind in groups:
                        held += await self._fetch(group)
                        offset, pruning = held[-1].end_offset, behind
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
                        f"an object that the current manifest names is missing version={version}: {error}"
                    ) from error
                if attempts == _ATTEMPTS_MAX:
                    raise StorageError(
                        f"the manifest moved on during every attempt to read below it offset={offset}"
                    ) from error
        if held:
            yield held

    async def _groups(
        self,
        start: int,
        end: int,
        stop: int,
        pruning: BlockPruning,
    ) -> AsyncGenerator[tuple[list[PlacedBlock], BlockPruning], None]:
        """Blocks that come in one request, and what is known behind them."""
        group: list[PlacedBlock] = []
        behind = pruning
        size = 0
        async with aclosing(self._container.list_blocks(self._segment_id, start, end)) as blocks:
            async for block in blocks:
                if block.offset >= stop and (block.begins_on_event or not pruning.continues):
                    break
                if not pruning.admits(block, goes_on_at=start):
                    continue
                if group and (size + block.length > GROUP_BYTES or not _joins(group[-1][0], block)):
                    yield group, behind
                    group, size = [], 0
                time_ms = pruning.time_ms if self._carries_times_from is not None else None
                group.append((block, time_ms))
                behind = replace(pruning)
                size += block.length
        if group:
            yield group, behind

    async def _fetch(self, group: Sequence[PlacedBlock]) -> list[Block]:
        first, last = group[0][0], group[-1][0]
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


async def event_start_before(
    container: ContainerReader, record: SegmentRecord, offset: int
) -> tuple[int, bool]:
    """Where to begin, so that an event begins at or before `offset`, below the end of the segment; and whether the
    blocks from there on say themselves where events begin.
    """
    probe = offset
    while True:
        async with aclosing(
            container.list_blocks(record.segment_id, probe, record.length)
        ) as blocks:
            block = await anext(blocks)
        first = block.first_event_offset
        if first is not None and first <= offset:
            return max(block.offset, record.start_offset), True
        if block.offset <= record.start_offset:
            return record.start_offset, block.events_known
        probe = block.offset - 1


async def time_before(
    container: ContainerReader, segment_id: SegmentId, offset: int, *, head: int, end: int
) -> int:
    """The time of the last block before that of `offset` that has one, if that block has none; 0 if it has.

    O(blocks without a time). Raises SegmentTruncatedError, SegmentNotFoundError, StorageError.
    """
    at, is_first = offset, True
    while at >= head:
        async with aclosing(container.list_blocks(segment_id, at, end)) as blocks:
            block = await anext(blocks)
        if time_ms := _own_time_ms(block):
            return 0 if is_first else time_ms
        at, is_first = block.offset - 1, False
    return 0


def _own_time_ms(block: StoredBlock) -> int:
    """Of the events that begin in the block; 0 if none is known to, or their time is not known."""
    return 0 if block.first_event_offset is None else block.lowest_time_ms


def facts_of(block: StoredBlock, time_ms: int | None = None) -> BlockInfo:
    """What is known of a block's events; `time_ms` is that of a block before it if it has none itself."""
    return BlockInfo(
        offset=block.offset,
        first_event_offset=block.first_event_offset,
        event_number=None if block.first_event_offset is None else block.event_number,
        lowest_time_ms=block.lowest_time_ms if time_ms is None else time_ms,
    )


def _decode(group: Sequence[PlacedBlock], stored: bytes) -> list[Block]:
    view = memoryview(stored)
    start = group[0][0].position
    blocks: list[Block] = []
    for block, time_ms in group:
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
        blocks.append(Block(facts_of(block, time_ms), content))
    return blocks


def _joins(last: StoredBlock, block: StoredBlock) -> bool:
    """Whether one request may bring the block along."""
    gap = block.position - (last.position + last.stored_length + BLOCK_CHECKSUM_BYTES)
    return block.object_key == last.object_key and 0 <= gap <= _GAP_BYTES_MAX
