"""How much a writer has outstanding: its bound, those who wait for room, and those who wait for the end of it.

Invariants:

- Outstanding events and bytes stay within their bounds, except that one event larger than the bound is let in alone.
- Everything let in is released exactly once: acknowledged, or given up with the whole writer.
- After `fail` every waiter and every later caller gets the failure.
"""

import asyncio
from collections import deque

from segmentstore.client.errors import WriterFullError
from segmentstore.client.settings import ClientSettings
from segmentstore.contracts.errors import SegmentStoreError


class AppendWindow:
    """Of one writer, over all of its segments."""

    def __init__(self, settings: ClientSettings) -> None:
        self._bytes_max = settings.unacknowledged_bytes_max
        self._events_max = settings.unacknowledged_events_max
        self._bytes = 0
        self._events = 0
        self._failure: SegmentStoreError | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def events(self) -> int:
        """Not acknowledged yet."""
        return self._events

    @property
    def failure(self) -> SegmentStoreError | None:
        return self._failure

    def has_room(self, length: int) -> bool:
        """Whether an event of so many bytes may be let in now."""
        if self._events == 0:
            return True
        return self._events < self._events_max and self._bytes + length <= self._bytes_max

    def admit(self, length: int) -> None:
        """Let an event in. Raises WriterFullError, and the failure."""
        if self._failure is not None:
            raise self._failure
        if not self.has_room(length):
            raise WriterFullError(
                f"too much is waiting for acknowledgement events={self._events} bytes={self._bytes}"
            )
        self._events += 1
        self._bytes += length

    def release(self, events: int, length: int) -> None:
        """So much was acknowledged, or given up."""
        self._events -= events
        self._bytes -= length
        assert self._events >= 0, f"released more events than were let in {self._events}"
        assert self._bytes >= 0, f"released more bytes than were let in {self._bytes}"
        self._wake()

    def fail(self, error: SegmentStoreError) -> None:
        """The first failure stays."""
        if self._failure is None:
            self._failure = error
        self._wake()

    async def room(self, length: int) -> None:
        """Wait until an event of so many bytes may be let in. Raises the failure."""
        while self._failure is None and not self.has_room(length):
            await self._change()
        if self._failure is not None:
            raise self._failure

    async def drained(self) -> None:
        """Wait until nothing is outstanding. Raises the failure."""
        while self._failure is None and self._events:
            await self._change()
        if self._failure is not None:
            raise self._failure

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        # All of them: each looks again at what it waits for, in the order in which they came.
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
