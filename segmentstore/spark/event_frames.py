"""Finds the events in bytes of a segment: one Python step an event, everything else by the array.

    event    int32 type, 0 | int32 length of the content | content      (big-endian)

Invariants:

- Type and length are read as one unsigned number: with any type but 0, or a negative length, it exceeds every buffer
  and ends the walk there, so one check behind the walk covers all of its steps.
- What is returned are whole events only; where the first incomplete one begins, and how long it is, is told.
"""

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

EVENT_HEADER_BYTES: Final = 8
_LENGTH_END: Final = 1 << 31
_HEADER = struct.Struct(">Q")

Places = npt.NDArray[np.int64]


class WalkedEvents(NamedTuple):
    """Events in a buffer, by positions in it."""

    starts: Places
    """Of the headers."""
    ends: Places
    """Behind the contents."""
    rest: int
    """Where the first incomplete event begins; the length of the buffer if the last one is complete."""
    rest_bytes: int
    """How many bytes that one has with its header, or at least has; 0 without one."""


def walk_events(content: BufferView, *, segment: str, offset: int) -> WalkedEvents:
    """The events of a buffer that begins with one, at `offset` of the segment. Raises CorruptedDataError."""
    end = len(content)
    last = end - EVENT_HEADER_BYTES
    starts: list[int] = []
    add, unpack = starts.append, _HEADER.unpack_from
    at = 0
    while at <= last:
        add(at)
        at += unpack(content, at)[0] + EVENT_HEADER_BYTES
    rest, rest_bytes = at, 0 if at == end else EVENT_HEADER_BYTES
    if at > end:
        rest = starts.pop()
        rest_bytes = at - rest
        if rest_bytes - EVENT_HEADER_BYTES >= _LENGTH_END:
            kind, length = struct.unpack_from(">ii", content, rest)
            raise CorruptedDataError(
                f"no event begins here segment={segment!r} offset={offset + rest} type={kind} length={length}"
            )
    places = np.array([*starts, rest], dtype=np.int64)
    return WalkedEvents(places[:-1], places[1:], rest, rest_bytes)
