"""How fast one segment grows, averaged over windows of several lengths.

Each average forgets exponentially: a sample that is one window old counts 1/e of a new one. A segment that was watched
for less than that is averaged over the time it was watched, so that its first sample weighs no more than the others.
Its average counts only once the window is full.

Invariants:

- Rates are never negative, and a segment that grows steadily has that rate in all windows.
- Samples may come at any distance from one another; the result does not depend on how a steady growth is cut up.
"""

import math
from collections.abc import Sequence


class SegmentRates:
    """Averages for one segment; the first sample only says where it started."""

    def __init__(self, *, windows_seconds: Sequence[float], now: float, amount: int) -> None:
        self._windows = tuple(windows_seconds)
        self._rates = [0.0] * len(self._windows)
        self._started = now
        self._now = now
        self._amount = amount

    def sample(self, *, now: float, amount: int) -> None:
        """`amount` bytes or events have been appended over the segment's life, as of `now` (loop time)."""
        elapsed = now - self._now
        if elapsed <= 0:
            return
        # A count can only go back if the segment is another one; that is no growth.
        rate = max(0, amount - self._amount) / elapsed
        for index, window in enumerate(self._windows):
            weight = 1 - math.exp(-elapsed / window)
            self._rates[index] += weight * (rate - self._rates[index])
        self._now = now
        self._amount = amount

    def go_on_empty(self) -> None:
        """The same keys are taken by a new, empty segment from now on."""
        self._amount = 0

    def watched_seconds(self) -> float:
        """From the first sample to the last."""
        return self._now - self._started

    def rate(self, window: int) -> float:
        """Per second, in the window of that index."""
        watched = self.watched_seconds()
        if watched <= 0:
            return 0.0
        # The sum of the weights of all samples: below 1 while the window is not full many times over.
        return self._rates[window] / (1 - math.exp(-watched / self._windows[window]))

    def is_settled(self, window: int) -> bool:
        """Whether the segment was watched for as long as the window."""
        return self.watched_seconds() >= self._windows[window]
