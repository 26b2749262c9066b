"""A reader group: several readers, in any number of processes, that share the events of streams between them.

`ReaderGroup` makes and describes the group; a `GroupReader` reads its share of the segments and stores how far it got.

Invariants:

- At least once: an event is acknowledged when its successor is asked for, by `checkpoint()`, or by leaving the
  `async with` without an error. Acknowledged positions are stored every `commit_seconds`, by `checkpoint()`, with every
  change of segments and at the end; what was not stored before a crash is read again by the reader that takes over.
- A segment is given away only between two of its events: nothing of it is handed out after its position was stored for
  another reader.
- A reader counts as running while its process runs the loop: a task of its own moves its beat. Others watch the beat
  by their own clocks, so no two machines need to agree on the time (`silent_readers.py`).
- A reader that was taken for dead finds out with its next change of the state, and raises ReaderOfflineError: at the
  latest at its end, if that has something to store that its user was not told is lost.
- What the state gives to a reader is read there: a call that is cancelled or fails between stopping a segment and
  giving it away leaves it to the next change, which begins it again behind what is acknowledged here.
- A reader that does not come to its `async with`, and one that leaves it, ends its tasks, connections and membership,
  whatever is cancelled meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from segmentstore.client.controller import ControllerClient, StreamName
from segmentstore.client.errors import NotFoundError, ReaderOfflineError
from segmentstore.client.event import Event
from segmentstore.client.reader_group_state import GroupState, GroupTable, StreamState
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.silent_readers import SilentReaders
from segmentstore.client.stream import Stream
from segmentstore.client.stream_reader import SegmentFetcher, SegmentReader
from segmentstore.client.stream_segments import SegmentKey, StreamCut
from segmentstore.codec.stream_names import check_user_name, segment_name
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.runtime.task_set import TaskSet


class StartAt(Enum):
    """Where a group begins to read a stream."""

    HEAD = "head"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class ReaderGroupInfo:
    """What a group is doing."""

    name: str
    cuts: Mapping[str, StreamCut]
    """Acknowledged, by stream."""
    readers: Mapping[str, Sequence[str]]
    """`scope/stream/segment id` of what each reader reads."""
    unassigned: Sequence[str]


class GroupReader:
    """Made by `group.reader(id)`; hold it in `async with`, then iterate over it, in one task.

    A second task that asks meanwhile gets a RuntimeError: to ask acknowledges the event before. Several tasks take a
    reader each.
    """

    def __init__(
        self,
        *,
        reader_id: str,
        table: GroupTable,
        controller: ControllerClient,
        calls: SegmentCalls,
    ) -> None:
        """`calls` are the reader's own: it closes their connections."""
        self.reader_id = reader_id
        self._table = table
        self._controller = controller
        self._calls = calls
        self._settings = calls.settings
        self._incarnation = calls.random.getrandbits(53)
        self._fetcher = SegmentFetcher(pieces_ahead_max=calls.settings.pieces_ahead_max)
        self._tasks = TaskSet(on_failure=self._fetcher.fail)
        self._state_lock = asyncio.Lock()
        self._positions: dict[SegmentKey, int] = {}
        """Acknowledged, of the segments that are read here."""
        self._handed_out: tuple[SegmentKey, int] | None = None
        """The event that the user works on, and the offset behind it."""
        self._acknowledged = 0
        """How many events were, and of these up to which one their positions are stored, or their user was told that
        they will not be."""
        self._settled = 0
        self._silent = SilentReaders(
            period_seconds=calls.settings.commit_seconds,
            timeout_seconds=calls.settings.reader_timeout_seconds,
        )

    async def __aenter__(self) -> Self:
        try:
            async with self._state_lock:
                state = await self._table.change(
                    lambda state: state.join(self.reader_id, self._incarnation)
                )
                await self._follow(state)
            await self._synchronise()
        except BaseException as error:
            # Python calls no exit without an entry.
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._tasks.start(self._keep_in_step(), name=f"reader {self.reader_id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._acknowledge()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._calls.close)
            if error is None:
                stack.push_async_callback(self._leave)
            elif not isinstance(error, ReaderOfflineError):
                stack.push_async_callback(self._leave_quietly)
            stack.push_async_callback(self._fetcher.close)
            stack.push_async_callback(self._tasks.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._fetcher.begin_turn()
        self._acknowledge()
        try:
            while (found := await self._fetcher.next()) is not None:
                key = (found.stream, found.segment_id)
                if isinstance(found, Event):
                    self._handed_out = (key, found.next_offset)
                    return found
                await self._finish(key)
        except ReaderOfflineError:
            self._settled = self._acknowledged
            raise
        finally:
            self._fetcher.end_turn()
        raise StopAsyncIteration

    async def checkpoint(self) -> None:
        """Acknowledge every event handed out so far and store it: none of them is ever read again by the group."""
        self._acknowledge()
        try:
            await self._synchronise()
        except ReaderOfflineError:
            self._settled = self._acknowledged
            raise

    def _acknowledge(self) -> None:
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is not None:
            self._acknowledged += 1
            if handed_out[0] in self._positions:
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
        async with self._state_lock:
            state, _ = await self._table.load()
            self._check_member(state)
            others = {name: each for name, each in state.readers.items() if name != self.reader_id}
            dead = self._silent.look(others, now=asyncio.get_running_loop().time())
            surplus = self._surplus(state)
            if surplus is not None:
                # Before it is given away, so that no event of it comes out here any more.
                await self._fetcher.stop(surplus)

            def change(state: GroupState) -> None:
                for each in dead:
                    if each.is_still_so(state.readers):
                        state.leave(each.reader_id)
                if surplus is None:
                    state.acquire(self.reader_id)
                else:
                    state.release(self.reader_id, surplus)

            await self._change(change)

    async def _finish(self, key: SegmentKey) -> None:
        stream, segment_id = key
        successors = await self._controller.successors(StreamName.parse(stream), segment_id)
        async with self._state_lock:

            def change(state: GroupState) -> None:
                state.finish(self.reader_id, key, successors)
                state.acquire(self.reader_id)

            await self._change(change)

    async def _leave(self) -> None:
        def leave(state: GroupState) -> None:
            if self._is_member(state):
                state.leave(self.reader_id)

        async with self._state_lock:
            if self._settled < self._acknowledged:
                # Apart: behind a lost answer, to have left already and to be put offline look the same.
                await self._store(lambda _: None)
            await self._table.change(leave)

    async def _leave_quietly(self) -> None:
        """The error that ends the reader matters more; the others take its segments in the same time anyway."""
        with suppress(SegmentStoreError, TimeoutError):
            async with asyncio.timeout(self._settings.reader_timeout_seconds):
                await self._leave()

    async def _change(self, change: Callable[[GroupState], None]) -> None:
        await self._follow(await self._store(change))

    async def _store(self, change: Callable[[GroupState], None]) -> GroupState:
        """Store positions together with a change of a state that this reader is in. Raises ReaderOfflineError."""
        stored = 0

        def checked(state: GroupState) -> None:
            nonlocal stored
            self._check_member(state)
            stored = self._acknowledged
            state.advance(self.reader_id, self._positions)
            change(state)

        state = await self._table.change(checked)
        self._settled = max(self._settled, stored)
        return state

    async def _follow(self, state: GroupState) -> None:
        """Read what the state says is ours, and nothing else."""
        ours = state.readers[self.reader_id].segments
        for key in list(self._positions):
            if key not in ours:
                await self._fetcher.stop(key)
                del self._positions[key]
        for key in ours:
            if key not in self._fetcher.active:
                self._start(key, max(state.position(key), self._positions.get(key, 0)))
        if state.is_finished:
            self._fetcher.finish()

    def _start(self, key: SegmentKey, offset: int) -> None:
        stream, segment_id = key
        name = StreamName.parse(stream)
        self._positions[key] = offset
        self._fetcher.start(
            SegmentReader(
                stream=stream,
                segment_id=segment_id,
                segment=segment_name(name.scope, name.stream, segment_id),
                offset=offset,
                calls=self._calls,
            )
        )

    def _surplus(self, state: GroupState) -> SegmentKey | None:
        """A segment to give away, none of whose events is being worked on."""
        if not state.has_surplus(self.reader_id):
            return None
        busy = self._handed_out[0] if self._handed_out is not None else None
        candidates = [key for key in self._positions if key != busy]
        # One whose events the user does not hold costs nothing to give away.
        return min(candidates, key=lambda key: (key == self._fetcher.current, key), default=None)

    def _is_member(self, state: GroupState) -> bool:
        record = state.readers.get(self.reader_id)
        return record is not None and record.incarnation == self._incarnation

    def _check_member(self, state: GroupState) -> None:
        if not self._is_member(state):
            raise ReaderOfflineError(self._table.name, self.reader_id)


class ReaderGroup:
    """Cheap to make; nothing to close. `async with` is for its readers."""

    def __init__(
        self, scope: str, name: str, *, controller: ControllerClient, calls: SegmentCalls
    ) -> None:
        self.scope = scope
        self.name = name
        self._controller = controller
        self._calls = calls
        self._table = GroupTable(scope, name, calls)

    async def create(
        self, streams: Sequence[str], *, start: StartAt | Sequence[StreamCut] = StartAt.HEAD
    ) -> None:
        """Begin to read streams of the group's scope (or `scope/stream`) at their heads, tails, or at cuts.

        Streams without a cut are read from their heads. Raises AlreadyExistsError, NotFoundError, InvalidRequestError
        (no stream, a name that none may have, or a cut that is none of these streams: also of an earlier one of the
        name, whose segments it names).
        """
        check_user_name(self.name, what="reader group")
        names = [self._stream_name(each) for each in streams]
        cuts = {} if isinstance(start, StartAt) else _cuts_by_stream(start, names)
        states = {
            str(name): StreamState(await self._start(name, start, cuts.get(str(name))))
            for name in names
        }
        if not states:
            raise InvalidRequestError(
                f"a reader group reads at least one stream group={self.name!r}"
            )
        await self._controller.create_reader_group(
            self.scope, self.name, {name: cuts.get(str(name), {}) for name in names}
        )
        await self._table.create(GroupState(states))

    async def delete(self) -> None:
        """Forget the group and its positions. Raises NotFoundError.

        May be called again after any other error, and finishes what was begun.
        """
        # An attempt before this one may have come so far. Whether there is a group is for the controller to say.
        with suppress(NotFoundError):
            await self._table.delete()
        await self._controller.delete_reader_group(self.scope, self.name)

    async def info(self) -> ReaderGroupInfo:
        """Raises NotFoundError."""
        state, _ = await self._table.load()
        return ReaderGroupInfo(
            f"{self.scope}/{self.name}",
            {stream: state.cut(stream) for stream in state.streams},
            {
                reader: [f"{stream}/{segment}" for stream, segment in record.segments]
                for reader, record in state.readers.items()
            },
            [f"{stream}/{segment}" for stream, segment in state.unassigned],
        )

    async def stream_cut(self, stream: str | None = None) -> StreamCut:
        """Up to where a stream's events are acknowledged; the stream may be left out if there is only one.

        Raises NotFoundError (no such group), InvalidRequestError (not a stream of the group, or not named).
        """
        cuts = (await self.info()).cuts
        if stream is None:
            if len(cuts) != 1:
                raise InvalidRequestError(
                    f"group reads several streams; name one of {sorted(cuts)}"
                )
            return next(iter(cuts.values()))
        name = str(self._stream_name(stream))
        if name not in cuts:
            raise InvalidRequestError(f"group does not read the stream stream={name!r}")
        return cuts[name]

    def reader(self, reader_id: str) -> GroupReader:
        """One reader; ids are unique in the group, a second one of an id takes the first one's place."""
        return GroupReader(
            reader_id=reader_id,
            table=self._table,
            controller=self._controller,
            calls=self._calls.with_own_connections(),
        )

    async def reader_offline(self, reader_id: str) -> None:
        """Give a reader's segments to the others at once, instead of after `reader_timeout_seconds`."""
        await self._table.change(lambda state: state.leave(reader_id))

    async def _start(
        self, name: StreamName, start: StartAt | Sequence[StreamCut], cut: Mapping[int, int] | None
    ) -> dict[int, int]:
        if cut is not None:
            return dict(cut)
        stream = Stream(name, controller=self._controller, calls=self._calls)
        return dict((await (stream.tail() if start is StartAt.TAIL else stream.head())).offsets)

    def _stream_name(self, text: str) -> StreamName:
        return StreamName.parse(text if "/" in text else f"{self.scope}/{text}")


def _cuts_by_stream(
    cuts: Sequence[StreamCut], names: Sequence[StreamName]
) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    known = {str(name) for name in names}
    for cut in cuts:
        if cut.stream not in known:
            raise InvalidRequestError(f"cut is of a stream that the group does not read cut={cut}")
        if cut.stream in found:
            raise InvalidRequestError(f"two cuts are of one stream stream={cut.stream!r}")
        found[cut.stream] = {each: max(0, at) for each, at in cut.offsets.items()}
    return found
