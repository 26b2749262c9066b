"""Changes are made in groups: everything that is ready when the last group ends is the next one.

Invariants:

- One group is under way at a time, and the database is written by nobody beside it: whoever has the turn does either.
  Whoever takes from the line, or from the database, without the turn breaks this.
- A change joins the line synchronously, in the order of the calls, and leaves it in that order (group_line).
- The disk does not wait for the loop: the thread that has committed a group goes on with the next by itself, if that is
  ready; a thread that has hashed contents commits them, if nobody else commits. What is ready while a thread gives the
  turn back is seen: it looks once more behind that.
- No waiting window: a lone change is a group of one.
- The line is bounded by bytes, those of contents that are being hashed included; more wait outside, in order.
- A caller that goes away changes nothing: its change is made all the same, unless its bytes are being checked then.
- A put that finds its bytes in the index leaves the line until they are checked, then joins it again (check_line).
- When a group fails, every change of it fails with one error, outcome unknown; the next group has a new volume. A put
  whose bytes could not be hashed, or whose description is refused, fails alone, before its group.
- `changed` is called after every group of somebody else than compaction: there may be something to compact; urgently,
  if the disk is full.
- The database of the index gets what was committed after a delay, also when nothing follows.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.contracts.errors import (
    SegmentStoreError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.runtime.clock import WallClock
from tier2.volumes.check_line import CheckLine
from tier2.volumes.found_bytes import FoundBytes
from tier2.volumes.group import Outcome
from tier2.volumes.group_commit import NO_SPACE, GroupCommit
from tier2.volumes.group_line import GroupLine
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import OF_COMPACTION, Mutation, Put, SmallPut, Undigested
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.waiting import Waiting

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LOGGER = logging.getLogger(__name__)

_GROUPS_IN_TURN_MAX = 16
"""Others use the executor, too."""


class CommitLine:
    """start(), submit()..., close()."""

    def __init__(
        self,
        *,
        commit: GroupCommit,
        check: Callable[[Put, FoundBytes], Put],
        executor: Executor | None,
        readers: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        changed: Callable[[bool], None] | None = None,
    ) -> None:
        """`check` is called in the readers."""
        self._commit = commit
        self._changed = changed
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._line = GroupLine(
            executor=executor,
            wall_clock=wall_clock,
            settings=settings,
            prepare=commit.prepare,
            is_idle=lambda: bool(self._turn),
            hashed=self._commit_ready,
        )
        self._checks = CheckLine(check=check, executor=readers, checked=self._see_checked)
        self._turn: deque[None] = deque([None])
        """Empty while somebody has the turn; taken and given back by single steps, which need no lock."""
        self._queued_bytes = 0
        self._unanswered = 0
        """Changes that have joined: ready, in a group, or being hashed or checked."""
        self._room_changed = asyncio.Event()
        self._waiting_outside = 0
        self._worker: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._closing = False

    def start(self) -> None:
        assert self._worker is None, "the line is started already"
        self._worker = asyncio.create_task(self._work(), name="volumes: group commit")

    async def close(self) -> None:
        """Everything in the line is made, then the volume is closed. Idempotent."""
        self._closing = True
        self._room_changed.set()
        self._line.wake()
        if self._worker is not None:
            await self._worker
            self._worker = None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self._run(self._commit.close)

    async def submit(self, mutation: Mutation | Undigested | SmallPut) -> IndexRecord | None:
        """The mutation's record once it is durable and indexed. Raises what refused it, or StorageError."""
        if self._waiting_outside or not self._has_room():
            await self._wait_for_room()
        # Whoever gives up waiting cancels the future, and does not take the change out of the line.
        return await self._join(mutation)

    def submit_at_once(
        self, mutation: Mutation | Undigested | SmallPut
    ) -> "Future[IndexRecord | None] | None":
        """As `submit`, without a coroutine in between; None, and nothing is done, if somebody has to wait for room."""
        if self._waiting_outside or not self._has_room():
            return None
        return self._join(mutation)

    async def _wait_for_room(self) -> None:
        self._waiting_outside += 1
        try:
            # All are woken in the order in which they came, and the first ones take what there is.
            while not (self._has_room() or self._closing):
                self._room_changed.clear()
                await self._room_changed.wait()
        finally:
            self._waiting_outside -= 1

    async def submit_all(self, mutations: Sequence[Mutation]) -> None:
        """Changes without bytes of their own, side by side in the line. Raises what refused the first one."""
        for future in [self._join(mutation) for mutation in mutations]:
            await future

    def _join(self, mutation: Mutation | Undigested | SmallPut) -> "Future[IndexRecord | None]":
        if self._closing or self._worker is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        future: Future[IndexRecord | None] = asyncio.get_running_loop().create_future()
        waiting = Waiting(mutation, future)
        self._line.join(waiting)
        self._queued_bytes += waiting.size
        self._unanswered += 1
        return future

    def _has_room(self) -> bool:
        return self._queued_bytes < self._settings.queued_bytes_max

    async def _work(self) -> None:
        while not (self._closing and not self._unanswered and self._turn):
            await self._line.changed()
            # Also while the line never empties: readers beside this process see only what the database has.
            if self._flush_due and self._takes_turn():
                self._flush_due = False
                try:
                    await self._run(self._commit.flush_index)
                finally:
                    self._turn.append(None)
            if self._line.has_ready and self._turn:
                await self._make()

    async def _make(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._executor, self._commit_ready, loop)
        except RuntimeError as error:  # the executor is shut down
            if self._takes_turn():
                group = self._line.cut_group()
                self._answer(group, [_translate(error) for _ in _made_of(group)])
                self._turn.append(None)
            self._line.wake()
        else:
            await call

    def _takes_turn(self) -> bool:
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def _commit_ready(self, loop: AbstractEventLoop) -> None:
        """In the executor: what is ready, one group after the other, if nobody else has the turn."""
        groups_left = _GROUPS_IN_TURN_MAX
        while groups_left and self._line.has_ready and not self._flush_due and self._takes_turn():
            try:
                groups_left = self._commit_in_turn(groups_left, loop)
            finally:
                self._turn.append(None)
                loop.call_soon_threadsafe(self._line.wake)

    def _commit_in_turn(self, groups_left: int, loop: AbstractEventLoop) -> int:
        """How many groups this thread may still make."""
        ended: list[tuple[list[Waiting], list[Outcome]]] = []

        def tell() -> None:
            while ended:
                loop.call_soon_threadsafe(self._answer, *ended.pop())

        try:
            while groups_left and not self._flush_due:
                group = self._line.cut_group()
                # The loop has to wake, and until then this group is judged: neither waits for the other.
                tell()
                if not group:
                    break
                groups_left -= 1
                ended.append((group, self._outcomes_of(group)))
        finally:
            tell()
        return groups_left

    def _outcomes_of(self, group: list[Waiting]) -> list[Outcome]:
        """Of those that could be hashed."""
        try:
            self._line.hash_small(group)
            mutations = _made_of(group)
            if not mutations:
                return []
            return self._commit.commit(
                mutations,
                self._wall_clock.now_ms(),
                ahead=[one.ahead for one in group if one.error is None],
            )
        except (OSError, SegmentStoreError) as error:
            failure = _translate(error)
        except Exception as error:
            _LOGGER.critical("the volumes stop: a group of changes failed", exc_info=error)
            failure = _translate(error)
        return [failure for one in group if one.error is None]

    def _answer(self, group: list[Waiting], outcomes: list[Outcome]) -> None:
        found = iter(outcomes)
        for waiting in group:
            outcome = next(found) if waiting.error is None else _translate(waiting.error)
            if isinstance(outcome, FoundBytes):
                self._checks.join(waiting, outcome)
                continue
            _complete(waiting.future, outcome)
            self._queued_bytes -= waiting.size
            self._unanswered -= 1
        if self._waiting_outside:
            self._room_changed.set()
        if not outcomes:
            return
        if self._changed is not None and not all(
            isinstance(waiting.mutation, OF_COMPACTION)
            for waiting in group
            if waiting.error is None
        ):
            self._changed(self._commit.full)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                self._settings.index_delay_seconds, self._flush_soon
            )

    def _see_checked(self, waiting: Waiting, outcome: Put | BaseException | None) -> None:
        if isinstance(outcome, Put):
            waiting.mutation = outcome
            waiting.ahead = None
            self._line.join(waiting)
            return
        if outcome is not None:
            _complete(waiting.future, _translate(outcome))
        self._queued_bytes -= waiting.size
        self._unanswered -= 1
        if self._waiting_outside:
            self._room_changed.set()
        self._line.wake()

    def _flush_soon(self) -> None:
        self._flush_timer = None
        self._flush_due = True
        self._line.wake()

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))


def _made_of(group: list[Waiting]) -> list[Mutation]:
    """What is to be made of it: without the puts that came to nothing before their group."""
    made: list[Mutation] = []
    for waiting in group:
        mutation = waiting.mutation
        if waiting.error is None:
            assert not isinstance(mutation, Undigested | SmallPut), f"not hashed {mutation.key=}"
            made.append(mutation)
    return made


def _complete(
    future: "Future[IndexRecord | None]", outcome: IndexRecord | SegmentStoreError | None
) -> None:
    if future.done():
        return
    if isinstance(outcome, SegmentStoreError):
        future.set_exception(outcome)
        future.exception()  # its caller may be gone
    else:
        future.set_result(outcome)


def _translate(error: BaseException) -> SegmentStoreError:
    if isinstance(error, SegmentStoreError):
        return error
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    kind = StorageFullError if full else StorageError
    failure = kind(f"the volumes cannot be written: {error}")
    failure.__cause__ = error
    return failure
