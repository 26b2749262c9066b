"""Attempts, runs and pauses of something that works over containers: what both supervisors know of their times.

Invariants:

- A run that ended because its containers left is followed by an attempt at once: pauses grow over failures in a row,
  and a run that worked is none, however short it was. Nodes that are restarted one behind the other make many of them.
- What waits for containers that are not there waits at most WAIT_SECONDS_MAX at a time: that a container was given to a
  node is told, that it has recovered there is not.
- What breaks by itself is tried again in pauses up to BREAK_SECONDS_MAX. They begin anew when a run has worked for
  so long.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.runtime.backoff import Backoff

FIRST_SECONDS: Final = 0.02
GROWTH: Final = 1.25
"""So clients find it ready when they first come back."""
WAIT_SECONDS_MAX: Final = 1.0
BREAK_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of one run, or of an attempt at one."""

    error: Exception
    """The first cause of it."""
    group: "ExceptionGroup[Exception]"
    worked: bool
    """Whether it was a run: it had begun to answer."""
    silent_seconds: float
    """Since a run ended last, or since the first attempt; 0 behind one that worked."""
    pause_seconds: float
    """Until the next attempt."""


class RunPauses:
    """Of one supervisor: attempt(), perhaps works(), end(), and so on."""

    def __init__(self) -> None:
        self._backoff = Backoff(
            seconds_first=FIRST_SECONDS, seconds_max=BREAK_SECONDS_MAX, factor=GROWTH
        )
        self._silent_since: float | None = None
        self._working_since: float | None = None
        self.runs = 0
        """How many have begun to answer."""

    def attempt(self) -> None:
        """One begins."""
        self._working_since = None
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()

    def works(self) -> None:
        """The attempt has become a run."""
        self.runs += 1
        self._working_since = asyncio.get_running_loop().time()

    def end(self, error: Exception, group: "ExceptionGroup[Exception]", *, is_lost: bool) -> RunEnd:
        """`is_lost`: its containers left."""
        assert self._silent_since is not None, "it ends before it began"
        now = asyncio.get_running_loop().time()
        worked = self._working_since is not None
        if self._working_since is not None:
            self._silent_since = now
            if is_lost or now - self._working_since > BREAK_SECONDS_MAX:
                self._backoff.reset()
        pause = self._backoff.next_seconds()
        if isinstance(error, SegmentStoreError) and error.kind is ErrorKind.UNAVAILABLE:
            pause = min(pause, WAIT_SECONDS_MAX)
        return RunEnd(error, group, worked, now - self._silent_since, pause)
