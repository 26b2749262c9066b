"""The table requests of one connection, in order: none overtakes another one of the same table.

Clients pipeline: a put, another put of the same key, a get. Each is answered as if the ones before it had ended.

- Changes of a table are submitted in the order in which they came. Where a table has to be opened first, or one has so
  many items that it is submitted in a turn of its own, those behind wait for it.
- A look-up, or a page, waits for the changes before it, and changes wait for the look-ups before them. Look-ups do not
  wait for one another.
- Creations and deletions wait for everything before them, and everything behind waits for them.
- Other tables, other connections, and appends and reads of segments never wait for any of this.
- What finds no open table waits for a container that is recovering here, and holds no turn meanwhile. What stands
  behind one that waited in vain is refused with it: waits do not add up.
- A change that met a table that is gone was not made. It is tried once more, in its place, with the table opened anew.
- What waits is counted (`waiting_count`): the connection stops reading in time.
- A look-up or a page begins when it has its turn (`answer_turns.py`): for a client that does not listen few are made.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.segments import is_system_name
from segmentstore.contracts.tables import Table
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.handle_cache import PinnedHandle
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.answer_turns import AnswerTurns
from segmentstore.wire.held_bytes import held_bytes
from segmentstore.wire.replies import is_stale
from segmentstore.wire.table_commands import (
    ITEMS_AT_ONCE_MAX,
    Answers,
    Change,
    OpenCommand,
    TableCommands,
    TableFuture,
    WholeTableCommand,
    answer_bytes_max,
    change_reply,
    item_count,
    submit_change,
)

TableCommand: TypeAlias = Change | OpenCommand | WholeTableCommand
_CHANGES: Final = (UpdateTableEntries, RemoveTableKeys)
_WHOLE: Final = (CreateTableSegment, DeleteTableSegment)
_READS: Final = (
    ReadTable,
    ReadTableKeys,
    ReadTableEntries,
    ReadTableEntriesDelta,
    GetTableSegmentInfo,
)
TABLE_COMMANDS: Final = (*_CHANGES, *_READS, *_WHOLE)


class _TableQueue:
    """What is under way of one table, and what waits for it."""

    __slots__ = (
        "changes",
        "is_closed_off",
        "is_not_here",
        "reads",
        "retries",
        "segment",
        "waiting",
    )

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self.changes = 0
        """Submitted and not settled; a batch counts once."""
        self.reads = 0
        self.is_closed_off = False
        """The table is being created, deleted or opened for a change, or a large one is about to be submitted: nothing
        else begins."""
        self.waiting: deque[TableCommand] = deque()
        self.retries = 0
        """So many of the first that wait are tried for the second time."""
        self.is_not_here = False
        """The container was not there, or was waited for in vain: what is behind does not wait for it."""

    @property
    def is_idle(self) -> bool:
        return not (self.changes or self.reads or self.is_closed_off or self.waiting)

    def may_begin(self, command: TableCommand) -> bool:
        if self.is_closed_off:
            return False
        if isinstance(command, _READS):
            return not self.changes
        if isinstance(command, _WHOLE) or self.retries:
            return not self.changes and not self.reads
        return not self.reads


class TableOrder:
    """take() any number; batches ask may_look_up() and may_change(), and say when their changes begin and end."""

    def __init__(
        self,
        *,
        commands: TableCommands,
        answers: Answers,
        turns: AnswerTurns,
        tasks: TaskSet,
        until_recovered: Callable[[str], Awaitable[None]],
        system_is_closed: bool,
    ) -> None:
        """`until_recovered` waits for a table's container while it recovers. With `system_is_closed` no batch takes a
        table of the store itself: it is refused as a command."""
        self._system_is_closed = system_is_closed
        self._commands = commands
        self._handles = commands.handles
        self._answers = answers
        self._turns = turns
        self._tasks = tasks
        self._until_recovered = until_recovered
        self._queues: dict[str, _TableQueue] = {}
        """Of tables with something under way."""
        self._closed = False
        self.waiting_count = 0

    def take(self, command: Command) -> None:
        """It is answered now or later."""
        assert isinstance(command, TABLE_COMMANDS), f"not of a table type={command.type}"
        queue = self._queue_of(command.segment)
        queue.waiting.append(command)
        self.waiting_count += 1
        self._go_on(queue)

    def may_look_up(self, segment: str) -> bool:
        """Whether a look-up that is answered at once overtakes nothing."""
        if self._system_is_closed and is_system_name(segment):
            return False
        queue = self._queues.get(segment)
        return queue is None or not (queue.changes or queue.is_closed_off or queue.waiting)

    def may_change(self, segment: str) -> bool:
        """Whether a change that is submitted now overtakes nothing."""
        if self._system_is_closed and is_system_name(segment):
            return False
        queue = self._queues.get(segment)
        return queue is None or not (queue.reads or queue.is_closed_off or queue.waiting)

    def change_begins(self, segment: str) -> None:
        """A batch of changes is submitted."""
        self._queue_of(segment).changes += 1

    def change_ends(self, segment: str) -> None:
        """It is settled: each of it is answered, or given to retry()."""
        queue = self._queues[segment]
        queue.changes -= 1
        self._go_on(queue)

    def retry(self, command: Change) -> None:
        """It was not made, for its table was gone: once more, before all that came behind it."""
        if self._closed:
            return
        queue = self._queues[command.segment]
        queue.waiting.insert(queue.retries, command)
        queue.retries += 1
        self.waiting_count += 1

    def close(self) -> None:
        """The connection is gone: nothing more begins. What was submitted goes on."""
        self._closed = True
        for queue in self._queues.values():
            self.waiting_count -= len(queue.waiting)
            queue.waiting.clear()
            queue.retries = 0

    def check(self) -> None:
        """Only tables with something under way are known, and nothing waits for nothing. O(n)."""
        assert self.waiting_count == sum(len(queue.waiting) for queue in self._queues.values())
        for segment, queue in self._queues.items():
            assert not queue.is_idle, f"nothing is under way table={segment!r}"
            assert queue.retries <= len(queue.waiting), f"retries={queue.retries} table={segment!r}"
            if queue.waiting:
                first = queue.waiting[0]
                assert not queue.may_begin(first), f"waits for nothing command={first!r:.200}"

    def _queue_of(self, segment: str) -> _TableQueue:
        queue = self._queues.get(segment)
        if queue is None:
            queue = self._queues[segment] = _TableQueue(segment)
        return queue

    def _go_on(self, queue: _TableQueue) -> None:
        """Begin what may begin, in order."""
        while queue.waiting and not self._closed and queue.may_begin(queue.waiting[0]):
            command = queue.waiting.popleft()
            self.waiting_count -= 1
            is_retry = queue.retries > 0
            queue.retries -= is_retry
            match command:
                case UpdateTableEntries() | RemoveTableKeys():
                    self._begin_change(queue, command, is_retry=is_retry)
                case CreateTableSegment() | DeleteTableSegment():
                    queue.is_closed_off = True
                    self._tasks.start(self._answer_whole(queue, command))
                case _:
                    self._begin_read(queue, command)
        if queue.is_idle and self._queues.get(queue.segment) is queue:
            del self._queues[queue.segment]

    # --- changes ---------------------------------------------------------------------------------

    def _begin_change(self, queue: _TableQueue, command: Change, *, is_retry: bool) -> None:
        is_large = item_count(command) > ITEMS_AT_ONCE_MAX
        pinned = None if is_large else self._handles.acquire_nowait(command.segment)
        if pinned is not None:
            self._submit(queue, pinned, command, is_retry=is_retry)
        else:
            queue.is_closed_off = True
            self._tasks.start(self._submit_later(queue, command, is_retry=is_retry))

    async def _submit_later(self, queue: _TableQueue, command: Change, *, is_retry: bool) -> None:
        """In a turn of the loop that is its own, and with the table opened if need be."""
        try:
            pinned = self._handles.acquire_nowait(command.segment)
            try:
                if pinned is None:
                    is_retry = True
                    await self._wait_for_container(queue)
                    pinned = await self._handles.acquire(command.segment)
            except SegmentStoreError as error:
                self._refuse(queue, command, error)
            else:
                queue.is_not_here = False
                self._submit(queue, pinned, command, is_retry=is_retry)
        finally:
            queue.is_closed_off = False
            self._go_on(queue)

    def _submit(
        self, queue: _TableQueue, pinned: PinnedHandle[Table], command: Change, *, is_retry: bool
    ) -> None:
        try:
            future = submit_change(pinned.handle, command)
        except SegmentStoreError as error:
            if is_stale(error):
                self._handles.discard(pinned)
            self._handles.release(pinned)
            self._answers.refuse(command, error)
            return
        queue.changes += 1
        future.add_done_callback(
            guarded(
                lambda _: self._settled(queue, pinned, command, future, is_retry=is_retry),
                self._answers.fail,
            )
        )

    def _settled(
        self,
        queue: _TableQueue,
        pinned: PinnedHandle[Table],
        command: Change,
        future: TableFuture,
        *,
        is_retry: bool,
    ) -> None:
        error = future.exception()
        if error is not None and is_stale(error):
            self._handles.discard(pinned)
        self._handles.release(pinned)
        try:
            if error is None:
                self._answers.reply(command, change_reply(command, future.result()))
            elif isinstance(error, SegmentNotFoundError) and not is_retry:
                # Nothing was stored, and the table may exist again under its name.
                self.retry(command)
            elif isinstance(error, SegmentStoreError):
                self._answers.refuse(command, error)
            else:
                raise error
        finally:
            self.change_ends(queue.segment)

    # --- everything else -------------------------------------------------------------------------

    def _begin_read(self, queue: _TableQueue, command: OpenCommand) -> None:
        if (
            isinstance(command, ReadTable)
            and self._turns.is_free()
            and self._commands.begin_read(command, self._answers)
        ):
            return
        queue.reads += 1
        self._tasks.start(self._answer_read(queue, command))

    async def _answer_read(self, queue: _TableQueue, command: OpenCommand) -> None:
        try:
            await self._wait_for_container(queue)
            async with self._turns.turn(answer_bytes_max(command)):
                await self._answer(queue, command)
        except SegmentStoreError as error:
            self._refuse(queue, command, error)
        finally:
            queue.reads -= 1
            self._go_on(queue)

    async def _answer_whole(self, queue: _TableQueue, command: WholeTableCommand) -> None:
        try:
            await self._wait_for_container(queue)
            await self._answer(queue, command)
        except SegmentStoreError as error:
            self._refuse(queue, command, error)
        finally:
            queue.is_closed_off = False
            self._go_on(queue)

    async def _answer(self, queue: _TableQueue, command: OpenCommand | WholeTableCommand) -> None:
        """Raises what answering raises."""
        frame = await self._commands.answer(command)
        queue.is_not_here = False
        self._answers.reply_frames(frame, released_bytes=held_bytes(command))

    async def _wait_for_container(self, queue: _TableQueue) -> None:
        if not queue.is_not_here:
            await self._until_recovered(queue.segment)

    def _refuse(self, queue: _TableQueue, command: TableCommand, error: SegmentStoreError) -> None:
        # One that names no container says that the lease is over: those behind ask as well, and are told so.
        queue.is_not_here = isinstance(error, ContainerNotFoundError) and error.container_id >= 0
        self._answers.refuse(command, error)
