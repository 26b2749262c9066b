"""Reads a whole stream with one consumer: no group, no state outside this process.

A `SegmentReader` reads the events of one segment from an offset on, a batch at a time, waiting at the tail. A
`SegmentFetcher` reads several segments at once into one bounded queue and gives their events. `StreamReader` decides
which segments may be read.

Invariants:

- Events of one routing key come in the order in which they were written: a segment is read only after all of its
  predecessors are read to their ends.
- `cut()` is a position behind the last event that was handed out; a new reader that starts there sees every later
  event once.
- Reading ends when the stream is sealed and everything is read, or at a cut to stop at: no event behind the cut comes
  out, and nothing is waited for there, whatever was scaled or truncated away meanwhile. A segment of the cut has no
  successors to read, and a segment behind the cut is not begun.
- Each segment has one batch on its way or waiting for room; `pieces_ahead_max` more wait in the queue. A slow user
  therefore stops the reading, not the memory.
- After `stop` no event of that segment comes out any more, also none that was in the queue already, and not its end.
- The end of a segment is given again and again until the segment is stopped: a caller that was cancelled while it dealt
  with the end meets it again.
- A segment whose reading fails ends the queue: its error is raised by this and every later `next`, and what was read
  ahead is not given out, in whole or in part, also not the rest of a batch, but read again from the position. So does
  closing: a caller that reads behind the end of an `async with` hears so, and not that the stream has ended.
- One task at a time asks a reader for the next event, as with an asynchronous generator: a second one is refused, and
  changes nothing.
- The events of a segment come in order, each once, whatever breaks: a read is repeated from where the last one ended.
- Where the head was truncated away, reading goes on at the new head; a segment that is gone altogether has ended.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from segmentstore.client.controller import ControllerClient, StreamName
from segmentstore.client.errors import ClientError, DeadlineExceededError
from segmentstore.client.event import Event, EventParser
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream_segments import ReadingOrder, SegmentKey, StreamCut
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead
from segmentstore.contracts.errors import (
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.runtime.task_set import TaskSet


class StreamReader:
    """Hold it in `async with`, then iterate over it, in one task: a second that asks meanwhile gets a RuntimeError.

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
        controller: ControllerClient,
        calls: SegmentCalls,
    ) -> None:
        """`calls` are the reader's own. Without `start` it begins at the head; with `stop_at` it ends at that cut."""
        self._stream = stream
        self._start = start
        self._stop_at = stop_at
        self._controller = controller
        self._calls = calls
        self._fetcher = SegmentFetcher(pieces_ahead_max=calls.settings.pieces_ahead_max)
        self._order = ReadingOrder()
        self._positions: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        start = self._start
        if start is None:
            start = await self._controller.head_offsets(self._stream)
        behind = await self._behind_the_end(start)
        for segment_id in sorted(start):
            offset = max(0, start[segment_id])
            if segment_id in behind:
                self._positions[segment_id] = offset
            else:
                self._read(segment_id, offset)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._calls.close)
            stack.push_async_callback(self._fetcher.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._fetcher.begin_turn()
        try:
            while not self._fetcher.is_idle:
                found = await self._fetcher.next()
                if isinstance(found, Event):
                    # The head may have been truncated away in between, so it need not begin where the last one ended.
                    offset = self._positions[found.segment_id]
                    assert found.offset >= offset, f"events overlap {found.offset} < {offset}"
                    self._positions[found.segment_id] = found.next_offset
                    return found
                if found is None:
                    break
                await self._follow(found.segment_id)
        finally:
            self._fetcher.end_turn()
        self._fetcher.check_open()
        raise StopAsyncIteration

    def cut(self) -> StreamCut:
        """The position behind the last event handed out."""
        return StreamCut(str(self._stream), dict(self._positions))

    def _read(self, segment_id: int, offset: int) -> None:
        self._positions[segment_id] = offset
        end = self._end_of(segment_id)
        if end is not None and offset >= end:
            return
        self._fetcher.start(
            SegmentReader(
                stream=str(self._stream),
                segment_id=segment_id,
                segment=segment_name(self._stream.scope, self._stream.stream, segment_id),
                offset=offset,
                end=end,
                calls=self._calls,
            )
        )

    def _end_of(self, segment_id: int) -> int | None:
        """Where to stop in the segment; None to read it to its end."""
        return None if self._stop_at is None else self._stop_at.get(segment_id)

    async def _behind_the_end(self, start: Mapping[int, int]) -> set[int]:
        """Segments to start with that follow those of the cut to stop at: the head may have moved past it."""
        if self._stop_at is None:
            return set()
        strangers = {each for each in start if each not in self._stop_at}
        # Ids grow with epochs: only what is older than a stranger leads to it.
        newest = max(strangers, default=-1)
        queue = deque(each for each in self._stop_at if each < newest)
        if not queue:
            return set()
        ranges = await self._controller.current_segments(self._stream)
        # Nothing follows a segment that is open, and the controller has no answer for one.
        is_open = {each.segment_id for each in ranges}
        found: set[int] = set()
        while queue and not strangers <= found:
            segment_id = queue.popleft()
            if segment_id in is_open:
                continue
            for successor in await self._controller.successors(self._stream, segment_id):
                following = successor.range.segment_id
                if following <= newest and following not in found:
                    found.add(following)
                    queue.append(following)
        return found & strangers

    async def _follow(self, segment_id: int) -> None:
        """Go on behind the end of a segment."""
        if self._end_of(segment_id) is None:
            successors = await self._controller.successors(self._stream, segment_id)
            # From here to the stop without an await: what follows is begun once, or the end is met again.
            for following in self._order.finish(segment_id, successors, self._positions):
                self._read(following, 0)
            for left in self._order.settle(self._positions):
                del self._positions[left]
        await self._fetcher.stop((str(self._stream), segment_id))


class SegmentReader:
    """`next_events()` until it says that the segment has ended."""

    def __init__(
        self,
        *,
        stream: str,
        segment_id: int,
        segment: str,
        offset: int,
        calls: SegmentCalls,
        end: int | None = None,
    ) -> None:
        """With `end` the segment ends there, wherever it really does."""
        self.stream = stream
        self.segment_id = segment_id
        self._segment = segment
        self._calls = calls
        self._end = end
        self._parser = EventParser(segment, offset)
        self._has_ended = False

    async def next_events(self) -> list[tuple[bytes, int]] | None:
        """Some events with the offsets behind them, or None at the end of the segment.

        Waits as long as it takes. Raises CorruptedDataError if the bytes are no events, and ClientError.
        """
        while not self._has_ended and not self._is_at_end(self._parser.offset):
            try:
                answer = await self._calls.ask(
                    self._segment,
                    lambda request_id: ReadSegment(
                        self._segment,
                        self._parser.next_offset,
                        self._calls.settings.read_bytes,
                        "",
                        request_id,
                    ),
                    SegmentRead,
                    seconds=self._calls.settings.long_poll_seconds,
                )
            except DeadlineExceededError:
                continue
            except SegmentTruncatedError as error:
                self._parser = EventParser(self._segment, error.start_offset)
                continue
            except (SegmentSealedError, SegmentNotFoundError):
                break
            self._has_ended = answer.end_of_segment
            events = self._parser.events(answer.data)
            while events and self._end is not None and events[-1][1] > self._end:
                events.pop()
                self._has_ended = True
            if events:
                return events
        self._has_ended = True
        return None

    def _is_at_end(self, offset: int) -> bool:
        return self._end is not None and offset >= self._end


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Every event of the segment was given."""

    stream: str
    segment_id: int


@dataclass(slots=True)
class _Batch:
    """Some events of a segment, or its end."""

    source: SegmentReader
    events: list[tuple[bytes, int]] | None


class SegmentFetcher:
    """`start` and `stop` segments; `next` gives their events as they arrive, to the task whose turn it is."""

    def __init__(self, *, pieces_ahead_max: int) -> None:
        self._queue: asyncio.Queue[_Batch | BaseException | None] = asyncio.Queue(pieces_ahead_max)
        self._sources: dict[SegmentKey, SegmentReader] = {}
        self._owned: dict[SegmentKey, TaskSet] = {}
        self._events: deque[tuple[bytes, int]] = deque()
        self._current: SegmentKey = ("", 0)
        self._has_ended = False
        """The current segment, and it was not stopped yet."""
        self._is_closed = False
        self._is_asked = False

    @property
    def active(self) -> Sequence[SegmentKey]:
        """What is being read, in the order of the start."""
        return list(self._sources)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being read, so that nothing will come."""
        return not self._sources

    @property
    def current(self) -> SegmentKey:
        """Of the event that was given last, or will be given next."""
        return self._current

    def start(self, source: SegmentReader) -> None:
        """Begin to read. Raises ClientError behind close()."""
        self.check_open()
        key = (source.stream, source.segment_id)
        assert key not in self._sources, f"segment is read already {key}"
        self._sources[key] = source
        tasks = self._owned[key] = TaskSet(on_failure=self.fail)
        tasks.start(self._pump(source), name=f"read {source.stream}/{source.segment_id}")

    async def stop(self, key: SegmentKey) -> None:
        """Read no more of the segment."""
        self._sources.pop(key, None)
        if key == self._current:
            self._events.clear()
            self._has_ended = False
        tasks = self._owned.pop(key, None)
        if tasks is not None:
            await tasks.close()

    def begin_turn(self) -> None:
        """Before `next`. Raises RuntimeError in the turn of another task, ClientError behind close()."""
        self.check_open()
        if self._is_asked:
            raise RuntimeError("another task waits for this reader's next event")
        self._is_asked = True

    def end_turn(self) -> None:
        """Another task may ask."""
        self._is_asked = False

    async def next(self) -> Event | SegmentEnd | None:
        """The event that arrived first, or the end of its segment; None behind finish().

        Raises the error of a segment whose reading failed, ClientError behind close().
        """
        self.check_open()
        while not self._events:
            if self._has_ended:
                return SegmentEnd(*self._current)
            batch = await self._queue.get()
            if batch is None or isinstance(batch, BaseException):
                self._end_with(batch)
                if batch is None:
                    return None
                raise batch
            key = (batch.source.stream, batch.source.segment_id)
            if self._sources.get(key) is batch.source:
                self._current = key
                if batch.events is None:
                    self._has_ended = True
                else:
                    self._events.extend(batch.events)
        data, next_offset = self._events.popleft()
        begin = next_offset - len(data) - EVENT_HEADER_BYTES
        return Event(data, *self._current, begin, next_offset)

    def finish(self) -> None:
        """Nothing more is to be read: every later `next` gives None."""
        self._end_with(None)

    def fail(self, error: BaseException) -> None:
        """Every later `next` raises the error."""
        self._end_with(error)

    async def close(self) -> None:
        """Read nothing any more, also if this is cancelled. Closing twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self.fail(_closed())
        self._sources.clear()
        owned, self._owned = self._owned, {}
        async with AsyncExitStack() as stack:
            for tasks in owned.values():
                stack.push_async_callback(tasks.close)

    def check_open(self) -> None:
        """Raises ClientError behind close()."""
        if self._is_closed:
            raise _closed()

    async def _pump(self, source: SegmentReader) -> None:
        while True:
            events = await source.next_events()
            await self._queue.put(_Batch(source, events))
            if events is None:
                return

    def _end_with(self, end: BaseException | None) -> None:
        # All of it, not only as much as makes room: behind a gap later events would pass for all there are.
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(end)
        if end is not None:
            # The user may take hours for what is left of a batch, and another reader has it by now.
            self._events.clear()
            self._has_ended = False


def _closed() -> ClientError:
    return ClientError("reader is closed")
