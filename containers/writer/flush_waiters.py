"""Callers that wait until everything up to their sequence number is in Tier 2."""

import asyncio

from segmentstore.contracts.identifiers import NO_SEQUENCE_NUMBER, SequenceNumber


class FlushWaiters:
    """Every waiter ends once: reached, failed or cancelled. As many as there are requests, which the edges bound."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], SequenceNumber] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def highest(self) -> SequenceNumber:
        """The highest number that anybody waits for. O(n)."""
        return max(self._waiters.values(), default=NO_SEQUENCE_NUMBER)

    def add(self, up_to: SequenceNumber) -> "asyncio.Future[None]":
        """Hand the result to wait()."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = up_to
        return waiter

    async def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Raises what fail() was given."""
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    def reached(self, up_to: SequenceNumber) -> None:
        """Everything at or below it is in Tier 2."""
        for waiter, wanted in self._waiters.items():
            if wanted <= up_to and not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nobody will reach anything any more."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
