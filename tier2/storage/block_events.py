"""What is known of the events of one block, in the words of the segment that has it now (H76).

- Numbers are the segment's, whatever segment the bytes were written to.
- What a layout entry says of its first event decides over the image: a merge knows more than the source did.
"""

from tier2.format.chunk_index import BlockEntry, EventInformation
from tier2.storage.run_values import EntryEvents, LayoutEntry


def block_events(entry: LayoutEntry, block: BlockEntry) -> EventInformation | None:
    """None if nothing is known. O(1)."""
    if entry.events is EntryEvents.NOT_COUNTED:
        return None
    known = block.events
    if entry.events is EntryEvents.BEGINS_ON_ONE and block.first_offset == entry.chunk_offset:
        return EventInformation(
            first_event_position=0,
            first_event_number=entry.event_shift,
            lowest_time_ms=known.lowest_time_ms if known else 0,
            highest_time_ms=known.highest_time_ms if known else 0,
        )
    if known is None or known.first_event_position is None:
        return known
    return EventInformation(
        first_event_position=known.first_event_position,
        first_event_number=known.first_event_number + entry.event_shift,
        lowest_time_ms=known.lowest_time_ms,
        highest_time_ms=known.highest_time_ms,
    )
