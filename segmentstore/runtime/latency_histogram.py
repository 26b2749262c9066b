"""Counting without locks: distributions that are cheap to feed and small to keep.

Invariants:

- Memory does not grow with the number of values.
- A quantile is never below the true one, and at most one bucket (about 9 %) above it.
"""

import math
from dataclasses import dataclass

_BUCKETS_PER_DOUBLING = 8
_SMALLEST_SECONDS = 1e-6
_BUCKET_COUNT = 8 * 32  # up to about 4,300 seconds


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """A snapshot of a histogram. Times in seconds; all zero when nothing was recorded."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p99_seconds: float
    p999_seconds: float
    max_seconds: float


class LatencyHistogram:
    """Durations in logarithmic buckets."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKET_COUNT
        self._count = 0
        self._sum = 0.0
        self._max = 0.0

    @property
    def count(self) -> int:
        return self._count

    def record(self, seconds: float) -> None:
        """Add one duration. O(1)."""
        if seconds <= _SMALLEST_SECONDS:
            bucket = 0
        else:
            doublings = math.log2(seconds / _SMALLEST_SECONDS)
            bucket = min(math.ceil(doublings * _BUCKETS_PER_DOUBLING), _BUCKET_COUNT - 1)
        self._counts[bucket] += 1
        self._count += 1
        self._sum += seconds
        self._max = max(self._max, seconds)

    def quantile(self, share: float) -> float:
        """A duration that at least this share of the values do not exceed. O(number of buckets)."""
        assert 0 < share <= 1, f"not a share of the values share={share}"
        wanted = math.ceil(share * self._count)
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted and count:
                upper = _SMALLEST_SECONDS * math.exp2(bucket / _BUCKETS_PER_DOUBLING)
                return min(upper, self._max)
        return self._max

    def summary(self) -> LatencySummary:
        """All that is usually asked for."""
        return LatencySummary(
            count=self._count,
            mean_seconds=self._sum / self._count if self._count else 0.0,
            p50_seconds=self.quantile(0.5),
            p99_seconds=self.quantile(0.99),
            p999_seconds=self.quantile(0.999),
            max_seconds=self._max,
        )

    def check(self) -> None:
        """O(number of buckets)."""
        total = sum(self._counts)
        assert total == self._count, f"buckets and count differ total={total} count={self._count}"
