"""Finds the events in bytes of a segment: neighbours of one length by the array, others in one Python step each.

    event    int32 type, 0 | int32 length of the content | content      (big-endian)

Invariants:

- Type and length are read as one unsigned number: with any type but 0, or a negative length, it exceeds every buffer
  and ends the walk there, so one check behind the walk covers all of its steps.
- What is returned are whole events only; where the first incomplete one begins, and how long it is, is told.
- Nothing is guessed: a header says where the next one is, so equal headers at equal distances are those of neighbours.
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
_STEPS: Final = 256
"""Events walked over one by one, where lengths differ, before the array is tried again."""
_WINDOW: Final = 256
"""Headers compared at once."""

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
    found: list[Places] = []
    unpack = _HEADER.unpack_from
    at = 0
    while at <= last:
        step = unpack(content, at)[0] + EVENT_HEADER_BYTES
        alike = _count_alike(content, at, step)
        if alike > 1:
            found.append(np.arange(at, at + alike * step, step, dtype=np.int64))
            at += alike * step
        starts: list[int] = []
        add = starts.append
        for _ in range(_STEPS):
            if at > last:
                break
            add(at)
            at += unpack(content, at)[0] + EVENT_HEADER_BYTES
        found.append(np.array(starts, dtype=np.int64))
    if at <= end:
        found.append(np.array([at], dtype=np.int64))
    places = np.concatenate(found)
    rest = int(places[-1])
    rest_bytes = at - rest if at > end else 0 if at == end else EVENT_HEADER_BYTES
    if rest_bytes - EVENT_HEADER_BYTES >= _LENGTH_END:
        kind, length = struct.unpack_from(">ii", content, rest)
        raise CorruptedDataError(
            f"no event begins here segment={segment!r} offset={offset + rest} type={kind} length={length}"
        )
    return WalkedEvents(places[:-1], places[1:], rest, rest_bytes)


def _count_alike(content: BufferView, start: int, step: int) -> int:
    """How many events from `start` on take `step` bytes, as the first one does; the last may be cut off."""
    count = (len(content) - EVENT_HEADER_BYTES - start) // step + 1
    if count == 1:
        return 1
    headers = np.ndarray((count,), dtype=">u8", buffer=content, offset=start, strides=(step,))
    for first in range(0, count, _WINDOW):
        differs = headers[first : first + _WINDOW] != step - EVENT_HEADER_BYTES
        if differs.any():
            return first + int(differs.argmax())
    return count
