"""An event as a reader gives it to its user, and the parser that cuts the bytes of a segment into events.

Invariant: `EventParser` takes bytes cut anywhere and gives whole events; what is left over is at most one incomplete
event. Bytes that are no event raise (codec/event_frame.py).
"""

from dataclasses import dataclass

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, NoEventError, walk_events
from segmentstore.contracts.errors import CorruptedDataError


@dataclass(slots=True)
class Event:
    """One event and where it lies; offsets in bytes of its segment, headers included."""

    data: bytes
    stream: str
    """`scope/stream`."""
    segment_id: int
    offset: int
    next_offset: int


class EventParser:
    """Cuts the bytes of one segment into events."""

    def __init__(self, segment: str, offset: int) -> None:
        self._segment = segment
        self._offset = offset
        self._rest = bytearray()

    @property
    def offset(self) -> int:
        """Where the first event begins that was not given yet."""
        return self._offset

    @property
    def next_offset(self) -> int:
        """Where the next piece has to begin."""
        return self._offset + len(self._rest)

    def events(self, piece: bytes) -> list[tuple[bytes, int]]:
        """Each event that is complete now, and the offset behind it. Raises CorruptedDataError."""
        # A bytearray grows in amortised constant time, so that an event of many pieces is not copied once a piece.
        self._rest += piece
        found: list[tuple[bytes, int]] = []
        taken = 0
        with memoryview(self._rest) as content:
            try:
                for start, end in walk_events(content):
                    if end > len(content):
                        break
                    self._offset += end - start
                    found.append((bytes(content[start + EVENT_HEADER_BYTES : end]), self._offset))
                    taken = end
            except NoEventError as error:
                raise CorruptedDataError(
                    f"no event begins here segment={self._segment!r} offset={self._offset} "
                    f"type={error.event_type} length={error.length}"
                ) from error
        del self._rest[:taken]
        return found
