"""Decides frames: which entries, in which file, with which header. Pure: no I/O and no waiting.

Entries that were accepted and are not acknowledged yet stand in `PendingEntries`; `FramePlanner` makes frames of
them. A frame is planned as if all before it were written and synced already: if that fails, no other is ever written.
`FrameWriter` does what the planner says.

Invariants of frames:
- Frame numbers grow by one; vouched <= synced <= last, each of them only grows.
- Entries never use the last pages of a file, which truncations need.
- A file is released only when a synced frame calls a later one the oldest that is needed.

Invariants of pending entries:
- Addresses of in-flight and waiting entries strictly grow, in that order; they leave in it (L1).
- `outstanding_bytes` counts both, `waiting_bytes` and `room_bytes` the waiting ones; each entry is subtracted exactly
  once.
- A future that its waiter cancelled is left alone; its entry is not.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from segmentstore.contracts.identifiers import BufferView, LogAddress
from segmentstore.runtime.cancellation import fail_unless_done
from tier1.file_log.frames import (
    PAGE_BYTES,
    SINGLE_PAGE_ENTRY_BYTES_MAX,
    FrameEntry,
    FrameHeader,
    FrameKind,
    body_bytes,
    encode_single_page,
    frame_bytes,
)
from tier1.file_log.journals import MARK_PAGES, Journal, JournalPool
from tier1.file_log.settings import FileLogSettings


@dataclass(slots=True)
class PendingEntry(FrameEntry):
    """An accepted entry and the future of its append."""

    future: "asyncio.Future[LogAddress]"
    room_bytes: int
    """Space it needs if it is alone in its frame."""


class PlannedFrame(NamedTuple):
    """One write, decided on the loop and done in the executor."""

    header: FrameHeader
    offset: int
    """Of the frame in its file, and its length there: as the header says, without computing them anew."""
    length: int
    journal: Journal
    leaves: Journal | None
    """The journal before, if it has un-synced marks: it is synced first."""
    pending: tuple[PendingEntry, ...]
    sync: bool
    settles_mark: bool
    """A mark that was not synced stands before it in its file: the sync has to cover both, or the mark could be missing
    below a frame that vouches for it."""


class SinglePageFrame(NamedTuple):
    """A frame that is written and synced on the loop, by itself, with all its bytes."""

    journal: Journal
    offset: int
    content: bytes
    oldest_number: int
    """What its header calls the oldest frame that is needed."""


class PendingEntries:
    """The queue in front of the writer. Bounded by its callers, which respect outstanding_bytes_max."""

    def __init__(self) -> None:
        self._waiting: deque[PendingEntry] = deque()
        self._in_flight: deque[tuple[PendingEntry, ...]] = deque()
        self._room_bytes = 0
        self._waiting_bytes = 0
        self._outstanding_bytes = 0

    @property
    def outstanding_entries(self) -> int:
        return len(self._waiting) + sum(map(len, self._in_flight))

    @property
    def outstanding_bytes(self) -> int:
        return self._outstanding_bytes

    @property
    def waiting_bytes(self) -> int:
        """Payload that is in no frame yet."""
        return self._waiting_bytes

    @property
    def room_bytes(self) -> int:
        """What the waiting entries need at most, each in a frame of its own."""
        return self._room_bytes

    @property
    def next_room_bytes(self) -> int:
        """What the entry at the head needs; 0 if nothing waits."""
        return self._waiting[0].room_bytes if self._waiting else 0

    def add(self, pending: PendingEntry) -> None:
        self._waiting.append(pending)
        self._room_bytes += pending.room_bytes
        self._waiting_bytes += pending.length
        self._outstanding_bytes += pending.length

    def take(self, *, bytes_max: int, room: int) -> tuple[PendingEntry, ...]:
        """Put the next frame's entries in flight: at least one, up to `bytes_max` of payload and `room` of frame."""
        batch: list[PendingEntry] = []
        payload = 0
        while self._waiting:
            grown = payload + self._waiting[0].length
            too_long = batch and grown > bytes_max
            if too_long or frame_bytes(len(batch) + 1, grown) > room:
                break
            payload = grown
            batch.append(self._waiting.popleft())
            self._room_bytes -= batch[-1].room_bytes
        self._waiting_bytes -= payload
        self._in_flight.append(tuple(batch))
        return self._in_flight[-1]

    def acknowledge(self) -> None:
        """The oldest frame in flight is durable: complete its futures."""
        for pending in self._in_flight.popleft():
            self._outstanding_bytes -= pending.length
            if not pending.future.done():
                pending.future.set_result(LogAddress(pending.address))

    def fail_waiting(self, error: Exception) -> None:
        """Nothing that waits will be written."""
        waiting, self._waiting = self._waiting, deque()
        self._room_bytes = 0
        self._waiting_bytes = 0
        self._fail(waiting, error)

    def fail_all(self, error: Exception) -> None:
        """What is in flight is not known to be durable, and nothing follows it."""
        in_flight, self._in_flight = self._in_flight, deque()
        for batch in in_flight:
            self._fail(batch, error)
        self.fail_waiting(error)

    def check(self) -> None:
        """Prove the invariants. O(entries)."""
        outstanding = [*chain.from_iterable(self._in_flight), *self._waiting]
        addresses = [pending.address for pending in outstanding]
        assert addresses == sorted(set(addresses)), f"addresses out of order: {addresses}"
        held = sum(pending.length for pending in outstanding)
        assert held == self._outstanding_bytes, (
            f"outstanding_bytes={self._outstanding_bytes}, entries hold {held}"
        )
        waiting = sum(pending.length for pending in self._waiting)
        assert waiting == self._waiting_bytes, (
            f"waiting_bytes={self._waiting_bytes}, entries hold {waiting}"
        )
        room = sum(pending.room_bytes for pending in self._waiting)
        assert room == self._room_bytes, f"room_bytes={self._room_bytes}, entries need {room}"

    def _fail(self, pending_entries: Iterable[PendingEntry], error: Exception) -> None:
        for pending in pending_entries:
            self._outstanding_bytes -= pending.length
            fail_unless_done(pending.future, error)


class FramePlanner:
    """Where the log stands, and what comes next."""

    def __init__(
        self,
        *,
        first: FrameHeader,
        journals: Sequence[Journal],
        pending: PendingEntries,
        pool: JournalPool,
        settings: FileLogSettings,
    ) -> None:
        assert journals, "the last journal is the one that holds the epoch frame"
        self._log_id = first.log_id
        self._epoch = first.epoch
        self._generation = first.generation
        self._last_number = first.number
        self._last_address = first.last_address
        self._journals = deque(journals)
        self._pending = pending
        self._pool = pool
        self._settings = settings
        self._synced_number = first.number
        self._vouched_number = 0
        self._truncated_up_to = first.truncated_up_to

    @property
    def journals(self) -> tuple[Journal, ...]:
        """Files with live entries, oldest first; the last one is being written."""
        return tuple(self._journals)

    @property
    def truncated_up_to(self) -> int:
        return self._truncated_up_to

    @property
    def last_address(self) -> int:
        """Of the newest entry that is in a frame."""
        return self._last_address

    @property
    def unvouched(self) -> bool:
        """The last synced frame has no later one that calls it synced."""
        return self._synced_number > self._vouched_number

    # --- room --------------------------------------------------------------------------------

    def has_room(self, length: int, *, internal: bool) -> bool:
        """Whether an entry is certain of its place, now that no further file can be made."""
        room = frame_bytes(1, length)
        here = self._journals[-1].entry_room()
        if internal and not self._pending.room_bytes and room <= here:
            return True
        # The end of each file may be wasted on an entry that does not fit any more.
        waste = frame_bytes(1, self._settings.entry_bytes_max)
        rooms = [here, *(journal.entry_capacity() for journal in self._pool.spares)]
        reserve = 0 if internal else self._settings.reserve_bytes
        needed = self._pending.room_bytes + room + reserve
        return needed <= sum(max(0, free - waste) for free in rooms)

    # --- frames ------------------------------------------------------------------------------

    def plan_entries(self) -> PlannedFrame | None:
        """A frame of what waits; None if nothing does, or if there is no file to put it in."""
        needed = self._pending.next_room_bytes
        if not needed:
            return None
        spare = None
        room = self._journals[-1].entry_room()
        if needed > room:
            spare = self._pool.take()
            if spare is None:
                return None
            room = spare.entry_capacity()
        batch = self._pending.take(bytes_max=self._payload_bytes_max(), room=room)
        payload = sum(pending.length for pending in batch)
        return self._planned(
            FrameKind.ENTRIES,
            spare,
            batch,
            last_address=batch[-1].address,
            length=body_bytes(len(batch), payload),
            sync=True,
        )

    def _payload_bytes_max(self) -> int:
        """Large loads are halved, so that one frame is filled by callers while the other is on its way to the disk.

        A rest that is not worth a sync of its own rides along: otherwise every third frame holds one small entry.
        """
        settings = self._settings
        bytes_max = max(self._pending.outstanding_bytes // 2, 2 * settings.ahead_bytes_min)
        if self._pending.waiting_bytes - bytes_max < settings.ahead_bytes_min:
            bytes_max += settings.ahead_bytes_min
        return min(settings.batch_bytes_max, bytes_max)

    def plan_mark(self, *, truncation: bool) -> PlannedFrame | None:
        """A frame without entries: synced for a truncation, else only to vouch. None if there is no room for it."""
        spare = None
        if not self._journals[-1].mark_room(truncation=truncation):
            spare = self._pool.take() if truncation else None
            if spare is None:
                return None
        return self._planned(
            FrameKind.MARK,
            spare,
            (),
            last_address=self._last_address,
            length=0,
            sync=truncation,
        )

    def _planned(
        self,
        kind: FrameKind,
        spare: Journal | None,
        pending: tuple[PendingEntry, ...],
        *,
        last_address: int,
        length: int,
        sync: bool,
    ) -> PlannedFrame:
        leaves = None
        number = self._last_number + 1
        if spare is not None:
            before = self._journals[-1]
            leaves = before if before.unsynced else None
            before.unsynced = False
            spare.begin(generation=self._generation + 1, first_number=number)
            self._journals.append(spare)
        journal = self._journals[-1]
        settles_mark = sync and journal.unsynced
        offset = journal.position
        header = FrameHeader(
            kind=kind,
            log_id=self._log_id,
            epoch=self._epoch,
            generation=journal.generation,
            number=number,
            previous_epoch=self._epoch,
            previous_number=self._last_number,
            synced_number=self._synced_number,
            oldest_number=self._oldest_needed().first_number,
            truncated_up_to=self._truncated_up_to,
            last_address=last_address,
            page=offset // PAGE_BYTES,
            entry_count=len(pending),
            body_bytes=length,
        )
        frame_length = header.length
        journal.advance(frame_length, last_address=last_address, synced=sync)
        self._generation = journal.generation
        self._last_number = number
        self._last_address = last_address
        self._vouched_number = self._synced_number
        if sync:
            self._synced_number = number
        return PlannedFrame(
            header, offset, frame_length, journal, leaves, pending, sync, settles_mark
        )

    def plan_single_page(
        self, address: int, pieces: Sequence[BufferView], length: int
    ) -> SinglePageFrame | None:
        """A synced frame of one page for this entry alone, while nothing else waits; None if that is not its shape."""
        journal = self._journals[-1]
        offset = journal.position
        # As entry_room() says, and _oldest_needed() below; each call fewer counts here.
        if (
            length > SINGLE_PAGE_ENTRY_BYTES_MAX
            or journal.unsynced
            or offset + (1 + MARK_PAGES) * PAGE_BYTES > journal.size_bytes
        ):
            return None
        oldest = self._journals[0]
        if oldest.last_address <= self._truncated_up_to:
            oldest = self._oldest_needed()
        oldest_number = oldest.first_number
        number = self._last_number + 1
        content = encode_single_page(
            log_id=self._log_id,
            epoch=self._epoch,
            generation=journal.generation,
            number=number,
            synced_number=self._synced_number,
            oldest_number=oldest_number,
            truncated_up_to=self._truncated_up_to,
            address=address,
            page=offset // PAGE_BYTES,
            pieces=pieces,
            length=length,
        )
        journal.position = offset + PAGE_BYTES
        journal.last_address = self._last_address = address
        self._generation = journal.generation
        self._vouched_number = self._synced_number
        self._last_number = self._synced_number = number
        return SinglePageFrame(journal, offset, content, oldest_number)

    # --- truncation --------------------------------------------------------------------------

    def truncate(self, up_to: int) -> bool:
        """Move the truncation point forward; whether recording that is worth a frame, with space as it is."""
        self._truncated_up_to = max(self._truncated_up_to, up_to)
        # On a full disk the last page is kept for a truncation that frees something; others ride on the next frame.
        scarce = self._pool.full and not self._journals[-1].mark_room(truncation=False)
        return self._oldest_needed() is not self._journals[0] or not scarce

    def release(self, oldest_number: int) -> list[Journal]:
        """Give up the files before the one that begins with this frame; a synced frame calls it the oldest needed."""
        released = []
        while self._journals[0].first_number < oldest_number:
            released.append(self._journals.popleft())
        return released

    def _oldest_needed(self) -> Journal:
        for journal in self._journals:
            if journal.last_address > self._truncated_up_to:
                return journal
        return self._journals[-1]

    def check(self) -> None:
        """Prove the invariants. O(journals)."""
        assert self._vouched_number <= self._synced_number <= self._last_number, (
            f"frames vouched={self._vouched_number} synced={self._synced_number} last={self._last_number}"
        )
        numbers = [journal.first_number for journal in self._journals]
        assert numbers == sorted(numbers), f"journals out of order: {numbers}"
