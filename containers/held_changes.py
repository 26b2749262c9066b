"""What of a container waits while a backup of the whole store is made: merges, and updates of some tables, by name.

Containers are pinned at different moments. What happens in one because of what happened in another must not get into
the backup without it: of a transaction a merge here, and not the decision there that it rests on, or the merge beside
it. So every container is held before the first one is pinned, until the last one is:

    hold(id, tables)   new ones wait; returns when those that were begun before are durable
    require(id)        the hold is on, and young enough for a snapshot to be taken
    is_on(id)          whether it has been on since `hold`
    let_go(id)         what waits goes on, in order; so it does by itself when BACKUP_HOLD_SECONDS_MAX are over

Invariants:

- Nothing that is held is accepted between the return of `hold` and the end of the hold: what a flush finds in between
  is what was accepted before.
- A hold is of one id. Another backup is refused meanwhile, and so is a hold that comes behind its own end.
- A snapshot is begun in the first half of its hold. The maker begins no snapshot unless all holds were there within as
  long: so none has ended by itself by the time when the last snapshot has been begun.
- Updates that wait keep their segment in memory, and there are HELD_UPDATES_MAX at most. One whose caller has left
  meanwhile is not made.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.containers import BACKUP_HOLD_SECONDS_MAX
from segmentstore.contracts.errors import BackupInterruptedError, TooManyWaitersError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.guarded_callback import guarded

HELD_UPDATES_MAX: Final = 10_000
_ENDED_MAX: Final = 64
"""A hold that was overtaken by its end comes before so many others."""


class HeldChanges:
    """Of one container, for as long as it runs."""

    def __init__(self, *, container_id: ContainerId, fail: Callable[[Exception], None]) -> None:
        self._container_id = container_id
        self._fail = fail
        self._hold_id = ""
        """Empty while nothing is held."""
        self._ended: deque[str] = deque(maxlen=_ENDED_MAX)
        self._since = 0.0
        self._tables: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._let_go = asyncio.Event()
        self._updates: deque[tuple[SegmentMetadata, Callable[[], None]]] = deque()
        self._merges: set[Future[Any]] = set()
        """Those under way, also if their callers have left."""

    async def hold(self, hold_id: str, tables: Collection[str]) -> None:
        """Returns when every merge that was begun before has ended. Asking again for the same hold is fine.

        Raises BackupInterruptedError while another one is on, and if this one has ended already.
        """
        assert hold_id, "a hold has an id"
        if self._hold_id not in ("", hold_id):
            raise BackupInterruptedError(
                f"another backup is being made: make this one when it is done container={self._container_id}"
            )
        self._require_not_ended(hold_id)
        if not self._hold_id:
            loop = asyncio.get_running_loop()
            self._hold_id, self._since, self._tables = hold_id, loop.time(), frozenset(tables)
            self._let_go.clear()
            end = guarded(partial(self._end, hold_id), self._fail)
            self._timer = loop.call_later(BACKUP_HOLD_SECONDS_MAX, end)
        if self._merges:
            await asyncio.shield(asyncio.gather(*self._merges, return_exceptions=True))
        self._require_not_ended(hold_id)

    def is_on(self, hold_id: str) -> bool:
        """An id is used once: it has been on since then."""
        return self._hold_id == hold_id

    def require(self, hold_id: str) -> None:
        """Raises BackupInterruptedError unless the hold is on, and in its first half."""
        age = asyncio.get_running_loop().time() - self._since
        if self._hold_id != hold_id or age > BACKUP_HOLD_SECONDS_MAX / 2:
            raise BackupInterruptedError(
                "what has to wait for a backup is not held for it (any more): Tier 2 or the log was too slow, or the"
                f" container moved; make it again container={self._container_id}"
            )

    def let_go(self, hold_id: str) -> None:
        """Also of one that is not on: its `hold` may be on its way."""
        if self._hold_id == hold_id:
            self._end(hold_id)
        else:
            self._ended.append(hold_id)

    def close(self) -> None:
        """The container ends: what waits finds out."""
        self._end(self._hold_id)

    async def let_through(self) -> None:
        """A merge may be submitted when this returns, with no await in between, and is told to `watch` then."""
        while self._hold_id:
            await self._let_go.wait()

    def watch(self, merge: "Future[Any]") -> None:
        """It was submitted."""
        self._merges.add(merge)
        merge.add_done_callback(self._merges.discard)

    def keep(self, segment: SegmentMetadata, submit: Callable[[], None]) -> bool:
        """Whether an update of the table waits; then it is submitted later. Raises TooManyWaitersError."""
        if segment.name not in self._tables:
            return False
        if len(self._updates) >= HELD_UPDATES_MAX:
            raise TooManyWaitersError(
                f"too many updates of the table wait for a backup name={segment.name!r}"
            )
        segment.pins += 1
        self._updates.append((segment, submit))
        return True

    def _require_not_ended(self, hold_id: str) -> None:
        if hold_id in self._ended:
            raise BackupInterruptedError(
                f"the backup was given up before this container was ready; make it again container={self._container_id}"
            )

    def _end(self, hold_id: str) -> None:
        if self._hold_id != hold_id:
            return
        if hold_id:
            self._ended.append(hold_id)
        self._hold_id, self._tables = "", frozenset()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._let_go.set()
        # None comes in between: there is no await.
        while self._updates:
            segment, submit = self._updates.popleft()
            submit()
            segment.pins -= 1
