"""Records by time: the first that is not older than a time, and which record of a partition is the latest, the one with
the highest time, and of several with that time the first.

A rank orders records so that the lowest one is the latest record. What an index says of many records at once, the
highest time and the first offset, is a rank too: no record of them has a lower one. So what has the lowest rank is read
first, and a record whose rank is lower than that of everything else is the answer, without a look at the rest.

Batches that are long, or that may be behind decompression, are looked into in a thread: a megabyte may hold millions of
records.

Invariants:

- Compressed batches are looked into one after the other, so that only one is decompressed at a time.
- A batch whose records cannot be read has none, as in files, and that is logged: a producer may have sent it so, and a
  look for a time is answered all the same. Who reads from an offset of it is told.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Self, TypeVar

from segmentstore.codec.record_batch import BatchError, Compression, parse_header
from segmentstore.codec.record_columns import columns_of_batches
from segmentstore.runtime.cancellation import run_blocking

_LOG = logging.getLogger(__name__)

_Found = TypeVar("_Found")

_INLINE_BYTES_MAX: Final = 64 << 10
"""Of one batch without a codec that is looked into on the loop: it takes less than a millisecond. And of several that
are looked into together."""


class RecordRank(NamedTuple):
    """Of one record, or a lower bound of the ranks of several."""

    minus_time_ms: int
    offset: int

    @classmethod
    def of(cls, time_ms: int, offset: int) -> Self:
        return cls(-time_ms, offset)

    @property
    def time_ms(self) -> int:
        return -self.minus_time_ms


def lower_rank(one: RecordRank | None, other: RecordRank | None) -> RecordRank | None:
    """Of the later of two records, either of which may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


async def latest_in_batches(content: bytes, from_offset: int) -> RecordRank | None:
    """Of the latest record of whole batches at or behind an offset; None if there is none.

    Every record is looked at: what a batch's header says of its times is its producer's word. Raises BatchError for
    what is no batch.
    """
    return await _beside_the_loop(content, partial(_latest_in, content, from_offset))


async def first_not_older(content: bytes, time_ms: int, from_offset: int) -> tuple[int, int] | None:
    """Offset and time of the first record of whole batches, at or behind an offset, that is not older than a time.

    None if there is none. Raises BatchError for what is no batch.
    """
    return await _beside_the_loop(content, partial(_first_not_older, content, time_ms, from_offset))


async def _beside_the_loop(content: bytes, look: Callable[[], _Found]) -> _Found:
    if (
        len(content) <= _INLINE_BYTES_MAX
        and (header := parse_header(content)).compression is Compression.NONE
        and header.size == len(content)
    ):
        return look()
    return await run_blocking(None, look)


def _latest_in(content: bytes, from_offset: int) -> RecordRank | None:
    best: RecordRank | None = None
    for found in _looked_into(content, partial(_latest_in_part, from_offset=from_offset)):
        best = lower_rank(best, found)
    return best


def _latest_in_part(part: memoryview, from_offset: int) -> RecordRank | None:
    columns, _ = columns_of_batches(part, from_offset)
    if not len(columns):
        return None
    highest_ms = max(columns.timestamps_ms)
    row = next(row for row, time_ms in enumerate(columns.timestamps_ms) if time_ms == highest_ms)
    return RecordRank.of(highest_ms, columns.offsets[row])


def _first_not_older(content: bytes, time_ms: int, from_offset: int) -> tuple[int, int] | None:
    look = partial(_first_not_older_in_part, time_ms=time_ms, from_offset=from_offset)
    return next((found for found in _looked_into(content, look) if found is not None), None)


def _first_not_older_in_part(
    part: memoryview, time_ms: int, from_offset: int
) -> tuple[int, int] | None:
    columns, _ = columns_of_batches(part, from_offset)
    times = columns.timestamps_ms
    row = next((row for row, each in enumerate(times) if each >= time_ms), None)
    return None if row is None else (columns.offsets[row], times[row])


def _looked_into(content: bytes, look: Callable[[memoryview], _Found]) -> Iterator[_Found]:
    """What is found in each part, but for batches that cannot be read. Raises BatchError for what is no batch."""
    for part in _parts(content):
        try:
            yield look(part)
        except BatchError:
            yield from _looked_into_each(part, look)


def _looked_into_each(part: memoryview, look: Callable[[memoryview], _Found]) -> Iterator[_Found]:
    at = 0
    while at < len(part):
        header = parse_header(part, at)
        try:
            yield look(part[at : at + header.size])
        except BatchError as error:
            _LOG.warning(
                "a batch that cannot be read is passed over by a look for a time first_offset=%d next_offset=%d: %s",
                header.base_offset,
                header.next_offset,
                error,
            )
        at += header.size


def _parts(content: bytes) -> Iterator[memoryview]:
    """What is looked into at once: one batch with a codec, or some neighbours without one. Raises BatchError."""
    view = memoryview(content)
    start = at = 0
    while at < len(view):
        header = parse_header(view, at)
        end = at + header.size
        is_compressed = header.compression is not Compression.NONE
        if start < at and (is_compressed or end - start > _INLINE_BYTES_MAX):
            yield view[start:at]
            start = at
        if is_compressed:
            yield view[at:end]
            start = end
        at = end
    if start < len(view):
        yield view[start:]
