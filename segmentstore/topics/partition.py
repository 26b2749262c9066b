"""One partition of a topic: an ordinary segment of record batches, appended to and read by the offsets of records.

Its parts, in the order in which records pass them; what each of them guarantees is said there:

| part | is |
|---|---|
| `partition_log.py` | batches judged, numbered, appended; what is durable, and of which owner |
| `hot_records.py` | batches of the segment, found and fetched |
| `partition_files.py` | the oldest batches become files, and files become smaller |
| `record_files/cold_records.py` | records of files, found and fetched |
| `partition_start.py` | the log start, retention, and the deletion of what lies below |

Invariants of the whole:

- All parts speak of one opening of the segment. What one of them began in an earlier opening changes nothing here.
- A record is read from a file below the cold end, and from the segment behind it.
- An opening holds its segment until close() or the next opening.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import TypeVar

from segmentstore.codec.record_batch import BatchError, SentBatch
from segmentstore.contracts.errors import CorruptedDataError, SegmentStoreError, StorageError
from segmentstore.contracts.segments import Segment, SegmentApi
from segmentstore.runtime.clock import WallClock
from segmentstore.topics.hot_records import HotRecords
from segmentstore.topics.partition_files import PartitionFiles
from segmentstore.topics.partition_log import Appended, PartitionLog
from segmentstore.topics.partition_start import PartitionStart
from segmentstore.topics.record_files.cold_records import ColdRecords
from segmentstore.topics.record_files.kept_objects import KeptObjects
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.record_files.record_ranks import RecordRank, lower_rank
from segmentstore.topics.record_files.registered_files import RegisteredFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import TopicConfig

_Result = TypeVar("_Result")


class Partition:
    """Made closed; recover() opens it, and opens it again after a failure. close() ends it."""

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        segment_name: str,
        segments: SegmentApi,
        wall_clock: WallClock,
        random: Random,
        config: TopicConfig,
        settings: TopicSettings,
        record_files: RecordFiles | None = None,
        on_hot: Callable[["Partition"], None] | None = None,
        all_segments: SegmentApi | None = None,
    ) -> None:
        """`record_files`: None if there is no Tier 2 for files. `all_segments`: with those of other processes, if
        `segments` are of this one. `on_hot` is called, with no await in between, when
        batches that no file has are there again, and when they are as many as one file is to have."""
        self._segment_name = segment_name
        self._segments = segments
        self._held = AsyncExitStack()
        self._log = PartitionLog(
            topic=topic,
            index=index,
            wall_clock=wall_clock,
            random=random,
            config=config,
            settings=settings,
            on_durable=self._note_hot,
        )
        self._hot = HotRecords(self._log, mark_bytes=settings.mark_bytes)
        self._registered = RegisteredFiles(known_max=settings.files_known_per_partition_max)
        kept = None if record_files is None else KeptObjects(record_files)
        self._start = PartitionStart(
            self._log,
            self._hot,
            registered=self._registered,
            kept=kept,
            segments=segments,
            segment_name=segment_name,
            wall_clock=wall_clock,
            mark_bytes=settings.mark_bytes,
        )
        self._cold: ColdRecords | None = None
        self._files: PartitionFiles | None = None
        """None if there is no Tier 2 for files."""
        if record_files is None or kept is None:
            return
        self._cold = ColdRecords(
            topic=topic,
            partition=index,
            files=record_files,
            registered=self._registered,
            read_ahead_bytes_max=settings.read_ahead_bytes_max,
        )
        self._files = PartitionFiles(
            self._log,
            self._hot,
            self._start,
            registered=self._registered,
            files=record_files,
            kept=kept,
            all_segments=segments if all_segments is None else all_segments,
            segment_name=segment_name,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
            on_due=None if on_hot is None else lambda: on_hot(self),
        )

    def _note_hot(self) -> None:
        if self._files is not None:
            self._files.note_hot()

    # --- state -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """For the process's own log."""
        return self._log.label

    @property
    def segment_name(self) -> str:
        return self._segment_name

    @property
    def is_open(self) -> bool:
        """Whether it takes batches and is read now."""
        return self._log.segment is not None

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that may be read. Of a closed one: as it was last known."""
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last durable record. Of a closed one: as it was last known."""
        return self._log.high_watermark

    @property
    def size_bytes(self) -> int:
        """What its files take, and its batches before the store compresses them."""
        return self._start.size_bytes

    @property
    def hot_bytes(self) -> int:
        """What those batches take that no file has."""
        return self._start.hot_bytes

    @property
    def file_due_at(self) -> float | None:
        """Loop time at which these batches are to become a file; None if there are none."""
        return None if self._files is None else self._files.due_at

    @property
    def is_filling(self) -> bool:
        """Whether half a file is there, and the other half is about to come."""
        return self._files is not None and self._files.is_filling

    def is_idle(self, since: float) -> bool:
        """Whether it was not used since then (loop time), and nothing waits for it."""
        is_busy = self._files is not None and self._files.is_busy
        return not is_busy and self._log.is_idle(since)

    def configure(self, config: TopicConfig) -> None:
        """For the batches from now on."""
        self._log.config = config

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, with no await in between, whenever the high watermark or the log start moved or the partition was
        closed: look again then. It may not raise. Returns what ends the watch, which may be called more than once."""
        return self._log.watch(callback)

    async def wait_behind(self, offset: int) -> None:
        """Behind a fetch that gave nothing: until there may be a record at `offset` or behind it, or its next fetch
        says why there is none. It has no time-out.

        It looks again behind its registration: what came in between wakes nothing.
        """
        moved = asyncio.Event()
        unwatch = self._log.watch(moved.set)
        try:
            # The fetch has looked through the files. Compaction by an older version may have left no last record.
            looked_through = max(offset, self._registered.cold_end)
            is_deleted = offset < self._log.log_start_offset
            if self.is_open and self._log.high_watermark <= looked_through and not is_deleted:
                await moved.wait()
        finally:
            unwatch()

    # --- opening and closing -----------------------------------------------------------------

    async def recover(self) -> None:
        """Opens it, if it is closed: what is durable is read from the segment.

        Raises PartitionUnavailableError, UnknownPartitionError (its topic was deleted).
        """
        self._log.note_use()
        async with self._log.changing:
            self._log.require_present()
            if self.is_open:
                return
            await self._log.wait_until_settled()
            await self._release()
            held = AsyncExitStack()
            try:
                segment = await held.enter_async_context(
                    self._segments.open_segment(self._segment_name)
                )
                await self._load(segment)
                await segment.confirm()
                self._log.require_present()
            except SegmentStoreError as error:
                await held.aclose()
                raise self._log.translated(error) from error
            except BaseException:
                await held.aclose()
                raise
            self._held = held
            self._log.open(segment)
        try:
            await self._start.drop_bytes()
        finally:
            # It is open, also where its caller has gone.
            self._note_hot()

    async def _load(self, segment: Segment) -> None:
        """Every part, as of one moment. Raises SegmentStoreError."""
        info = await self._log.load(segment)
        self._registered.load(info)
        self._hot.load()
        self._start.load(info)
        if self._files is not None:
            self._files.load()
        elif self._registered.last:
            raise StorageError(
                f"a partition has files, and there is no Tier 2 for them {self.label}"
            )

    async def close(self) -> None:
        """Refuses further batches; those under way are told of as the log tells of them."""
        self._log.shut("it was closed")
        async with AsyncExitStack() as stack:
            if self._files is not None:
                # An object that is being put is there, or is not, when this returns: it may be about to be looked for.
                await stack.enter_async_context(self._files.making)
            await stack.enter_async_context(self._log.changing)
            self._log.shut("it was closed")
            await self._release()

    def leave(self) -> None:
        """Its container has left this process. What is under way is told of as the log tells of it; close() follows."""
        self._log.shut("its container is not here any more")

    def vanish(self) -> None:
        """Its topic is deleted: it is never opened again."""
        self._log.vanish()

    async def _release(self) -> None:
        held, self._held = self._held, AsyncExitStack()
        await held.aclose()

    # --- records in and out ------------------------------------------------------------------

    def produce(self, batch: bytes | bytearray | memoryview) -> "Future[Appended]":
        """Appends one batch; calls take place in their order. The batch is copied before this returns.

        The future fails with InvalidRecordError, RecordBatchTooLargeError, InvalidTimestampError,
        OutOfOrderSequenceError, ProducerFencedError, PartitionUnavailableError, UnknownPartitionError. Cancelling it
        takes nothing back.
        """
        return self._log.produce(batch)

    def expects(self, sent: SentBatch) -> bool:
        """Whether, by what is known of its producer, it is the next batch or one that is sent again."""
        return self._log.expects(sent)

    def is_sure(self) -> bool:
        """Whether its ends need no confirm_ends(): one look at the clock, where there may be thousands of partitions.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_open()
        try:
            return segment.is_sure()
        except SegmentStoreError as error:
            raise self._log.failed(segment, error) from error

    async def confirm_ends(self) -> None:
        """Returns when `log_start_offset` and `high_watermark`, read before the next await, are the owner's word.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        await self._log.confirm_end(self._log.require_open())

    async def fetch(self, offset: int, max_bytes: int) -> bytes:
        """Whole durable batches, the first of which contains the offset (or is the next one, where compaction has
        removed it); as many as have at most `max_bytes`, but one.

        b"" from the high watermark up to the next offset. Raises OffsetOutOfRangeError, PartitionUnavailableError,
        UnknownPartitionError.
        """
        segment = self._log.require_open()
        await self._log.confirm_in_range(segment, offset)
        if offset >= self._log.high_watermark:
            await self._log.confirm_end(segment)
            if offset >= self._log.high_watermark:
                return b""
        return await self._start.read(
            segment, lambda: self._fetch(segment, offset, max_bytes), offset
        )

    async def _fetch(self, segment: Segment, offset: int, max_bytes: int) -> bytes:
        if offset < self._registered.cold_end:
            assert self._cold is not None, "files without a Tier 2"
            content = await self._cold.fetch(segment, offset, max_bytes)
            if content:
                return content
            offset = self._registered.cold_end
            if offset >= self._log.high_watermark:
                return b""
        return await self._hot.fetch(segment, offset, max_bytes)

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record that is not older; None if there is none.

        Batches whose records cannot be read are passed over. Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_open()
        found = await self._start.read(
            segment, lambda: self._beside_filing(lambda: self._offset_at_time(segment, time_ms))
        )
        if found is None:
            await self._log.confirm_end(segment)
        return found

    async def _beside_filing(self, look: Callable[[], Awaitable[_Result]]) -> _Result:
        """What a look at both files and segment finds, if nothing went from the one to the other meanwhile: it may have
        been between the looks at each."""
        while True:
            cold_end = self._registered.cold_end
            found = await look()
            if cold_end == self._registered.cold_end:
                return found

    async def _offset_at_time(self, segment: Segment, time_ms: int) -> tuple[int, int] | None:
        if self._cold is not None and len(self._registered):
            try:
                found = await self._cold.first_at_time(segment, time_ms, self._log.log_start_offset)
            except BatchError as error:
                raise CorruptedDataError(f"a file gave a batch that is none: {error}") from error
            if found is not None:
                return found
        return await self._hot.first_at_time(segment, time_ms)

    async def latest_record(self) -> tuple[int, int] | None:
        """Offset and time of the record with the highest time, the first one of several; None if there is no record.

        Batches whose records cannot be read are passed over. Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_open()
        found = await self._start.read(
            segment, lambda: self._beside_filing(lambda: self._latest(segment))
        )
        await self._log.confirm_end(segment)
        return None if found is None else (found.offset, found.time_ms)

    async def _latest(self, segment: Segment) -> RecordRank | None:
        """What promises more is looked into first, files or the segment; of the same time, files, which come first."""
        from_offset = self._log.log_start_offset
        hot_offset = max(from_offset, self._registered.cold_end)
        hot_ms = self._log.highest_ms
        cold_ms = await self._registered.highest_ms_until_end(segment)
        if cold_ms is None:
            return await self._hot.latest(segment, hot_offset)
        best: RecordRank | None = None
        if cold_ms >= hot_ms:
            best = await self._latest_in_files(segment, from_offset)
            if best is None or best.time_ms < hot_ms:
                best = lower_rank(best, await self._hot.latest(segment, hot_offset))
            return best
        best = await self._hot.latest(segment, hot_offset)
        if best is None or best.time_ms <= cold_ms:
            best = lower_rank(best, await self._latest_in_files(segment, from_offset))
        return best

    async def _latest_in_files(self, segment: Segment, from_offset: int) -> RecordRank | None:
        assert self._cold is not None, "files without a Tier 2"
        try:
            return await self._cold.latest(segment, from_offset)
        except BatchError as error:
            raise CorruptedDataError(f"a file gave a batch that is none: {error}") from error

    # --- deletion ----------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """Makes `before` the lowest offset that may be read, -1: the high watermark; the log start behind it.

        Raises OffsetOutOfRangeError, PartitionUnavailableError, UnknownPartitionError.
        """
        return await self._start.delete_records(before)

    async def expire(self, *, age_is_known: bool) -> None:
        """Deletes what retention says. Raises PartitionUnavailableError, UnknownPartitionError."""
        await self._start.expire(age_is_known=age_is_known)

    async def rest_until_ms(self) -> float:
        """Wall time before which retention and compaction find nothing to do, if neither records nor settings change.

        Behind an expire() that went well. Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_live()
        until = await self._start.retention_rests_until_ms(segment)
        if self._files is None:
            return until
        return min(until, await self._files.compaction_rests_until_ms(segment))

    async def delete_doomed(self) -> None:
        """Objects of files that were forgotten long enough ago. One that cannot be deleted is left to a sweep."""
        await self._start.delete_kept_objects()

    # --- files -------------------------------------------------------------------------------

    async def make_file(self, *, bytes_max: int | None = None, is_filling: bool = False) -> int:
        """As PartitionFiles.make(); 0 without a Tier 2 for files."""
        if self._files is None:
            return 0
        return await self._files.make(bytes_max=bytes_max, is_filling=is_filling)

    async def compact(self, *, age_is_known: Callable[[], bool]) -> int:
        """As PartitionFiles.compact(); 0 without a Tier 2 for files."""
        return 0 if self._files is None else await self._files.compact(age_is_known=age_is_known)

    async def sweep_files(self) -> int:
        """As PartitionFiles.sweep(); 0 without a Tier 2 for files."""
        return 0 if self._files is None else await self._files.sweep()

    # --- proof -------------------------------------------------------------------------------

    def producers(self) -> Sequence[tuple[int, int, Sequence[object]]]:
        """What is known of producers, as of everything submitted: for checks."""
        return self._log.producers()

    def check(self) -> None:
        """Proves the order of its numbers. O(positions + producers)."""
        self._log.check()
        self._start.check()
        self._registered.check()
