"""A durable data log in memory: for tests, and for benchmarks of everything above Tier 1.

The store outlives the log objects that write it, as a disk outlives processes. It is as durable as the process.

Invariants:
- Entries of the store are in address order; addresses never return, also not after truncation.
- The writer whose epoch is not the store's completes nothing (L4).
- An entry is a copy of its own that nothing changes: it is given back as it was (L7) without a checksum.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from segmentstore.contracts.durable_data_log import LogEntry, LogStatistics, WriteSettings
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    DurableDataLogError,
    LogDisabledError,
    LogFullError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, Epoch, LogAddress
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done


@dataclass(slots=True)
class MemoryLogStore:
    """What a log wrote. capacity_bytes: ordinary entries are refused beyond it, internal ones beyond twice as much."""

    log_id: bytes
    follows: bytes = b""
    follows_changes: int | None = None
    capacity_bytes: int | None = None
    epoch: int = 0
    disabled: str = ""
    """Why."""
    next_address: int = 1
    entries: deque[tuple[int, bytes]] = field(default_factory=deque)
    stored_bytes: int = 0

    def add(self, address: int, payload: bytes) -> None:
        self.entries.append((address, payload))
        self.stored_bytes += len(payload)

    def truncate(self, up_to: int) -> None:
        while self.entries and self.entries[0][0] <= up_to:
            self.stored_bytes -= len(self.entries.popleft()[1])

    def check(self) -> None:
        """Prove the invariants. O(entries)."""
        addresses = [address for address, _ in self.entries]
        assert addresses == sorted(set(addresses)), f"addresses out of order: {addresses}"
        assert not addresses or addresses[-1] < self.next_address, (
            f"address {addresses[-1]} was given although {self.next_address} is the next"
        )
        held = sum(len(payload) for _, payload in self.entries)
        assert held == self.stored_bytes, f"stored_bytes={self.stored_bytes}, entries hold {held}"


class MemoryDurableDataLog:
    """Implements DurableDataLog over a MemoryLogStore; all appends of one loop turn complete in one callback."""

    def __init__(
        self,
        store: MemoryLogStore,
        *,
        entry_bytes_max: int = 1 << 20,
        outstanding_bytes_max: int = 16 << 20,
        epoch_floor: int = 0,
    ) -> None:
        self._store = store
        self._write_settings = WriteSettings(entry_bytes_max, outstanding_bytes_max)
        self._epoch_floor = epoch_floor
        self._epoch = Epoch(0)
        self._is_new = False
        self._pending: list[tuple[asyncio.Future[LogAddress], bytes]] = []
        self._pending_bytes = 0
        self._appended = False
        self._failure: Exception | None = None

    @property
    def log_id(self) -> bytes:
        return self._store.log_id

    @property
    def follows(self) -> bytes:
        return self._store.follows

    @property
    def follows_changes(self) -> int | None:
        return self._store.follows_changes

    @property
    def is_new(self) -> bool:
        return self._is_new

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def write_settings(self) -> WriteSettings:
        return self._write_settings

    async def initialize(self) -> Epoch:
        assert self._epoch == 0, f"initialize() is called once, epoch={self._epoch}"
        if self._store.disabled:
            raise LogDisabledError(
                f"the log was disabled to keep the evidence of a fault: {self._store.disabled}"
            )
        self._is_new = self._store.epoch == 0
        self._store.epoch = max(self._store.epoch, self._epoch_floor) + 1
        self._epoch = Epoch(self._store.epoch)
        return self._epoch

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        assert self._epoch, "read() comes after initialize()"
        assert not self._appended, "read() comes before the first append()"
        for address, payload in list(self._store.entries):
            yield LogEntry(LogAddress(address), memoryview(payload))

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "asyncio.Future[LogAddress]":
        """As DurableDataLog says. An entry above entry_bytes_max fails (AppendTooLargeError); the log stays open."""
        assert self._epoch, "append() comes after initialize()"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[LogAddress] = loop.create_future()
        payload = entry[0] if len(entry) == 1 else b"".join(entry)
        if not isinstance(payload, bytes):
            payload = bytes(payload)
        refusal = self._refusal(len(payload), internal=internal)
        if refusal is not None:
            fail_unless_done(future, refusal)
            return future
        self._appended = True
        if not self._pending:
            loop.call_soon(self._complete)
        self._pending.append((future, payload))
        self._pending_bytes += len(payload)
        return future

    def _refusal(self, length: int, *, internal: bool) -> Exception | None:
        if self._failure is not None:
            return self._failure
        if length > self._write_settings.entry_bytes_max:
            return AppendTooLargeError(
                length=length, length_max=self._write_settings.entry_bytes_max
            )
        if self._room(internal=internal) < length:
            return LogFullError(f"the log is full length={length}")
        return None

    def _room(self, *, internal: bool) -> int:
        capacity = self._store.capacity_bytes
        if capacity is None:
            return self._write_settings.outstanding_bytes_max
        used = self._store.stored_bytes + self._pending_bytes
        return (2 * capacity if internal else capacity) - used

    def _complete(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_bytes = 0
        if self._failure is None and self._store.epoch != self._epoch:
            self._failure = LogNotPrimaryError(
                f"another owner has taken the log over epoch={self._epoch} owner_epoch={self._store.epoch}"
            )
        for future, payload in pending:
            if self._failure is not None:
                fail_unless_done(future, self._failure)
                continue
            address = self._store.next_address
            self._store.next_address = address + 1
            self._store.add(address, payload)
            complete_unless_done(future, LogAddress(address))

    async def truncate(self, up_to: LogAddress) -> None:
        if self._failure is not None:
            raise self._failure
        self._require_epoch()
        self._store.truncate(up_to)

    async def check_owner(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._require_epoch()

    def _require_epoch(self) -> None:
        if self._store.epoch != self._epoch:
            raise LogNotPrimaryError(
                f"another owner has taken the log over epoch={self._epoch} owner_epoch={self._store.epoch}"
            )

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            outstanding_entries=len(self._pending),
            outstanding_bytes=self._pending_bytes,
            stored_bytes=self._store.stored_bytes,
            sync_seconds_recent=0.0,
            cut_frames=0,
            full=self._room(internal=False) <= 0,
        )

    def check(self) -> None:
        """Prove the store's invariants."""
        self._store.check()

    async def disable(self, why: str) -> None:
        self._store.disabled = self._store.disabled or why or "unknown"

    async def enable(self) -> None:
        self._store.disabled = ""

    async def close(self) -> None:
        if self._failure is None:
            self._failure = DurableDataLogError("the log is closed")
