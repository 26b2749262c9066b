"""Whether the clocks can be trusted enough to delete by them (H77).

The wall clock may jump, the loop's clock does not; between two looks both must have moved by the same amount, within a
bound. If they did not, one of them lies, and nothing is deleted because of its age until

- time settled it: no further jump for `settle_seconds`, or the wall clock came back to where it was, or
- a person did: `settle()`.

Everything that judges an age calls `trusted()` first, which looks at the clocks itself, so a jump is seen before
the judgement and not one tick later.
"""

import asyncio
import logging

from segmentstore.runtime.clock import WallClock

logger = logging.getLogger(__name__)


class ClockWatch:
    """Compares two clocks. `look()` is cheap and may be called as often as one likes."""

    def __init__(
        self, *, wall_clock: WallClock, difference_seconds_max: float, settle_seconds: float
    ) -> None:
        self._wall_clock = wall_clock
        self._difference_seconds_max = difference_seconds_max
        self._settle_seconds = settle_seconds
        self._last: tuple[float, float] | None = None
        self._jumped_seconds = 0.0
        """Sum of the jumps since the clocks were last trusted."""
        self._jumped_at: float | None = None

    def look(self) -> None:
        """Compare how far both clocks moved since the last look."""
        loop_seconds = asyncio.get_running_loop().time()
        wall_seconds = self._wall_clock.now_ms() / 1000
        last, self._last = self._last, (loop_seconds, wall_seconds)
        if last is None:
            return
        difference = (wall_seconds - last[1]) - (loop_seconds - last[0])
        if abs(difference) > self._difference_seconds_max:
            self._jumped_at = loop_seconds
            self._jumped_seconds += difference
            logger.warning("wall clock jumped by %.3f seconds; expiry stops", difference)
        if self._jumped_at is None:
            return
        came_back = abs(self._jumped_seconds) <= self._difference_seconds_max
        if came_back or loop_seconds - self._jumped_at >= self._settle_seconds:
            self.settle()

    def trusted(self) -> bool:
        """Whether something may be deleted because of its age, as of now."""
        self.look()
        return self._jumped_at is None

    def settle(self) -> None:
        """The present time is right: expiry goes on."""
        if self._jumped_at is not None:
            logger.info("clocks are trusted again; expiry goes on")
        self._jumped_at = None
        self._jumped_seconds = 0.0

    def complaint(self) -> str:
        """Why nothing expires now, in a sentence; "" if all is well."""
        if self._jumped_at is None:
            return ""
        return (
            "the wall clock jumped, so nothing is deleted because of its age"
            f" jumped_seconds={self._jumped_seconds:.3f} settle_seconds={self._settle_seconds}"
        )
