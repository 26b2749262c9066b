"""How long something that works over containers waits between the end of one run and the next attempt.

Invariants:

- A run that ended because its containers left is followed by an attempt at once: pauses grow over failures in a row,
  and a run that worked is none, however short it was. Nodes that are restarted one behind the other make many of them.
- What waits for containers that are not there waits at most WAIT_SECONDS_MAX at a time: that a container was given to a
  node is told, that it has recovered there is not.
- What breaks by itself is tried again in pauses up to BREAK_SECONDS_MAX. They begin anew when a run has worked for
  so long.
"""

from typing import Final

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.runtime.backoff import Backoff

FIRST_SECONDS: Final = 0.02
GROWTH: Final = 1.25
"""So clients find it ready when they first come back."""
WAIT_SECONDS_MAX: Final = 1.0
BREAK_SECONDS_MAX: Final = 10.0


class RunPauses:
    """Of one supervisor."""

    def __init__(self) -> None:
        self._backoff = Backoff(
            seconds_first=FIRST_SECONDS, seconds_max=BREAK_SECONDS_MAX, factor=GROWTH
        )

    def behind(self, error: Exception, *, is_lost: bool, worked_seconds: float) -> float:
        """Seconds until the next attempt. `is_lost`: its containers left; `worked_seconds`: 0 if it never worked."""
        if worked_seconds > (0 if is_lost else BREAK_SECONDS_MAX):
            self._backoff.reset()
        pause = self._backoff.next_seconds()
        is_away = isinstance(error, SegmentStoreError) and error.kind is ErrorKind.UNAVAILABLE
        return min(pause, WAIT_SECONDS_MAX) if is_away else pause
