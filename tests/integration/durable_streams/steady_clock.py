"""A server's wall clock that takes no notice when the machine stands still."""

import asyncio

from typing_extensions import override

from tests.http.node import TurnableClock

_TICK_SECONDS = 0.05
_COUNTED_SECONDS_MAX = 0.25
"""Of the time from one tick to the next."""
_CAUGHT_UP = 0.2
"""Of the time that is counted: so much faster it goes until it shows the true time again."""


class SteadyClock(TurnableClock):
    """What a client waits for by timers of its own, and the server by this clock, goes on together behind a standstill.

    The suite keeps a stream whose life are two seconds by a request every second and a half: where all processes stand
    still between two of them, its timer is as late as the machine was, and the life has to be longer by that. It goes
    while run() does.
    """

    def __init__(self, start_ms: int) -> None:
        super().__init__(start_ms)
        self._shown_ms = float(start_ms)
        """At the last tick."""
        self._ticked_at = asyncio.get_running_loop().time()
        self._behind_seconds = 0.0

    @override
    def now_ms(self) -> int:
        return round(self._shown_ms + 1000 * min(self._since_tick(), _COUNTED_SECONDS_MAX))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            elapsed = self._since_tick()
            counted = min(elapsed, _COUNTED_SECONDS_MAX)
            self._behind_seconds += elapsed - counted
            caught_up = min(self._behind_seconds, _CAUGHT_UP * counted)
            self._behind_seconds -= caught_up
            self._shown_ms += 1000 * (counted + caught_up)
            self._ticked_at += elapsed

    def _since_tick(self) -> float:
        return asyncio.get_running_loop().time() - self._ticked_at
