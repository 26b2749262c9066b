"""The line in which changes wait for their group: everything that is there when the last group ends is the next one.

Invariants:

- One group is under way at a time; a change joins the line synchronously, in the order of the calls.
- No waiting window: a lone change is a group of one. The line is bounded by bytes; more wait outside, in order.
- A caller that goes away changes nothing: its change is made all the same.
- When a group fails, every change of it fails with one error, outcome unknown; the next group has a new volume.
"""

import asyncio
import errno
from asyncio import Future
from collections import deque
from collections.abc import Callable
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
from tier2.volumes.group_commit import GroupCommit, Outcome
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import Mutation, Waiting
from tier2.volumes.settings import VolumeSettings

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class CommitLine:
    """start(), submit()..., close()."""

    def __init__(
        self,
        *,
        commit: GroupCommit,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
    ) -> None:
        self._commit = commit
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._line: deque[Waiting] = deque()
        self._queued_bytes = 0
        self._something = asyncio.Event()
        self._room = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
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
        await self._run(self._commit.abandon_volume)

    async def submit(self, mutation: Mutation) -> IndexRecord | None:
        """The mutation's record once it is durable and indexed. Raises what refused it, or StorageError."""
        async with self._room:
            await self._room.wait_for(lambda: self._has_room() or self._closing)
        if self._closing or self._worker is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        future: Future[IndexRecord | None] = asyncio.get_running_loop().create_future()
        self._line.append(Waiting(mutation, future))
        self._queued_bytes += mutation.size
        self._something.set()
        # Shielded: whoever gives up waiting does not take the change back.
        return await asyncio.shield(future)

    def _has_room(self) -> bool:
        return self._queued_bytes < self._settings.queued_bytes_max

    async def _work(self) -> None:
        while True:
            await self._something.wait()
            while self._line:
                await self._make(self._next_group())
            self._something.clear()
            if self._closing:
                return

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
            failure = _translate(error)
            outcomes = [failure] * len(group)
        for waiting, outcome in zip(group, outcomes, strict=True):
            _complete(waiting.future, outcome)
        self._queued_bytes -= sum(mutation.size for mutation in mutations)
        async with self._room:
            self._room.notify_all()

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
    full = isinstance(error, OSError) and error.errno in _NO_SPACE
    kind = StorageFullError if full else StorageError
    failure = kind(f"the volumes cannot be written: {error}")
    failure.__cause__ = error
    return failure
