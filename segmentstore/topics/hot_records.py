"""The batches of a partition that are in its segment, found by offset, by time and by size, and fetched.

    offset -> where a fetch ended | a position in memory | a mark -> walk over headers -> whole batches

What is in files is found by record_files/cold_records.py. Invariants:

- A batch is never cut. What is given is durable.
- What was trimmed, by this owner or by another one, raises SegmentTruncatedError; what is no batch CorruptedDataError.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchHeader,
    Record,
    decode_batch,
)
from segmentstore.contracts.errors import CorruptedDataError, SegmentTruncatedError
from segmentstore.contracts.segments import Segment
from segmentstore.topics.batch_positions import (
    Place,
    header_at,
    last_mark_that,
    read_some,
    walk_batches,
)
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.partition_log import PartitionLog

_FETCH_ENDS_MAX: Final = 128
"""Ends of fetches that are remembered: most fetches begin where one ended."""


class HotRecords:
    """Of one partition. Its methods raise SegmentStoreError; `segment`: of the opening that asks."""

    def __init__(self, log: PartitionLog, *, mark_bytes: int) -> None:
        self._log = log
        self._mark_bytes = mark_bytes
        self._fetch_ends: OrderedDict[int, Place] = OrderedDict()

    def load(self) -> None:
        """The log was opened anew."""
        self._fetch_ends.clear()

    async def fetch(self, segment: Segment, offset: int, max_bytes: int) -> bytes:
        """Whole batches, the first of which contains the offset, which is below the high watermark."""
        end = self._log.durable_length
        place = await self.place_of(segment, offset)
        content = await read_some(
            segment,
            place.position,
            least=BATCH_HEADER_BYTES,
            most=min(max(max_bytes, BATCH_HEADER_BYTES), end - place.position),
        )
        header = header_at(segment, content, 0, position=place.position, end=end)
        if header.size > len(content):
            content = await read_some(segment, place.position, least=header.size, most=header.size)
        return self._whole_batches(segment, content, place, end)

    def _whole_batches(self, segment: Segment, content: bytes, place: Place, end: int) -> bytes:
        at = 0
        while at + BATCH_HEADER_BYTES <= len(content):
            header = header_at(segment, content, at, position=place.position + at, end=end)
            if at + header.size > len(content):
                break
            at += header.size
            place = Place(
                place.position, header.next_offset, max(place.highest_ms, header.max_timestamp)
            )
        self._fetch_ends[place.offset] = Place(place.position + at, place.offset, place.highest_ms)
        if len(self._fetch_ends) > _FETCH_ENDS_MAX:
            self._fetch_ends.popitem(last=False)
        return content if at == len(content) else content[:at]

    async def place_of(self, segment: Segment, offset: int) -> Place:
        """Of the batch that contains the offset, which is below the high watermark and in no file."""
        place = await self._place_at_or_behind(segment, offset)
        if place.offset > offset:
            # Trimmed by another owner: it is neither below the log start nor in a file as they are known here.
            raise SegmentTruncatedError(segment.name, start_offset=place.position)
        return place

    async def _place_at_or_behind(self, segment: Segment, offset: int) -> Place:
        """Of the batch that contains the offset, or of the first one that there is behind it."""
        known = self._fetch_ends.get(offset)
        if known is not None and known.position < self._log.durable_length:
            return known
        start = self._log.positions.at_or_before_offset(offset)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.offset <= offset)
        async with aclosing(walk_batches(segment, start, self._log.durable_length)) as batches:
            async for place, header in batches:
                if header.next_offset > offset:
                    return place
        raise CorruptedDataError(
            f"a partition has no batch of an offset name={segment.name!r} offset={offset}"
        )

    async def _mark_before(self, segment: Segment, fits: Callable[[Place], bool]) -> Place:
        return await last_mark_that(segment, fits, mark_bytes=self._mark_bytes)

    async def first_at_time(self, segment: Segment, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record at or behind the log start that is not older; None if there is none.

        Raises PartitionUnavailableError too: the records of a batch cannot be read.
        """
        start = self._log.positions.before_time(time_ms)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.highest_ms < time_ms)
        if start.offset < self._log.log_start_offset < self._log.high_watermark:
            start = await self._place_at_or_behind(
                segment, max(self._log.log_start_offset, start.offset)
            )
        return await self._first_not_older(segment, start, time_ms)

    async def _first_not_older(
        self, segment: Segment, start: Place, time_ms: int
    ) -> tuple[int, int] | None:
        end = self._log.durable_length
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for place, header in batches:
                if (
                    header.max_timestamp < time_ms
                    or header.next_offset <= self._log.log_start_offset
                ):
                    continue
                for record in await self._records_of(segment, place, header):
                    if (
                        record.timestamp_ms >= time_ms
                        and record.offset >= self._log.log_start_offset
                    ):
                        return record.offset, record.timestamp_ms
        return None

    @staticmethod
    async def _records_of(segment: Segment, place: Place, header: BatchHeader) -> list[Record]:
        content = await read_some(segment, place.position, least=header.size, most=header.size)
        try:
            return decode_batch(content)
        except BatchError as error:
            raise PartitionUnavailableError(
                f"the records of a batch cannot be read offset={header.base_offset}: {error}"
            ) from error

    async def time_of_batch(self, segment: Segment, offset: int) -> int:
        """The highest time of the batch that contains the offset."""
        place = await self.place_of(segment, offset)
        content = await read_some(
            segment, place.position, least=BATCH_HEADER_BYTES, most=BATCH_HEADER_BYTES
        )
        return header_at(
            segment, content, 0, position=place.position, end=self._log.durable_length
        ).max_timestamp

    async def end_by_size(self, segment: Segment, keep_bytes: int) -> int:
        """The base offset of the last batch that at least so many bytes stand behind the beginning of."""
        limit = self._log.durable_length - keep_bytes
        if limit <= segment.info().start_offset:
            return 0
        end = self._log.durable_length
        start = self._log.positions.at_or_before_position(limit)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.position <= limit)
        offset = start.offset
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for place, header in batches:
                if place.position > limit:
                    break
                offset = place.offset
                if place.position + header.size == end <= limit:
                    offset = header.next_offset
        return offset

    async def end_by_age(self, segment: Segment, oldest_ms: int) -> int:
        """The base offset of the first batch with a record that is young enough; all before it are old."""
        end, offset = self._log.durable_length, self._log.high_watermark
        start = self._log.positions.before_time(oldest_ms)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.highest_ms < oldest_ms)
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for place, header in batches:
                if header.max_timestamp >= oldest_ms:
                    return place.offset
        return offset
