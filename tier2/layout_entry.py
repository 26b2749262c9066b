"""One entry of a segment's layout: where a chunk image lies, which bytes of the segment it holds, what of its events.

After a segment was merged into another, the image's own first offset is still that in the source, and so are its event
numbers: the layout entry alone says where the bytes are in the segment.

    value    identity (20), u64 start offset in the segment, u64 position and u64 size of the image in the object,
             u32 file CRC32 of the image, u64 the image's own first offset; for moved bytes then
             u8 events (0 as the image says, 1 the entry begins on one, 2 those of the image do not count),
             u64 what to add to the image's event numbers. Both are left out where they are zero

All numbers are big-endian. The end offset is in the key (tier2/sst/keyspace.py).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from segmentstore.contracts.errors import CorruptedDataError
from tier2.container_objects import IDENTITY_BYTES, ObjectIdentity
from tier2.format.chunk_decoder import ChunkIdentity
from tier2.format.chunk_format import BlockEntry, EventInformation

_LAYOUT_ENTRY = struct.Struct(f">{IDENTITY_BYTES}sQQQIQ")
_LAYOUT_ENTRY_EVENTS = struct.Struct(">BQ")


class EntryEvents(IntEnum):
    """What a layout entry says of the events in its image. Persistent: never renumber."""

    AS_IN_IMAGE = 0
    BEGINS_ON_ONE = 1
    """The entry begins with an event, whatever the image knows of its first block."""
    NOT_COUNTED = 2
    """The segment does not count the image's events: their numbers mean nothing here."""


_ENTRY_EVENTS_KNOWN = frozenset(int(events) for events in EntryEvents)


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Where the bytes [start_offset, end_offset) of a segment lie."""

    start_offset: int
    end_offset: int
    identity: ObjectIdentity
    position: int
    size: int
    file_crc32: int
    chunk_offset: int
    events: EntryEvents = EntryEvents.AS_IN_IMAGE
    event_shift: int = 0
    """What to add to the image's event numbers to have the segment's."""

    @property
    def length(self) -> int:
        return self.end_offset - self.start_offset

    @property
    def chunk_identity(self) -> ChunkIdentity:
        """What is recorded of the image, to compare it with."""
        return ChunkIdentity(
            size=self.size, file_crc32=self.file_crc32, start_offset=self.chunk_offset
        )

    def encode(self) -> bytes:
        place = _LAYOUT_ENTRY.pack(
            self.identity.encode(),
            self.start_offset,
            self.position,
            self.size,
            self.file_crc32,
            self.chunk_offset,
        )
        if not self.events and not self.event_shift:
            return place
        return place + _LAYOUT_ENTRY_EVENTS.pack(self.events, self.event_shift)

    @staticmethod
    def decode(end_offset: int, value: bytes) -> "LayoutEntry":
        """Raises CorruptedDataError."""
        if len(value) not in (_LAYOUT_ENTRY.size, _LAYOUT_ENTRY.size + _LAYOUT_ENTRY_EVENTS.size):
            raise CorruptedDataError(f"layout entry has a wrong size bytes={len(value)}")
        identity, start, position, size, crc, chunk_offset = _LAYOUT_ENTRY.unpack_from(value)
        if start >= end_offset:
            raise CorruptedDataError(f"layout entry is empty start={start} end={end_offset}")
        events, shift = 0, 0
        if len(value) > _LAYOUT_ENTRY.size:
            events, shift = _LAYOUT_ENTRY_EVENTS.unpack_from(value, _LAYOUT_ENTRY.size)
            if events not in _ENTRY_EVENTS_KNOWN:
                raise CorruptedDataError(f"layout entry of an unknown kind events={events}")
        return LayoutEntry(
            start,
            end_offset,
            ObjectIdentity.decode(identity),
            position,
            size,
            crc,
            chunk_offset,
            EntryEvents(events),
            shift,
        )

    def block_events(self, block: BlockEntry) -> EventInformation | None:
        """What is known of the events of one block, in the words of the segment that has it now; None if nothing is.

        - Numbers are the segment's, whatever segment the bytes were written to.
        - What the layout entry says of its first event decides over the image: a merge knows more than the source did.

        O(1).
        """
        if self.events is EntryEvents.NOT_COUNTED:
            return None
        known = block.events
        if self.events is EntryEvents.BEGINS_ON_ONE and block.first_offset == self.chunk_offset:
            return EventInformation(
                first_event_position=0,
                first_event_number=self.event_shift,
                lowest_time_ms=known.lowest_time_ms if known else 0,
                highest_time_ms=known.highest_time_ms if known else 0,
            )
        if known is None or known.first_event_position is None:
            return known
        return EventInformation(
            first_event_position=known.first_event_position,
            first_event_number=known.first_event_number + self.event_shift,
            lowest_time_ms=known.lowest_time_ms,
            highest_time_ms=known.highest_time_ms,
        )
