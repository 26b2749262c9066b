"""Waiting for an event or a point in time, whichever comes first, without a timeout that cancels anything."""

import asyncio


class Alarm:
    """One waiter; any number of ringers."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter now, or let the next wait return at once."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until: float) -> None:
        """Returns when the alarm was rung since the last wait, or at loop time `until` (may be infinite)."""
        assert self._waiter is None, "an alarm has one waiter"
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if until == float("inf") else loop.call_at(until, self._time_is_up)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._rung = False

    def _time_is_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
