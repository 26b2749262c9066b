"""Counting without locks: distributions of durations that are cheap to feed and small to keep.

Invariants:

- Memory does not grow with the number of values.
- A quantile is never below the true one, and at most one bucket above it.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

LOGARITHMIC_BOUNDS_SECONDS: Sequence[float] = tuple(
    1e-6 * math.exp2(step / 8) for step in range(8 * 32)
)
"""Each about 9 % above the one before, from a microsecond to over an hour."""


class LatencyHistogram:
    """Durations in buckets: `counts[n]` are those up to `bounds_seconds[n]`, the last one those above every bound."""

    __slots__ = ("bounds_seconds", "counts", "max_seconds", "sum_seconds")

    def __init__(self, bounds_seconds: Sequence[float]) -> None:
        """Bounds in rising order."""
        self.bounds_seconds = bounds_seconds
        self.counts = [0] * (len(bounds_seconds) + 1)
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    @property
    def count(self) -> int:
        """Of all values. O(number of buckets)."""
        return sum(self.counts)

    def record(self, seconds: float) -> None:
        """Add one duration. O(log(number of buckets))."""
        self.counts[bisect_left(self.bounds_seconds, seconds)] += 1
        self.sum_seconds += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    def quantile(self, share: float) -> float:
        """A duration that at least this share of the values do not exceed; 0 without any. O(number of buckets)."""
        assert 0 < share <= 1, f"not a share of the values share={share}"
        wanted = math.ceil(share * self.count)
        for bound, count_up_to in zip(self.bounds_seconds, accumulate(self.counts), strict=False):
            if count_up_to >= wanted:
                return min(bound, self.max_seconds)
        return self.max_seconds
