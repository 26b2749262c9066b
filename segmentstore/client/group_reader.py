"""One reader of a group: reads its share of the segments and stores how far it got.

Invariants:

- At least once: an event is acknowledged when its successor is asked for, by `checkpoint()`, or by leaving the
  `async with` without an error. Acknowledged positions are stored every `commit_seconds`, by `checkpoint()`, with every
  change of segments and at the end; what was not stored before a crash is read again by whoever takes over.
- A segment is given away only between two of its events: nothing of it is handed out after its position was stored for
  another reader.
- A reader lives while its process runs the loop: a task of its own shows its beat. Others watch the beat by their own
  clocks, so no two machines need to agree on the time.
- A reader that was taken for dead finds out with its next change of the state, and raises ReaderOfflineError.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from segmentstore.client.controller import Controller, StreamName
from segmentstore.client.errors import ReaderOfflineError
from segmentstore.client.event import Event
from segmentstore.client.event_frames import EVENT_HEADER_BYTES
from segmentstore.client.group_state import GroupState, SegmentKey
from segmentstore.client.group_table import GroupTable
from segmentstore.client.owned_tasks import OwnedTasks
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.segment_feed import SegmentFeed
from segmentstore.client.segment_feeds import SegmentFeeds
from segmentstore.codec.stream_names import segment_name
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


class _GroupFinishedError(Exception):
    """Every stream of the group is sealed and read to its end."""


class GroupReader:
    """Made by `group.reader(id)`; hold it in `async with`, then iterate over it."""

    def __init__(
        self, *, reader_id: str, table: GroupTable, controller: Controller, calls: SegmentCalls
    ) -> None:
        """`calls` are the reader's own: it closes their connections."""
        self.reader_id = reader_id
        self._table = table
        self._controller = controller
        self._calls = calls
        self._settings = calls.settings
        self._incarnation = calls.random.getrandbits(53)
        self._feeds = SegmentFeeds(pieces_ahead_max=calls.settings.pieces_ahead_max)
        self._tasks = OwnedTasks(self._feeds.fail)
        self._state_turn = asyncio.Lock()
        self._positions: dict[SegmentKey, int] = {}
        """Acknowledged, of the segments that are read here."""
        self._events: deque[tuple[bytes, int]] = deque()
        self._current: SegmentKey = ("", 0)
        """Whose events those are."""
        self._ended: SegmentKey | None = None
        """Read to its end, which the group does not know yet."""
        self._handed_out: tuple[SegmentKey, int] | None = None
        """The event that the user works on, and the offset behind it."""
        self._beats: dict[str, tuple[int, int, float]] = {}
        """By other reader: incarnation and beat, and since when they are the same."""

    async def __aenter__(self) -> Self:
        async with self._state_turn:
            state = await self._table.change(
                lambda state: state.join(self.reader_id, self._incarnation)
            )
            await self._follow(state)
        await self._synchronise()
        self._tasks.start(self._keep_in_step(), name=f"reader {self.reader_id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._tasks.close()
        if error is None:
            self._acknowledge()
        try:
            await self._feeds.close()
            if not isinstance(error, ReaderOfflineError):
                await self._leave()
        finally:
            await self._calls.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._acknowledge()
        while not self._events:
            if self._ended is not None:
                # Kept until it is done: the caller may have cancelled the wait in the middle of it.
                await self._finish(self._ended)
                self._ended = None
            try:
                piece = await self._feeds.next()
            except _GroupFinishedError:
                raise StopAsyncIteration from None
            key = (piece.feed.stream, piece.feed.segment_id)
            if piece.events is None:
                self._ended = key
            else:
                self._current = key
                self._events.extend(piece.events)
        data, next_offset = self._events.popleft()
        self._handed_out = (self._current, next_offset)
        stream, segment_id = self._current
        offset = next_offset - len(data) - EVENT_HEADER_BYTES
        return Event(data, stream, segment_id, offset, next_offset)

    async def checkpoint(self) -> None:
        """Acknowledge every event handed out so far and store it: none of them is ever read again by the group."""
        self._acknowledge()
        await self._synchronise()

    def _acknowledge(self) -> None:
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is not None and handed_out[0] in self._positions:
            self._positions[handed_out[0]] = handed_out[1]

    async def _keep_in_step(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            try:
                await self._synchronise()
            except SegmentStoreError as error:
                # The next turn may do better; if the group gives up on us meanwhile, that turn says so.
                if error.kind is not ErrorKind.UNAVAILABLE:
                    raise

    async def _synchronise(self) -> None:
        """Store positions, release dead readers, give away and take segments."""
        async with self._state_turn:
            state, _ = await self._table.load()
            self._check_member(state)
            dead = self._dead_readers(state)
            surplus = self._surplus(state)
            if surplus is not None:
                # Before it is given away, so that no event of it comes out here any more.
                await self._stop(surplus)

            def change(state: GroupState) -> None:
                state.advance(self.reader_id, self._positions)
                for reader, incarnation in dead:
                    record = state.readers.get(reader)
                    if record is not None and record.incarnation == incarnation:
                        state.leave(reader)
                if surplus is None:
                    state.acquire(self.reader_id)
                else:
                    state.release(self.reader_id, surplus)

            try:
                await self._change(change)
            except SegmentStoreError:
                if surplus is not None and surplus not in self._feeds.active:
                    self._start(surplus, self._positions[surplus])
                raise

    async def _finish(self, key: SegmentKey) -> None:
        stream, segment_id = key
        scope, _, name = stream.partition("/")
        successors = await self._controller.successors(StreamName(scope, name), segment_id)
        async with self._state_turn:

            def change(state: GroupState) -> None:
                state.advance(self.reader_id, self._positions)
                state.finish(self.reader_id, key, successors)
                state.acquire(self.reader_id)

            await self._change(change)

    async def _leave(self) -> None:
        def change(state: GroupState) -> None:
            if self._is_member(state):
                state.advance(self.reader_id, self._positions)
                state.leave(self.reader_id)

        async with self._state_turn:
            await self._table.change(change)

    async def _change(self, change: Callable[[GroupState], None]) -> None:
        def checked(state: GroupState) -> None:
            self._check_member(state)
            change(state)

        await self._follow(await self._table.change(checked))

    async def _follow(self, state: GroupState) -> None:
        """Read what the state says is ours, and nothing else."""
        ours = state.readers[self.reader_id].segments
        for key in list(self._positions):
            if key not in ours:
                await self._stop(key)
                del self._positions[key]
        for key in ours:
            if key not in self._positions:
                self._start(key, state.position(key))
        if state.is_finished:
            self._feeds.fail(_GroupFinishedError())

    def _start(self, key: SegmentKey, offset: int) -> None:
        stream, segment_id = key
        scope, _, name = stream.partition("/")
        self._positions[key] = offset
        self._feeds.start(
            SegmentFeed(
                stream=stream,
                segment_id=segment_id,
                segment=segment_name(scope, name, segment_id),
                offset=offset,
                calls=self._calls,
            )
        )

    async def _stop(self, key: SegmentKey) -> None:
        if key == self._current:
            self._events.clear()
        await self._feeds.stop(*key)

    def _surplus(self, state: GroupState) -> SegmentKey | None:
        """A segment to give away, none of whose events is being worked on."""
        if not state.has_surplus(self.reader_id):
            return None
        busy = self._handed_out[0] if self._handed_out is not None else None
        candidates = [key for key in self._positions if key != busy]
        # One whose events are not in hand costs nothing to give away.
        return min(candidates, key=lambda key: (key == self._current, key), default=None)

    def _dead_readers(self, state: GroupState) -> list[tuple[str, int]]:
        now = asyncio.get_running_loop().time()
        dead: list[tuple[str, int]] = []
        for reader, record in state.readers.items():
            if reader == self.reader_id:
                continue
            seen = self._beats.get(reader)
            if seen is None or seen[:2] != (record.incarnation, record.beat):
                self._beats[reader] = (record.incarnation, record.beat, now)
            elif now - seen[2] > self._settings.reader_timeout_seconds:
                dead.append((reader, record.incarnation))
        for reader in [reader for reader in self._beats if reader not in state.readers]:
            del self._beats[reader]
        return dead

    def _is_member(self, state: GroupState) -> bool:
        record = state.readers.get(self.reader_id)
        return record is not None and record.incarnation == self._incarnation

    def _check_member(self, state: GroupState) -> None:
        if not self._is_member(state):
            raise ReaderOfflineError(self._table.name, self.reader_id)
