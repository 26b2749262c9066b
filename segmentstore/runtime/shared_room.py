"""Room for bytes that several hold at a time, given in the order in which it was asked for.

Invariants:

- What is taken is never more than `bytes_max` together.
- One that stops waiting, also in the moment in which its room is given, keeps none and holds up none.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable


class Room:
    """Bytes that are taken, until they are given back."""

    def __init__(self, byte_count: int, give_back: Callable[[int], None]) -> None:
        self._byte_count = byte_count
        self._give_back = give_back

    def shrink(self, byte_count: int) -> None:
        """So many are enough."""
        assert byte_count <= self._byte_count, f"{byte_count} > {self._byte_count}"
        rest, self._byte_count = self._byte_count - byte_count, byte_count
        self._give_back(rest)

    def give_back(self) -> None:
        """All of it. Idempotent."""
        self.shrink(0)


class SharedRoom:
    """The room that all of them share."""

    def __init__(self, bytes_max: int, *, is_full: Callable[[], bool] = lambda: False) -> None:
        """`is_full`: whether none is given for another reason; go_on() when that is over."""
        self.bytes_max = bytes_max
        self._is_full = is_full
        self.held_bytes = 0
        self._waiting: deque[tuple[Future[None], int]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def take(self, byte_count: int) -> Room:
        """Waits for room; the caller gives it back."""
        assert byte_count <= self.bytes_max, f"{byte_count} > {self.bytes_max}"
        if not self._waiting and self._has_room(byte_count):
            self.held_bytes += byte_count
        else:
            await self._wait(byte_count)
        return Room(byte_count, self._give_back)

    def take_nowait(self, byte_count: int) -> Room | None:
        """As take(); None if there is no room now, or others wait for it."""
        if self._waiting or not self._has_room(byte_count):
            return None
        self.held_bytes += byte_count
        return Room(byte_count, self._give_back)

    async def _wait(self, byte_count: int) -> None:
        given: Future[None] = asyncio.get_running_loop().create_future()
        waiting = (given, byte_count)
        self._waiting.append(waiting)
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                self._waiting.remove(waiting)
                self.go_on()
            else:
                self._give_back(byte_count)
            raise

    def _give_back(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0, f"held_bytes={self.held_bytes}"
        self.go_on()

    def go_on(self) -> None:
        """Give room to those that wait, in their order."""
        while self._waiting and self._has_room(self._waiting[0][1]):
            given, byte_count = self._waiting[0]
            if given.done():
                return  # It is cancelled, and goes on by itself.
            self._waiting.popleft()
            self.held_bytes += byte_count
            given.set_result(None)

    def _has_room(self, byte_count: int) -> bool:
        return not self._is_full() and self.held_bytes + byte_count <= self.bytes_max
