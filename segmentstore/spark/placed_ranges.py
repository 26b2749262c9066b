"""Ranges with the blocks that their reader needs: for readers that cannot look into a layout themselves.

Invariants:

- The first block is one in which an event is known to begin at or before the start of the range, or the first one
  behind it if there is none; whoever walks from there meets every event of the range.
- The blocks go on behind the range until another event begins, so that the last event of the range ends in them.
- What Tier 2 does not hold yet are blocks of no object; who asks for them asks the service.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.block_range import BlockPlace, BlockRange, SegmentRange
from segmentstore.spark.errors import DataLossError
from segmentstore.spark.event_numbers import number_at_head
from segmentstore.spark.options import Content
from segmentstore.spark.placed_blocks import Found, PlacedBlocks
from segmentstore.spark.tier2_view import OPEN_ATTEMPTS, OPEN_PAUSE_SECONDS, Tier2View
from tier2.storage.reader import ContainerReader

_LOG = logging.getLogger(__name__)
_SERVED_BYTES: Final = 4 << 20
"""Asked for at once from the service."""
_UNKNOWN: Final = -1
"""Number of an event that nobody counted."""
_COUNTED_BACK: Final = -2
"""Number of the first event of a segment, where it is still to be found out."""


class RangePlacer:
    """Fills in the blocks of ranges."""

    def __init__(
        self,
        view: Tier2View | None,
        *,
        asks_service: bool,
        fail_on_data_loss: bool,
        executor: Executor | None,
        placed: PlacedBlocks,
    ) -> None:
        """`view` is None where the service alone is asked; `placed` outlives it."""
        self._view = view
        self._placed = placed
        self._executor = executor
        self._asks_service = asks_service
        self._fail_on_data_loss = fail_on_data_loss

    async def place(self, part: SegmentRange) -> BlockRange | None:
        """The range with its blocks; None if nothing of it is left. Raises DataLossError, StorageError."""
        found, end = await self._seen(part)
        blocks = [*found, *self._served(part, found, end)] if self._asks_service else list(found)
        start = max(part.start, blocks[0].offset) if blocks else part.start
        if not blocks or start >= part.end:
            return None
        # What is not there was left out with a warning: a reader must not wait for it.
        part_end = min(part.end, blocks[-1].offset + blocks[-1].length)
        return BlockRange(
            scope=part.scope,
            stream=part.stream,
            segment_id=part.segment_id,
            segment_name=part.segment_name,
            container_id=part.container_id,
            start=start,
            end=part_end,
            content=part.content,
            blocks=tuple(blocks),
        )

    async def _seen(self, part: SegmentRange) -> Found:
        """As _published, once this process sees as much as the plan did."""
        attempts = 1
        while True:
            found, end = await self._published(part)
            if end >= part.end or self._asks_service:
                return found, end
            if self._view is None or attempts == OPEN_ATTEMPTS:
                self._lose(part, head=part.start, tail=end)
                return found, end
            # Volumes are seen up to a second late.
            attempts += 1
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            await self._view.refresh()

    async def _published(self, part: SegmentRange) -> Found:
        """The blocks in Tier 2, and where Tier 2 ends."""
        view = self._view
        if view is None:
            return [], 0
        container = await view.container(view.container_id(part.segment_name))
        if container is None:
            return [], 0
        root = container.root
        kept = self._placed.get(root, part)
        if kept is not None:
            return kept
        record = await container.find(part.segment_name)
        if record is None or record.length <= record.start_offset:
            return [], 0 if record is None else record.length
        start = part.start
        if start < record.start_offset:
            self._lose(part, head=record.start_offset, tail=record.length)
            start = record.start_offset
        try:
            async with aclosing(_blocks(container, record, part, start)) as blocks:
                found = [block async for block in blocks]
            if found and found[0].event_number == _COUNTED_BACK:
                number = await number_at_head(
                    view, container, record, part=part, executor=self._executor
                )
                number = _UNKNOWN if number is None else number
                found[0] = replace(found[0], event_number=number)
            # What was lost is told each time, and the root may have moved on meanwhile.
            if start == part.start and container.root == root:
                self._placed.keep(root, part, (found, record.length))
            return found, record.length
        except SegmentTruncatedError as error:
            self._lose(part, head=error.start_offset, tail=record.length)
            return await self._published(replace(part, start=error.start_offset))

    def _served(
        self, part: SegmentRange, published: Sequence[BlockPlace], published_end: int
    ) -> list[BlockPlace]:
        first = max(part.start, published_end) if not published else published_end
        blocks: list[BlockPlace] = []
        for offset in range(first, part.end, _SERVED_BYTES):
            is_first = not published and offset == first
            blocks.append(
                BlockPlace(
                    object_key="",
                    position=offset,
                    stored_length=min(_SERVED_BYTES, part.end - offset),
                    compression=0,
                    offset=offset,
                    length=min(_SERVED_BYTES, part.end - offset),
                    first_event_offset=offset if is_first else None,
                    event_number=0 if is_first and offset == 0 else _UNKNOWN,
                    events_known=is_first,
                    lowest_time_ms=0,
                    highest_time_ms=0,
                )
            )
        return blocks

    def _lose(self, part: SegmentRange, *, head: int, tail: int) -> None:
        loss = DataLossError(
            part.segment_name, start=part.start, end=part.end, head=head, tail=tail
        )
        if self._fail_on_data_loss:
            raise loss
        _LOG.warning("going on without what is lost: %s", loss)


async def _blocks(
    container: ContainerReader, record: SegmentRecord, part: SegmentRange, start: int
) -> AsyncGenerator[BlockPlace, None]:
    """From where an event is known to begin, until all events of the range have ended."""
    is_bytes = part.content == Content.BYTES
    if start >= record.length and not is_bytes:
        start = record.length - 1
    begin = start if is_bytes else await _beginning(container, record, start)
    if begin >= record.length:
        return
    bounds = part if isinstance(part, BlockRange) else None
    is_first = True
    async with aclosing(
        container.list_blocks(record.segment_id, begin, record.length)
    ) as stored_blocks:
        async for stored in stored_blocks:
            block = _place_of(stored)
            if is_first and not is_bytes:
                if bounds is not None and _is_before(stored, bounds):
                    continue
                if not stored.events_known and stored.offset <= record.start_offset:
                    # Nobody said where events lie: one begins where the segment does.
                    block = replace(
                        block, first_event_offset=record.start_offset, event_number=_COUNTED_BACK
                    )
                elif stored.first_event_offset is None:
                    continue
            is_last = is_bytes or stored.first_event_offset is not None
            if (
                not is_first
                and is_last
                and (
                    stored.offset >= part.end or (bounds is not None and _is_behind(stored, bounds))
                )
            ):
                # An event that began before may still end in this block.
                if not is_bytes and not stored.begins_on_event:
                    yield block
                return
            is_first = False
            yield block


async def _beginning(container: ContainerReader, record: SegmentRecord, start: int) -> int:
    """An offset in the last block in which an event is known to begin at or before `start`."""
    offset = start
    while True:
        async with aclosing(
            container.list_blocks(record.segment_id, offset, record.length)
        ) as blocks:
            block = await anext(blocks)
        first = block.first_event_offset
        if first is not None and first <= start:
            return max(block.offset, record.start_offset)
        if block.offset <= record.start_offset:
            return record.start_offset
        offset = block.offset - 1


def _is_before(block: StoredBlock, part: BlockRange) -> bool:
    """All of its events are older than what is asked for."""
    lowest = part.lowest_time_ms
    return lowest is not None and block.times_known and block.highest_time_ms < lowest


def _is_behind(block: StoredBlock, part: BlockRange) -> bool:
    """All of its events are newer than what is asked for."""
    highest = part.highest_time_ms
    return highest is not None and block.times_known and block.lowest_time_ms > highest


def _place_of(block: StoredBlock) -> BlockPlace:
    return BlockPlace(
        object_key=block.object_key,
        position=block.position,
        stored_length=block.stored_length,
        compression=block.compression,
        offset=block.offset,
        length=block.length,
        first_event_offset=block.first_event_offset,
        event_number=block.event_number if block.first_event_offset is not None else _UNKNOWN,
        events_known=block.events_known,
        lowest_time_ms=block.lowest_time_ms,
        highest_time_ms=block.highest_time_ms,
    )
