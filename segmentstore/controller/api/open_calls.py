"""Calls under way in one life of the controller: they end with it.

Invariants:

- When `end` returns no call is under way any more, and each of them was answered or refused.
- A call that is ended so is refused with LifeEndedError, which clients come back after; its operation is taken up by
  the next life, as that of any caller who left.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segmentstore.controller.errors import LifeEndedError


class OpenCalls:
    """Of one life."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Timeout, None] = {}
        self._ended = False
        self._all_left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """One call. Raises LifeEndedError if the life ends first."""
        assert not self._ended, "a call of a life that has ended"
        call = asyncio.timeout(None)
        try:
            async with call:
                self._calls[call] = None
                yield
        except TimeoutError as error:
            if not call.expired():
                raise
            raise LifeEndedError(
                "the controller starts anew; whether this was done is not known"
            ) from error
        finally:
            del self._calls[call]
            if not self._calls:
                self._all_left.set()

    async def end(self) -> None:
        """Break off what is under way, and wait until it has left."""
        self._ended = True
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            call.reschedule(now)
        while self._calls:
            self._all_left.clear()
            await self._all_left.wait()
