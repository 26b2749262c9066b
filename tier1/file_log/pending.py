"""Entries that were accepted and are not acknowledged yet.

Invariants:
- Addresses of in-flight and waiting entries strictly grow, in that order; they leave in it (L1, H51).
- `outstanding_bytes` counts both, `waiting_bytes` and `room_bytes` the waiting ones; each entry is subtracted exactly
  once.
- A future that its waiter cancelled is left alone; its entry is not.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from segmentstore.contracts.identifiers import LogAddress
from tier1.file_log.frames import FrameEntry, frame_bytes


@dataclass(slots=True)
class PendingEntry(FrameEntry):
    """An accepted entry and who waits for it."""

    future: "asyncio.Future[LogAddress]"
    room_bytes: int
    """Space it needs if it is alone in its frame."""


class PendingEntries:
    """The queue in front of the writer. Bounded by its callers, who respect outstanding_bytes_max."""

    def __init__(self) -> None:
        self._waiting: deque[PendingEntry] = deque()
        self._in_flight: deque[tuple[PendingEntry, ...]] = deque()
        self._room_bytes = 0
        self._waiting_bytes = 0
        self._outstanding_bytes = 0

    @property
    def outstanding_entries(self) -> int:
        return len(self._waiting) + sum(map(len, self._in_flight))

    @property
    def outstanding_bytes(self) -> int:
        return self._outstanding_bytes

    @property
    def waiting_bytes(self) -> int:
        """Payload that is in no frame yet."""
        return self._waiting_bytes

    @property
    def room_bytes(self) -> int:
        """What the waiting entries need at most, each in a frame of its own."""
        return self._room_bytes

    @property
    def next_room_bytes(self) -> int:
        """What the entry at the head needs; 0 if nothing waits."""
        return self._waiting[0].room_bytes if self._waiting else 0

    def add(self, pending: PendingEntry) -> None:
        self._waiting.append(pending)
        self._room_bytes += pending.room_bytes
        self._waiting_bytes += pending.length
        self._outstanding_bytes += pending.length

    def take(self, *, bytes_max: int, room: int) -> tuple[PendingEntry, ...]:
        """Put the next frame's entries in flight: at least one, up to `bytes_max` of payload and `room` of frame."""
        batch: list[PendingEntry] = []
        payload = 0
        while self._waiting:
            grown = payload + self._waiting[0].length
            too_long = batch and grown > bytes_max
            if too_long or frame_bytes(len(batch) + 1, grown) > room:
                break
            payload = grown
            batch.append(self._waiting.popleft())
            self._room_bytes -= batch[-1].room_bytes
        self._waiting_bytes -= payload
        self._in_flight.append(tuple(batch))
        return self._in_flight[-1]

    def acknowledge(self) -> None:
        """The oldest frame in flight is durable: complete its futures."""
        for pending in self._in_flight.popleft():
            self._outstanding_bytes -= pending.length
            if not pending.future.done():
                pending.future.set_result(LogAddress(pending.address))

    def fail_waiting(self, error: Exception) -> None:
        """Nothing that waits will be written."""
        waiting, self._waiting = self._waiting, deque()
        self._room_bytes = 0
        self._waiting_bytes = 0
        self._fail(waiting, error)

    def fail_all(self, error: Exception) -> None:
        """What is in flight is not known to be durable, and nothing follows it."""
        in_flight, self._in_flight = self._in_flight, deque()
        for batch in in_flight:
            self._fail(batch, error)
        self.fail_waiting(error)

    def check(self) -> None:
        """Prove the invariants. O(entries)."""
        outstanding = [*chain.from_iterable(self._in_flight), *self._waiting]
        addresses = [pending.address for pending in outstanding]
        assert addresses == sorted(set(addresses)), f"addresses out of order: {addresses}"
        held = sum(pending.length for pending in outstanding)
        assert held == self._outstanding_bytes, (
            f"outstanding_bytes={self._outstanding_bytes}, entries hold {held}"
        )
        waiting = sum(pending.length for pending in self._waiting)
        assert waiting == self._waiting_bytes, (
            f"waiting_bytes={self._waiting_bytes}, entries hold {waiting}"
        )
        room = sum(pending.room_bytes for pending in self._waiting)
        assert room == self._room_bytes, f"room_bytes={self._room_bytes}, entries need {room}"

    def _fail(self, pending_entries: Iterable[PendingEntry], error: Exception) -> None:
        for pending in pending_entries:
            self._outstanding_bytes -= pending.length
            fail_future(pending.future, error)


def fail_future(
    future: "asyncio.Future[LogAddress] | asyncio.Future[None]", error: Exception
) -> None:
    """Fail a future that perhaps nobody awaits any more: that is no unnoticed error, the next append reports it."""
    if not future.done():
        future.set_exception(error)
        future.exception()
