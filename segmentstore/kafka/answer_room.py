"""Room for records that were read for consumers and are not taken by them yet, shared by all connections.

    records are read -> keep() -> their answer waits for those before it, is sent, is taken -> give_back()

A fetch is small and its answer is not: 16 MiB, or one batch. For ten thousand clients that ask and take nothing that
would be 160 GB.

Invariants:

- What is kept has the bound of the shared room (`answer_bytes_max` in settings.py); an answer that is longer takes all
  of it.
- Room is taken for what was read, not for what may be: reads that take long, and fetches that wait for records, hold up
  no other. What was read and finds no room is dropped, and read again when there is some: so much and no more, as what
  came meanwhile would send the answer behind all that wait, again and again.
- An answer waits for room only while it has none, so no two wait for one another. One that has records and waits for
  more is given as it is when others wait for room (fetch_requests.py).
- Room is given in the order in which it was asked for. It comes back: a client that takes nothing while others wait for
  room loses its connection behind `taking_seconds` (connection.py).
"""

from segmentstore.runtime.shared_room import Room, SharedRoom


class AnswerRoom:
    """Of one answer. give_back() at the end."""

    def __init__(self, shared: SharedRoom) -> None:
        self._shared = shared
        self._taken: list[Room] = []
        self.taken_bytes = 0
        self.kept_bytes = 0
        """Of records. More than it has taken, if they are longer than what all may have."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no room, and needs none."""
        return not self._taken

    @property
    def is_wanted(self) -> bool:
        """Whether others wait for room."""
        return self._shared.waiting_count > 0

    def keep(self, byte_count: int) -> bool:
        """Whether there is room for so many bytes more; then they are kept."""
        more = self._missing(byte_count)
        if more > 0:
            room = self._shared.take_nowait(more)
            if room is None:
                return False
            self._add(room, more)
        self.kept_bytes += byte_count
        return True

    def drop(self, byte_count: int) -> None:
        """So many of the bytes are not kept any more; their room is for others of this answer."""
        self.kept_bytes -= byte_count

    async def wait(self, byte_count: int) -> None:
        """Returns when there is room for so many bytes. Nothing is kept yet."""
        self.give_back()
        wanted = self._missing(byte_count)
        self._add(await self._shared.take(wanted), wanted)

    def give_back(self) -> None:
        """All of it. Idempotent."""
        for each in self._taken:
            each.give_back()
        self._taken.clear()
        self.taken_bytes = self.kept_bytes = 0

    def _missing(self, byte_count: int) -> int:
        wanted = min(self.kept_bytes + byte_count, self._shared.bytes_max)
        return wanted - self.taken_bytes

    def _add(self, room: Room, byte_count: int) -> None:
        self._taken.append(room)
        self.taken_bytes += byte_count
