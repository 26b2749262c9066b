"""The interface of Tier 1: one container's log of opaque entries, with a single writer fenced by epoch.

Guarantees every implementation gives (tests/contracts/durable_data_log_suite.py holds them to it):

- L1  append() is ordered by call; addresses strictly grow in that order.
- L2  A completed append means that it and every earlier append are durable.
- L3  After one append fails, every later one fails and the log is closed; the one exception is LogFullError, which
      refuses an entry, and all that had been handed over behind it, before a byte of them is written, and leaves the
      log open.
- L4  After initialize() returns epoch e, no writer with a smaller epoch can complete an append.
- L5  truncate(up_to) is inclusive and idempotent; read() starts behind it and returns every
      completed append. It may return more: entries written but never acknowledged; and, of a log on other
      machines, entries whose truncation could not be written down before the owner ended.
- L6  What read() returned once, every later initialize() + read() returns as well (until truncated):
      nothing that was replayed can disappear.
- L7  read() returns an entry's bytes as append() was given them, or raises LogCorruptedError: callers
      need no checksum of their own.
- L8  A check_owner() that begins after a later initialize() has returned raises. So whatever its caller knew before a
      call that returns, no other owner had changed by then.

Priorities: entries marked `internal` may use the reserve that is kept for checkpoints, deletes and
truncates when the disk is full. A log without a reserve never raises LogFullError: while there is no space
its entries wait, all of them in order, and when that takes too long the log fails as L3 says.
"""

from asyncio import Future
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from segmentstore.contracts.identifiers import BufferView, Epoch, LogAddress


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry as read back at recovery."""

    address: LogAddress
    payload: memoryview


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """What a writer must respect."""

    entry_bytes_max: int
    """Largest entry that append() accepts, in bytes."""

    outstanding_bytes_max: int
    """The processor stops handing over frames while more than this is un-acknowledged."""

    writes_at_once: int = 1
    """With fewer entries un-acknowledged than this, the next one is written at once: it need not wait to grow."""


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """A snapshot for the throttler, `/health` and `/metrics`."""

    outstanding_entries: int
    outstanding_bytes: int
    stored_bytes: int
    """Bytes of journal files that exist, truncated parts of live files included."""
    sync_seconds_recent: float
    """Exponentially weighted mean duration of one write and sync."""
    cut_frames: int
    """Frames that recovery cut from a torn tail since this log was opened."""
    full: bool
    """Ordinary appends are refused now for want of space."""


class DurableDataLog(Protocol):
    """One container's Tier-1 log. Create, initialize() once, read(), then append()."""

    @property
    def log_id(self) -> bytes:
        """Sixteen bytes given at creation; tie the log to its manifest in Tier 2."""

    @property
    def follows(self) -> bytes:
        """The id of a lost log whose manifest this one was made to take over; empty: none. Given at creation."""

    @property
    def follows_changes(self) -> int | None:
        """How many changes that manifest had when this log was made: with more of them, and with this log its owner,
        this log has published. None: not known, or it follows none."""

    @property
    def is_new(self) -> bool:
        """initialize() found nothing of an earlier owner: not an entry, nor what every owner leaves at its start."""

    @property
    def epoch(self) -> Epoch: ...

    @property
    def write_settings(self) -> WriteSettings: ...

    async def initialize(self) -> Epoch:
        """Fence every earlier writer durably, then return the new epoch.

        Raises LogInUseError, LogDisabledError, LogCorruptedError.
        """

    def read(self) -> AsyncGenerator[LogEntry, None]:
        """All entries behind the truncation point, in order; only between initialize() and the first append.

        Hold it in `aclosing`. Everything it returned is durable once it is exhausted. It may be called again,
        also while another reading is under way: each returns the same, and no payload changes meanwhile.
        Raises LogCorruptedError for a damaged frame that is known to have been synced.
        """

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "Future[LogAddress]":
        """Submit one entry, given in pieces; the pieces must not change until the future is done.

        Never waits. The future fails with LogFullError (log stays open), LogNotPrimaryError or
        DurableDataLogError (log closed).
        """

    async def truncate(self, up_to: LogAddress) -> None:
        """Drop every entry at or before the address, as far as whole files allow."""

    async def check_owner(self) -> None:
        """Returns if this log was its storage's owner at some moment of the call, which changes nothing there.

        Raises LogNotPrimaryError if another owner has claimed it, DurableDataLogError if that cannot be found out now
        or this log is closed. Calls may run beside everything else.
        """

    def statistics(self) -> LogStatistics: ...

    async def disable(self, why: str) -> None:
        """Refuse every later initialize() until enable(), and say `why`: keeps the evidence after corruption.

        The first reason stays.
        """

    async def enable(self) -> None: ...

    async def close(self) -> None:
        """Release files and lock. Idempotent. Pending appends fail with DurableDataLogError."""
