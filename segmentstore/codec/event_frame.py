"""Events as they stand in a segment, and walks over their headers.

| field | bytes |
|---|---|
| type | int32, big-endian, 0 |
| length | int32, big-endian, of the content |
| content | so many bytes |

Invariant: a type other than 0, or a length below 0, says that no event begins there: the segment holds something else,
or the place is inside of an event. A walk that meets one raises and never guesses.
"""

import struct
from collections.abc import Iterator
from typing import Final

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

EVENT_HEADER: Final = struct.Struct(">ii")
EVENT_HEADER_BYTES: Final = 8
assert EVENT_HEADER.size == EVENT_HEADER_BYTES, f"event header bytes={EVENT_HEADER.size}"


class NoEventError(CorruptedDataError):
    """The bytes at a position are no header of an event."""

    def __init__(self, position: int, event_type: int, length: int) -> None:
        super().__init__(
            f"no event begins here position={position} type={event_type} length={length}"
        )
        self.position = position
        """In the content that was walked over."""
        self.event_type = event_type
        self.length = length


def frame_event(content: BufferView) -> bytes:
    """The event with its header."""
    return EVENT_HEADER.pack(0, len(content)) + content


def walk_events(content: BufferView, position: int = 0) -> Iterator[tuple[int, int]]:
    """Start and end of every event whose header is in the content; the last one may end beyond it.

    Raises NoEventError, when it comes to it.
    """
    last = len(content) - EVENT_HEADER_BYTES
    while position <= last:
        kind, length = EVENT_HEADER.unpack_from(content, position)
        if kind != 0 or length < 0:
            raise NoEventError(position, kind, length)
        end = position + EVENT_HEADER_BYTES + length
        yield position, end
        position = end


def skip_events(
    content: BufferView, position: int = 0, *, stop: int | None = None
) -> tuple[int, int]:
    """The count of events that begin in the content, before `stop` if given, and the end of the last of them.

    A header that is cut by the end of the content is not counted. Raises NoEventError.
    """
    unpack = EVENT_HEADER.unpack_from
    end = len(content) - EVENT_HEADER_BYTES + 1
    if stop is not None:
        end = min(end, stop)
    count = 0
    while position < end:
        kind, length = unpack(content, position)
        if kind != 0 or length < 0:
            raise NoEventError(position, kind, length)
        position += EVENT_HEADER_BYTES + length
        count += 1
    return count, position
