"""Finds where an event begins, from one that is known, by the headers of the events between.

    event    int32 type (0), int32 length of what follows, the event

A segment that holds something else ends the search with None: its bytes soon make no sense as headers.
"""

import struct
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

from segmentstore.contracts.segments import ReadResultEntryKind, Segment

EventNear: TypeAlias = Callable[[str, int], Awaitable[int | None]]
"""An event's beginning near an offset: the first at or above it, or one below it with whole events between; None if
nobody knows."""

_HEADER: Final = struct.Struct(">ii")
_PIECE_BYTES: Final = 64 << 10
WALKED_BYTES_MAX: Final = 256 << 20
"""How far an event is looked for."""


async def first_event_from(segment: Segment, position: int, target: int) -> int | None:
    """The first beginning of an event at or above `target`, counted on from `position`, where one begins.

    None for bytes that are no events, and beyond WALKED_BYTES_MAX. Raises what reading raises.
    """
    if target - position > WALKED_BYTES_MAX:
        return None
    while position < target:
        content = await _read(segment, position, _PIECE_BYTES)
        at = 0
        while position + at < target and len(content) - at >= _HEADER.size:
            kind, length = _HEADER.unpack_from(content, at)
            if kind != 0 or length < 0:
                return None
            at += _HEADER.size + int(length)
        if not at:
            return None
        position += at
    return position if position <= segment.info().length else None


async def _read(segment: Segment, offset: int, length: int) -> bytes:
    """As many of the bytes as there are."""
    content = segment.read_nowait(offset, length) or b""
    if len(content) == length:
        return content
    parts: list[bytes] = []
    async with aclosing(segment.read(offset, length)) as entries:
        async for entry in entries:
            if entry.kind in (ReadResultEntryKind.FUTURE, ReadResultEntryKind.END_OF_SEGMENT):
                break
            parts.append(await entry.content())
    return b"".join(parts)
