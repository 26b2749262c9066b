"""The segment of a stream's watermarks: a revisioned stream to the readers' client.

Its bytes are events, each a watermark. The mark attribute (16 bytes, `MARK_ATTRIBUTE`) is an offset at which a client
that comes new may begin; absent means at the start offset.

Invariants:

- A watermark is appended under the length that was read before it: of two controllers one fails.
- The mark attribute moves with the append that makes it move, so it never points into the middle of an event.
- At most twice `watermarks_kept` watermarks are in the segment.
"""

from collections import deque
from contextlib import aclosing

from segmentstore.codec.stream_records.watermark import EVENT_HEADER, Watermark
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import (
    AttributeUpdate,
    ReadResultEntryKind,
    Segment,
    SegmentApi,
)

MARK_ATTRIBUTE = AttributeKey(bytes.fromhex("7df9a874246cc9d69397cdd19ead68c5"))
"""What a revisioned stream's client keeps its mark in."""

_WINDOW = 2
"""Watermarks before the newest that a client that comes new still reads."""


class MarkSegment:
    """One mark segment. `load` first."""

    def __init__(
        self, *, segments: SegmentApi, name: str, watermarks_kept: int, read_bytes: int
    ) -> None:
        self._segments = segments
        self._name = name
        self._watermarks_kept = watermarks_kept
        self._read_bytes = read_bytes
        self._offsets: deque[int] = deque()
        """Where the watermarks begin."""
        self._length = 0
        self.last: Watermark | None = None

    async def load(self) -> None:
        """Read what is there. Raises SegmentNotFoundError, CorruptedDataError."""
        async with self._segments.open_segment(self._name) as segment:
            start = segment.info().start_offset
            content = await self._content(segment, start)
        self._offsets.clear()
        self.last = None
        position = 0
        while position < len(content):
            if position + EVENT_HEADER.size > len(content):
                raise CorruptedDataError(f"watermark is cut off segment={self._name!r}")
            kind, length = EVENT_HEADER.unpack_from(content, position)
            end = position + EVENT_HEADER.size + length
            if kind != 0 or length < 0 or end > len(content):
                raise CorruptedDataError(f"no watermark segment={self._name!r} at={position}")
            self.last = Watermark.decode(content[position + EVENT_HEADER.size : end])
            self._offsets.append(start + position)
            position = end
        self._length = start + position

    async def append(self, watermark: Watermark) -> None:
        """Write the next one. Raises BadOffsetError if somebody else wrote one: load again."""
        event = watermark.encode_event()
        offsets = [*self._offsets, self._length]
        updates: list[AttributeUpdate] = []
        if len(offsets) > _WINDOW:
            updates.append(AttributeUpdate(MARK_ATTRIBUTE, offsets[-_WINDOW - 1]))
        async with self._segments.open_segment(self._name) as segment:
            await segment.append(event, offset=self._length, attribute_updates=updates, events=1)
        self._offsets.append(self._length)
        self._length += len(event)
        self.last = watermark
        if len(self._offsets) > 2 * self._watermarks_kept:
            while len(self._offsets) > self._watermarks_kept:
                self._offsets.popleft()
            await self._segments.truncate(self._name, self._offsets[0])

    async def _content(self, segment: Segment, start: int) -> bytes:
        content = bytearray()
        length = segment.info().length
        while start + len(content) < length:
            offset = start + len(content)
            async with aclosing(
                segment.read(offset, min(self._read_bytes, length - offset))
            ) as entries:
                async for entry in entries:
                    if entry.kind not in (ReadResultEntryKind.CACHE, ReadResultEntryKind.STORAGE):
                        break
                    content += await entry.content()
        return bytes(content)
