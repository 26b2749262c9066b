"""Where a partition begins: the log start, how retention moves it, and the deletion of what lies below it.

    delete_records(), expire() -> the log start is durable -> files below it are forgotten, the segment is truncated
    a file is registered       -> its batches' bytes go                  -> the segment is truncated

Invariants:

- `position <= hot_position <= durable length`: below the first the segment has no bytes, below the second all that it
  has is in files or below the log start.
- The log start is durable before bytes are dropped: what is readable after a crash is what was before it, or less.
- Records from the log start to the cold end are in registered files, those from the cold end on in the segment.
- A batch is never cut by a trim: its bytes go when all of its records are below the log start or in a file.
- What was known of producers is stored, durably, before the bytes go that say so: a truncation overtakes appends.
- A read that meets a trim of this opening is tried again; one that meets another owner's closes the partition.
- Records that say no time (-1) are deleted by their age with the next ones that do, or `retention.ms` behind the moment
  in which retention first found that they come first.

| attribute | says |
|---|---|
| UNDATED_END, UNDATED_SINCE | all records below it were there then, Unix milliseconds; absent: 0. Noted where the |
| | first records have no time, and again when those that were there are deleted |
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from segmentstore.codec.topic_files import RegisteredFile, count_of
from segmentstore.contracts.errors import SegmentStoreError, SegmentTruncatedError
from segmentstore.contracts.identifiers import CORE_ATTRIBUTE_PREFIX, AttributeKey
from segmentstore.contracts.segments import (
    AttributeUpdate,
    Segment,
    SegmentApi,
    SegmentProperties,
)
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.clock import WallClock
from segmentstore.topics.batch_positions import LAST_MARK, mark_key
from segmentstore.topics.errors import TopicError
from segmentstore.topics.hot_records import HotRecords
from segmentstore.topics.partition_log import PartitionLog
from segmentstore.topics.record_files.kept_objects import KeptObjects
from segmentstore.topics.record_files.registered_files import (
    FILES_PER_UPDATE_MAX,
    FileGoneError,
    RegisteredFiles,
)

_LOG = logging.getLogger(__name__)

_MARKS_PER_UPDATE_MAX: Final = 500
UNDATED_END: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x0d")
UNDATED_SINCE: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x0e")

_READS_MAX: Final = 3
"""Of one request, while trims come in between."""

_Result = TypeVar("_Result")


class PartitionStart:
    """load() at each opening."""

    def __init__(
        self,
        log: PartitionLog,
        hot: HotRecords,
        *,
        registered: RegisteredFiles,
        kept: KeptObjects | None,
        segments: SegmentApi,
        segment_name: str,
        wall_clock: WallClock,
        mark_bytes: int,
    ) -> None:
        """`kept`: None if there is no Tier 2 for files."""
        self._log = log
        self._hot = hot
        self._registered = registered
        self._kept = kept
        self._segments = segments
        self._segment_name = segment_name
        self._wall_clock = wall_clock
        self._mark_bytes = mark_bytes
        self.position = 0
        """Where the segment begins."""
        self.hot_position = 0
        """Bytes below it are in files, or below the log start, as far as is known. Changed here alone."""
        self._dropping_position = 0
        """Bytes below it are being dropped."""
        self._forgetting_until = 0
        """Files of lower numbers are being forgotten."""

    @property
    def size_bytes(self) -> int:
        """What the partition's files take, and its batches before the store compresses them."""
        return self._registered.size_bytes + self.hot_bytes

    @property
    def hot_bytes(self) -> int:
        """What those batches take that no file has."""
        return self._log.durable_length - max(self.position, self.hot_position)

    def load(self, info: SegmentProperties) -> None:
        """As the segment was when the log was opened."""
        self.position = self.hot_position = self._dropping_position = info.start_offset

    def note_filed(self, position: int) -> None:
        """A file is registered that has the batches up to there."""
        self.hot_position = position

    # --- trims -------------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """Makes `before` the lowest offset that may be read, -1: the high watermark; the log start behind it.

        Raises OffsetOutOfRangeError, PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_open()
        if before == -1:
            before = self._log.high_watermark
        if before > self._log.high_watermark:
            await self._log.confirm_end(segment)
        if not 0 <= before <= self._log.high_watermark:
            raise self._log.out_of_range(before)
        if before > self._log.log_start_offset:
            await self._log.move_start(before)
        await self.drop_bytes()
        return self._log.log_start_offset

    async def drop_bytes(self) -> None:
        """Of files and batches whose records are all below the log start, and of batches that are in files. What fails
        is done at the next trim or recovery."""
        async with self._log.changing:
            segment = self._log.segment
            if segment is None:
                return
            try:
                await self._forget_files(segment)
                await self._truncate(segment)
                if self._kept is not None:
                    await self._kept.delete_due(segment.publishing())
            except SegmentStoreError as error:
                if isinstance(error, SegmentTruncatedError | FileGoneError):
                    self._log.shut(str(error))  # another owner has trimmed
                _LOG.warning("%s keeps deleted records for now: %s", self._log.label, error)

    async def delete_kept_objects(self) -> None:
        """Those that are due and that Tier 2 names no more. One that cannot be deleted is left to a sweep."""
        segment = self._log.segment
        if self._kept is None or segment is None:
            return
        try:
            await self._kept.delete_due(segment.publishing())
        except SegmentStoreError as error:
            _LOG.warning("%s keeps an object that is no file any more: %s", self._log.label, error)

    async def _truncate(self, segment: Segment) -> None:
        first = max(self._log.log_start_offset, self._registered.cold_end)
        if first >= self._log.high_watermark:
            position = self._log.durable_length
        elif first == 0:
            return
        else:
            position = (await self._hot.place_of(segment, first)).position
        if position <= self.position:
            return
        self.hot_position = max(self.hot_position, position)
        self._dropping_position = position
        if position > self._log.marked_position:
            # What the batches say of their producers goes with them.
            await self._log.append_marking_end(segment)
        await self._forget_marks(segment, position)
        await self._segments.truncate(self._segment_name, position)
        self._log.positions.drop_before(position)
        self.position = max(self.position, position)

    async def _forget_files(self, segment: Segment) -> None:
        """Those whose records are all below the log start. Their objects are to be deleted."""
        files = self._registered
        while len(files):
            several = await files.some(segment, files.first, FILES_PER_UPDATE_MAX)
            ended = [file for file in several if file.end_offset <= self._log.log_start_offset]
            if not ended:
                break
            self._forgetting_until = files.first + len(ended)
            await self._log.append_alone(segment, files.forgetting(ended))
            files.forgot(ended)
            if self._kept is not None:
                self._kept.keep(
                    [file.name(self._log.topic, self._log.index).key for file in ended],
                    seconds=self._log.config.file_delete_delay_ms / 1000,
                    forgotten_at=segment.publishing().committed,
                    has_live_records=False,
                )
            if len(ended) < len(several):
                break

    async def _forget_marks(self, segment: Segment, position: int) -> None:
        """Those that lie below the position. The newest stays: it is where a recovery begins."""
        info = segment.info()
        last_mark = count_of(info.core_attributes, LAST_MARK, name=info.name)
        first = self.position // self._mark_bytes
        last = min(position // self._mark_bytes, last_mark)
        for begin in range(first, last, _MARKS_PER_UPDATE_MAX):
            numbers = range(begin, min(begin + _MARKS_PER_UPDATE_MAX, last))
            keys = [mark_key(number) for number in numbers]
            known = await segment.load_attributes(keys)
            if known:
                forgotten = [AttributeUpdate(key, None) for key in known]
                await await_shielded(segment.append(b"", attribute_updates=forgotten))

    # --- retention ---------------------------------------------------------------------------

    async def expire(self, *, age_is_known: bool) -> None:
        """Deletes what retention says: whole files from the front, and behind the last file whole batches; by size, and
        by age if the clock is trusted.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_live()
        if not self._log.config.deletes:
            return
        # Of the moment in which the clock was trusted: behind an await it may have jumped.
        now_ms = self._wall_clock.now_ms() if age_is_known else None
        offset = await self.read(segment, lambda: self._expired(segment, now_ms))
        if offset > self._log.log_start_offset:
            await self.delete_records(offset)
        if now_ms is not None and self._log.config.retention_ms >= 0:
            await self._note_undated(segment, now_ms)

    async def _note_undated(self, segment: Segment, now_ms: int) -> None:
        """Since when the first records are there, if they do not say it, and it is not noted yet."""
        end = self._log.high_watermark
        if self._log.log_start_offset >= end:
            return
        noted, since_ms = self._undated(segment)
        # A time that lies further ahead than records are kept is of a clock that was wrong.
        is_noted = noted > self._log.log_start_offset
        if is_noted and since_ms - now_ms <= self._log.config.retention_ms:
            return
        if await self.read(segment, lambda: self._time_of_oldest(segment)) < 0:
            await self._log.note(
                segment,
                [AttributeUpdate(UNDATED_END, end), AttributeUpdate(UNDATED_SINCE, now_ms)],
            )

    def _undated(self, segment: Segment) -> tuple[int, int]:
        """The offset below which all records were there at a time, and that time."""
        info = segment.info()
        attributes = info.core_attributes
        return (
            count_of(attributes, UNDATED_END, name=info.name),
            count_of(attributes, UNDATED_SINCE, name=info.name),
        )

    async def retention_rests_until_ms(self, segment: Segment) -> float:
        """Wall time before which retention by age finds nothing to do, if neither records nor settings change.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        config = self._log.config
        has_records = self._log.log_start_offset < self._log.high_watermark
        if not config.deletes or config.retention_ms < 0 or not has_records:
            return math.inf
        oldest_ms = await self.read(segment, lambda: self._time_of_oldest(segment))
        if oldest_ms < 0:
            # It may go earlier, with what is behind it, which is not looked at for this.
            undated_end, oldest_ms = self._undated(segment)
            if undated_end <= self._log.log_start_offset:
                return math.inf
        return oldest_ms + config.retention_ms + 1

    async def _time_of_oldest(self, segment: Segment) -> int:
        """The highest time of what retention deletes first: a file, or a batch."""
        if len(self._registered):
            return (await self._registered.get(segment, self._registered.first)).highest_ms
        return await self._hot.time_of_batch(segment, self._log.log_start_offset)

    async def _expired(self, segment: Segment, now_ms: int | None) -> int:
        """The offset up to which retention deletes; None: not by age."""
        config = self._log.config
        offset = self._log.log_start_offset
        if config.retention_bytes >= 0:
            excess = self.size_bytes - config.retention_bytes

            def exceeds(file: RegisteredFile) -> bool:
                nonlocal excess
                excess -= file.size
                return excess >= 0

            end, has_more = await self._end_of_first_files(segment, exceeds)
            if not has_more:
                end = max(end, await self._hot.end_by_size(segment, config.retention_bytes))
            offset = max(offset, end)
        if config.retention_ms >= 0 and now_ms is not None:
            oldest_ms = now_ms - config.retention_ms
            noted, since_ms = self._undated(segment)
            undated_end = noted if since_ms < oldest_ms else 0

            def is_old(file: RegisteredFile) -> bool | None:
                if file.highest_ms < 0:
                    return True if file.end_offset <= undated_end else None
                return file.highest_ms < oldest_ms

            end, has_more = await self._end_of_first_files(segment, is_old)
            if not has_more:
                end = max(end, await self._hot.end_by_age(segment, oldest_ms, undated_end))
            offset = max(offset, end)
        return offset

    async def _end_of_first_files(
        self, segment: Segment, fits: Callable[[RegisteredFile], bool | None]
    ) -> tuple[int, bool]:
        """Where the longest run of files from the front ends that each fit, and whether one behind it does not.

        None says that a file does not tell: it fits if the next one does that tells, or if what is in no file does.
        """
        end, number = 0, self._registered.first
        while number <= self._registered.last:
            for file in await self._registered.some(segment, number, FILES_PER_UPDATE_MAX):
                match fits(file):
                    case True:
                        end = file.end_offset
                    case False:
                        return end, True
                    case None:
                        pass
                number += 1
            # What is in memory comes without a turn of the loop.
            await asyncio.sleep(0)
        return end, False

    # --- reads beside trims ------------------------------------------------------------------

    async def read(
        self, segment: Segment, read: Callable[[], Awaitable[_Result]], offset: int | None = None
    ) -> _Result:
        """What is trimmed while it is read is read again, it may be in a file now; `offset`: as long as it is there."""
        for remaining in reversed(range(_READS_MAX)):
            try:
                return await read()
            except (SegmentTruncatedError, FileGoneError) as error:
                if offset is not None:
                    self._log.require_in_range(offset)
                if (
                    not remaining
                    or not self._is_own_trim(error)
                    or segment is not self._log.segment
                ):
                    raise self.failed(segment, error) from error
            except SegmentStoreError as error:
                raise self.failed(segment, error) from error
        raise AssertionError("the last round returns or raises")

    def _is_own_trim(self, error: SegmentStoreError) -> bool:
        """Of this opening. Another owner's is not known here."""
        if isinstance(error, SegmentTruncatedError):
            return error.start_offset <= max(self.position, self._dropping_position)
        assert isinstance(error, FileGoneError), f"{error!r}"
        return error.number < max(self._registered.first, self._forgetting_until)

    def failed(self, segment: Segment, error: SegmentStoreError) -> TopicError:
        """What a reader is told. Beside a trim of our own a failure is over with the next try; another owner's is not
        known here, and closes the partition."""
        is_own_trim = isinstance(
            error, SegmentTruncatedError | FileGoneError
        ) and self._is_own_trim(error)
        return self._log.failed(segment, error, is_own_trim=is_own_trim)

    def check(self) -> None:
        """Proves the order of its numbers."""
        assert self.position <= self.hot_position <= self._log.durable_length, (
            f"start={self.position} hot={self.hot_position} durable={self._log.durable_length}"
        )
        assert self._registered.cold_end <= self._log.high_watermark, (
            f"cold_end={self._registered.cold_end}"
        )
