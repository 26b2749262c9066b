"""Sums over time in a bounded number of buckets: when more are needed, each becomes twice as long.

Invariants:

- A bucket is 2**n minutes long and begins at a multiple of its length, so those of two sums fit into each other.
- At most BUCKETS_MAX of them are kept, however long the time is.
- Nothing is lost by merging: the sum over the buckets is the sum of what was added.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

BUCKETS_MAX = 256
_MINUTE_MS = 60_000


@dataclass(slots=True)
class TimeBuckets:
    """Bytes and events by the time at which they were appended. Times are Unix milliseconds."""

    length_ms: int = _MINUTE_MS
    sums: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bytes and events, by the time at which the bucket begins."""

    def add(self, time_ms: int, count_bytes: int, events: int) -> None:
        """O(1), and now and then O(buckets)."""
        start = time_ms - time_ms % self.length_ms
        before = self.sums.get(start, (0, 0))
        self.sums[start] = before[0] + count_bytes, before[1] + events
        while len(self.sums) > BUCKETS_MAX:
            self.coarsen(self.length_ms * 2)

    def coarsen(self, length_ms: int) -> None:
        """Make the buckets longer; `length_ms` is a power of two times theirs."""
        assert length_ms % self.length_ms == 0, f"lengths do not fit {length_ms=} {self.length_ms=}"
        sums, self.sums, self.length_ms = self.sums, {}, length_ms
        for start, (count_bytes, events) in sums.items():
            into = start - start % length_ms
            before = self.sums.get(into, (0, 0))
            self.sums[into] = before[0] + count_bytes, before[1] + events

    def merge(self, other: "TimeBuckets") -> None:
        """Add what the other one has. O(buckets)."""
        if other.length_ms > self.length_ms:
            self.coarsen(other.length_ms)
        for start, (count_bytes, events) in other.sums.items():
            self.add(start, count_bytes, events)

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """Start, bytes and events of each bucket that holds something."""
        for start in sorted(self.sums):
            yield start, *self.sums[start]

    def as_json(self) -> dict[str, object]:
        return {"length_ms": self.length_ms, "sums": list(self.in_order())}

    @classmethod
    def of_json(cls, value: Mapping[str, object]) -> "TimeBuckets":
        length_ms, sums = value["length_ms"], value["sums"]
        assert isinstance(length_ms, int), f"a length is a number found={length_ms!r}"
        assert isinstance(sums, list), f"sums are a list found={sums!r}"
        return cls(length_ms, {start: (size, events) for start, size, events in sums})

    def check(self) -> None:
        """O(buckets)."""
        assert len(self.sums) <= BUCKETS_MAX, f"too many buckets count={len(self.sums)}"
        lost = [start for start in self.sums if start % self.length_ms]
        assert not lost, f"buckets begin between their places starts={lost[:3]}"
