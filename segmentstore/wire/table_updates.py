"""The updates of one key each that a connection sends, gathered and submitted together.

A client that keeps many of them under way sends some dozens in one read of the socket. Each is still judged by itself
and answered by itself, but they are one operation of the table, one record of its log and one piece of what is sent.

- Gathered are neighbours: updates of one table with nothing between them that could change it. `submit()` comes before
  any other command, and at the end of what was received.
- What was gathered holds a lease of its table until it is answered.
- At most `_GROUP_BYTES` and one entry are gathered; they count as un-acknowledged from their submission on.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.tables import UpdateTableEntries
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.tables import ENTRY_BYTES_MAX, KEY_BYTES_MAX, Table, TableEntry
from segmentstore.wire.error_replies import is_stale
from segmentstore.wire.handle_pins import HandlePins, Pin
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.table_frames import (
    RUN_FRAMES,
    NamedTable,
    encode_single_update,
    payload_of_next,
    read_named_table,
    read_request_id,
    read_single_update,
)

_UPDATE_TABLE: Final = UpdateTableEntries.type
_GROUP_BYTES: Final = 64 * 1024
"""A group with so many bytes of keys and values is submitted at once."""


class UpdateAnswers(Protocol):
    """Where the outcomes go."""

    def reply_frames(self, frames: bytes, *, stored_bytes: int) -> None: ...

    def refuse(self, command: Command, error: SegmentStoreError) -> None: ...

    def start_over(self, command: Command) -> None: ...


class _Group:
    """Updates of one table that came one behind the other."""

    __slots__ = ("byte_count", "entries", "key_length", "pin", "request_ids", "segment")

    def __init__(self, segment: str, pin: Pin[Table]) -> None:
        self.segment = segment
        self.pin = pin
        self.key_length = pin.handle.key_length
        self.request_ids: list[int] = []
        self.entries: list[TableEntry] = []
        self.byte_count = 0

    def command(self, number: int) -> UpdateTableEntries:
        """One of them as if it had come alone."""
        return UpdateTableEntries(
            self.request_ids[number], self.segment, "", (self.entries[number],)
        )


class GatheredUpdates:
    """add() any number, then submit()."""

    def __init__(
        self,
        *,
        pins: HandlePins[Table],
        answers: UpdateAnswers,
        counters: WireCounters,
        charge: Callable[[int], None],
    ) -> None:
        self._pins = pins
        self._answers = answers
        self._counters = counters
        self._charge = charge
        self._named: NamedTable | None = None
        """Of the update before: clients go on with the same table."""
        self._group: _Group | None = None

    def gather(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """Gather the UpdateTableEntries from `position` on; `limit` is where the received bytes end.

        (where it stopped, how many were gathered). It stops before one that takes the way of all commands, behind one
        that made the group full, and after `RUN_FRAMES`: then it is time to look at how much is under way. Raises
        ProtocolError for a name that is no text.
        """
        count = 0
        while frame := payload_of_next(view, position, limit, kind=_UPDATE_TABLE):
            payload, end = frame
            if not self._add(payload):
                break
            position = end
            count += 1
            if self._group is None or count == RUN_FRAMES:
                break
        return position, count

    def _add(self, payload: bytes) -> bool:
        """Whether it is gathered."""
        named = self._named
        if named is None or not named.begins(payload):
            self.submit()
            named = self._named = read_named_table(payload)
            if named is None:
                return False
        entry = read_single_update(payload, named.end)
        if entry is None:
            return False
        group = self._group
        if group is None:
            pin = self._pins.lease_nowait(named.segment)
            if pin is None:
                return False
            group = self._group = _Group(named.segment, pin)
        key_bytes = len(entry.key)
        byte_count = key_bytes + len(entry.value)
        key_length = group.key_length
        if (
            key_bytes > KEY_BYTES_MAX
            or byte_count > ENTRY_BYTES_MAX
            or (key_length and key_bytes != key_length)
        ):
            return False  # Refused by itself: it must not take the others along.
        group.request_ids.append(read_request_id(payload))
        group.entries.append(entry)
        group.byte_count += byte_count
        if group.byte_count >= _GROUP_BYTES:
            self.submit()
        return True

    def submit(self) -> None:
        """Hand over what was gathered."""
        group = self._group
        if group is None:
            return
        self._group = None
        if not group.entries:
            self._pins.release(group.pin)
            return
        self._counters.requests += len(group.entries)
        self._charge(group.byte_count)
        try:
            future = group.pin.handle.update_each(group.entries)
        except SegmentStoreError as error:
            self._failed(group, error)
        else:
            future.add_done_callback(lambda done: self._settled(group, done))

    def _settled(self, group: _Group, done: "Future[Sequence[int | SegmentStoreError]]") -> None:
        error = done.exception()
        if isinstance(error, SegmentStoreError):
            self._failed(group, error)
            return
        self._pins.release(group.pin)
        if error is not None:
            raise error
        frames: list[bytes] = []
        stored_bytes = group.byte_count
        for number, outcome in enumerate(done.result()):
            if isinstance(outcome, int):
                frames.append(encode_single_update(group.request_ids[number], outcome))
            else:
                entry = group.entries[number]
                stored_bytes -= len(entry.key) + len(entry.value)
                self._answers.refuse(group.command(number), outcome)
        self._answers.reply_frames(b"".join(frames), stored_bytes=stored_bytes)

    def _failed(self, group: _Group, error: SegmentStoreError) -> None:
        stale = is_stale(error)
        if stale:
            self._pins.forget(group.pin)
        self._pins.release(group.pin)
        for number in range(len(group.entries)):
            if stale and isinstance(error, SegmentNotFoundError):
                # Nothing was stored, and the table may exist again under its name.
                self._answers.start_over(group.command(number))
            else:
                self._answers.refuse(group.command(number), error)
