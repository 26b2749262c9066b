"""One partition of a topic: an ordinary segment of record batches, appended to and read by the offsets of records.

    produce() -> judged, numbered, placed, submitted to the log: one synchronous stretch, so calls follow one another
    append durable -> high watermark moves -> the producer is told, those who watch are called
    make_file() -> the oldest batches become a file -> put -> registered by an append -> the segment is truncated

The segment's attributes, each changed in the append (or the trim) that it belongs to:

| attribute | says |
|---|---|
| EVENT_COUNT | the offset of the next record |
| LOG_START | the lowest offset that may be read; absent: 0. It may lie inside of a batch |
| OWNER | a number drawn at the opening behind which the last batch was appended |
| LAST_MARK | the number of the newest mark (batch_positions.py); absent: there is none |
| `topic mark `, u64 | a mark |
| END_MARK | a mark at what was the end of the segment when bytes were last to be dropped; absent: there is none |
| `topic producers `, u32 | a page of what was known of producers at the newer of both marks (producer_windows.py) |
| COLD_END, FIRST_FILE, LAST_FILE, COLD_BYTES, `topic file `, u64 | record_files/registered_files.py |

Invariants:

- `log_start_offset <= high_watermark <= next offset`; each only grows while the partition is open.
- An append is conditional on the segment's length and on OWNER, which the first append behind each opening sets to a
  number of its own. So of two owners the log takes the appends of one, until the other has opened the partition anew;
  and when one append is refused, all behind it are. (The length alone may be right by accident: another owner may have
  appended as many bytes as were refused.)
- When one append fails, what was decided behind it is void: the partition is closed, later batches are refused as
  surely not stored, and recover() reads the segment again. A batch that was under way is `stored=None` if the log may
  have it.
- An append that changes which files there are gives OWNER another number. It leaves the length as it was: another owner
  that was opened before it would have length and number right, and register files on top of what it does not know.
- An object is put, then registered, then the bytes of its batches are dropped: each step when the one before is
  durable. It is registered only by the opening that put it.
- Records from the log start to the cold end are in registered files, those from the cold end on in the segment.
- Nothing is told of an append before it is durable: neither its offset, nor that another batch is its duplicate, nor
  that another is out of order behind it.
- A batch is never cut, neither by a fetch nor by a trim; bytes of a batch go when all of its records are below the log
  start.
- The log start is durable before bytes are dropped: what is readable after a crash is what was before it, or less.
"""

import asyncio
import logging
import math
from asyncio import Future
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, TypeVar

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchHeader,
    BatchProblem,
    Record,
    TimestampType,
    check_batch,
    decode_batch,
    placed_copy,
    stamp_append_time,
)
from segmentstore.codec.record_columns import columns_of_batches
from segmentstore.codec.topic_files import RegisteredFile, count_of, topic_prefix
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    CorruptedDataError,
    ObjectExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    StorageError,
    StorageFullError,
    TooManyWaitersError,
    is_outcome_unknown,
)
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    EVENT_COUNT,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    Segment,
    SegmentApi,
    SegmentProperties,
)
from segmentstore.runtime.cancellation import (
    await_shielded,
    complete_unless_done,
    fail_unless_done,
    retrieve_exception,
)
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.waiting import wait_for_event
from segmentstore.topics.batch_positions import (
    NO_TIME,
    BatchPositions,
    Mark,
    Place,
    decode_mark,
    encode_mark,
    header_at,
    mark_key,
    read_some,
    walk_batches,
)
from segmentstore.topics.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    TopicError,
    UnknownPartitionError,
)
from segmentstore.topics.producer_windows import ProducerWindows
from segmentstore.topics.record_files.cold_records import ColdRecords
from segmentstore.topics.record_files.dead_files import delete_dead_files
from segmentstore.topics.record_files.gathered_batches import BatchGathering
from segmentstore.topics.record_files.key_compaction import CompactionState, compact_files
from segmentstore.topics.record_files.record_files import (
    MadeFile,
    RecordFiles,
    UnfitBatchError,
)
from segmentstore.topics.record_files.registered_files import (
    FILES_PER_UPDATE_MAX,
    FileGoneError,
    RegisteredFiles,
)
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import TopicConfig

_Result = TypeVar("_Result")

_LOG = logging.getLogger(__name__)

LOG_START: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x01")
LAST_MARK: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x02")
OWNER: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x03")
END_MARK: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x07")

NAMES_USED: Final = "names-used"
"""Last part of the key of an object that says that a topic of this name had files once, and was deleted."""

_PAGE_KEY: Final = b"topic producers "
_FETCH_ENDS_MAX: Final = 128
"""Ends of fetches that are remembered: most fetches begin where one ended."""
_MARKS_PER_UPDATE_MAX: Final = 500
_NO_APPEND_TIME: Final = -1
_NAMES_TRIED_MAX: Final = 4
_AHEAD_SECONDS: Final = 2.0
"""A file that is half full and will be full so soon is begun."""
_READS_MAX: Final = 3
"""Of one request, while trims come in between."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What a producer is told."""

    base_offset: int
    append_time_ms: int
    """-1 if the times of the records are the producer's."""
    log_start_offset: int
    duplicate: bool = False
    """It was stored before, with this offset, and was not stored again."""


class _Append:
    """One batch on its way to the log."""

    __slots__ = (
        "answer",
        "append_time_ms",
        "base_offset",
        "duplicates",
        "end",
        "future",
        "next_offset",
    )

    def __init__(
        self,
        *,
        answer: "Future[Appended]",
        future: "Future[int]",
        base_offset: int,
        next_offset: int,
        end: int,
        append_time_ms: int,
    ) -> None:
        self.answer = answer
        self.future = future
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.end = end
        self.append_time_ms = append_time_ms
        self.duplicates: list[Future[Appended]] = []
        """Of the same batch, sent again while this one is under way."""


def page_key(number: int) -> AttributeKey:
    """The attribute that holds a page of producers."""
    return AttributeKey(_PAGE_KEY + number.to_bytes(4, "big"))


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
    ) -> None:
        """`record_files`: None if there is no Tier 2 for files. `on_hot` is called, with no await in between, when
        batches that no file has are there again, and when they are as many as one file is to have."""
        self._topic = topic
        self._index = index
        self._segment_name = segment_name
        self._segments = segments
        self._wall_clock = wall_clock
        self._random = random
        self._config = config
        self._settings = settings
        self._windows = ProducerWindows(
            producers_max=settings.producers_per_partition_max,
            silent_ms_max=int(settings.producer_seconds_max * 1000),
        )
        self._positions = BatchPositions(count_max=settings.positions_per_partition_max)
        self._fetch_ends: OrderedDict[int, Place] = OrderedDict()
        self._changing = asyncio.Lock()
        """Held by what opens, closes, trims or registers."""
        self._making = asyncio.Lock()
        """Held by what puts objects, or deletes those that are not registered. Taken before `_changing`."""
        self._record_files = record_files
        self._on_hot = on_hot
        self._files = RegisteredFiles(known_max=settings.files_known_per_partition_max)
        self._cold: ColdRecords | None = None
        if record_files is not None:
            self._cold = ColdRecords(
                topic=topic, partition=index, files=record_files, registered=self._files
            )
        self._plain_names: bool | None = None
        """Whether names without a number may be given; None: this opening has not looked yet."""
        self._swept_at: float | None = None
        """Loop time; None: not by this opening."""
        self._hot_since: float | None = None
        """Loop time since when there are batches that no file has."""
        self._is_file_full = False
        """Whether they are as many as one file is to have, and it was told."""
        self._unfit_offset: int | None = None
        """Of a batch that no file can hold: it and those behind it stay as they are until it is deleted."""
        self._is_blocked = False
        """Whether it is the first one that no file has."""
        self._forgetting_until = 0
        """Files of lower numbers are being forgotten."""
        self._doomed: deque[tuple[float, str]] = deque()
        """When to delete which objects, whose files are registered no more."""
        self._kept_keys: set[str] = set()
        """Of objects that are registered no more and are kept for readers."""
        self._held = AsyncExitStack()
        self._segment: Segment | None = None
        """None while it is closed."""
        self._gone = False
        self._why_closed = "it has not been opened yet"
        self._appends: deque[_Append] = deque()
        self._settled: Future[None] | None = None
        self._used_at = 0.0
        self._watchers: dict[int, Callable[[], None]] = {}
        self._next_watcher = 0
        self._owner = 0
        """The number of this opening."""
        self._owner_before: AttributeValue | None = None
        """What OWNER is before the next append."""
        # What everything submitted comes to.
        self._next_offset = 0
        self._length = 0
        self._highest_ms = NO_TIME
        self._last_mark = 0
        self._marked_position = 0
        """Of the newest mark of both kinds, with which what was known of producers is stored."""
        # What is durable.
        self._high_watermark = 0
        self._durable_length = 0
        self._log_start_offset = 0
        self._start_position = 0
        self._filed_position = 0
        """Bytes below it are in files, as far as is known."""
        self._dropping_position = 0
        """Bytes below it are being dropped."""

    # --- state -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """For the log."""
        return f"partition={self._topic}/{self._index}"

    @property
    def is_open(self) -> bool:
        """Whether it takes batches and is read now."""
        return self._segment is not None

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that may be read. Of a closed one: as it was last known."""
        return self._log_start_offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last durable record. Of a closed one: as it was last known."""
        return self._high_watermark

    @property
    def size_bytes(self) -> int:
        """What its files take, and its batches before the store compresses them."""
        return self._files.size_bytes + self.hot_bytes

    @property
    def hot_bytes(self) -> int:
        """What those batches take that no file has."""
        return self._durable_length - max(self._start_position, self._filed_position)

    @property
    def file_due_at(self) -> float | None:
        """Loop time at which these batches are to become a file; None if there are none, or no file can hold them."""
        if self._hot_since is None or self._record_files is None or self._segment is None:
            return None
        if self._is_blocked:
            return None
        if self.hot_bytes >= self._settings.file_bytes or self.is_filling:
            return -math.inf
        return self._hot_since + self._settings.file_seconds

    @property
    def is_filling(self) -> bool:
        """Whether half a file is there, and the other half comes within _AHEAD_SECONDS if it goes on like this.

        The file is begun then: when the last of its bytes have come little is left to do, and little was appended
        meanwhile that must be in Tier 2 before the segment can be truncated.
        """
        hot_bytes, file_bytes = self.hot_bytes, self._settings.file_bytes
        is_half = max(file_bytes / 2, self._settings.small_file_bytes) <= hot_bytes < file_bytes
        if self._hot_since is None or not is_half:
            return False
        return (_now() - self._hot_since) * (file_bytes - hot_bytes) <= _AHEAD_SECONDS * hot_bytes

    def is_idle(self, since: float) -> bool:
        """Whether it was not used since then (loop time), and nothing waits for it."""
        if self._doomed or (self._on_hot is not None and self.file_due_at is not None):
            return False
        return self._used_at < since and not self._appends and not self._watchers

    def configure(self, config: TopicConfig) -> None:
        """For the batches from now on."""
        self._config = config

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, with no await in between, whenever the high watermark or the log start moved or the partition was
        closed: look again then. It may not raise. Returns what ends the watch, which may be called more than once."""
        number = self._next_watcher
        self._next_watcher += 1
        self._watchers[number] = callback

        def unwatch() -> None:
            self._watchers.pop(number, None)

        return unwatch

    def _tell_watchers(self) -> None:
        for callback in list(self._watchers.values()):
            callback()

    # --- life --------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Opens it, if it is closed: what is durable is read from the segment.

        Raises PartitionUnavailableError, UnknownPartitionError (its topic was deleted).
        """
        async with self._changing:
            self._require_present()
            if self._segment is not None:
                return
            self._used_at = _now()
            await self._wait_until_settled()
            await self._release()
            held = AsyncExitStack()
            try:
                segment = await held.enter_async_context(
                    self._segments.open_segment(self._segment_name)
                )
                await self._read_state(segment)
                await segment.confirm()
                self._require_present()
            except SegmentStoreError as error:
                await held.aclose()
                raise self._translated(error) from error
            except BaseException:
                await held.aclose()
                raise
            self._held = held
            self._segment = segment
        self._tell_watchers()
        await self._drop_bytes()
        self._note_hot()

    async def close(self) -> None:
        """Refuses further batches; those under way are told of as the log tells of them."""
        self._shut("it was closed")
        # An object that is being put is there, or is not, when this returns: it may be about to be looked for.
        async with self._making, self._changing:
            self._shut("it was closed")
            await self._release()

    def vanish(self) -> None:
        """Its topic is deleted: it is never opened again."""
        self._gone = True
        self._shut("its topic is deleted")

    async def _release(self) -> None:
        held, self._held = self._held, AsyncExitStack()
        await held.aclose()

    def _shut(self, why: str) -> None:
        if self._segment is None:
            return
        self._segment = None
        self._why_closed = why
        self._fetch_ends.clear()
        self._tell_watchers()

    async def _wait_until_settled(self) -> None:
        while self._appends:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await await_shielded(self._settled)

    async def _read_state(self, segment: Segment) -> None:
        """What the segment says, as of one moment behind everything that was submitted before."""
        await await_shielded(segment.barrier())
        info = segment.info()
        mark = await self._newest_mark(segment, info)
        start = mark.place if mark is not None else Place(0, 0, NO_TIME)
        if start.position < info.start_offset:
            start = await self._first_place(segment, info)
        self._positions.clear()
        self._fetch_ends.clear()
        now_ms = self._wall_clock.now_ms()
        next_offset, highest_ms = start.offset, start.highest_ms
        async with aclosing(walk_batches(segment, start, info.length)) as batches:
            async for place, header in batches:
                self._positions.add(place)
                next_offset = header.next_offset
                highest_ms = max(highest_ms, header.max_timestamp)
                if header.has_producer:
                    self._windows.remember(
                        header,
                        base_offset=header.base_offset,
                        append_time_ms=_append_time_of(header),
                        now_ms=now_ms,
                    )
        count = _number_of(info, EVENT_COUNT)
        if start.position < info.length and next_offset != count:
            raise CorruptedDataError(
                f"a partition's batches and its count differ name={segment.name!r}"
                f" next_offset={next_offset} count={count}"
            )
        self._next_offset = self._high_watermark = count
        self._length = self._durable_length = info.length
        self._highest_ms = highest_ms
        self._last_mark = _number_of(info, LAST_MARK)
        self._marked_position = mark.place.position if mark is not None else 0
        self._log_start_offset = _number_of(info, LOG_START)
        self._start_position = info.start_offset
        self._owner = self._random.getrandbits(63)
        self._owner_before = info.core_attributes.get(OWNER)
        self._files.load(info.core_attributes)
        if self._files.last and self._record_files is None:
            raise StorageError(
                f"a partition has files, and there is no Tier 2 for them topic={self._topic!r}"
            )
        self._filed_position = self._dropping_position = info.start_offset
        self._plain_names = self._swept_at = self._hot_since = self._unfit_offset = None
        self._is_file_full = self._is_blocked = False

    async def _newest_mark(self, segment: Segment, info: SegmentProperties) -> Mark | None:
        """Also brings back what was known of producers there."""
        number = _number_of(info, LAST_MARK)
        mark = await self._read_mark(segment, number) if number else None
        if number and mark is None:
            raise CorruptedDataError(f"a mark is missing name={segment.name!r} mark={number}")
        value = info.core_attributes.get(END_MARK)
        if value is not None:
            filed = decode_mark(value)
            if mark is None or filed.place.position > mark.place.position:
                mark = filed
        if mark is None:
            self._windows.load(())
            return None
        keys = [page_key(each) for each in range(mark.producer_pages)]
        pages = await segment.load_attributes(keys) if keys else {}
        values = [pages.get(key) for key in keys]
        self._windows.load([value for value in values if isinstance(value, bytes)])
        return mark

    async def _first_place(self, segment: Segment, info: SegmentProperties) -> Place:
        """Of the first batch that is still there, or the end."""
        if info.start_offset == info.length:
            return Place(info.length, _number_of(info, EVENT_COUNT), NO_TIME)
        content = await read_some(
            segment, info.start_offset, least=BATCH_HEADER_BYTES, most=BATCH_HEADER_BYTES
        )
        header = header_at(segment, content, 0, position=info.start_offset, end=info.length)
        return Place(info.start_offset, header.base_offset, NO_TIME)

    # --- produce -----------------------------------------------------------------------------

    def produce(self, batch: bytes | bytearray | memoryview) -> "Future[Appended]":
        """Appends one batch; calls take place in their order. The batch is copied before this returns.

        The future fails with InvalidRecordError, RecordBatchTooLargeError, InvalidTimestampError,
        OutOfOrderSequenceError, ProducerFencedError, PartitionUnavailableError, UnknownPartitionError. Cancelling it
        takes nothing back.
        """
        answer: Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._submit(batch, answer)
        except (OutOfOrderSequenceError, ProducerFencedError) as refusal:
            self._refuse_when_confirmed(answer, refusal)
        except TopicError as refusal:
            fail_unless_done(answer, refusal)
        return answer

    def _submit(self, batch: bytes | bytearray | memoryview, answer: "Future[Appended]") -> None:
        segment = self._require_open()
        header = self._checked(batch)
        now_ms = self._wall_clock.now_ms()
        self._require_time(header, now_ms)
        if header.has_producer:
            stored = self._windows.find_duplicate(header)
            if stored is not None:
                self._answer_duplicate(answer, stored.base_offset, stored.append_time_ms)
                return
        if len(self._appends) >= self._settings.waiting_appends_max:
            raise PartitionUnavailableError(
                f"too many batches wait for the log waiting={len(self._appends)}"
            )
        base_offset = self._next_offset
        append_time_ms, highest_ms = _NO_APPEND_TIME, header.max_timestamp
        if self._config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            append_time_ms = highest_ms = now_ms
            batch = bytearray(batch)
            stamp_append_time(batch, now_ms)
        placed = placed_copy(batch, base_offset)
        place = Place(self._length, base_offset, self._highest_ms)
        next_offset = base_offset + header.record_count
        updates = [self._as_owner(), AttributeUpdate(EVENT_COUNT, next_offset)]
        mark_number = place.position // self._settings.mark_bytes
        if mark_number > self._last_mark:
            updates += self._mark_updates(place, mark_number)
        try:
            future = segment.append(placed, offset=self._length, attribute_updates=updates)
        except SegmentStoreError as error:
            self._shut(str(error))
            raise self._translated(error, of_change=True) from error
        # From here on the batch is in the log, unless the log says otherwise: then all of this is void.
        self._owner_before = self._owner
        if mark_number > self._last_mark:
            self._last_mark = mark_number
            self._marked_position = place.position
        self._positions.add(place)
        self._next_offset = next_offset
        self._length += len(placed)
        self._highest_ms = max(self._highest_ms, highest_ms)
        if header.has_producer:
            self._windows.remember(
                header, base_offset=base_offset, append_time_ms=append_time_ms, now_ms=now_ms
            )
        self._appends.append(
            _Append(
                answer=answer,
                future=future,
                base_offset=base_offset,
                next_offset=next_offset,
                end=self._length,
                append_time_ms=append_time_ms,
            )
        )
        future.add_done_callback(guarded(self._take_outcomes, self._fail))

    def _as_owner(self) -> AttributeUpdate:
        """The condition of an append that no other owner has come in between."""
        return AttributeUpdate(
            OWNER, self._owner, AttributeUpdateType.REPLACE_IF_EQUALS, self._owner_before
        )

    def _checked(self, batch: bytes | bytearray | memoryview) -> BatchHeader:
        if len(batch) > self._config.message_bytes_max:
            raise RecordBatchTooLargeError(size=len(batch), size_max=self._config.message_bytes_max)
        try:
            header = check_batch(batch)
        except BatchError as error:
            raise InvalidRecordError(error.problem, str(error)) from error
        if header.is_control or header.is_transactional:
            raise InvalidRecordError(
                BatchProblem.INVALID, "a batch of a transaction; topics have no transactions"
            )
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            raise InvalidRecordError(
                BatchProblem.INVALID, "only the store sets the time of an append"
            )
        if self._config.compacts:
            self._require_keys(batch)
        return header

    @staticmethod
    def _require_keys(batch: bytes | bytearray | memoryview) -> None:
        try:
            columns, _ = columns_of_batches(batch)
        except BatchError as error:
            raise InvalidRecordError(error.problem, str(error)) from error
        if any(length < 0 for length in columns.key_lengths):
            raise InvalidRecordError(
                BatchProblem.INVALID, "a record of a topic that is compacted by key has none"
            )

    def _require_time(self, header: BatchHeader, now_ms: int) -> None:
        """Raises InvalidTimestampError. The times of single records are the producer's affair below the highest."""
        config = self._config
        if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return
        if header.max_timestamp - now_ms > config.timestamp_after_ms_max:
            raise InvalidTimestampError(
                f"a record is from the future timestamp={header.max_timestamp} now={now_ms}"
                f" after_max={config.timestamp_after_ms_max}"
            )
        if now_ms - header.max_timestamp > config.timestamp_before_ms_max:
            raise InvalidTimestampError(
                f"a record is too old timestamp={header.max_timestamp} now={now_ms}"
                f" before_max={config.timestamp_before_ms_max}"
            )

    def _mark_updates(self, place: Place, number: int) -> list[AttributeUpdate]:
        """A batch that is longer than the distance of marks leaves several out: they get the same place."""
        pages = self._windows.pages()
        value = encode_mark(Mark(place, len(pages)))
        updates = [
            AttributeUpdate(mark_key(each), value)
            for each in range(self._last_mark + 1, number + 1)
        ]
        updates += [AttributeUpdate(page_key(n), page) for n, page in enumerate(pages)]
        return [AttributeUpdate(LAST_MARK, number), *updates]

    def _answer_duplicate(
        self, answer: "Future[Appended]", base_offset: int, append_time_ms: int
    ) -> None:
        for append in self._appends:
            if append.base_offset == base_offset:
                append.duplicates.append(answer)
                return
        complete_unless_done(answer, self._appended(base_offset, append_time_ms, duplicate=True))

    def _refuse_when_confirmed(self, answer: "Future[Appended]", refusal: TopicError) -> None:
        """It was judged by what may still be void, or be old, because another owner has appended.

        An append of nothing asks the log, in the batch's place: it is taken only if all that was judged is so.
        """
        segment = self._require_open()

        def confirmed(asked: "Future[int]") -> None:
            error = None if asked.cancelled() else asked.exception()
            if error is None and not asked.cancelled():
                fail_unless_done(answer, refusal)
                return
            why = f"a batch before it failed, or another owner has appended: {error}"
            fail_unless_done(answer, PartitionUnavailableError(why))
            if segment is self._segment:
                self._shut(why)

        try:
            asked = segment.append(b"", offset=self._length, attribute_updates=[self._as_owner()])
        except SegmentStoreError as error:
            self._shut(str(error))
            fail_unless_done(answer, self._translated(error))
            return
        self._owner_before = self._owner
        asked.add_done_callback(guarded(confirmed, self._fail))

    def _appended(self, base_offset: int, append_time_ms: int, *, duplicate: bool) -> Appended:
        return Appended(base_offset, append_time_ms, self._log_start_offset, duplicate)

    def _take_outcomes(self, _future: "Future[int]") -> None:
        """Of the oldest appends that are done, in order."""
        moved = False
        while self._appends and self._appends[0].future.done():
            append = self._appends.popleft()
            error = None if append.future.cancelled() else append.future.exception()
            if error is None and not append.future.cancelled():
                moved = True
                self._settle(append)
            else:
                self._void(append, error)
        if not self._appends and self._settled is not None:
            complete_unless_done(self._settled, None)
            self._settled = None
        if moved:
            self._tell_watchers()

    def _settle(self, append: _Append) -> None:
        assert append.next_offset > self._high_watermark, (
            f"high watermark goes back from={self._high_watermark} to={append.next_offset}"
        )
        self._high_watermark = append.next_offset
        self._durable_length = append.end
        self._note_hot()
        appended = self._appended(append.base_offset, append.append_time_ms, duplicate=False)
        complete_unless_done(append.answer, appended)
        for answer in append.duplicates:
            complete_unless_done(
                answer, self._appended(append.base_offset, append.append_time_ms, duplicate=True)
            )

    def _void(self, append: _Append, error: BaseException | None) -> None:
        if isinstance(error, SegmentStoreError):
            refusal = self._translated(error, of_change=True)
        else:
            refusal = PartitionUnavailableError(f"an append was broken off: {error}", stored=None)
        fail_unless_done(append.answer, refusal)
        for answer in append.duplicates:
            fail_unless_done(answer, refusal)
        self._shut(str(refusal))

    def _fail(self, bug: Exception) -> None:
        """A callback met a bug of ours: nothing that is believed here is believed any more."""
        _LOG.error("partition=%s/%s is closed by a bug", self._topic, self._index, exc_info=bug)
        appends, self._appends = list(self._appends), deque()
        for append in appends:
            append.future.add_done_callback(retrieve_exception)
            self._void(append, None)
        self._shut(f"a bug: {bug}")
        if self._settled is not None:
            complete_unless_done(self._settled, None)
            self._settled = None

    # --- fetch -------------------------------------------------------------------------------

    async def fetch(self, offset: int, max_bytes: int) -> bytes:
        """Whole durable batches, the first of which contains the offset (or is the next one, where compaction has
        removed it); as many as have at most `max_bytes`, but one.

        b"" from the high watermark up to the next offset. Raises OffsetOutOfRangeError, PartitionUnavailableError,
        UnknownPartitionError.
        """
        segment = self._require_open()
        self._require_in_range(offset)
        if offset >= self._high_watermark:
            await self._confirm_end(segment)
            return b""
        return await self._read(segment, lambda: self._fetch(segment, offset, max_bytes), offset)

    async def _read(
        self, segment: Segment, read: Callable[[], Awaitable[_Result]], offset: int | None = None
    ) -> _Result:
        """What is trimmed while it is read is read again, it may be in a file now; `offset`: as long as it is there."""
        for remaining in reversed(range(_READS_MAX)):
            try:
                return await read()
            except (SegmentTruncatedError, FileGoneError) as error:
                if offset is not None:
                    self._require_in_range(offset)
                if not remaining or not self._is_own_trim(error) or segment is not self._segment:
                    raise self._read_failed(segment, error) from error
            except SegmentStoreError as error:
                raise self._read_failed(segment, error) from error
        raise AssertionError("the last round returns or raises")

    def _is_own_trim(self, error: SegmentStoreError) -> bool:
        """Of this opening. Another owner's is not known here."""
        if isinstance(error, SegmentTruncatedError):
            return error.start_offset <= max(self._start_position, self._dropping_position)
        assert isinstance(error, FileGoneError), f"{error!r}"
        return error.number < max(self._files.first, self._forgetting_until)

    async def _fetch(self, segment: Segment, offset: int, max_bytes: int) -> bytes:
        if offset < self._files.cold_end:
            assert self._cold is not None, "files without a Tier 2"
            content = await self._cold.fetch(segment, offset, max_bytes)
            if content:
                return content
            offset = self._files.cold_end
            if offset >= self._high_watermark:
                return b""
        end = self._durable_length
        place = await self._hot_place_of(segment, offset)
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

    async def _confirm_end(self, segment: Segment) -> None:
        """That there is nothing more is the word of the segment's owner alone: another one may have appended."""
        try:
            if not segment.is_sure():
                await segment.confirm()
            length = segment.info().length
        except SegmentStoreError as error:
            raise self._read_failed(segment, error) from error
        if length > self._length and segment is self._segment:
            self._shut("another owner has appended")
            self._require_open()

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

    async def _place_of(self, segment: Segment, offset: int) -> Place:
        """Of the batch that contains the offset, which is below the high watermark."""
        known = self._fetch_ends.get(offset)
        if known is not None and known.position < self._durable_length:
            return known
        start = self._positions.at_or_before_offset(offset)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.offset <= offset)
        async with aclosing(walk_batches(segment, start, self._durable_length)) as batches:
            async for place, header in batches:
                if header.next_offset > offset:
                    return place
        raise CorruptedDataError(
            f"a partition has no batch of an offset name={segment.name!r} offset={offset}"
        )

    async def _hot_place_of(self, segment: Segment, offset: int) -> Place:
        """The same of one that is neither below the log start nor in a file: gone, it was trimmed by another owner."""
        place = await self._place_of(segment, offset)
        if place.offset > offset:
            raise SegmentTruncatedError(segment.name, start_offset=place.position)
        return place

    async def _mark_before(self, segment: Segment, fits: Callable[[Place], bool]) -> Place:
        """The last mark that fits (those before it do as well), or the beginning. O(log marks) reads."""
        info = segment.info()
        best = await self._first_place(segment, info)
        low = info.start_offset // self._settings.mark_bytes + 1
        high = _number_of(info, LAST_MARK)
        while low <= high:
            middle = (low + high) // 2
            mark = await self._read_mark(segment, middle)
            if mark is None or mark.place.position < best.position or fits(mark.place):
                # One that was removed lies below the start of the segment.
                if mark is not None and mark.place.position >= best.position:
                    best = mark.place
                low = middle + 1
            else:
                high = middle - 1
        return best

    @staticmethod
    async def _read_mark(segment: Segment, number: int) -> Mark | None:
        key = mark_key(number)
        value = (await segment.load_attributes([key])).get(key)
        return None if value is None else decode_mark(value)

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record that is not older; None if there is none.

        Raises PartitionUnavailableError (also if the records of a batch cannot be read), UnknownPartitionError.
        """
        segment = self._require_open()
        return await self._read(segment, lambda: self._offset_at_time(segment, time_ms))

    async def _offset_at_time(self, segment: Segment, time_ms: int) -> tuple[int, int] | None:
        if self._cold is not None and len(self._files):
            try:
                found = await self._cold.first_at_time(segment, time_ms, self._log_start_offset)
            except BatchError as error:
                raise CorruptedDataError(f"a file gave a batch that is none: {error}") from error
            if found is not None:
                return found
        start = self._positions.before_time(time_ms)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.highest_ms < time_ms)
        if start.offset < self._log_start_offset < self._high_watermark:
            start = await self._place_of(segment, max(self._log_start_offset, start.offset))
        return await self._first_not_older(segment, start, time_ms)

    async def _first_not_older(
        self, segment: Segment, start: Place, time_ms: int
    ) -> tuple[int, int] | None:
        end = self._durable_length
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for place, header in batches:
                if header.max_timestamp < time_ms or header.next_offset <= self._log_start_offset:
                    continue
                for record in await self._records_of(segment, place, header):
                    if record.timestamp_ms >= time_ms and record.offset >= self._log_start_offset:
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

    # --- trim --------------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """Makes `before` the lowest offset that may be read, -1: the high watermark; the log start behind it.

        Raises OffsetOutOfRangeError, PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._require_open()
        if before == -1:
            before = self._high_watermark
        if not 0 <= before <= self._high_watermark:
            raise self._out_of_range(before)
        if before > self._log_start_offset:
            update = AttributeUpdate(LOG_START, before, AttributeUpdateType.REPLACE_IF_GREATER)
            try:
                await await_shielded(segment.append(b"", attribute_updates=[update]))
            except BadAttributeUpdateError:
                pass  # another call went further meanwhile
            except SegmentStoreError as error:
                if segment is self._segment:
                    self._shut(str(error))
                raise self._translated(error, of_change=True) from error
            if before > self._log_start_offset:
                self._log_start_offset = before
                self._tell_watchers()
        await self._drop_bytes()
        return self._log_start_offset

    async def _drop_bytes(self) -> None:
        """Of files and batches whose records are all below the log start, and of batches that are in files. What fails
        is done at the next trim or recovery."""
        async with self._changing:
            segment = self._segment
            if segment is None:
                return
            try:
                forgotten = await self._forget_files(segment)
                await self._truncate(segment)
                due = _now() + self._config.file_delete_delay_ms / 1000
                self._doomed.extend((due, key) for key in forgotten)
                self._kept_keys.update(forgotten)
                await self._delete_doomed()
            except SegmentStoreError as error:
                if isinstance(error, SegmentTruncatedError | FileGoneError):
                    self._shut(str(error))  # another owner has trimmed
                _LOG.warning(
                    "partition=%s/%s keeps deleted records for now: %s",
                    self._topic,
                    self._index,
                    error,
                )

    async def delete_doomed(self) -> None:
        """Objects of files that were forgotten long enough ago (`file.delete.delay.ms`): readers may be at them, and
        what Tier 2 has published of the segment may name them. One that cannot be deleted is left to a sweep."""
        try:
            await self._delete_doomed()
        except StorageError as error:
            _LOG.warning("%s keeps an object that is no file any more: %s", self.label, error)

    async def _delete_doomed(self) -> None:
        while self._doomed and self._doomed[0][0] <= _now():
            _, key = self._doomed.popleft()
            self._kept_keys.discard(key)
            assert self._record_files is not None, "files without a Tier 2"
            await self._record_files.delete(key)

    async def _truncate(self, segment: Segment) -> None:
        first = max(self._log_start_offset, self._files.cold_end)
        if first >= self._high_watermark:
            position = self._durable_length
        elif first == 0:
            return
        else:
            position = (await self._hot_place_of(segment, first)).position
        if position <= self._start_position:
            return
        self._filed_position = max(self._filed_position, position)
        self._dropping_position = position
        if position > self._marked_position:
            # What the batches say of their producers goes with them.
            await self._append_alone(segment, self._end_mark_updates())
        await self._forget_marks(segment, position)
        await self._segments.truncate(self._segment_name, position)
        self._positions.drop_before(position)
        self._start_position = max(self._start_position, position)
        self._is_blocked = False

    async def _forget_files(self, segment: Segment) -> list[str]:
        """Those whose records are all below the log start; the keys of their objects, which are to be deleted."""
        keys: list[str] = []
        files = self._files
        while len(files):
            several = await files.some(segment, files.first, FILES_PER_UPDATE_MAX)
            ended = [file for file in several if file.end_offset <= self._log_start_offset]
            if not ended:
                break
            self._forgetting_until = files.first + len(ended)
            await self._append_alone(segment, files.forgetting(ended))
            files.forgot(ended)
            keys += [file.name(self._topic, self._index).key for file in ended]
            if len(ended) < len(several):
                break
        return keys

    def _end_mark_updates(self) -> list[AttributeUpdate]:
        """A mark at the end of what was submitted, for an append that comes now."""
        self._marked_position = self._length
        place = Place(self._length, self._next_offset, self._highest_ms)
        pages = self._windows.pages()
        return [
            AttributeUpdate(END_MARK, encode_mark(Mark(place, len(pages)))),
            *(AttributeUpdate(page_key(n), page) for n, page in enumerate(pages)),
        ]

    async def _append_alone(self, segment: Segment, updates: Sequence[AttributeUpdate]) -> None:
        """Changes attributes if this still is the owner, and ends every opening from before that change.

        Raises SegmentStoreError; the partition is closed then.
        """
        before = self._owner_before
        owner = self._owner = self._random.getrandbits(63)
        claim = AttributeUpdate(OWNER, owner, AttributeUpdateType.REPLACE_IF_EQUALS, before)
        try:
            future = segment.append(b"", offset=self._length, attribute_updates=[claim, *updates])
            self._owner_before = owner
            await await_shielded(future)
        except BaseException as error:
            # Also where this task is ended: what is believed here may not be what the log has.
            if segment is self._segment:
                self._shut(f"a change of its files failed: {error!r}")
            raise

    async def _forget_marks(self, segment: Segment, position: int) -> None:
        """Those that lie below the position. The newest stays: it is where a recovery begins."""
        first = self._start_position // self._settings.mark_bytes
        last = min(position // self._settings.mark_bytes, _number_of(segment.info(), LAST_MARK))
        for begin in range(first, last, _MARKS_PER_UPDATE_MAX):
            numbers = range(begin, min(begin + _MARKS_PER_UPDATE_MAX, last))
            keys = [mark_key(number) for number in numbers]
            known = await segment.load_attributes(keys)
            if known:
                forgotten = [AttributeUpdate(key, None) for key in known]
                await await_shielded(segment.append(b"", attribute_updates=forgotten))

    async def expire(self, *, age_is_known: bool) -> None:
        """Deletes what retention says: whole files from the front, and behind the last file whole batches; by size, and
        by age if the clock is trusted.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._require_open()
        if not self._config.deletes:
            return
        offset = await self._read(
            segment, lambda: self._expired(segment, age_is_known=age_is_known)
        )
        if offset > self._log_start_offset:
            await self.delete_records(offset)

    async def _expired(self, segment: Segment, *, age_is_known: bool) -> int:
        """The offset up to which retention deletes."""
        config = self._config
        offset = self._log_start_offset
        if config.retention_bytes >= 0:
            excess = self.size_bytes - config.retention_bytes

            def exceeds(file: RegisteredFile) -> bool:
                nonlocal excess
                excess -= file.size
                return excess >= 0

            end, has_more = await self._end_of_first_files(segment, exceeds)
            if not has_more:
                end = max(end, await self._expired_by_size(segment, config.retention_bytes))
            offset = max(offset, end)
        if config.retention_ms >= 0 and age_is_known:
            oldest_ms = self._wall_clock.now_ms() - config.retention_ms
            end, has_more = await self._end_of_first_files(
                segment, lambda file: file.highest_ms < oldest_ms
            )
            if not has_more:
                end = max(end, await self._expired_by_age(segment, oldest_ms))
            offset = max(offset, end)
        return offset

    async def _end_of_first_files(
        self, segment: Segment, fits: Callable[[RegisteredFile], bool]
    ) -> tuple[int, bool]:
        """Where the longest run of files from the front ends that each fit, and whether there are files behind it."""
        end, number = 0, self._files.first
        while number <= self._files.last:
            for file in await self._files.some(segment, number, FILES_PER_UPDATE_MAX):
                if not fits(file):
                    return end, True
                end = file.end_offset
                number += 1
        return end, False

    async def _expired_by_size(self, segment: Segment, keep_bytes: int) -> int:
        """The base offset of the last batch that at least so many bytes stand behind the beginning of."""
        limit = self._durable_length - keep_bytes
        if limit <= self._start_position:
            return 0
        end = self._durable_length
        start = self._positions.at_or_before_position(limit)
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

    async def _expired_by_age(self, segment: Segment, oldest_ms: int) -> int:
        """The base offset of the first batch with a record that is young enough; all before it are old."""
        end, offset = self._durable_length, self._high_watermark
        start = self._positions.before_time(oldest_ms)
        if start is None:
            start = await self._mark_before(segment, lambda place: place.highest_ms < oldest_ms)
        async with aclosing(walk_batches(segment, start, end)) as batches:
            async for place, header in batches:
                if header.max_timestamp >= oldest_ms:
                    return place.offset
        return offset

    # --- files -------------------------------------------------------------------------------

    def _note_hot(self) -> None:
        if self._on_hot is None:
            return
        hot_bytes = self.hot_bytes
        if not hot_bytes:
            self._hot_since, self._is_file_full = None, False
            return
        is_full = 2 * hot_bytes >= self._settings.file_bytes and self.file_due_at == -math.inf
        if self._hot_since is None or is_full > self._is_file_full:
            if self._hot_since is None:
                self._hot_since = _now()
            self._is_file_full = is_full
            self._on_hot(self)

    async def make_file(self, *, bytes_max: int | None = None, is_filling: bool = False) -> int:
        """Puts the oldest records that are in batches into one file; how many bytes these batches have, 0 if there is
        none to be made.

        `bytes_max`: of the batches, if it is less than a file holds; one batch may be longer. `is_filling`: what is
        appended meanwhile becomes part of it, until it is full or due.

        Raises PartitionUnavailableError, UnknownPartitionError; what is to be a file is one later.
        """
        self._require_present()
        async with self._making:
            segment, files = self._segment, self._record_files
            if segment is None or files is None:
                return 0
            began = _now()
            try:
                if self._start_position < self._filed_position:
                    # Behind a failure: the bytes of files go first, so that there is one begin of what is hot.
                    await self._drop_bytes()
                limit = self._settings.file_bytes
                limit = limit if bytes_max is None else min(limit, bytes_max)
                until = began
                if is_filling and self._hot_since is not None:
                    until = self._hot_since + self._settings.file_seconds
                gathered = await self._make_one(segment, files, limit, until)
            except StorageFullError as error:
                raise PartitionUnavailableError(str(error)) from error
            except SegmentStoreError as error:
                raise self._read_failed(segment, error) from error
            if gathered is None:
                return 0
            await self._drop_bytes()
            self._hot_since, self._is_file_full = None, False
            if self.hot_bytes and segment is self._segment:
                # Appended while this one was made.
                self._hot_since = began
                self._is_file_full = self.hot_bytes >= self._settings.file_bytes
            return gathered.size

    async def _make_one(
        self, segment: Segment, files: RecordFiles, bytes_max: int, until: float
    ) -> BatchGathering | None:
        while True:
            gathered = await self._gathered(segment, bytes_max, until)
            if gathered is None:
                return None
            form = self._config.file_form(
                log_append_time=gathered.log_append_time, created_ms=self._wall_clock.now_ms()
            )
            try:
                async with aclosing(gathered.pieces()) as pieces:
                    made = await files.make(pieces, form)
            except UnfitBatchError as error:
                # Again, up to that batch: each time it lies further in front.
                self._note_unfit(error, gathered)
                continue
            await self._keep(segment, gathered, made)
            return gathered

    async def _gathered(
        self, segment: Segment, bytes_max: int, until: float
    ) -> BatchGathering | None:
        if self._log_start_offset > self._files.cold_end and len(self._files):
            await self._drop_bytes()  # all of them: files have no gap between them
        first = max(self._log_start_offset, self._files.cold_end)
        if first >= self._high_watermark:
            return None
        begin = await self._hot_place_of(segment, first)
        if begin.offset < self._files.cold_end:
            raise CorruptedDataError(
                f"a batch is in a file and behind it name={segment.name!r} offset={begin.offset}"
            )
        if self._unfit_offset is not None and self._unfit_offset < begin.offset:
            self._unfit_offset = None  # it was deleted
        gathered = BatchGathering(
            segment,
            begin,
            self._durable_length,
            bytes_max=bytes_max,
            before_offset=self._unfit_offset,
            wait_for_more=partial(self._wait_for_bytes, segment, until) if until > _now() else None,
        )
        self._is_blocked = not await gathered.look()
        return None if self._is_blocked else gathered

    async def _wait_for_bytes(self, segment: Segment, until: float, end: int, least: int) -> int:
        """The durable end, when that has grown by `least` bytes, or it is late. Raises PartitionUnavailableError."""
        grown = asyncio.Event()
        unwatch = self.watch(grown.set)
        try:
            while self._durable_length < end + least and _now() < until:
                grown.clear()
                await wait_for_event(grown, until=until)
                if segment is not self._segment:
                    raise PartitionUnavailableError("the partition is closed")
        finally:
            unwatch()
        return self._durable_length

    def _note_unfit(self, error: UnfitBatchError, gathered: BatchGathering) -> None:
        assert gathered.begin.offset <= error.base_offset < gathered.end.offset, f"{error}"
        self._unfit_offset = error.base_offset
        _LOG.error(
            "partition=%s/%s batches stay in the segment from one on that fits no file: %s",
            self._topic,
            self._index,
            error,
        )

    async def _keep(self, segment: Segment, gathered: BatchGathering, made: MadeFile) -> None:
        """Put and registered. Raises SegmentStoreError."""
        begin, end, files = gathered.begin, gathered.end, self._files
        before = await files.get(segment, files.last) if len(files) else None
        assert (made.first_offset, made.end_offset) == (begin.offset, end.offset), (made, gathered)
        file = RegisteredFile(
            first_offset=made.first_offset,
            end_offset=made.end_offset,
            size=len(made.image),
            record_count=made.record_count,
            lowest_ms=made.lowest_ms,
            highest_ms=made.highest_ms,
            highest_ms_until_end=max(
                end.highest_ms,
                made.highest_ms,
                NO_TIME if before is None else before.highest_ms_until_end,
            ),
        )
        file = await self._put(file, made, plain=True)
        async with self._changing:
            if segment is not self._segment:
                return  # the object is dead: another opening registers only what it puts itself
            await self._append_alone(segment, [*files.adding(file), *self._end_mark_updates()])
            files.added(file)
            self._filed_position = end.position

    async def _put(self, file: RegisteredFile, made: MadeFile, *, plain: bool) -> RegisteredFile:
        """The file with the number of the name that it was put under. Raises StorageError, StorageFullError."""
        assert self._record_files is not None, "no Tier 2 for files"
        if self._plain_names is None:
            used = topic_prefix(self._topic) + NAMES_USED
            self._plain_names = not await self._record_files.exists(used)
        number = 0 if plain and self._plain_names else self._random.getrandbits(64) or 1
        for _ in range(_NAMES_TRIED_MAX):
            file = replace(file, name_number=number)
            try:
                await self._record_files.put(file.name(self._topic, self._index).key, made.image)
            except ObjectExistsError:
                # Another owner's, of a topic of the same name, or our own with a lost answer: it is never taken for it.
                number = self._random.getrandbits(64) or 1
            else:
                made.release()
                return file
        raise StorageError(f"names of files are taken topic={self._topic!r} file={file}")

    async def replace_file(self, number: int, old: RegisteredFile, made: MadeFile) -> str | None:
        """Puts another file of the same range and registers it in the place of one, if that is registered still.

        The key of the old object, which is kept for readers until drop_kept(); None if it is registered no more.
        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        self._require_present()
        async with self._making:
            segment = self._require_live()
            new = replace(
                old,
                size=len(made.image),
                record_count=made.record_count,
                lowest_ms=made.lowest_ms,
                highest_ms=made.highest_ms,
            )
            try:
                new = await self._put(new, made, plain=False)
                async with self._changing:
                    files = self._files
                    is_there = segment is self._segment and files.first <= number <= files.last
                    if not is_there or await files.get(segment, number) != old:
                        return None
                    await self._append_alone(segment, files.replacing(number, old, new))
                    files.replaced(number, old, new)
            except StorageFullError as error:
                raise PartitionUnavailableError(str(error)) from error
            except SegmentStoreError as error:
                raise self._read_failed(segment, error) from error
            key = old.name(self._topic, self._index).key
            self._kept_keys.add(key)
            return key

    async def compact(self, *, age_is_known: bool) -> int:
        """One pass of compaction by key over the files, if a pass is due; how many files became smaller.

        It is due when half of the files' bytes were in no pass yet (Kafka's `min.cleanable.dirty.ratio`), or tombstones
        may go. Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment, files = self._require_open(), self._record_files
        if files is None or not self._config.compacts or not len(self._files):
            return 0
        state = CompactionState.of(segment.info().core_attributes)
        now_ms = self._wall_clock.now_ms()
        removable = state.removable_end(now_ms, self._config.tombstone_ms) if age_is_known else 0
        replaced = 0

        async def replace_one(number: int, old: RegisteredFile, made: MadeFile) -> bool:
            nonlocal replaced
            key = await self.replace_file(number, old, made)
            if key is None:
                return False
            self._doomed.append((_now() + self._config.file_delete_delay_ms / 1000, key))
            replaced += 1
            return True

        try:
            if not removable and not await self._is_dirty(segment, state.end):
                return 0
            end = await compact_files(
                segment,
                files=files,
                registered=self._files,
                key_of=lambda file: file.name(self._topic, self._index).key,
                form=self._config.file_form(log_append_time=False, created_ms=now_ms),
                state=state,
                tombstones_end=removable,
                secret=self._random.randbytes(16),
                replace=replace_one,
            )
            async with self._changing:
                if end is not None and segment is self._segment:
                    after = state.behind(end, now_ms, tombstones_went=bool(removable))
                    await self._append_alone(segment, after.updates())
        except SegmentStoreError as error:
            raise self._read_failed(segment, error) from error
        return replaced

    async def _is_dirty(self, segment: Segment, compacted_end: int) -> bool:
        number = await self._files.at_offset(segment, compacted_end)
        dirty = 0
        while number <= self._files.last:
            some = await self._files.some(segment, number, FILES_PER_UPDATE_MAX)
            dirty += sum(file.size for file in some)
            number += len(some)
        return dirty > 0 and 2 * dirty >= self._files.size_bytes

    async def drop_kept(self, key: str) -> None:
        """No reader can be at the old object any more. Raises PartitionUnavailableError: it is deleted by a sweep."""
        self._kept_keys.discard(key)
        if self._record_files is not None:
            try:
                await self._record_files.delete(key)
            except StorageError as error:
                raise PartitionUnavailableError(str(error)) from error

    async def sweep_files(self) -> int:
        """Deletes objects that look like files of this partition and are none, if `file_sweep_seconds` have passed
        since this opening did so; how many there were.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        self._require_present()
        async with self._making:
            segment, files, now = self._segment, self._record_files, _now()
            due = (
                self._swept_at is None or now >= self._swept_at + self._settings.file_sweep_seconds
            )
            if segment is None or files is None or not due:
                return 0

            try:
                deleted = await delete_dead_files(
                    segment,
                    topic=self._topic,
                    partition=self._index,
                    files=files,
                    registered=self._files,
                    spared=self._kept_keys,
                    prove=lambda: self._prove_ownership(segment),
                )
            except SegmentStoreError as error:
                raise self._read_failed(segment, error) from error
            self._swept_at = now
            return deleted

    async def _prove_ownership(self, segment: Segment) -> None:
        """And ends every other opening. Raises SegmentStoreError, PartitionUnavailableError."""
        async with self._changing:
            if segment is not self._segment:
                raise PartitionUnavailableError("the partition is closed")
            await self._append_alone(segment, [])

    # --- refusals ----------------------------------------------------------------------------

    def _require_present(self) -> None:
        if self._gone:
            raise UnknownPartitionError(self._topic, self._index)

    def _require_open(self) -> Segment:
        self._require_present()
        if self._segment is None:
            raise PartitionUnavailableError(
                f"the partition is closed: {self._why_closed} topic={self._topic!r}"
                f" partition={self._index}"
            )
        self._used_at = _now()
        return self._segment

    def _require_live(self) -> Segment:
        """As _require_open(), for work in the background, which is no use."""
        used_at = self._used_at
        segment = self._require_open()
        self._used_at = used_at
        return segment

    def _require_in_range(self, offset: int) -> None:
        if not self._log_start_offset <= offset <= self._next_offset:
            raise self._out_of_range(offset)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            offset, log_start=self._log_start_offset, next_offset=self._high_watermark
        )

    def _read_failed(self, segment: Segment, error: SegmentStoreError) -> TopicError:
        """A read that Tier 2 fails changes nothing here; any other failure says that this is no longer the owner."""
        is_passing = isinstance(error, StorageError | TooManyWaitersError)
        if isinstance(error, SegmentTruncatedError | FileGoneError):
            # Beside a trim of our own, it is over with the next try; another owner's is not known here.
            is_passing = self._is_own_trim(error)
        if not is_passing and segment is self._segment:
            self._shut(str(error))
        return self._translated(error)

    def _translated(self, error: SegmentStoreError, *, of_change: bool = False) -> TopicError:
        if isinstance(error, SegmentNotFoundError):
            return UnknownPartitionError(self._topic, self._index)
        if isinstance(error, BadOffsetError | BadAttributeUpdateError):
            return PartitionUnavailableError(
                f"another owner has appended, or a batch before it failed: {error}"
            )
        unknown = of_change and is_outcome_unknown(error)
        return PartitionUnavailableError(str(error), stored=None if unknown else False)

    # --- proof -------------------------------------------------------------------------------

    def producers(self) -> Sequence[tuple[int, int, Sequence[object]]]:
        """What is known of producers, as of everything submitted: for checks."""
        return self._windows.snapshot()

    def check(self) -> None:
        """Proves the order of its numbers. O(positions + producers)."""
        assert self._log_start_offset <= self._high_watermark <= self._next_offset, (
            f"log_start={self._log_start_offset} high_watermark={self._high_watermark}"
            f" next={self._next_offset}"
        )
        assert self._start_position <= self._durable_length <= self._length, (
            f"start={self._start_position} durable={self._durable_length} length={self._length}"
        )
        assert self._start_position <= self._filed_position <= self._durable_length, (
            f"start={self._start_position} filed={self._filed_position} durable={self._durable_length}"
        )
        assert self._files.cold_end <= self._high_watermark, f"cold_end={self._files.cold_end}"
        self._files.check()
        self._positions.check()
        self._windows.check()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _number_of(info: SegmentProperties, key: AttributeKey) -> int:
    return count_of(info.core_attributes, key, name=info.name)


def _append_time_of(header: BatchHeader) -> int:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    return _NO_APPEND_TIME
