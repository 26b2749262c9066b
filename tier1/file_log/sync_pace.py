"""Whether a frame may be written and synced on the loop itself instead of in a thread.

A lone small append pays for two switches between threads about as much as for its sync. On the loop it saves both, but
everything else of the process waits meanwhile. So it is done only while syncs are short, and only for frames that come
one at a time: what comes in crowds shares frames, and its threads overlap with the loop.

Invariants, over all logs that share one object:
- a frame above `bytes_max` is never written on the loop;
- it happens only while writes take `usual_seconds_max` on average, wherever they ran: a disk whose every write is slow
  is left to threads, one that is late now and then is not;
- after a write that took longer than `seconds_max`, the next `fast_writes_min` go through a thread;
- the loop is given to syncs at most half of the time: after one that took t seconds the next comes t seconds later.
"""

from collections.abc import Callable
from typing import Final

_BYTES_MAX: Final = 32 * 1024
_RECENT_WEIGHT: Final = 1 / 16


class SyncPace:
    """Shared by the logs of one loop, because they would keep the same loop waiting. Called on the loop only."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        usual_seconds_max: float = 0.0003,
        seconds_max: float = 0.001,
        fast_writes_min: int = 16,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        """`now` is a clock in seconds that resolves microseconds; the loop's own may not."""
        self.now = now
        self._usual_seconds_max = usual_seconds_max
        self._seconds_max = seconds_max
        self._fast_writes_min = fast_writes_min
        self._bytes_max = bytes_max
        self._usual_seconds = usual_seconds_max
        self._fast_writes = 0
        self._free_again = 0.0

    def may_wait(self, length: int) -> bool:
        """Whether the loop may wait for a frame of so many bytes."""
        return (
            length <= self._bytes_max
            and self._fast_writes >= self._fast_writes_min
            and self._usual_seconds <= self._usual_seconds_max
            and self.now() >= self._free_again
        )

    def note(self, seconds: float, *, on_loop: bool) -> None:
        """A frame was written and synced in so many seconds."""
        if on_loop:
            self.note_since(self.now() - seconds)
        else:
            self._count(seconds)

    def note_since(self, began: float) -> float:
        """The loop has just written and synced a frame, begun at that time: how many seconds that took."""
        now = self.now()
        seconds = now - began
        self._free_again = now + seconds
        self._count(seconds)
        return seconds

    def _count(self, seconds: float) -> None:
        if seconds > self._seconds_max:
            self._fast_writes = 0
            # One write that stalled says how often the disk stalls, not how long it usually takes.
            seconds = self._seconds_max
        else:
            self._fast_writes += 1
        self._usual_seconds += (seconds - self._usual_seconds) * _RECENT_WEIGHT
