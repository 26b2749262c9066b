"""What all connections of a server hold together: one bound, fair shares at it, and the end of what stands still there.

A connection holds

    what it received and did not begin    the memory of its receive buffer: a part of a frame as well
    what it began and did not answer      appends and requests, OVERHEAD_BYTES for each included
    what it said and its client did not take

The bounds of one connection allow some 30 MiB, ten thousand of them 300 GB. So their sum has a bound, `bytes_max`. When
it is exceeded the server is *full*, until half of it is left; in between connections are read by their *share*, which
is that half, divided by their number:

- One that holds no more than its share is read. So heartbeats, small appends and questions go on.
- One that holds more is not read; nothing that it was promised waits for that. What it has begun ends by itself: the
  store answers it. What it has received whole is begun, within the bounds of one connection.
- A part of a frame does not end by itself: the rest of it is what is not read. Connections whose part is above their
  share have turns, in the order in which they were stopped: so many at a time as have frames of `bytes_max` / 2
  together, or one. One that has its turn is read to the end of its frame, and not further.
- Answers that were not taken do not end by themselves either. None is made larger than a share, and none is made for a
  client that has more than its share of them to take.
- A turn lasts for `seconds_max`, and so long may a client leave what was there to be taken. Then its connection is
  closed, with a line in the log: others wait for its memory. Nothing that was acknowledged is lost by it.

So it does not stay full for ever: while it is, some connection holds more than its share, and all that it holds ends,
by the store, by its client, or by its end. All together hold twice the bound at most, and for each connection what is
read in one go: `bytes_max` when it became full, the frames of those that have a turn, and the shares of the others.

Not judged by the clock but by ticks of the server: a process that stood still has heard nothing, and its clients are
not to blame.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from segmentstore.runtime.guarded_callback import guarded
from segmentstore.wire.statistics import WireCounters

_LOGGER = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection."""

    @property
    def awaited_frame_bytes(self) -> int:
        """The whole length of the frame that a part was received of, as far as it is known."""

    def look_at_memory(self) -> None:
        """The server is full, or is not any more, or it is this one's turn: count anew, read or do not."""

    def give_up(self, reason: str) -> None:
        """Others wait for its memory: close it."""


class MemoryBound:
    """Holders join() and leave(); what they hold is changed by change()."""

    def __init__(self, *, bytes_max: int, ticks_max: int, counters: WireCounters) -> None:
        """A turn lasts for so many ticks."""
        self._bytes_max = bytes_max
        self._bytes_enough = bytes_max // 2
        self._ticks_max = ticks_max
        self._counters = counters
        self._holders: dict[Holder, None] = {}
        self._waiting: dict[Holder, None] = {}
        """For a turn, in their order."""
        self._turns: dict[Holder, tuple[int, int]] = {}
        """The frame's bytes, and ticks since it began."""
        self._turn_bytes = 0
        self._to_look: dict[Holder, None] = {}
        """They are told in the next turn of the loop."""
        self._tell_later = guarded(self._tell, self._telling_failed)
        self.held_bytes = 0
        """Of all holders, and of those that have gone what is not settled yet."""
        self.is_full = False

    @property
    def share_bytes(self) -> int:
        """What one may hold and be read while the server is full."""
        return self._bytes_enough // max(1, len(self._holders))

    @property
    def waiting_count(self) -> int:
        """Holders that wait for a turn."""
        return len(self._waiting)

    @property
    def ticks_max(self) -> int:
        return self._ticks_max

    def join(self, holder: Holder) -> None:
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """It is gone; what it held has been taken off, or will be."""
        del self._holders[holder]
        self.needs_no_turn(holder)

    def change(self, byte_count: int) -> None:
        """So much more is held, or less."""
        self.held_bytes += byte_count
        if self.is_full:
            if self.held_bytes <= self._bytes_enough:
                self._is_full_changes()
        elif self.held_bytes > self._bytes_max:
            self._counters.bound_reached += 1
            self._is_full_changes()

    def _is_full_changes(self) -> None:
        self.is_full = not self.is_full
        if not self.is_full:
            self._waiting.clear()
            self._turns.clear()
            self._turn_bytes = 0
        self._tell_soon(self._holders)

    def _tell_soon(self, holders: Iterable[Holder]) -> None:
        """Not at once: this happens while a connection deals with what it received."""
        is_due = bool(self._to_look)
        self._to_look.update(dict.fromkeys(holders))
        if self._to_look and not is_due:
            asyncio.get_running_loop().call_soon(self._tell_later)

    def _tell(self) -> None:
        holders, self._to_look = self._to_look, {}
        for holder in holders:
            if holder in self._holders:
                holder.look_at_memory()

    # --- turns -----------------------------------------------------------------------------------

    def has_turn(self, holder: Holder) -> bool:
        """Whether it may be read to the end of its frame; if not, it waits for that from now on."""
        turn = self._turns.get(holder)
        if turn is not None:
            more = holder.awaited_frame_bytes - turn[0]
            if more <= 0:
                return True
            # Its length was not known before.
            if len(self._turns) == 1 or self._turn_bytes + more <= self._bytes_enough:
                self._turns[holder] = turn[0] + more, turn[1]
                self._turn_bytes += more
                return True
            self._end_turn(holder)
        self._waiting.setdefault(holder)
        self._give_turns(asking=holder)
        return holder in self._turns

    def needs_no_turn(self, holder: Holder) -> None:
        """Its frame is complete, or it is gone, or it may be read without one. Idempotent."""
        self._waiting.pop(holder, None)
        self._end_turn(holder)
        if self._waiting:
            self._give_turns()

    def _end_turn(self, holder: Holder) -> None:
        turn = self._turns.pop(holder, None)
        if turn is not None:
            self._turn_bytes -= turn[0]

    def _give_turns(self, *, asking: Holder | None = None) -> None:
        while self._waiting:
            first = next(iter(self._waiting))
            byte_count = first.awaited_frame_bytes
            if self._turns and self._turn_bytes + byte_count > self._bytes_enough:
                return
            del self._waiting[first]
            self._turns[first] = byte_count, 0
            self._turn_bytes += byte_count
            if first is not asking:
                self._tell_soon([first])

    def tick(self) -> None:
        """After every so many seconds."""
        for holder, (byte_count, ticks) in list(self._turns.items()):
            if holder not in self._turns:
                continue  # Another one's end was the end of this turn.
            self._turns[holder] = byte_count, ticks + 1
            if ticks + 1 > self._ticks_max:
                holder.give_up(
                    "a frame was not completed in its turn, while all connections together"
                    f" hold too much bytes={byte_count} held_bytes={self.held_bytes}"
                )
                self.needs_no_turn(holder)

    # --- faults ----------------------------------------------------------------------------------

    def _telling_failed(self, error: Exception) -> None:
        """Each connection looks again at its next tick."""
        _LOGGER.error("connections were not told of the memory that all hold", exc_info=error)

    def check(self) -> None:
        """O(holders with a turn)."""
        assert self.held_bytes >= 0, f"held_bytes={self.held_bytes}"
        assert self._turn_bytes == sum(count for count, _ in self._turns.values())
        assert self._turns.keys() <= self._holders.keys(), "a turn of one that has gone"
        assert self._waiting.keys() <= self._holders.keys(), "one waits that has gone"
        assert not (self._waiting.keys() & self._turns.keys()), "one waits that has its turn"
        assert self._turns or not self._waiting, "some wait, and none has a turn"
