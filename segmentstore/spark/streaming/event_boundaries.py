"""Finds where events begin and end in a segment, so that a micro-batch ends between two of them.

The index of a chunk says of each block where its first event begins and which number it has. From the last one
that fits, headers are walked; no more than a block is read for one answer, unless an event is longer than a block, or
the writer did not declare where events lie: then they are walked from the start of what waits.

Invariants:

- Every boundary that is given is the start of an event or the end of one, never the inside.
- A boundary is not guessed: bytes that are no event header raise CorruptedDataError.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, NoEventError, walk_events
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import StoredBlock

_PIECE_BYTES: Final = 4 << 20
_UNKNOWN_BLOCKS_MAX: Final = 64
"""Blocks of which nothing is known that are passed by; where there are more, the writer declared no events at all."""
_WALK_BYTES_MAX: Final = 16 << 20
"""Bytes that may be walked for a number that is only good to divide a limit more evenly."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between two events of a segment."""

    offset: int
    event_number: int | None
    """Of the event that begins there, counted from the segment's start; None: it was not counted."""


class SegmentContent(Protocol):
    """One segment, as far as it can be read now."""

    @property
    def name(self) -> str: ...

    @property
    def start_offset(self) -> int:
        """What lies before was truncated."""

    @property
    def published_end(self) -> int:
        """Up to here Tier 2 holds the bytes and knows their blocks; what follows is with the service."""

    def blocks(self, start: int, end: int) -> AsyncGenerator[StoredBlock, None]:
        """The blocks that hold the published bytes of [start, end), in order. Hold it in `aclosing`."""

    async def read(self, offset: int, length: int) -> bytes:
        """Bytes from `offset` on: at least one, at most `length`."""


class EventBoundaries:
    """Answers for one segment. Raises what reading it raises."""

    def __init__(self, segment: SegmentContent) -> None:
        self._segment = segment

    async def number_at(self, offset: int) -> Boundary:
        """A boundary by its offset, with the number of the event there if that can be known without a long walk."""
        lowest = self._segment.start_offset
        start = Boundary(lowest, 0 if lowest == 0 else None)
        anchor = await self._anchor(start, offset)
        if anchor.event_number is None or offset - anchor.offset > _WALK_BYTES_MAX:
            return Boundary(offset, None)
        return await self._walk(anchor, target=offset)

    async def at_most(self, start: Boundary, *, target: int, end: int) -> Boundary:
        """The last boundary up to `target`, but behind one event at least, if one ends at or before `end`.

        `start` itself if no event behind it does.
        """
        anchor = await self._anchor(start, min(target, end))
        found = await self._walk(anchor, target=min(target, end))
        if found.offset > start.offset:
            return found
        return await self._walk(start, target=end, events_max=1)

    async def after_events(self, start: Boundary, *, count: int, end: Boundary) -> Boundary:
        """The boundary behind at most `count` events from `start` on, not behind `end`."""
        assert count >= 1, f"a batch takes one event at least count={count}"
        if start.event_number is None or end.event_number is None:
            return await self._walk(start, target=end.offset, events_max=count)
        wanted = start.event_number + count
        if end.event_number <= wanted:
            return end
        anchor = await self._anchor_below(start, wanted, end.offset)
        left = wanted - (anchor.event_number or 0)
        return await self._walk(anchor, target=end.offset, events_max=left)

    async def _anchor(self, start: Boundary, target: int) -> Boundary:
        """The last start of an event that the index knows in [start, target]."""
        probe = min(target, self._segment.published_end)
        unknown_left = _UNKNOWN_BLOCKS_MAX
        while probe > start.offset and unknown_left:
            async with aclosing(self._segment.blocks(probe - 1, probe)) as blocks:
                block = await anext(blocks)
            # The pieces of a large event may be blocks of which nothing is known; before them is where it begins.
            unknown_left -= 0 if block.events_known else 1
            first = block.first_event_offset
            if first is not None and start.offset <= first <= target:
                return Boundary(first, block.event_number)
            probe = block.offset
        return start

    async def _anchor_below(self, start: Boundary, number: int, end: int) -> Boundary:
        """The last start of an event up to that number that the index knows in [start, end)."""
        anchor, published = start, min(end, self._segment.published_end)
        if start.offset >= published:
            return start
        # No further than to the first block behind it: what waits may be thousands of chunks.
        async with aclosing(self._segment.blocks(start.offset, published)) as blocks:
            async for block in blocks:
                first = block.first_event_offset
                if first is None or first <= start.offset:
                    continue
                if block.event_number > number:
                    break
                anchor = Boundary(first, block.event_number)
        return anchor

    async def _walk(
        self, start: Boundary, *, target: int, events_max: int | None = None
    ) -> Boundary:
        """Behind the last event that ends at or before `target`, over so many of them at most."""
        offset, count = start.offset, 0
        limit = target - start.offset if events_max is None else events_max
        is_done = False
        while not is_done and count < limit and offset + EVENT_HEADER_BYTES <= target:
            piece_offset = offset
            piece = await self._header_piece(offset, target)
            try:
                for _, end in walk_events(piece):
                    is_done = piece_offset + end > target
                    if is_done:
                        break
                    offset = piece_offset + end
                    count += 1
                    if count == limit:
                        break
            except NoEventError as error:
                raise CorruptedDataError(
                    f"no event begins there segment={self._segment.name!r} offset={offset}"
                    f" type={error.event_type} length={error.length}"
                ) from error
        number = None if start.event_number is None else start.event_number + count
        return Boundary(offset, number)

    async def _header_piece(self, offset: int, target: int) -> bytes:
        piece = b""
        while len(piece) < EVENT_HEADER_BYTES:
            at = offset + len(piece)
            found = await self._segment.read(at, min(_PIECE_BYTES, target - at))
            assert found, f"nothing was read segment={self._segment.name!r} offset={at}"
            piece += found
        return piece
