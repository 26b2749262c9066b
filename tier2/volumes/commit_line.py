"""The line in which changes wait for their group: everything that is there when the last group ends is the next one.

Invariants:

- One group is under way at a time; a change joins the line synchronously, in the order of the calls.
- No waiting window: a lone change is a group of one. A group waits only for puts that are being hashed when it could
  begin, as many as that, and each of them small: what they take is a fraction of the sync that they would wait for.
- The line is bounded by bytes; more wait outside, in order.
- A caller that goes away changes nothing: its change is made all the same.
- When a group fails, every change of it fails with one error, outcome unknown; the next group has a new volume.
- `changed` is called after every group of somebody else than compaction: there may be something to compact; urgently,
  if the disk is full.
- The database of the index gets what was committed after a delay, also when nothing follows.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.contracts.errors import (
    SegmentStoreError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.runtime.clock import WallClock
from tier2.volumes.group import Outcome
from tier2.volumes.group_commit import NO_SPACE, GroupCommit
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import OF_COMPACTION, Mutation, Waiting
from tier2.volumes.settings import VolumeSettings

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LOGGER = logging.getLogger(__name__)


class CommitLine:
    """start(), submit()..., close()."""

    def __init__(
        self,
        *,
        commit: GroupCommit,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        changed: Callable[[bool], None] | None = None,
    ) -> None:
        self._commit = commit
        self._changed = changed
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._line: deque[Waiting] = deque()
        self._queued_bytes = 0
        self._something = asyncio.Event()
        self._room = asyncio.Condition()
        self._waiting_outside = 0
        self._expected = 0
        """Puts that will join soon, or give up."""
        self._arrived = 0
        """Of those, since the line was made."""
        self._arrival = asyncio.Event()
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
        self._something.set()
        if self._worker is not None:
            await self._worker
            self._worker = None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self._run(self._commit.close)

    async def submit(self, mutation: Mutation) -> IndexRecord | None:
        """The mutation's record once it is durable and indexed. Raises what refused it, or StorageError."""
        if self._waiting_outside or not self._has_room():
            await self._wait_for_room()
        # Whoever gives up waiting cancels the future, and does not take the change out of the line.
        return await self._join(mutation)

    async def _wait_for_room(self) -> None:
        self._waiting_outside += 1
        try:
            async with self._room:
                await self._room.wait_for(lambda: self._has_room() or self._closing)
        finally:
            self._waiting_outside -= 1

    @contextmanager
    def expect_one(self) -> Iterator[None]:
        """Around the short work after which a change joins the line, in the same turn of the loop."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1
            self._arrived += 1
            self._arrival.set()

    async def submit_all(self, mutations: Sequence[Mutation]) -> None:
        """Changes without bytes of their own, side by side in the line. Raises what refused the first one."""
        for future in [self._join(mutation) for mutation in mutations]:
            await future

    def _join(self, mutation: Mutation) -> "Future[IndexRecord | None]":
        if self._closing or self._worker is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        future: Future[IndexRecord | None] = asyncio.get_running_loop().create_future()
        self._line.append(Waiting(mutation, future))
        self._queued_bytes += mutation.size
        self._something.set()
        return future

    def _has_room(self) -> bool:
        return self._queued_bytes < self._settings.queued_bytes_max

    async def _work(self) -> None:
        while True:
            await self._something.wait()
            while self._line:
                await self._wait_for_expected()
                await self._make(self._next_group())
                # Also while the line never empties: readers beside this process see only what the database has.
                await self._flush_if_due()
            self._something.clear()
            if self._closing:
                return
            await self._flush_if_due()

    async def _flush_if_due(self) -> None:
        if self._flush_due:
            self._flush_due = False
            await self._run(self._commit.flush_index)

    async def _wait_for_expected(self) -> None:
        """Until as many have arrived as are expected now: a stream of new ones does not keep the group waiting."""
        enough = self._arrived + self._expected
        while self._arrived < enough and len(self._line) < self._settings.group_records_max:
            self._arrival.clear()
            await self._arrival.wait()

    def _next_group(self) -> list[Waiting]:
        settings = self._settings
        group: list[Waiting] = []
        size = 0
        while self._line and len(group) < settings.group_records_max:
            if group and size + self._line[0].mutation.size > settings.group_bytes_max:
                break
            size += self._line[0].mutation.size
            group.append(self._line.popleft())
        return group

    async def _make(self, group: list[Waiting]) -> None:
        mutations = [waiting.mutation for waiting in group]
        try:
            outcomes = await self._run(self._commit.commit, mutations, self._wall_clock.now_ms())
        except (OSError, SegmentStoreError) as error:
            outcomes = [_translate(error) for _ in group]
        except Exception as error:
            _LOGGER.critical("the volumes stop: a group of changes failed", exc_info=error)
            outcomes = [_translate(error) for _ in group]
        for waiting, outcome in zip(group, outcomes, strict=True):
            _complete(waiting.future, outcome)
        if self._changed is not None and not all(
            isinstance(mutation, OF_COMPACTION) for mutation in mutations
        ):
            self._changed(self._commit.full)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                self._settings.index_delay_seconds, self._flush_soon
            )
        self._queued_bytes -= sum(mutation.size for mutation in mutations)
        if self._waiting_outside:
            async with self._room:
                self._room.notify_all()

    def _flush_soon(self) -> None:
        self._flush_timer = None
        self._flush_due = True
        self._something.set()

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))


def _complete(future: "Future[IndexRecord | None]", outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, SegmentStoreError):
        future.set_exception(outcome)
        future.exception()  # its caller may be gone
    else:
        future.set_result(outcome)


def _translate(error: Exception) -> SegmentStoreError:
    if isinstance(error, SegmentStoreError):
        return error
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    kind = StorageFullError if full else StorageError
    failure = kind(f"the volumes cannot be written: {error}")
    failure.__cause__ = error
    return failure
