"""One partition of a topic: an ordinary segment of record batches, appended to and read by the offsets of records.

    produce() -> judged, numbered, placed, submitted to the log: one synchronous stretch, so calls follow one another
    append durable -> high watermark moves -> the producer is told, those who watch are called

The segment's attributes, each changed in the append (or the trim) that it belongs to:

| attribute | says |
|---|---|
| EVENT_COUNT | the offset of the next record |
| LOG_START | the lowest offset that may be read; absent: 0. It may lie inside of a batch |
| OWNER | a number drawn at the opening behind which the last batch was appended |
| LAST_MARK | the number of the newest mark (batch_positions.py); absent: there is none |
| `topic mark `, u64 | a mark |
| `topic producers `, u32 | a page of what was known of producers at the newest mark (producer_windows.py) |

Invariants:

- `log_start_offset <= high_watermark <= next offset`; each only grows while the partition is open.
- An append is conditional on the segment's length and on OWNER, which the first append behind each opening sets to a
  number of its own. So of two owners the log takes the appends of one, until the other has opened the partition anew;
  and when one append is refused, all behind it are. (The length alone may be right by accident: another owner may have
  appended as many bytes as were refused.)
- When one append fails, what was decided behind it is void: the partition is closed, later batches are refused as
  surely not stored, and recover() reads the segment again. A batch that was under way is `stored=None` if the log may
  have it.
- Nothing is told of an append before it is durable: neither its offset, nor that another batch is its duplicate, nor
  that another is out of order behind it.
- A batch is never cut, neither by a fetch nor by a trim; bytes of a batch go when all of its records are below the log
  start.
- The log start is durable before bytes are dropped: what is readable after a crash is what was before it, or less.
"""

import asyncio
import logging
from asyncio import Future
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from random import Random
from typing import Final

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchHeader,
    BatchProblem,
    Record,
    TimestampType,
    check_batch,
    decode_batch,
    place_batch,
    stamp_append_time,
)
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    StorageError,
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
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import TopicConfig

_LOG = logging.getLogger(__name__)

LOG_START: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x01")
LAST_MARK: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x02")
OWNER: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x03")

_PAGE_KEY: Final = b"topic producers "
_FETCH_ENDS_MAX: Final = 128
"""Ends of fetches that are remembered: most fetches begin where one ended."""
_MARKS_PER_UPDATE_MAX: Final = 500
_NO_APPEND_TIME: Final = -1


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
    ) -> None:
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
        """Held by what opens, closes or trims."""
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
        # What is durable.
        self._high_watermark = 0
        self._durable_length = 0
        self._log_start_offset = 0
        self._start_position = 0

    # --- state -------------------------------------------------------------------------------

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
        """What its batches take, before the store compresses them."""
        return self._durable_length - self._start_position

    def is_idle(self, since: float) -> bool:
        """Whether it was not used since then (loop time), and nothing waits for it."""
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
            self._used_at = asyncio.get_running_loop().time()
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

    async def close(self) -> None:
        """Refuses further batches; those under way are told of as the log tells of them."""
        self._shut("it was closed")
        async with self._changing:
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
        self._log_start_offset = _number_of(info, LOG_START)
        self._start_position = info.start_offset
        self._owner = self._random.getrandbits(63)
        self._owner_before = info.core_attributes.get(OWNER)

    async def _newest_mark(self, segment: Segment, info: SegmentProperties) -> Mark | None:
        """Also brings back what was known of producers there."""
        number = _number_of(info, LAST_MARK)
        if not number:
            self._windows.load(())
            return None
        mark = await self._read_mark(segment, number)
        if mark is None:
            raise CorruptedDataError(f"a mark is missing name={segment.name!r} mark={number}")
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
        placed = bytearray(batch)
        base_offset = self._next_offset
        place_batch(placed, base_offset)
        append_time_ms, highest_ms = _NO_APPEND_TIME, header.max_timestamp
        if self._config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            append_time_ms = highest_ms = now_ms
            stamp_append_time(placed, now_ms)
        place = Place(self._length, base_offset, self._highest_ms)
        next_offset = base_offset + header.record_count
        updates = [self._as_owner(), AttributeUpdate(EVENT_COUNT, next_offset)]
        mark_number = place.position // self._settings.mark_bytes
        if mark_number > self._last_mark:
            updates += self._mark_updates(place, mark_number)
        try:
            future = segment.append(bytes(placed), offset=self._length, attribute_updates=updates)
        except SegmentStoreError as error:
            self._shut(str(error))
            raise self._translated(error, of_change=True) from error
        # From here on the batch is in the log, unless the log says otherwise: then all of this is void.
        self._owner_before = self._owner
        self._last_mark = max(self._last_mark, mark_number)
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
        return header

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
        """Whole durable batches, the first of which contains the offset; as many as have at most `max_bytes`, but one.

        b"" from the high watermark up to the next offset. Raises OffsetOutOfRangeError, PartitionUnavailableError,
        UnknownPartitionError.
        """
        segment = self._require_open()
        self._require_in_range(offset)
        if offset >= self._high_watermark:
            await self._confirm_end(segment)
            return b""
        end = self._durable_length
        try:
            place = await self._place_of(segment, offset)
            content = await read_some(
                segment,
                place.position,
                least=BATCH_HEADER_BYTES,
                most=min(max(max_bytes, BATCH_HEADER_BYTES), end - place.position),
            )
            header = header_at(segment, content, 0, position=place.position, end=end)
            if header.size > len(content):
                content = await read_some(
                    segment, place.position, least=header.size, most=header.size
                )
            return self._whole_batches(segment, content, place, end)
        except SegmentTruncatedError as error:
            # Trimmed while it was read.
            self._require_in_range(offset)
            raise self._read_failed(segment, error) from error
        except SegmentStoreError as error:
            raise self._read_failed(segment, error) from error

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
        try:
            start = self._positions.before_time(time_ms)
            if start is None:
                start = await self._mark_before(segment, lambda place: place.highest_ms < time_ms)
            if start.offset < self._log_start_offset < self._high_watermark:
                start = await self._place_of(segment, self._log_start_offset)
            return await self._first_not_older(segment, start, time_ms)
        except SegmentStoreError as error:
            raise self._read_failed(segment, error) from error

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
        """Of batches whose records are all below the log start. What fails is done at the next trim or recovery."""
        async with self._changing:
            segment = self._segment
            if segment is None:
                return
            log_start = self._log_start_offset
            try:
                if log_start >= self._high_watermark:
                    position = self._durable_length
                elif log_start == 0:
                    return
                else:
                    position = (await self._place_of(segment, log_start)).position
                if position <= self._start_position:
                    return
                await self._forget_marks(segment, position)
                await self._segments.truncate(self._segment_name, position)
                self._positions.drop_before(position)
                self._start_position = max(self._start_position, position)
            except SegmentStoreError as error:
                if isinstance(error, SegmentTruncatedError):
                    self._shut(str(error))  # another owner has trimmed
                _LOG.warning(
                    "partition=%s/%s keeps deleted records for now: %s",
                    self._topic,
                    self._index,
                    error,
                )

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
        """Deletes what retention says: whole batches from the front, by size, and by age if the clock is trusted.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._require_open()
        config = self._config
        offset = self._log_start_offset
        try:
            if config.retention_bytes >= 0:
                offset = max(offset, await self._expired_by_size(segment, config.retention_bytes))
            if config.retention_ms >= 0 and age_is_known:
                oldest_ms = self._wall_clock.now_ms() - config.retention_ms
                offset = max(offset, await self._expired_by_age(segment, oldest_ms))
        except SegmentStoreError as error:
            raise self._read_failed(segment, error) from error
        if offset > self._log_start_offset:
            await self.delete_records(offset)

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
        self._used_at = asyncio.get_running_loop().time()
        return self._segment

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
        if isinstance(error, SegmentTruncatedError):
            # Beside a trim of our own, it is over with the next try; another owner's is not known here.
            is_passing = error.start_offset <= self._start_position
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
        self._positions.check()
        self._windows.check()


def _number_of(info: SegmentProperties, key: AttributeKey) -> int:
    value = info.core_attributes.get(key, 0)
    if not isinstance(value, int) or value < 0:
        raise CorruptedDataError(
            f"an attribute of a partition is no count name={info.name!r} key={key.hex()} value={value!r}"
        )
    return value


def _append_time_of(header: BatchHeader) -> int:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    return _NO_APPEND_TIME
