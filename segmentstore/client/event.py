"""An event as a reader gives it to its user, and the bytes of events in a segment.

| field | bytes |
|---|---|
| type | int32, 0 |
| length | int32, of the content |
| content | so many bytes |

Invariants:

- `EventParser` takes bytes cut anywhere and gives whole events; what is left over is at most one incomplete event.
- A type other than 0 means that the segment holds something else than events (or that the offset is not the start of
  one); it raises and never guesses.
"""

import struct
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

EVENT_HEADER_BYTES: Final = 8
_EVENT_HEADER = struct.Struct(">ii")


@dataclass(slots=True)
class Event:
    """One event and where it lies; offsets in bytes of its segment, headers included."""

    data: bytes
    stream: str
    """`scope/stream`."""
    segment_id: int
    offset: int
    next_offset: int


def frame_event(content: BufferView) -> bytes:
    """The event with its header."""
    return _EVENT_HEADER.pack(0, len(content)) + content


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
        start = 0
        with memoryview(self._rest) as content:
            while len(content) - start >= EVENT_HEADER_BYTES:
                kind, length = _EVENT_HEADER.unpack_from(content, start)
                if kind != 0 or length < 0:
                    raise CorruptedDataError(
                        f"no event begins here segment={self._segment!r} offset={self._offset} "
                        f"type={kind} length={length}"
                    )
                following = start + EVENT_HEADER_BYTES + length
                if following > len(content):
                    break
                self._offset += following - start
                found.append((bytes(content[start + EVENT_HEADER_BYTES : following]), self._offset))
                start = following
        del self._rest[:start]
        return found
