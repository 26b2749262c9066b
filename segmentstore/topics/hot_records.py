"""The batches of a partition that are in its segment, found by offset, by time and by size, and fetched.

    offset -> where a fetch ended | a position in memory | a mark -> walk over headers -> whole batches

What is in files is found by record_files/cold_records.py. Invariants:

- A batch is never cut. What is given is durable.
- What was trimmed, by this owner or by another one, raises SegmentTruncatedError; what is no batch CorruptedDataError.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from segmentstore.codec.record_batch import BATCH_HEADER_BYTES, BatchHeader
from segmentstore.contracts.errors import CorruptedDataError, SegmentTruncatedError
from segmentstore.contracts.segments import Segment
from segmentstore.topics.batch_positions import (
    Place,
    header_at,
    last_mark_that,
    read_some,
    walk_batches,
)
from segmentstore.topics.partition_log import PartitionLog
from segmentstore.topics.record_files.record_ranks import (
    RecordRank,
    first_not_older,
    latest_in_batches,
    lower_rank,
)

_FETCH_ENDS_MAX: Final = 128
"""Ends of fetches that are remembered: most fetches begin where one ended."""

_RANKED_BATCHES_MAX: Final = 16
"""Batches that one walk over headers finds to look into for the latest record: mostly the first one has it."""


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

    async def _place_before_time(self, segment: Segment, time_ms: int) -> Place:
        """One before which every record is older than that."""
        known = self._log.positions.before_time(time_ms)
        if known is not None:
            return known
        return await self._mark_before(segment, lambda place: place.highest_ms < time_ms)

    async def _mark_before(self, segment: Segment, fits: Callable[[Place], bool]) -> Place:
        return await last_mark_that(segment, fits, mark_bytes=self._mark_bytes)

    async def first_at_time(self, segment: Segment, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record at or behind the log start that is not older; None if there is none."""
        start = await self._place_before_time(segment, time_ms)
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
                content = await self._content_of(segment, place, header)
                found = await first_not_older(content, time_ms, self._log.log_start_offset)
                if found is not None:
                    return found
        return None

    @staticmethod
    async def _content_of(segment: Segment, place: Place, header: BatchHeader) -> bytes:
        return await read_some(segment, place.position, least=header.size, most=header.size)

    async def latest(self, segment: Segment, from_offset: int) -> RecordRank | None:
        """Of the latest record at or behind an offset that is in no file; None if there is none.

        Mostly the first batch that has the highest time of all has it. It has not if that batch is deleted or in a
        file, or if its header names a time that no record of it has, or none that is still there: then all headers are
        looked at.
        """
        if from_offset >= self._log.high_watermark:
            return None
        highest_ms = self._log.highest_ms
        start = await self._place_before_time(segment, highest_ms)
        if start.offset < from_offset:
            start = await self.place_of(segment, from_offset)
        found = await self._latest_of_first(segment, start, highest_ms, from_offset)
        if found is not None and found.time_ms >= highest_ms:
            return found
        return await self._latest_of_all(segment, from_offset)

    async def _latest_of_first(
        self, segment: Segment, start: Place, time_ms: int, from_offset: int
    ) -> RecordRank | None:
        """Of the first batch from there on that is not older."""
        async with aclosing(walk_batches(segment, start, self._log.durable_length)) as batches:
            async for place, header in batches:
                if header.max_timestamp >= time_ms:
                    return await self._latest_in(segment, place, header, from_offset)
        return None

    async def _latest_of_all(self, segment: Segment, from_offset: int) -> RecordRank | None:
        """Batches are looked into in the order of what their headers promise, until none promises more than was found:
        a walk finds the next few of them, so that however many promise too much, memory is bounded."""
        best: RecordRank | None = None
        behind: RecordRank | None = None
        while True:
            ranked = await self._ranked_batches(segment, from_offset, behind)
            for rank, place, header in ranked:
                if best is not None and best < rank:
                    return best
                found = await self._latest_in(segment, place, header, from_offset)
                best = lower_rank(best, found)
                behind = rank
            if len(ranked) < _RANKED_BATCHES_MAX:
                return best

    async def _latest_in(
        self, segment: Segment, place: Place, header: BatchHeader, from_offset: int
    ) -> RecordRank | None:
        content = await self._content_of(segment, place, header)
        return await latest_in_batches(content, from_offset)

    async def _ranked_batches(
        self, segment: Segment, from_offset: int, behind: RecordRank | None
    ) -> list[tuple[RecordRank, Place, BatchHeader]]:
        """The first few in the order of their ranks, which are what their headers promise."""
        ranked: list[tuple[RecordRank, Place, BatchHeader]] = []
        start = await self.place_of(segment, from_offset)
        async with aclosing(walk_batches(segment, start, self._log.durable_length)) as batches:
            async for place, header in batches:
                rank = RecordRank.of(header.max_timestamp, header.base_offset)
                is_full = len(ranked) == _RANKED_BATCHES_MAX
                if (behind is not None and rank <= behind) or (is_full and rank > ranked[-1][0]):
                    continue
                insort(ranked, (rank, place, header), key=_rank_of)
                del ranked[_RANKED_BATCHES_MAX:]
        return ranked

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

    async def end_by_age(self, segment: Segment, oldest_ms: int, undated_end: int) -> int:
        """The end of the last batch before the first one with a record that is young enough.

        Batches whose records have no time (-1) are known to be old below `undated_end`, where a batch begins; the
        others go with the next one that is.
        """
        end = self._log.durable_length
        start = await self._place_before_time(segment, oldest_ms)
        if start.highest_ms >= 0:
            # Behind the batch with that time others without one may stand, before this place: it is looked for.
            start = await self._place_before_time(segment, start.highest_ms)
        offset = min(start.offset, undated_end)
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for _place, header in batches:
                if header.max_timestamp >= oldest_ms:
                    break
                if header.max_timestamp >= 0 or header.next_offset <= undated_end:
                    offset = header.next_offset
        return offset


def _rank_of(ranked: tuple[RecordRank, Place, BatchHeader]) -> RecordRank:
    return ranked[0]
