"""Calendar time. Intervals are measured with the running loop's time(); this is for stamps that outlive the process."""

import time
from typing import Protocol


class WallClock(Protocol):
    """Where "now" comes from. The simulation has one that follows its virtual time, with steps and drift."""

    def now_ms(self) -> int:
        """Unix time in milliseconds. May jump (H77)."""


class SystemWallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def short_interval_seconds() -> float:
    """Seconds of a clock that resolves less than a microsecond; a loop's time() may resolve a millisecond.

    For how long a step took, where the answer decides only where the step runs next. The simulation gives its loop's.
    """
    return time.perf_counter()
