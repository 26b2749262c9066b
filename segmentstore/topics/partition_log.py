"""The log of one partition: batches judged, numbered, appended to its segment, and told of once they are durable.

    produce() -> judged, numbered, placed, submitted to the segment, synchronously: calls follow one another
    append durable -> high watermark moves -> the producer is told, those who watch are called
    append fails   -> what was decided behind it is void, the log is closed; load() reads the segment again

The segment's attributes, each changed in the append that it belongs to; those of files are in
record_files/registered_files.py and record_files/key_compaction.py:

| attribute | says |
|---|---|
| EVENT_COUNT | the offset of the next record |
| LOG_START | the lowest offset that may be read; absent: 0. It may lie inside of a batch |
| OWNER | a number drawn at the opening behind which the last batch was appended |
| LAST_MARK | the number of the newest mark (batch_positions.py); absent: there is none |
| `topic mark `, u64 | a mark |
| END_MARK | a mark at what was the end of the segment when bytes were last to be dropped; absent: there is none |
| RETIRED | present: its topic is being deleted. It comes with another OWNER, so that no opening appends any more |
| `topic producers `, u32 | a page of what was known of producers at the newer of both marks (producer_windows.py) |

Invariants:

- `log_start_offset <= high_watermark <= next_offset`; each only grows while the log is open.
- An append is conditional on the segment's length and on OWNER, which the first append behind each opening sets to a
  number of its own. So of two owners the segment takes the appends of one, until the other has opened the partition
  anew; and when one append is refused, all behind it are. (The length alone may be right by accident: another owner may
  have appended as many bytes as were refused.)
- When one append fails, what was decided behind it is void: the log is closed, and later batches are refused as surely
  not stored. A batch that was under way is `stored=None` if the segment may have it.
- An append that changes which files there are (append_alone) gives OWNER another number. It leaves the length as it
  was: another owner that was opened before it would have length and number right, and register files on top of what it
  does not know.
- Nothing is told of an append before it is durable: neither its offset, nor that another batch is its duplicate, nor
  that another is out of order behind it.
- That an offset is behind the end is told only when the segment's owner has confirmed the end.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Final

from segmentstore.codec.record_batch import (
    BatchHeader,
    SentBatch,
    TimestampType,
    placed_copy,
    stamp_append_time,
)
from segmentstore.codec.topic_files import LOG_START, RETIRED, count_of
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentStoreError,
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
from segmentstore.topics.acceptable_batches import acceptable_header
from segmentstore.topics.batch_positions import (
    LAST_MARK,
    NO_TIME,
    BatchPositions,
    Mark,
    Place,
    decode_mark,
    encode_mark,
    first_place,
    mark_key,
    read_mark,
    walk_batches,
)
from segmentstore.topics.errors import (
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    TopicError,
    UnknownPartitionError,
)
from segmentstore.topics.producer_windows import ProducerWindows, page_key
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import TopicConfig

_LOG = logging.getLogger(__name__)

OWNER: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x03")
END_MARK: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x07")

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
        "highest_ms",
        "mark_position",
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
        highest_ms: int,
        mark_position: int | None,
    ) -> None:
        """`highest_ms`: of all records up to its end. `mark_position`: of the mark that it brings, if it brings one."""
        self.answer = answer
        self.future = future
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.end = end
        self.append_time_ms = append_time_ms
        self.highest_ms = highest_ms
        self.mark_position = mark_position
        self.duplicates: list[Future[Appended]] = []
        """Of the same batch, sent again while this one is under way."""


class PartitionLog:
    """Made closed. load() reads what is durable, open() takes batches; shut() closes it, and behind
    wait_until_settled() it may be loaded again."""

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        wall_clock: WallClock,
        random: Random,
        config: TopicConfig,
        settings: TopicSettings,
        on_durable: Callable[[], None],
    ) -> None:
        """`on_durable` is called, with no await in between, when the high watermark has moved."""
        self.topic = topic
        self.index = index
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._on_durable = on_durable
        self.config = config
        """What is set of the topic: of the batches from now on."""
        self.changing = asyncio.Lock()
        """Held by what opens or closes the partition, trims it, or registers files."""
        self._windows = ProducerWindows(
            producers_max=settings.producers_per_partition_max,
            silent_ms_max=int(settings.producer_seconds_max * 1000),
        )
        self.positions = BatchPositions(count_max=settings.positions_per_partition_max)
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
        # What is durable, or was when it was closed. Changed here alone.
        self.high_watermark = 0
        """The offset behind the last durable record."""
        self.durable_length = 0
        self.log_start_offset = 0
        """The lowest offset that may be read."""
        self.marked_position = 0
        """Of the newest mark of both kinds, with which what was known of producers is stored."""
        self.highest_ms = NO_TIME
        """What no header of a batch in the segment goes beyond: the highest time that any batch had, those that are
        deleted by now too. What its producer wrote into a header need not be the time of a record."""

    # --- state -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """For the process's own log."""
        return f"partition={self.topic}/{self.index}"

    @property
    def segment(self) -> Segment | None:
        """None while it is closed."""
        return self._segment

    def note_use(self) -> None:
        """It is about to be used: not idle from now on, for as long as idleness takes."""
        self._used_at = now()

    def is_idle(self, since: float) -> bool:
        """Whether it was not used since then (loop time), and nothing waits for it."""
        return self._used_at < since and not self._appends and not self._watchers

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

    # --- opening -----------------------------------------------------------------------------

    async def load(self, segment: Segment) -> SegmentProperties:
        """What the segment says, as of one moment behind everything that was submitted before.

        Raises SegmentStoreError (SegmentNotFoundError: it is retired).
        """
        await await_shielded(segment.barrier())
        info = segment.info()
        if RETIRED in info.core_attributes:
            raise SegmentNotFoundError(segment.name)
        mark = await self._newest_mark(segment, info)
        start = mark.place if mark is not None else Place(0, 0, NO_TIME)
        if start.position < info.start_offset:
            start = await first_place(segment, info)
        self.positions.clear()
        now_ms = self._wall_clock.now_ms()
        next_offset, highest_ms = start.offset, start.highest_ms
        async with aclosing(walk_batches(segment, start, info.length)) as batches:
            async for place, header in batches:
                self.positions.add(place)
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
        self._next_offset = self.high_watermark = count
        self._length = self.durable_length = info.length
        self._highest_ms = self.highest_ms = highest_ms
        self._last_mark = _number_of(info, LAST_MARK)
        self.marked_position = mark.place.position if mark is not None else 0
        self.log_start_offset = _number_of(info, LOG_START)
        self._owner = self._random.getrandbits(63)
        self._owner_before = info.core_attributes.get(OWNER)
        return info

    async def _newest_mark(self, segment: Segment, info: SegmentProperties) -> Mark | None:
        """Also brings back what was known of producers there."""
        number = _number_of(info, LAST_MARK)
        mark = await read_mark(segment, number) if number else None
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

    def open(self, segment: Segment) -> None:
        """Behind a load() that went well: takes batches."""
        self._segment = segment
        self._tell_watchers()

    def shut(self, why: str) -> None:
        """Refuses further batches; those under way are told of as the segment tells of them. Idempotent."""
        if self._segment is None:
            return
        self._segment = None
        self._why_closed = why
        self._tell_watchers()

    def vanish(self) -> None:
        """Its topic is deleted: it is never opened again."""
        self._gone = True
        self.shut("its topic is deleted")

    async def wait_until_settled(self) -> None:
        """Of every batch that was submitted it is known by then what came of it."""
        while self._appends:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await await_shielded(self._settled)

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

    def expects(self, sent: SentBatch) -> bool:
        """Whether, by what is known of its producer, it is the next batch or one that is sent again."""
        return self._windows.expects(sent)

    def _submit(self, batch: bytes | bytearray | memoryview, answer: "Future[Appended]") -> None:
        segment = self.require_open()
        now_ms = self._wall_clock.now_ms()
        header = acceptable_header(batch, self.config, now_ms=now_ms)
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
        if self.config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            append_time_ms = highest_ms = now_ms
            batch = bytearray(batch)
            stamp_append_time(batch, now_ms)
        placed = placed_copy(batch, base_offset)
        place = Place(self._length, base_offset, self._highest_ms)
        next_offset = base_offset + header.record_count
        updates = [self._as_owner(), AttributeUpdate(EVENT_COUNT, next_offset)]
        mark_number = place.position // self._settings.mark_bytes
        brings_mark = mark_number > self._last_mark
        if brings_mark:
            updates += self._mark_updates(place, mark_number)
        try:
            future = segment.append(placed, offset=self._length, attribute_updates=updates)
        except SegmentStoreError as error:
            self.shut(str(error))
            raise self.translated(error, of_change=True) from error
        # From here on the batch is in the log, unless the log says otherwise: then all of this is void.
        self._owner_before = self._owner
        self._last_mark = max(self._last_mark, mark_number)
        self.positions.add(place)
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
                highest_ms=self._highest_ms,
                mark_position=place.position if brings_mark else None,
            )
        )
        future.add_done_callback(guarded(self._take_outcomes, self._fail))

    def _as_owner(self) -> AttributeUpdate:
        """The condition of an append that no other owner has come in between."""
        return AttributeUpdate(
            OWNER, self._owner, AttributeUpdateType.REPLACE_IF_EQUALS, self._owner_before
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
        segment = self.require_open()

        def confirmed(asked: "Future[int]") -> None:
            error = None if asked.cancelled() else asked.exception()
            if error is None and not asked.cancelled():
                fail_unless_done(answer, refusal)
                return
            why = f"a batch before it failed, or another owner has appended: {error}"
            fail_unless_done(answer, PartitionUnavailableError(why))
            if segment is self._segment:
                self.shut(why)

        try:
            asked = segment.append(b"", offset=self._length, attribute_updates=[self._as_owner()])
        except SegmentStoreError as error:
            self.shut(str(error))
            fail_unless_done(answer, self.translated(error))
            return
        self._owner_before = self._owner
        asked.add_done_callback(guarded(confirmed, self._fail))

    def _appended(self, base_offset: int, append_time_ms: int, *, duplicate: bool) -> Appended:
        return Appended(base_offset, append_time_ms, self.log_start_offset, duplicate)

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
            self._on_durable()
            self._tell_watchers()

    def _settle(self, append: _Append) -> None:
        assert append.next_offset > self.high_watermark, (
            f"high watermark goes back from={self.high_watermark} to={append.next_offset}"
        )
        self.high_watermark = append.next_offset
        self.durable_length = append.end
        self.highest_ms = append.highest_ms
        if append.mark_position is not None:
            self.marked_position = max(self.marked_position, append.mark_position)
        appended = self._appended(append.base_offset, append.append_time_ms, duplicate=False)
        complete_unless_done(append.answer, appended)
        for answer in append.duplicates:
            complete_unless_done(
                answer, self._appended(append.base_offset, append.append_time_ms, duplicate=True)
            )

    def _void(self, append: _Append, error: BaseException | None) -> None:
        if isinstance(error, SegmentStoreError):
            refusal = self.translated(error, of_change=True)
        else:
            refusal = PartitionUnavailableError(f"an append was broken off: {error}", stored=None)
        fail_unless_done(append.answer, refusal)
        for answer in append.duplicates:
            fail_unless_done(answer, refusal)
        self.shut(str(refusal))

    def _fail(self, bug: Exception) -> None:
        """A callback met a bug of ours: nothing that is believed here is believed any more."""
        _LOG.error("partition=%s/%s is closed by a bug", self.topic, self.index, exc_info=bug)
        appends, self._appends = list(self._appends), deque()
        for append in appends:
            append.future.add_done_callback(retrieve_exception)
            self._void(append, None)
        self.shut(f"a bug: {bug}")
        if self._settled is not None:
            complete_unless_done(self._settled, None)
            self._settled = None

    # --- changes of attributes ---------------------------------------------------------------

    async def move_start(self, offset: int) -> None:
        """Makes it the lowest offset that may be read, durably, unless that is higher already.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self.require_open()
        update = AttributeUpdate(LOG_START, offset, AttributeUpdateType.REPLACE_IF_GREATER)

        def moved(append: "Future[int]") -> None:
            # Not the caller alone, which may have left: what is durable is what consumers are told.
            if not append.cancelled() and append.exception() is None:
                self._raise_start(offset)

        try:
            append = segment.append(b"", attribute_updates=[update])
            append.add_done_callback(guarded(moved, self._fail))
            await await_shielded(append)
        except BadAttributeUpdateError:
            pass  # another call went further meanwhile
        except SegmentStoreError as error:
            if segment is self._segment:
                self.shut(str(error))
            raise self.translated(error, of_change=True) from error
        self._raise_start(offset)

    async def note(self, segment: Segment, updates: Sequence[AttributeUpdate]) -> None:
        """Changes attributes to what is true whatever other owners do. Durable when it returns.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        try:
            await await_shielded(segment.append(b"", attribute_updates=updates))
        except SegmentStoreError as error:
            if segment is self._segment:
                self.shut(str(error))
            raise self.translated(error, of_change=True) from error

    def _raise_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._tell_watchers()

    def _end_mark_updates(self) -> list[AttributeUpdate]:
        """A mark at the end of what was submitted, for an append that comes now."""
        place = Place(self._length, self._next_offset, self._highest_ms)
        pages = self._windows.pages()
        return [
            AttributeUpdate(END_MARK, encode_mark(Mark(place, len(pages)))),
            *(AttributeUpdate(page_key(n), page) for n, page in enumerate(pages)),
        ]

    async def append_alone(self, segment: Segment, updates: Sequence[AttributeUpdate]) -> None:
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
                self.shut(f"a change of its files failed: {error!r}")
            raise

    async def append_marking_end(
        self, segment: Segment, updates: Sequence[AttributeUpdate] = ()
    ) -> None:
        """As append_alone(), with a mark at the end of what was submitted."""
        position = self._length
        await self.append_alone(segment, [*updates, *self._end_mark_updates()])
        self.marked_position = max(self.marked_position, position)

    async def confirm_end(self, segment: Segment) -> None:
        """That there is nothing more is the word of the segment's owner alone: another one may have appended."""
        try:
            if not segment.is_sure():
                await segment.confirm()
            length = segment.info().length
        except SegmentStoreError as error:
            raise self.failed(segment, error) from error
        if length > self._length:
            if segment is self._segment:
                self.shut("another owner has appended")
            self.require_open()

    async def confirm_in_range(self, segment: Segment, offset: int) -> None:
        """As require_in_range(), of an end that is the segment's: consumers jump by a refusal, so it has to be true."""
        if offset > self._next_offset:
            await self.confirm_end(segment)
        self.require_in_range(offset)

    # --- refusals ----------------------------------------------------------------------------

    def require_present(self) -> None:
        if self._gone:
            raise UnknownPartitionError(self.topic, self.index)

    def require_open(self) -> Segment:
        self.require_present()
        if self._segment is None:
            raise PartitionUnavailableError(
                f"the partition is closed: {self._why_closed} topic={self.topic!r}"
                f" partition={self.index}"
            )
        self.note_use()
        return self._segment

    def require_live(self) -> Segment:
        """As require_open(), for work in the background, which is no use."""
        used_at = self._used_at
        segment = self.require_open()
        self._used_at = used_at
        return segment

    def require_in_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self._next_offset:
            raise self.out_of_range(offset)

    def out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            offset, log_start=self.log_start_offset, next_offset=self.high_watermark
        )

    def failed(
        self, segment: Segment, error: SegmentStoreError, *, is_own_trim: bool = False
    ) -> TopicError:
        """What a reader is told. What Tier 2 fails or has no room for, or what met a trim of our own, changes nothing
        here; any other failure says that this is no longer the owner."""
        is_passing = is_own_trim or isinstance(
            error, StorageError | StorageFullError | TooManyWaitersError
        )
        if not is_passing and segment is self._segment:
            self.shut(str(error))
        return self.translated(error)

    def translated(self, error: SegmentStoreError, *, of_change: bool = False) -> TopicError:
        if isinstance(error, SegmentNotFoundError):
            return UnknownPartitionError(self.topic, self.index)
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
        assert self.log_start_offset <= self.high_watermark <= self._next_offset, (
            f"log_start={self.log_start_offset} high_watermark={self.high_watermark}"
            f" next={self._next_offset}"
        )
        assert self.durable_length <= self._length, f"{self.durable_length=} {self._length=}"
        self.positions.check()
        self._windows.check()


def now() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


def _number_of(info: SegmentProperties, key: AttributeKey) -> int:
    return count_of(info.core_attributes, key, name=info.name)


def _append_time_of(header: BatchHeader) -> int:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    return _NO_APPEND_TIME
