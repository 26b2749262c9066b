"""Which transactions were not heard of for too long.

Invariants:

- A lease runs by the loop's clock, which neither jumps nor stands still while the process runs (H77). A controller
  that starts grants every open transaction the longest lease that a ping may have asked for: pings are in memory only,
  and it cannot know who tried to ping in between.
- An owner that renews decides anew how long its lease is, also shorter than before.
"""

import heapq
from typing import Generic, TypeVar

Name = TypeVar("Name")


class Leases(Generic[Name]):
    """Deadlines in loop time. Renewing is O(log n): the old deadline is skipped when its time comes."""

    def __init__(self) -> None:
        self._deadlines: dict[Name, tuple[float, int]] = {}
        self._queue: list[tuple[float, int, Name]] = []
        self._births = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: Name) -> bool:
        return name in self._deadlines

    def grant(self, name: Name, *, deadline: float) -> None:
        """Grant or renew."""
        self._births += 1
        self._deadlines[name] = (deadline, self._births)
        heapq.heappush(self._queue, (deadline, self._births, name))
        if len(self._queue) > 2 * len(self._deadlines) + 16:
            self._rebuild()

    def end(self, name: Name) -> None:
        """The owner needs it no more; ending twice is fine."""
        self._deadlines.pop(name, None)

    def next_deadline(self) -> float | None:
        """When the first lease runs out; None without leases."""
        self._skip_stale()
        return self._queue[0][0] if self._queue else None

    def take_expired(self, now: float) -> list[Name]:
        """Names whose lease ran out, earliest first; their leases are ended."""
        expired: list[Name] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, name = heapq.heappop(self._queue)
            del self._deadlines[name]
            expired.append(name)
        return expired

    def check(self) -> None:
        """Every lease is in the queue under its present deadline; O(n)."""
        queued = {(deadline, birth): name for deadline, birth, name in self._queue}
        for name, place in self._deadlines.items():
            assert queued.get(place) == name, f"lease is not queued name={name!r} place={place}"

    def _skip_stale(self) -> None:
        while self._queue and self._deadlines.get(self._queue[0][2]) != self._queue[0][:2]:
            heapq.heappop(self._queue)

    def _rebuild(self) -> None:
        self._queue = [(*place, name) for name, place in self._deadlines.items()]
        heapq.heapify(self._queue)
