"""Readers that stand at the end of a segment and wait for whatever comes next, and how many a container may have.

SegmentReadIndex adds those that find nothing more, and wakes all of them at each change of its segment. A wake-up
carries no news: a reader that is woken looks at the segment again. So it does not matter what woke it, and a
reader ends exactly once, by what it finds there.

Invariants:
- a waiter is registered without an await since it last looked at the segment, and is a future, not a task;
- every wake-up reaches every waiter registered before it, at the latest some loop turns later, and each once;
- a container never has more waiters than its limit says (`WaiterLimit`, which is given `waiters_max` of
  containers/container_settings.py).
"""

import asyncio

from segmentstore.contracts.errors import TooManyWaitersError

WAKE_UPS_PER_TURN = 1_000
"""More waiters than this are woken over several turns of the loop."""


class WaiterLimit:
    """How many readers of a container wait, of those that may."""

    __slots__ = ("_count_max", "count")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = 0

    def add(self) -> None:
        """Take a place among the waiting readers. Raises TooManyWaitersError."""
        if self.count >= self._count_max:
            raise TooManyWaitersError(f"too many readers wait waiters={self.count}")
        self.count += 1

    def remove(self) -> None:
        """Give the place back."""
        self.count -= 1


class TailWaiters:
    """The waiting readers of one segment."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def add(self) -> asyncio.Future[None]:
        """Done after the next wake(). A caller that cancels it takes it out with discard()."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        return future

    def discard(self, future: asyncio.Future[None]) -> None:
        """It waits no more. One that was woken is not here any more, which is fine."""
        self._futures.pop(future, None)

    def wake(self) -> None:
        """Wake every reader that waits now."""
        futures = list(self._futures)
        self._futures.clear()
        _wake_slice(futures, 0)


def _wake_slice(futures: list[asyncio.Future[None]], begin: int) -> None:
    end = begin + WAKE_UPS_PER_TURN
    for future in futures[begin:end]:
        if not future.done():
            future.set_result(None)
    if end < len(futures):
        asyncio.get_running_loop().call_soon(_wake_slice, futures, end)
