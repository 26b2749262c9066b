"""Where the batches of a partition lie in its segment: positions in memory, marks in the segment, walks over headers.

A segment of a partition holds batches one behind the other, nothing before, between or behind them. Positions of some
of them are known, the others are found by walking over headers from there.

| what | one for each | where |
|---|---|---|
| position | POSITION_BYTES | in memory, the newest so many; of batches appended or walked over since the recovery |
| mark | `mark_bytes` | an attribute of the segment, stored in the append of the batch that begins there |

LAST_MARK is the number of the newest mark; absent: there is none.

    mark k     key: b"topic mark ", u64 k. The first batch that begins at or behind byte k * mark_bytes
    value      u64 position of that batch, u64 its base offset, i64 highest time of all records before it (Unix
               milliseconds; NO_TIME without records), u32 count of the pages of producers that were stored with it

Invariants:

- Everything but the segment itself may be lost: a walk from its start finds every batch.
- Offsets, positions and highest times of later positions and marks are not lower.
- A header that is none, or that ends behind the end, raises CorruptedDataError; a walk never guesses.
"""

import asyncio
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchBytes,
    BatchError,
    BatchHeader,
    parse_header,
)
from segmentstore.codec.topic_files import count_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    EVENT_COUNT,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import (
    ReadOnlySegment,
    Segment,
    SegmentProperties,
    read_available,
)

LAST_MARK: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x02")
POSITION_BYTES: Final = 64 * 1024
NO_TIME: Final = -(1 << 63)
"""Lower than every time."""

_WALK_BYTES: Final = 64 * 1024
_MARK: Final = Struct(">QQqI")
_MARK_KEY: Final = b"topic mark "


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a batch, or the end of the last one."""

    position: int
    offset: int
    highest_ms: int
    """Highest time of all records before it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that is stored with the segment."""

    place: Place
    producer_pages: int


def mark_key(number: int) -> AttributeKey:
    """The attribute that holds a mark."""
    return AttributeKey(_MARK_KEY + number.to_bytes(8, "big"))


def encode_mark(mark: Mark) -> bytes:
    """The attribute's value."""
    place = mark.place
    return _MARK.pack(place.position, place.offset, place.highest_ms, mark.producer_pages)


def decode_mark(value: AttributeValue) -> Mark:
    """Raises CorruptedDataError."""
    if not isinstance(value, bytes):
        raise CorruptedDataError(f"a mark is a number value={value}")
    try:
        position, offset, highest_ms, pages = _MARK.unpack(value)
    except struct.error as error:
        raise CorruptedDataError(f"a mark has another length length={len(value)}") from error
    return Mark(Place(position, offset, highest_ms), pages)


class BatchPositions:
    """Places of batches in memory, in order."""

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        self._positions = array("q")
        self._offsets = array("q")
        self._highest_ms = array("q")

    def __len__(self) -> int:
        return len(self._positions)

    def clear(self) -> None:
        for each in (self._positions, self._offsets, self._highest_ms):
            del each[:]

    def add(self, place: Place) -> None:
        """If it lies far enough behind the last one."""
        if self._positions and place.position - self._positions[-1] < POSITION_BYTES:
            return
        if len(self._positions) >= self._count_max:
            # Many at once: the front of an array is expensive to remove.
            many = max(1, self._count_max // 4)
            for each in (self._positions, self._offsets, self._highest_ms):
                del each[:many]
        self._positions.append(place.position)
        self._offsets.append(place.offset)
        self._highest_ms.append(place.highest_ms)

    def drop_before(self, position: int) -> None:
        """The segment begins there now."""
        many = bisect_left(self._positions, position)
        for each in (self._positions, self._offsets, self._highest_ms):
            del each[:many]

    def at_or_before_offset(self, offset: int) -> Place | None:
        """The last known place whose batch does not begin behind the offset."""
        return self._place(bisect_right(self._offsets, offset) - 1)

    def at_or_before_position(self, position: int) -> Place | None:
        return self._place(bisect_right(self._positions, position) - 1)

    def before_time(self, time_ms: int) -> Place | None:
        """The last known place before which every record is older than that."""
        return self._place(bisect_left(self._highest_ms, time_ms) - 1)

    def _place(self, number: int) -> Place | None:
        if number < 0:
            return None
        return Place(self._positions[number], self._offsets[number], self._highest_ms[number])

    def check(self) -> None:
        """Proves the order. O(n)."""
        assert len(self._positions) == len(self._offsets) == len(self._highest_ms)
        assert list(self._positions) == sorted(set(self._positions)), "positions do not grow"
        assert list(self._offsets) == sorted(set(self._offsets)), "offsets do not grow"
        assert list(self._highest_ms) == sorted(self._highest_ms), "times go down"


async def read_mark(segment: Segment, number: int) -> Mark | None:
    """None if there is none of that number, or none any more. Raises SegmentStoreError."""
    key = mark_key(number)
    value = (await segment.load_attributes([key])).get(key)
    return None if value is None else decode_mark(value)


async def last_mark_that(
    segment: Segment, fits: Callable[[Place], bool], *, mark_bytes: int
) -> Place:
    """The last mark that fits (those before it do as well), or the first place. O(log marks) reads.

    Raises SegmentStoreError.
    """
    info = segment.info()
    best = await first_place(segment, info)
    low = info.start_offset // mark_bytes + 1
    high = count_of(info.core_attributes, LAST_MARK, name=info.name)
    while low <= high:
        middle = (low + high) // 2
        mark = await read_mark(segment, middle)
        if mark is None or mark.place.position < best.position or fits(mark.place):
            # One that was removed lies below the start of the segment.
            if mark is not None and mark.place.position >= best.position:
                best = mark.place
            low = middle + 1
        else:
            high = middle - 1
    return best


async def first_place(segment: Segment, info: SegmentProperties) -> Place:
    """Of the first batch that is still there, or the end. Raises SegmentStoreError."""
    if info.start_offset == info.length:
        count = count_of(info.core_attributes, EVENT_COUNT, name=info.name)
        return Place(info.length, count, NO_TIME)
    content = await read_some(
        segment, info.start_offset, least=BATCH_HEADER_BYTES, most=BATCH_HEADER_BYTES
    )
    header = header_at(segment, content, 0, position=info.start_offset, end=info.length)
    return Place(info.start_offset, header.base_offset, NO_TIME)


async def read_some(segment: ReadOnlySegment, position: int, *, least: int, most: int) -> bytes:
    """Committed bytes from there, `least` of them at least and at most `most`. Raises CorruptedDataError if there are
    fewer, and what reading raises."""
    content = segment.read_nowait(position, most)
    if content is None or len(content) < least:
        content = await read_available(segment, position, most)
    if len(content) < least:
        raise CorruptedDataError(
            f"a partition ends inside of a batch name={segment.name!r} position={position}"
            f" expected={least} length={len(content)}"
        )
    return content


async def walk_batches(
    segment: ReadOnlySegment, start: Place, end: int
) -> AsyncGenerator[tuple[Place, BatchHeader], None]:
    """The place and the header of each batch from `start` up to position `end`. Hold it in `aclosing`.

    Raises CorruptedDataError, and what reading raises.
    """
    position, highest_ms = start.position, start.highest_ms
    while position < end:
        content = await read_some(
            segment,
            position,
            least=min(BATCH_HEADER_BYTES, end - position),
            most=min(_WALK_BYTES, end - position),
        )
        at = 0
        while at == 0 or at + BATCH_HEADER_BYTES <= len(content):
            header = header_at(segment, content, at, position=position + at, end=end)
            yield Place(position + at, header.base_offset, highest_ms), header
            highest_ms = max(highest_ms, header.max_timestamp)
            at += header.size
        position += at
        # What is in memory is read without a wait, and a segment of small batches has hundreds of thousands.
        await asyncio.sleep(0)


def header_at(
    segment: ReadOnlySegment, content: BatchBytes, at: int, *, position: int, end: int
) -> BatchHeader:
    """The header at `at` in the content, which is at `position` in the segment. Raises CorruptedDataError."""
    try:
        header = parse_header(content, at)
    except BatchError as error:
        raise CorruptedDataError(
            f"a partition has no batch here name={segment.name!r} position={position}: {error}"
        ) from error
    if position + header.size > end or header.last_offset_delta < 0:
        raise CorruptedDataError(
            f"a batch ends behind its partition name={segment.name!r} position={position}"
            f" size={header.size} end={end} last_offset_delta={header.last_offset_delta}"
        )
    return header
