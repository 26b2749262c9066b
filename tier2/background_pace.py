"""How fast work in the background goes on: as fast as it may while the loop is on time, slower while it is late.

While work goes on, piece by piece, a timer says how late the loop is. What is late had to wait for a core or for
the interpreter, and the work in the background shares the blame: it halves its share of the time. A while in which
nothing was late raises the share again, step by step.

Invariants:

- The share stays between its two bounds: work goes on at the lower one however late the loop is.
- In a hurry it is the upper one.
- Time is the loop's alone, so that a simulation, whose timers come when they are due, runs at the upper bound.
- Pieces may be as short as they like: the loop is watched from one to the next, but not through a long rest.
- No timer is left behind when nothing is worked on.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

_LOOK_SECONDS = 0.002
_LATE_SECONDS = 0.0015
"""Timers of the loop have a millisecond, and a thread that computes keeps the interpreter for half of one."""
_JUDGED_SECONDS = 0.02
"""From one change of the share to the next, at least."""
_STEP_SHARE = 0.02
"""Of the upper bound: so much more after a while in which nothing was late."""


class BackgroundPace:
    """Of one user, who does one thing at a time: `with pace.working()`, and `await pace.rest()` between its pieces."""

    def __init__(self, *, busy_share_min: float, busy_share_max: float) -> None:
        """Shares of the time in which work may be done, 0 to 1."""
        assert 0 < busy_share_min <= busy_share_max <= 1, f"{busy_share_min=} {busy_share_max=}"
        self._share_min = busy_share_min
        self._share_max = busy_share_max
        self.busy_share = busy_share_max
        self.hurried = False
        """Set by its user: more is at stake than lateness."""
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        """Of the timer. It is not asked: uvloop makes one whose time has come into a call without a time."""
        self._resting = False
        self._began = 0.0
        self._judged = 0.0
        self._latest = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around all pieces and rests."""
        self._judged = asyncio.get_running_loop().time()
        self._begin()
        try:
            yield
        finally:
            self._end()

    async def rest(self, *, at_least: float = 0.0, at_most: float = inf) -> None:
        """After a piece: for as long as its share demands, in seconds, within the two bounds."""
        now = asyncio.get_running_loop().time()
        self._note(now)
        self._adapt(now)
        share = self._share_max if self.hurried else self.busy_share
        seconds = min(max((now - self._began) * (1 / share - 1), at_least), at_most)
        self._resting = True
        await asyncio.sleep(seconds)
        self._begin()

    def _adapt(self, now: float) -> None:
        if now - self._judged < _JUDGED_SECONDS:
            return
        if self._latest > _LATE_SECONDS:
            self.busy_share = max(self._share_min, self.busy_share / 2)
        else:
            self.busy_share = min(self._share_max, self.busy_share + _STEP_SHARE * self._share_max)
        self._judged = now
        self._latest = 0.0

    def _begin(self) -> None:
        self._resting = False
        self._began = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look_later()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _LOOK_SECONDS
        self._timer = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._note(asyncio.get_running_loop().time())
        if self._resting:
            self._timer = None
        else:
            self._look_later()

    def _note(self, now: float) -> None:
        if self._timer is not None:
            self._latest = max(self._latest, now - self._due)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
