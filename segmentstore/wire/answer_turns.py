"""Whose turn it is to make an answer that may be large.

A request is small and its answer may be large, so a client that asks and does not listen would have as many answers
made and kept as it may have requests. An answer of a table is begun only when the client takes what it is sent, and
when there is room for it among those that are being made.

- Answers that have begun have `bytes_max` together at most, by what each may have; one that may have more is alone.
- Turns are given in the order in which they were asked for.
- A turn that was given is given back, also when the task that has it is cancelled.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class AnswerTurns:
    """turn() around the making and sending of an answer; go_on() when the client has taken something."""

    def __init__(self, *, bytes_max: int, is_full: Callable[[], bool]) -> None:
        self._bytes_max = bytes_max
        self._is_full = is_full
        self._begun_bytes = 0
        self._waiting: deque[tuple[Future[None], int]] = deque()

    @property
    def begun_bytes(self) -> int:
        """What the answers that are being made may have."""
        return self._begun_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def is_free(self) -> bool:
        """Whether an answer that is made and sent in one step may be: then it needs no turn."""
        return not self._waiting and not self._is_full()

    @asynccontextmanager
    async def turn(self, byte_count: int) -> AsyncIterator[None]:
        """Waits for it. `byte_count` is what the answer may have."""
        if not self._waiting and self._has_room(byte_count):
            self._begun_bytes += byte_count
        else:
            await self._wait(byte_count)
        try:
            yield
        finally:
            self._give_back(byte_count)

    def go_on(self) -> None:
        """Give turns to those that wait, as far as there is room."""
        while self._waiting and self._has_room(self._waiting[0][1]):
            given, byte_count = self._waiting.popleft()
            if not given.done():
                self._begun_bytes += byte_count
                given.set_result(None)

    async def _wait(self, byte_count: int) -> None:
        given: Future[None] = asyncio.get_running_loop().create_future()
        waiting = (given, byte_count)
        self._waiting.append(waiting)
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self._give_back(byte_count)
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
                self.go_on()
            raise

    def _give_back(self, byte_count: int) -> None:
        self._begun_bytes -= byte_count
        assert self._begun_bytes >= 0, f"begun_bytes={self._begun_bytes}"
        self.go_on()

    def _has_room(self, byte_count: int) -> bool:
        if self._is_full():
            return False
        return not self._begun_bytes or self._begun_bytes + byte_count <= self._bytes_max
