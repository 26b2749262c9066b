"""A loop for tests about silence on real sockets: time in which the process stands still does not count.

Its clock goes on as the system's does, but from one look at it to the next by no more than _LOOK_SECONDS_MAX, and it is
looked at often: what is due is due because others had as many turns as that, however busy the machine is.
"""

import asyncio
import time

from typing_extensions import override

_LOOK_SECONDS = 0.01
_LOOK_SECONDS_MAX = 0.02


class SteadyLoop(asyncio.SelectorEventLoop):
    """For asyncio.Runner."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked_at = time.monotonic()
        super().__init__()
        self._look()

    @override
    def time(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._looked_at, _LOOK_SECONDS_MAX)
        self._looked_at = now
        return self._seconds

    def _look(self) -> None:
        """Else it would sleep until the next timer, and count next to nothing of that."""
        self.call_later(_LOOK_SECONDS, self._look)
