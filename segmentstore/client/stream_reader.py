"""Reads a whole stream with one consumer: no group, no state outside this process.

Invariants:

- Events of one routing key come in the order in which they were written: a segment is read only after all of its
  predecessors are read to their ends.
- `cut()` is a position behind the last event that was handed out; a new reader that starts there sees every later
  event once.
- Reading ends when the stream is sealed and everything is read.
"""

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from segmentstore.client.controller import Controller, StreamName
from segmentstore.client.event import Event
from segmentstore.client.event_frames import EVENT_HEADER_BYTES
from segmentstore.client.reading_order import ReadingOrder
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.segment_feed import SegmentFeed
from segmentstore.client.segment_feeds import SegmentFeeds
from segmentstore.client.stream_cut import StreamCut
from segmentstore.codec.stream_names import segment_name


class StreamReader:
    """Hold it in `async with`, then iterate over it.

    ```python
    async with stream.read() as events:
        async for event in events:
            print(event.data)
    ```
    """

    def __init__(
        self,
        *,
        stream: StreamName,
        start: Mapping[int, int] | None,
        stop_at: Mapping[int, int] | None,
        controller: Controller,
        calls: SegmentCalls,
    ) -> None:
        """`calls` are the reader's own. Without `start` it begins at the head; with `stop_at` it ends at that cut."""
        self._stream = stream
        self._start = start
        self._stop_at = stop_at
        self._controller = controller
        self._calls = calls
        self._feeds = SegmentFeeds(pieces_ahead_max=calls.settings.pieces_ahead_max)
        self._order = ReadingOrder()
        self._positions: dict[int, int] = {}
        self._events: deque[tuple[bytes, int]] = deque()
        self._segment_id = 0
        """Whose events those are."""
        self._ended: int | None = None
        """Read to its end, and not followed yet."""

    async def __aenter__(self) -> Self:
        start = self._start
        if start is None:
            start = await self._controller.head_offsets(self._stream)
        for segment_id in sorted(start):
            self._read(segment_id, max(0, start[segment_id]))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._feeds.close()
        await self._calls.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if not self._feeds.active and self._ended is None:
                raise StopAsyncIteration
            if self._ended is not None:
                # Kept until it is done: the caller may have cancelled the wait in the middle of it.
                await self._finish(self._ended)
                self._ended = None
                continue
            piece = await self._feeds.next()
            self._segment_id = piece.feed.segment_id
            if piece.events is None:
                self._ended = self._segment_id
            else:
                self._events.extend(piece.events)
                await self._stop_at_end()
        data, next_offset = self._events.popleft()
        offset = self._positions[self._segment_id]
        self._positions[self._segment_id] = next_offset
        # The head may have been truncated away in between, so the event need not begin where the last one ended.
        begin = next_offset - len(data) - EVENT_HEADER_BYTES
        assert begin >= offset, f"events overlap {begin} < {offset}"
        return Event(data, str(self._stream), self._segment_id, begin, next_offset)

    def cut(self) -> StreamCut:
        """The position behind the last event handed out."""
        return StreamCut(str(self._stream), dict(self._positions))

    def _read(self, segment_id: int, offset: int) -> None:
        self._positions[segment_id] = offset
        end = self._end_of(segment_id)
        if end is not None and offset >= end:
            return
        self._feeds.start(
            SegmentFeed(
                stream=str(self._stream),
                segment_id=segment_id,
                segment=segment_name(self._stream.scope, self._stream.stream, segment_id),
                offset=offset,
                calls=self._calls,
            )
        )

    def _end_of(self, segment_id: int) -> int | None:
        """Where to stop in the segment; None to read it to its end."""
        return None if self._stop_at is None else self._stop_at.get(segment_id)

    async def _stop_at_end(self) -> None:
        end = self._end_of(self._segment_id)
        if end is None or self._events[-1][1] < end:
            return
        while self._events and self._events[-1][1] > end:
            self._events.pop()
        await self._feeds.stop(str(self._stream), self._segment_id)

    async def _finish(self, segment_id: int) -> None:
        successors = await self._controller.successors(self._stream, segment_id)
        await self._feeds.stop(str(self._stream), segment_id)
        for following in self._order.finish(segment_id, successors, self._positions):
            self._read(following, 0)
        for left in self._order.settle(self._positions):
            del self._positions[left]
