"""Turns pending entries into frames: one write and sync in flight, what arrives meanwhile goes into the next.

A frame is planned when the disk is free for it, so that as many entries as possible share its sync. Only when enough
bytes wait for a frame whose sync costs more than its round trip, one is planned ahead, and written without a pause.

Invariants:
- Addresses are given in the order of append(); futures complete in it, all of a frame in one loop callback (L1).
- A future completes only after the sync of its frame, and after an epoch check made behind that sync (L2).
- After a failed write or sync nothing is written or acknowledged any more.
- A journal is left only when nothing in it is un-synced: at most the newest file has an unknown tail.
- No entry waits for a file that cannot be made: when the pool turns full, what has no place is refused, from the first
  of them to the last, and the log stays open (L3).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor

from segmentstore.contracts.errors import DurableDataLogError, LogFullError
from segmentstore.contracts.identifiers import BufferView, LogAddress
from segmentstore.runtime.cancellation import fail_unless_done
from segmentstore.runtime.guarded_callback import guarded
from tier1.file_log.directory import LogDirectory
from tier1.file_log.frame_flush import FrameFlush, InlineSyncPolicy
from tier1.file_log.frame_planner import (
    FramePlanner,
    PendingEntries,
    PendingEntry,
    PlannedFrame,
)
from tier1.file_log.frames import FrameHeader, frame_bytes
from tier1.file_log.journals import Journal, JournalPool
from tier1.file_log.settings import DurabilityRules, FileLogSettings

_RECENT_SYNC_WEIGHT = 0.1


class FrameWriter:
    """The writing half of an initialised log."""

    def __init__(
        self,
        *,
        first: FrameHeader,
        journals: Sequence[Journal],
        log_path: str,
        directory: LogDirectory,
        pool: JournalPool,
        executor: Executor | None,
        pace: InlineSyncPolicy | None,
        settings: FileLogSettings,
        rules: DurabilityRules,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log_path = log_path
        self._pool = pool
        self._settings = settings
        self._rules = rules
        self._pending = PendingEntries()
        self._planner = FramePlanner(
            first=first, journals=journals, pending=self._pending, pool=pool, settings=settings
        )
        self._flush = FrameFlush(
            directory=directory,
            executor=executor,
            pace=pace,
            on_written=self._written,
            on_failure=self._broke,
        )
        self._next_address = first.last_address + 1
        self._durable_truncation = first.truncated_up_to
        self._durable_oldest_number = first.oldest_number
        self._truncation_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._mark_due = True  # the epoch frame is vouched for at once
        self._mark_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._failure: Exception | None = None
        self._work = asyncio.Event()
        self._sync_seconds = 0.0
        self._flush_began = 0.0

    # --- what the log asks -------------------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        return self._failure

    @property
    def pending(self) -> PendingEntries:
        """What was accepted and is not acknowledged."""
        return self._pending

    @property
    def sync_seconds(self) -> float:
        """Exponentially weighted mean of write and sync, in seconds."""
        return self._sync_seconds

    @property
    def journals(self) -> tuple[Journal, ...]:
        """Files with live entries, oldest first; the last one is being written."""
        return self._planner.journals

    @property
    def full(self) -> bool:
        """Whether an ordinary entry of the largest size would be refused for want of space.

        A log that failed is not full, whatever it was before: the caller has to learn that it must be opened anew.
        """
        if self._failure is not None:
            return False
        length = self._settings.entry_bytes_max
        return self._pool.full and not self._planner.has_room(length, internal=False)

    def append(
        self, pieces: Sequence[BufferView], *, length: int, internal: bool
    ) -> "asyncio.Future[LogAddress]":
        """Accept an entry, or refuse it with LogFullError in the future."""
        future: asyncio.Future[LogAddress] = self._loop.create_future()
        if self._failure is not None or self._stopping:
            fail_unless_done(future, self._closed_error())
            return future
        if self._pool.full and not self._planner.has_room(length, internal=internal):
            reserve = 0 if internal else self._settings.reserve_bytes
            fail_unless_done(future, self._full_error(length, reserve))
            return future
        if self._is_lone(length) and self._append_lone(pieces, length, future):
            return future
        address = self._next_address
        self._next_address += 1
        self._pending.add(PendingEntry(address, pieces, length, future, frame_bytes(1, length)))
        if not self._flush.idle or length >= self._settings.ahead_bytes_min:
            self._work.set()  # More of its size may come in this turn, and share the frame.
            return future
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be acknowledged any more
            self.fail(error)
        return future

    def _is_lone(self, length: int) -> bool:
        """Whether nothing else waits for a frame, and the loop may write this one."""
        return not (
            self._pending.next_room_bytes
            or self._truncation_waiters
            or self._mark_due
            or not self._flush.may_write_on_loop(length)
        )

    def _append_lone(
        self, pieces: Sequence[BufferView], length: int, future: "asyncio.Future[LogAddress]"
    ) -> bool:
        """What waits for each answer is done in as few steps as can be; False if the entry is not of that kind."""
        address = self._next_address
        frame = self._planner.plan_single_page(address, pieces, length)
        if frame is None:
            return False
        self._next_address = address + 1
        if self._flush.write_single_page(frame):
            self._durable_truncation = self._planner.truncated_up_to
            self._durable_oldest_number = frame.oldest_number
            self._note_sync(self._flush.write_seconds)
            if self._mark_timer is None:
                self._arm_mark_timer()
            future.set_result(LogAddress(address))
        else:
            fail_unless_done(future, self._closed_error())
        return True

    def _note_sync(self, seconds: float) -> None:
        self._sync_seconds += _RECENT_SYNC_WEIGHT * (seconds - self._sync_seconds)

    async def truncate(self, up_to: int) -> list[Journal]:
        """Record durably that entries up to `up_to` are gone; returns the journals that are free now, oldest first."""
        self._raise_if_unusable()
        assert up_to < self._next_address, (
            f"truncation at an address never given: {up_to}, next is {self._next_address}"
        )
        worth_it = self._planner.truncate(up_to)
        truncated_up_to = self._planner.truncated_up_to
        if truncated_up_to > self._durable_truncation and worth_it:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._truncation_waiters.append((truncated_up_to, waiter))
            self._work.set()
            await waiter
        return self._planner.release(self._durable_oldest_number)

    def look_again(self) -> None:
        """The pool changed."""
        self._work.set()

    async def run(self) -> None:
        """Write until stop() or failure; never raises but when cancelled. Then no thread writes any more."""
        try:
            while self._failure is None:
                planned = self._plan()
                if planned is not None:
                    self._hand_over(planned)
                elif self._pool.full and self._flush.idle and self._pending.next_room_bytes:
                    self._refuse_waiting()
                elif self._stopping and self._flush.idle:
                    return
                else:
                    self._work.clear()
                    await self._work.wait()
        except Exception as error:  # noqa: BLE001 - a task's top: whatever it is, nothing may be acknowledged any more
            self.fail(error)
        finally:
            self._flush.stop()
            await self._flush.wait_until_idle()
            self.fail(self._closed_error())

    def stop(self) -> None:
        """Fail what is not being written yet, and let run() end with a mark."""
        self._stopping = True
        self._pending.fail_waiting(self._closed_error())
        self._work.set()

    def fail(self, error: Exception) -> None:
        """Fail everything un-acknowledged, now and later, with the first error given."""
        if self._failure is None:
            self._failure = error
        self._flush.stop()
        self._pool.stop()
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        self._pending.fail_all(self._failure)
        while self._truncation_waiters:
            fail_unless_done(self._truncation_waiters.popleft()[1], self._failure)
        self._work.set()

    def check(self) -> None:
        """Prove the invariants. O(pending + journals)."""
        self._pending.check()
        self._planner.check()

    # --- deciding ----------------------------------------------------------------------------

    def _plan(self) -> PlannedFrame | None:
        """What to write next, if anything and if it is time."""
        if not self._flush.idle:
            enough = self._pending.waiting_bytes >= self._settings.ahead_bytes_min
            return self._planner.plan_entries() if enough and not self._flush.has_next else None
        vouch = self._mark_due or (self._stopping and self._planner.unvouched)
        self._mark_due = False
        if self._pending.next_room_bytes and (planned := self._planner.plan_entries()) is not None:
            return planned
        if self._truncation_waiters:
            return self._planner.plan_mark(truncation=True)
        return self._planner.plan_mark(truncation=False) if vouch else None

    # --- doing -------------------------------------------------------------------------------

    def _refuse_waiting(self) -> None:
        """They were accepted while there was hope of a further file. Their addresses go to those that come next."""
        self._next_address = self._planner.last_address + 1
        self._pending.fail_waiting(self._full_error(self._pending.next_room_bytes, 0))

    def _go_on(self) -> None:
        """Begin what is due at once: by way of run() it would wait for another turn of the loop.

        May be called back by the frame that it hands over, if that is written on the loop. The pace lets no second one
        follow at once, and threads report in a later turn: calls are nested no deeper than that.
        """
        planned = self._plan()
        if planned is not None:
            self._hand_over(planned)

    def _hand_over(self, planned: PlannedFrame) -> None:
        if planned.pending and self._rules.acknowledges_before_sync():
            self._pending.acknowledge()
        if self._flush.idle:
            self._flush_began = self._loop.time()
        self._flush.hand_over(planned)

    def _written(self, planned: PlannedFrame) -> None:
        now = self._loop.time()
        if planned.sync:
            self._durable_truncation = planned.header.truncated_up_to
            self._durable_oldest_number = planned.header.oldest_number
            # The loop's clock stands still while the loop itself writes.
            self._note_sync(max(now - self._flush_began, self._flush.write_seconds))
        self._flush_began = now
        if planned.pending and not self._rules.acknowledges_before_sync():
            self._pending.acknowledge()
        while self._truncation_waiters and (
            self._truncation_waiters[0][0] <= self._durable_truncation
        ):
            waiter = self._truncation_waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        self._arm_mark_timer()
        if self._flush.idle and not self._stopping:
            self._go_on()
        else:
            self._work.set()

    def _broke(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.fail(error)
            return
        failure = DurableDataLogError(f"the log cannot be written: {error} path={self._log_path!r}")
        failure.__cause__ = error
        self.fail(failure)

    def _arm_mark_timer(self) -> None:
        if self._mark_timer is None and self._planner.unvouched:
            self._mark_timer = self._loop.call_later(
                self._settings.mark_delay_seconds, guarded(self._mark_idle, self.fail)
            )

    def _mark_idle(self) -> None:
        self._mark_timer = None
        if self._pending.outstanding_entries:
            self._arm_mark_timer()
            return
        self._mark_due = self._planner.unvouched
        self._work.set()

    def _raise_if_unusable(self) -> None:
        if self._failure is not None or self._stopping:
            raise self._closed_error()

    def _full_error(self, length: int, reserve: int) -> LogFullError:
        return LogFullError(
            f"no journal space is left length={length} reserve_bytes={reserve} path={self._log_path!r}"
        )

    def _closed_error(self) -> Exception:
        if self._failure is not None:
            return self._failure
        return DurableDataLogError(f"the log is closed path={self._log_path!r}")
