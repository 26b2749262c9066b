"""Requests that wait for bytes that do not exist yet: long polls and SSE connections.

- Their number is bounded: one too many is told to come back (H58).
- Every wait ends by its own deadline, or at once when the server stops.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segmentstore.http.refusals import busy


class Waiters:
    """Counts and ends waits."""

    def __init__(self, *, waiters_max: int, connections_max: int, retry_after_seconds: int) -> None:
        self._waiters_max = waiters_max
        self._connections_max = connections_max
        self._retry_after_seconds = retry_after_seconds
        self._waits: dict[int, asyncio.Timeout] = {}
        self._next_number = 0
        self.connections = 0
        self.stopping = False

    def __len__(self) -> int:
        return len(self._waits)

    @asynccontextmanager
    async def wait(self, seconds: float) -> AsyncIterator[None]:
        """Around one wait. TimeoutError comes out of it when the time is over or the server stops.

        Raises Refusal (503) if too many wait already.
        """
        if len(self._waits) >= self._waiters_max:
            raise busy("too many readers wait for bytes", self._retry_after_seconds)
        number = self._next_number
        self._next_number += 1
        try:
            async with asyncio.timeout(0 if self.stopping else seconds) as timeout:
                self._waits[number] = timeout
                yield
        finally:
            self._waits.pop(number, None)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        """Around one SSE connection. Raises Refusal (503) if there are too many."""
        if self.connections >= self._connections_max:
            raise busy("too many event streams are open", self._retry_after_seconds)
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    def stop(self) -> None:
        """End every wait now and all later ones at once."""
        self.stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in self._waits.values():
            if not timeout.expired():
                timeout.reschedule(now)
