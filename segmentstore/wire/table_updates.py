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
    AlikeUpdates,
    NamedTable,
    encode_single_updates,
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
        self._alike: AlikeUpdates | None = None
        """The last two of the same length, in that table: clients go on with such ones."""
        self._length_before = 0
        self._group: _Group | None = None

    def gather(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """Gather the UpdateTableEntries from `position` on; `limit` is where the received bytes end.

        (where it stopped, how many were gathered). It stops before one that takes the way of all commands, behind one
        that made the group full, and after `RUN_FRAMES`: then it is time to look at how much is under way. Raises
        ProtocolError for a name that is no text.
        """
        count = 0
        while True:
            alike = self._alike
            if alike is not None:
                taken = self._add_alike(alike, view, position, limit, RUN_FRAMES - count)
                position += taken * alike.frame_bytes
                count += taken
                if taken and (self._group is None or count == RUN_FRAMES):
                    break
            frame = payload_of_next(view, position, limit, kind=_UPDATE_TABLE)
            if frame is None or not self._add(frame[0]):
                break
            position = frame[1]
            count += 1
            if self._group is None or count == RUN_FRAMES:
                break
        return position, count

    def _add_alike(
        self, alike: AlikeUpdates, view: memoryview, position: int, limit: int, count: int
    ) -> int:
        """How many were gathered, of those that differ from the last one in no length."""
        group = self._group
        room = _GROUP_BYTES - (group.byte_count if group is not None else 0)
        # Up to the one that makes the group full.
        count = min(count, -(-room // alike.entry_bytes))
        request_ids, entries = alike.read(view, position, limit, count=count)
        if not entries:
            return 0
        if group is None:
            assert self._named is not None, "alike with what was never named"
            pin = self._pins.lease_nowait(self._named.segment)
            if pin is None:
                return 0
            group = self._group = _Group(self._named.segment, pin)
        if group.key_length not in (0, len(entries[0].key)):
            return 0
        group.request_ids += request_ids
        group.entries += entries
        group.byte_count += len(entries) * alike.entry_bytes
        if group.byte_count >= _GROUP_BYTES:
            self.submit()
        return len(entries)

    def _add(self, payload: bytes) -> bool:
        """Whether it is gathered."""
        named = self._named
        if named is None or not named.begins(payload):
            self.submit()
            self._alike = None
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
        if len(payload) == self._length_before:
            self._alike = AlikeUpdates(named, entry, payload)
        self._length_before = len(payload)
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
        request_ids: list[int] = []
        versions: list[int] = []
        stored_bytes = group.byte_count
        for number, outcome in enumerate(done.result()):
            if isinstance(outcome, int):
                request_ids.append(group.request_ids[number])
                versions.append(outcome)
            else:
                entry = group.entries[number]
                stored_bytes -= len(entry.key) + len(entry.value)
                self._answers.refuse(group.command(number), outcome)
        self._answers.reply_frames(
            encode_single_updates(request_ids, versions), stored_bytes=stored_bytes
        )

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
