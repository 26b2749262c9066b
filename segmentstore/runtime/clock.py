"""Calendar time, and whether the clocks can be trusted enough to delete by them.

Intervals are measured with the running loop's time(); WallClock is for stamps that outlive the process.

The wall clock may jump, the loop's clock does not; since the clocks were last trusted for sure (ClockWatch) both must
have moved by the same amount, within a bound. Small steps in one direction count together: a clock that gains a little
in each minute is half a day ahead after a day. If the clocks differ, one of them lies, and nothing is deleted because
of its age until

- time settled it: no further jump for `settle_seconds`, or the wall clock came back to where it was while trusted, or
- a person did: `settle()`.

A jump while the process was down cannot be seen. A component that judges by stamps that outlive the process calls
`doubt()` when it starts: then time has to settle that first.

Everything that judges an age calls `trusted()` first, which looks at the clocks itself, so a jump is seen before
the judgement and not one tick later.
"""

import asyncio
import logging
import time
from typing import Protocol

logger = logging.getLogger(__name__)


class WallClock(Protocol):
    """Where "now" comes from. The simulation has one that follows its virtual time, with steps and drift."""

    def now_ms(self) -> int:
        """Unix time in milliseconds. May jump."""


class SystemWallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def short_interval_seconds() -> float:
    """Seconds of a clock that resolves less than a microsecond; a loop's time() may resolve a millisecond.

    For how long a step took, or a loop stood still, where no answer to a client is decided by it. The simulation gives
    its loop's.
    """
    return time.perf_counter()


class ClockWatch:
    """Compares two clocks. `look()` is cheap and may be called as often as one likes."""

    def __init__(
        self, *, wall_clock: WallClock, difference_seconds_max: float, settle_seconds: float
    ) -> None:
        self._wall_clock = wall_clock
        self._difference_seconds_max = difference_seconds_max
        self._settle_seconds = settle_seconds
        self._trusted_from: float | None = None
        """By how much the wall clock was ahead of the loop's when the clocks were last taken for right."""
        self._doubted_from = 0.0
        """The same when they were last doubted."""
        self._doubted_at: float | None = None
        self._was_told = False
        """Whether doubt() was called: a clock that comes back to where it was proves nothing then."""
        self._why = ""

    def look(self) -> None:
        """Compare how far both clocks have moved."""
        ahead = self._ahead()
        if self._trusted_from is None:
            self._trusted_from = ahead
        total = ahead - self._trusted_from
        now = asyncio.get_running_loop().time()
        came_back = False
        since = self._trusted_from if self._doubted_at is None else self._doubted_from
        if abs(ahead - since) > self._difference_seconds_max:
            # Once is enough for a clock that goes on running away.
            level = logging.WARNING if self._doubted_at is None else logging.DEBUG
            logger.log(level, "wall clock is off by %.3f seconds; expiry stops", total)
            self._doubted_at = now
            self._doubted_from = ahead
            self._why = "the wall clock jumped"
            came_back = not self._was_told and abs(total) <= self._difference_seconds_max
        if self._doubted_at is None:
            return
        if came_back:
            # What it was off before still counts.
            self._trust()
        elif now - self._doubted_at >= self._settle_seconds:
            self.settle()

    def doubt(self, why: str) -> None:
        """Trust no clock until time has settled what `why` says."""
        self.look()
        self._doubted_at = asyncio.get_running_loop().time()
        self._doubted_from = self._ahead()
        self._was_told = True
        self._why = why

    def trusted(self) -> bool:
        """Whether something may be deleted because of its age, as of now."""
        self.look()
        return self._doubted_at is None

    def settle(self) -> None:
        """The present time is right: expiry goes on."""
        self._trusted_from = self._ahead()
        self._trust()

    def _trust(self) -> None:
        if self._doubted_at is not None:
            logger.info("clocks are trusted again; expiry goes on")
        self._doubted_at = None
        self._was_told = False
        self._why = ""

    def _ahead(self) -> float:
        """Seconds of the wall clock less those of the loop's clock."""
        return self._wall_clock.now_ms() / 1000 - asyncio.get_running_loop().time()

    def complaint(self) -> str:
        """Why nothing expires now, in a sentence; "" if all is well."""
        if self._doubted_at is None:
            return ""
        jumped = self._doubted_from - (self._trusted_from or 0.0)
        return (
            f"{self._why}, so nothing is deleted because of its age"
            f" jumped_seconds={jumped:.3f} settle_seconds={self._settle_seconds}"
        )
