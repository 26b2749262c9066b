"""The oldest batches of a partition's segment, as many as become one file, piece by piece.

    begin -> bytes of the cache, or what is read, in one buffer -> headers walked there -> a piece of whole batches

Invariants:

- Whole batches, one behind the other, all durable; at least one if there is any.
- All have the times of their producers or all those of the append: a file says so once.
- Bytes are copied once. Memory: one piece, or one batch that is longer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from segmentstore.codec.record_batch import BATCH_HEADER_BYTES, TimestampType
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.segments import Segment
from segmentstore.topics.batch_positions import Place, header_at, read_some

_PIECE_BYTES: Final = 2 << 20
"""A block or two of a file: what is copied is still in the processor's cache when it is encoded."""
_READ_BYTES: Final = 256 * 1024
_HEADERS_AT_ONCE: Final = 250
"""Between two turns of the loop: about a millisecond."""


class BatchGathering:
    """look() first; if there is a batch, pieces(). `end` grows until pieces() has ended."""

    def __init__(
        self,
        segment: Segment,
        begin: Place,
        end_position: int,
        *,
        bytes_max: int,
        before_offset: int | None,
        wait_for_more: Callable[[int, int], Awaitable[int]] | None = None,
    ) -> None:
        """From `begin` on, at most `bytes_max` but one batch, none at or behind `before_offset`.

        `wait_for_more`, told an end and how much it may be useful to wait for, gives a later end, or the same if there
        will be nothing more.
        """
        self._wait_for_more = wait_for_more
        self._segment = segment
        self._end_position = end_position
        self._bytes_max = bytes_max
        self._before_offset = before_offset
        self._kind: TimestampType | None = None
        self._buffer = bytearray(min(_PIECE_BYTES, end_position - begin.position))
        self._filled = 0
        self._piece_bytes = 0
        """Of the whole batches at the begin of the buffer that were not given yet."""
        self._is_last = False
        self.begin = begin
        self.end = begin

    @property
    def log_append_time(self) -> bool:
        return self._kind is TimestampType.LOG_APPEND_TIME

    @property
    def size(self) -> int:
        return self.end.position - self.begin.position

    async def look(self) -> bool:
        """Whether there is a batch. Raises what reading raises."""
        await self._read_piece()
        return self._piece_bytes > 0

    async def pieces(self) -> AsyncGenerator[memoryview, None]:
        """All of them, in one buffer. Hold it in `aclosing`. Raises what reading raises."""
        while self._piece_bytes:
            yield memoryview(self._buffer)[: self._piece_bytes].toreadonly()
            if self._is_last:
                break
            if self.end.position >= self._end_position and self._wait_for_more is not None:
                least = min(_PIECE_BYTES, self._bytes_max - self.size)
                self._end_position = await self._wait_for_more(self._end_position, least)
                if len(self._buffer) < _PIECE_BYTES:
                    self._buffer = bytearray(_PIECE_BYTES)
            await self._read_piece()

    async def _read_piece(self) -> None:
        self._piece_bytes = self._filled = 0
        if self.end.position >= self._end_position:
            self._is_last = True
            return
        await self._fill()
        await self._walk()
        if not self._piece_bytes and not self._is_last:
            # One batch that is longer than the buffer.
            header = header_at(
                self._segment,
                self._buffer,
                0,
                position=self.end.position,
                end=self._end_position,
            )
            # A new one: the file maker may still have a view of the old one.
            self._buffer, self._filled = bytearray(header.size), 0
            await self._fill()
            await self._walk()
            assert self._piece_bytes, f"a batch is not whole position={self.end.position}"

    async def _fill(self) -> None:
        """The buffer with what is at `end`."""
        start = self.end.position
        wanted = min(len(self._buffer), self._end_position - start)
        while self._filled < wanted:
            position = start + self._filled
            most = min(_READ_BYTES, wanted - self._filled)
            views: Sequence[BufferView] = self._segment.views_nowait(position, most)
            if not views:
                views = [await read_some(self._segment, position, least=1, most=most)]
            for view in views:
                self._buffer[self._filled : self._filled + len(view)] = view
                self._filled += len(view)
            await asyncio.sleep(0)  # from the cache it comes without a turn of the loop

    async def _walk(self) -> None:
        """Over the whole batches in the buffer that belong to the file."""
        start, at, count = self.end.position, self._piece_bytes, 0
        while at + BATCH_HEADER_BYTES <= self._filled:
            header = header_at(
                self._segment, self._buffer, at, position=start + at, end=self._end_position
            )
            behind = start + at + header.size
            is_first = self._kind is None
            if (
                not is_first
                and (
                    behind - self.begin.position > self._bytes_max
                    or header.timestamp_type is not self._kind
                )
            ) or (self._before_offset is not None and header.base_offset >= self._before_offset):
                self._is_last = True
                break
            if at + header.size > self._filled:
                break
            at += header.size
            self._kind = header.timestamp_type
            highest_ms = max(self.end.highest_ms, header.max_timestamp)
            self.end = Place(behind, header.next_offset, highest_ms)
            count += 1
            if count % _HEADERS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._piece_bytes = at
