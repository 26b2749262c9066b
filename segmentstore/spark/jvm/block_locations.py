"""Ranges with the blocks that their reader needs: for the Java reader, which knows no layouts.

- `RangeResolver` looks the blocks of a range up, and leaves out those on both sides that lie outside of the bounds of
  time that Spark's filters gave (`_blocks_of_range`).
- `ResolvedBlockCache` keeps what it found, for a process that is asked about the same stream again and again. Reading
  indexes and making values of their entries is most of what a plan costs, and between two looks at a stream its
  manifest has often not changed.

Invariants:

- The first block is one in which an event is known to begin at or before the start of the range, or the first one
  behind it if there is none; a reader that walks from there meets every event of the range that has a wanted time.
  Blocks follow each other without a gap.
- A block without a time of its own has that of the last one before it with one, as in scan/block_reader.py.
- A range of which something is gone is loss, also if all of it is. A reader that did not get a tail is told of none
  that the service does not have.
- The blocks go on behind the range until another event begins, so that the last event of the range ends in them.
- What Tier 2 does not hold yet are blocks of no object; the reader asks the service for their bytes.
- A version of a manifest says what its container holds for ever, so what was found below one is true of that one: a
  manifest with another version, or another attempt's nonce, is asked anew.
- So many blocks are kept at most; the ranges that were not asked for longest go first.
- No bytes of chunks are read but by `number_at_head`, where no index knows a number.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.options import Content
from segmentstore.spark.scan.block_reader import BlockPruning, event_start_before, time_before
from segmentstore.spark.scan.data_loss import DataLossError, pass_over
from segmentstore.spark.scan.partitions import BlockLocation, BlockRange, SegmentRange
from segmentstore.spark.scan.range_reader import number_at_head
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Reader,
)
from tier2.outside_access import ContainerReader

if TYPE_CHECKING:
    # Only queries that ask the service need its client library.
    from segmentstore.client.byte_segment import SegmentInfo

BLOCKS_MAX: Final = 1 << 16
"""Some 20 MB: those of 64 GB in blocks of 1 MB."""
_SERVED_BYTES: Final = 4 << 20
"""Asked for at once from the service."""
_UNKNOWN_NUMBER: Final = -1
"""Number of an event whose number Tier 2 does not hold."""
_NUMBER_TO_COUNT_BACK: Final = -2
"""Number of the first event of a segment, where it is still to be found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What Tier 2 holds of a range."""

    blocks: Sequence[BlockLocation] = ()
    published_end: int = 0
    """Where Tier 2 ends."""
    start: int
    """The range's, or the head of the segment if that lies behind it."""
    end: int
    """No event of the range is wanted that begins there or behind."""


ManifestIdentity: TypeAlias = tuple[bytes, int, int, bytes]
"""As ContainerReader.manifest_identity."""


class ResolvedBlockCache:
    """What RangeResolver found."""

    def __init__(self, *, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._found: OrderedDict[tuple[ManifestIdentity, SegmentRange], Found] = OrderedDict()
        self._count = 0

    def get(self, manifest: ManifestIdentity, part: SegmentRange) -> Found | None:
        """What was found for the range below this manifest. O(1)."""
        key = manifest, part
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def keep(self, manifest: ManifestIdentity, part: SegmentRange, found: Found) -> None:
        """`found` is all that is below this manifest."""
        key = manifest, part
        if key in self._found or len(found.blocks) > self._blocks_max:
            return
        self._found[key] = found
        self._count += len(found.blocks)
        while self._count > self._blocks_max:
            _, gone = self._found.popitem(last=False)
            self._count -= len(gone.blocks)


class RangeResolver:
    """Fills in the blocks of ranges."""

    def __init__(
        self,
        view: Tier2Reader | None,
        *,
        asks_service: bool,
        fail_on_data_loss: bool,
        executor: Executor | None,
        placed: ResolvedBlockCache,
        served: "Callable[[str], Awaitable[SegmentInfo]] | None" = None,
    ) -> None:
        """`view` is None where the service alone is asked; `placed` outlives it.

        With `served` the service says of a tail what is left of it; without, it was asked for the plan just now.
        """
        self._view = view
        self._served_info = served
        self._placed = placed
        self._executor = executor
        self._asks_service = asks_service
        self._fail_on_data_loss = fail_on_data_loss

    async def place(self, part: SegmentRange) -> BlockRange | None:
        """The range with its blocks; None if nothing of it is left. Raises DataLossError, StorageError."""
        found = await self._seen(part)
        served: Sequence[BlockLocation] = ()
        if self._asks_service and found.published_end < part.end:
            found, head, end = await self._left(part, found)
            served = self._served(part, found, head, end)
        blocks = [*found.blocks, *served]
        start = max(found.start, blocks[0].offset) if blocks else found.start
        # What is not there was left out with a warning: a reader must not wait for it.
        end = min(found.end, blocks[-1].offset + blocks[-1].length) if blocks else found.end
        if not blocks or start >= end:
            return None
        return BlockRange(
            scope=part.scope,
            stream=part.stream,
            segment_id=part.segment_id,
            own_id=part.own_id,
            segment_name=part.segment_name,
            container_id=part.container_id,
            start=start,
            end=end,
            content=part.content,
            walk_from=part.walk_from,
            blocks=tuple(blocks),
        )

    async def _seen(self, part: SegmentRange) -> Found:
        """As _published, once this process sees as much as the plan did."""
        attempts = 1
        while True:
            found = await self._published(part)
            if found.published_end >= part.end or self._asks_service:
                return found
            if self._view is None or attempts == OPEN_ATTEMPTS:
                self._lose(part, head=found.start, tail=found.published_end)
                return found
            # Volumes are seen up to a second late.
            attempts += 1
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            await self._view.refresh()

    async def _published(self, part: SegmentRange) -> Found:
        """What Tier 2 has. Raises DataLossError for what is gone."""
        view = self._view
        nothing = Found(start=part.start, end=part.end)
        if view is None:
            return nothing
        container = await view.container(view.container_id(part.segment_name))
        if container is None:
            return nothing
        manifest = container.manifest_identity
        kept = self._placed.get(manifest, part)
        if kept is not None:
            return kept
        record = await container.find(part.segment_name)
        try:
            if record is None or not part.is_of(record):
                return nothing
        except SegmentNotFoundError:
            return self._gone(part)
        start = part.start
        # Compared before anything else: where all of the range is gone nothing is left to be compared.
        if start < record.start_offset:
            self._lose(part, head=record.start_offset, tail=record.length)
            start = record.start_offset
        if record.length <= record.start_offset:
            return replace(nothing, start=start, published_end=record.length)
        try:
            end = part.end
            if part.content == Content.BYTES:
                found = list(await _blocks_of_bytes(container, record, part, start))
            else:
                blocks, end = await _blocks_of_range(container, record, part, start)
                found = list(blocks)
            if found and found[0].event_number == _NUMBER_TO_COUNT_BACK:
                number = await number_at_head(
                    view, container, record, part=part, executor=self._executor
                )
                number = _UNKNOWN_NUMBER if number is None else number
                found[0] = replace(found[0], event_number=number)
            # What was lost is told each time, and the manifest may have moved on meanwhile.
            whole = Found(blocks=found, published_end=record.length, start=start, end=end)
            if start == part.start and container.manifest_identity == manifest:
                self._placed.keep(manifest, part, whole)
            return whole
        except SegmentTruncatedError as error:
            if start < error.start_offset:
                self._lose(part, head=error.start_offset, tail=record.length)
            # Where the walk was to begin may be gone though the range is not.
            await container.refresh()
            return await self._published(replace(part, start=max(start, error.start_offset)))
        except SegmentNotFoundError:
            # Removed since the record was read.
            return self._gone(part)

    def _gone(self, part: SegmentRange) -> Found:
        self._lose(part, head=0, tail=0)
        return Found(start=part.end, end=part.end, published_end=part.end)

    async def _left(self, part: SegmentRange, found: Found) -> tuple[Found, int, int]:
        """What Tier 2 holds as far as it still counts, and between which offsets the service is to be asked.

        Raises DataLossError.
        """
        if self._served_info is None:
            if found.published_end < part.walk_start:
                # An event is known to begin there, and the service may have nothing from before it.
                found = replace(found, blocks=())
            return found, 0, part.end
        try:
            info = await self._served_info(part.segment_name)
        except SegmentNotFoundError:
            self._lose(part, head=0, tail=0)
            return found, 0, found.published_end
        if info.length < part.end:
            self._lose(part, head=info.start_offset, tail=info.length)
        end = min(part.end, info.length)
        if info.start_offset <= found.published_end:
            return found, info.start_offset, end
        # Blocks follow each other without a gap: what lies before the head is gone, though Tier 2 may show it still.
        if info.start_offset > found.start:
            self._lose(part, head=info.start_offset, tail=info.length)
        found = replace(found, blocks=(), start=max(found.start, info.start_offset))
        return found, info.start_offset, end

    def _served(self, part: SegmentRange, found: Found, head: int, end: int) -> list[BlockLocation]:
        """What the service alone has between `head` and `end`, from where Tier 2 ends, or from where an event is known
        to begin."""
        is_bytes = part.content == Content.BYTES
        published = found.blocks
        if published:
            first = found.published_end
        else:
            # A head that moved behind where the walk was to begin is where an event begins, too.
            first = found.start if is_bytes or found.start > part.start else part.walk_start
            first = max(first, found.published_end, head)
        time_ms = published[-1].lowest_time_ms if published and not is_bytes else 0
        blocks: list[BlockLocation] = []
        for offset in range(first, end, _SERVED_BYTES):
            is_first = not published and offset == first and not is_bytes
            blocks.append(
                BlockLocation(
                    object_key="",
                    position=offset,
                    stored_length=min(_SERVED_BYTES, end - offset),
                    compression=0,
                    offset=offset,
                    length=min(_SERVED_BYTES, end - offset),
                    first_event_offset=offset if is_first else None,
                    event_number=0 if is_first and offset == 0 else _UNKNOWN_NUMBER,
                    lowest_time_ms=time_ms,
                )
            )
        return blocks

    def _lose(self, part: SegmentRange, *, head: int, tail: int) -> None:
        loss = DataLossError(
            part.segment_name, start=part.start, end=part.end, head=head, tail=tail
        )
        pass_over(loss, fail=self._fail_on_data_loss)


async def _blocks_of_range(
    container: ContainerReader, record: SegmentRecord, part: SegmentRange, start: int
) -> tuple[Sequence[BlockLocation], int]:
    """From where an event is known to begin, until all wanted events have ended; and where no more wanted ones begin.

    Blocks wholly outside of the bounds of time are left out on both sides. Between two others they stay: events of
    different times lie in any order behind a merge, and a reader walks over neighbours alone.
    """
    if start >= record.length:
        start = record.length - 1
    begin, _ = await event_start_before(container, record, start)
    # The service has what follows: then no block is the last one.
    bounds = part if isinstance(part, BlockRange) and part.end <= record.length else None
    pruning = BlockPruning(
        lowest_time_ms=bounds.lowest_time_ms if bounds is not None else None,
        highest_time_ms=bounds.highest_time_ms if bounds is not None else None,
        time_ms=await time_before(
            container, record.segment_id, begin, head=record.start_offset, end=record.length
        ),
    )
    found: list[BlockLocation] = []
    kept, wanted_end = 0, part.end
    async with aclosing(
        container.list_blocks(record.segment_id, begin, record.length)
    ) as stored_blocks:
        async for stored in stored_blocks:
            is_behind = stored.offset >= part.end and stored.first_event_offset is not None
            if found and is_behind and stored.begins_on_event:
                break
            is_wanted = pruning.admits(stored, goes_on_at=begin)
            if not found and not is_wanted:
                continue
            block = replace(_location_of(stored), lowest_time_ms=pruning.time_ms)
            if not found and not stored.events_known and stored.offset <= record.start_offset:
                # The writer did not say where events lie: one begins where the segment does.
                block = replace(
                    block,
                    first_event_offset=record.start_offset,
                    event_number=_NUMBER_TO_COUNT_BACK,
                )
            elif not found and stored.first_event_offset is None:
                continue
            found.append(block)
            if is_wanted:
                kept = len(found)
                if pruning.is_within(stored):
                    wanted_end = min(part.end, stored.offset + stored.length)
            if is_behind:
                # An event that began before may still end in this block.
                break
    return found[:kept], wanted_end if bounds is not None else part.end


async def _blocks_of_bytes(
    container: ContainerReader, record: SegmentRecord, part: SegmentRange, start: int
) -> Sequence[BlockLocation]:
    """All that hold bytes of the range."""
    end = min(part.end, record.length)
    if start >= end:
        return []
    async with aclosing(container.list_blocks(record.segment_id, start, end)) as stored_blocks:
        return [_location_of(stored) async for stored in stored_blocks]


def _location_of(block: StoredBlock) -> BlockLocation:
    return BlockLocation(
        object_key=block.object_key,
        position=block.position,
        stored_length=block.stored_length,
        compression=block.compression,
        offset=block.offset,
        length=block.length,
        first_event_offset=block.first_event_offset,
        event_number=block.event_number
        if block.first_event_offset is not None
        else _UNKNOWN_NUMBER,
        lowest_time_ms=block.lowest_time_ms,
    )
