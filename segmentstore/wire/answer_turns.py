"""Whose turn it is to make an answer that may be large.

A request is small and its answer may be large, so a client that asks and does not listen would have as many answers
made and kept as it may have requests. An answer of a table is begun only when the client takes what it is sent, and
when there is room for it among those that are being made.

- Answers that have begun have `bytes_max` together at most, by what each may have; one that may have more is alone.
- Turns are given in the order in which they were asked for.
- A turn that was given is given back, also when the task that has it is cancelled.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from segmentstore.runtime.shared_room import SharedRoom


class AnswerTurns:
    """turn() around the making and sending of an answer; go_on() when the client has taken something."""

    def __init__(self, *, bytes_max: int, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full
        self._room = SharedRoom(bytes_max, is_full=is_full)

    @property
    def begun_bytes(self) -> int:
        """What the answers that are being made may have; of one that is alone, no more than all may have."""
        return self._room.held_bytes

    @property
    def waiting_count(self) -> int:
        return self._room.waiting_count

    def is_free(self) -> bool:
        """Whether an answer that is made and sent in one step may be: then it needs no turn."""
        return not self._room.waiting_count and not self._is_full()

    @asynccontextmanager
    async def turn(self, byte_count: int) -> AsyncIterator[None]:
        """Waits for it. `byte_count` is what the answer may have."""
        room = await self._room.take(min(byte_count, self._room.bytes_max))
        try:
            yield
        finally:
            room.give_back()

    def go_on(self) -> None:
        """Give turns to those that wait, as far as there is room."""
        self._room.go_on()
