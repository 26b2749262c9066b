"""The files of a partition: made of its oldest batches, put, registered, replaced by smaller ones, swept.

    make()    -> the oldest batches become a file -> put -> registered by an append -> the segment is truncated
    compact() -> one pass of compaction by key over the files -> each that became smaller is registered in its place
    sweep()   -> objects that look like files and are none are found, to be deleted

Invariants:

- An object is put, then registered, then its batches' bytes are dropped: each step when the one before is durable.
- It is registered only by the opening that put it, and by an append that ends every other opening.
- Of the partition one file is put, or one sweep runs, at a time.
- A batch whose records no reader can read, of a producer that wrote it so, is registered like a file, as the bytes that
  came.
- A name that is taken is not adopted: another number is drawn and put into the name.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from segmentstore.codec.record_batch import parse_header
from segmentstore.codec.topic_files import RETIRED, RegisteredFile, topic_prefix
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    StorageError,
)
from segmentstore.contracts.segments import Segment, SegmentApi
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.waiting import wait_for_event
from segmentstore.topics.batch_positions import NO_TIME
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.hot_records import HotRecords
from segmentstore.topics.partition_log import PartitionLog, now
from segmentstore.topics.partition_start import PartitionStart
from segmentstore.topics.record_files.dead_files import find_dead_files
from segmentstore.topics.record_files.gathered_batches import BatchGathering
from segmentstore.topics.record_files.kept_objects import KeptObjects
from segmentstore.topics.record_files.key_compaction import (
    NOT_TRUSTED,
    CompactionState,
    compact_files,
)
from segmentstore.topics.record_files.record_files import (
    MadeFile,
    RecordFiles,
    UnfitBatchError,
)
from segmentstore.topics.record_files.registered_files import (
    FILES_PER_UPDATE_MAX,
    RegisteredFiles,
)
from segmentstore.topics.settings import TopicSettings

_LOG = logging.getLogger(__name__)

NAMES_USED: Final = "names-used"
"""Last part of the key of an object that says that a topic of this name had files once, and was deleted."""

_NAMES_TRIED_MAX: Final = 4
_AHEAD_SECONDS: Final = 2.0
"""A file that is half full and will be full so soon is begun."""


@dataclass(frozen=True, slots=True)
class _Dirty:
    """Files that no pass of compaction has noted."""

    size: int
    is_enough: bool
    """Whether they are such a part of all files that a pass is due."""
    waits_until_ms: float
    """Wall time from which on a pass is due because of the first of them,"""
    is_young_until_ms: float
    """and before which no pass looks at it."""


class PartitionFiles:
    """load() at each opening."""

    def __init__(
        self,
        log: PartitionLog,
        hot: HotRecords,
        start: PartitionStart,
        *,
        registered: RegisteredFiles,
        files: RecordFiles,
        kept: KeptObjects,
        all_segments: SegmentApi,
        segment_name: str,
        wall_clock: WallClock,
        random: Random,
        settings: TopicSettings,
        on_due: Callable[[], None] | None,
    ) -> None:
        """`on_due` is called, with no await in between, when `due_at` has come nearer."""
        self._log = log
        self._hot = hot
        self._start = start
        self._registered = registered
        self._files = files
        self._kept = kept
        self._all_segments = all_segments
        self._segment_name = segment_name
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._on_due = on_due
        self.making = asyncio.Lock()
        """Held by what puts objects, or deletes those that are not registered. Taken before the log's `changing`."""
        self._plain_names: bool | None = None
        """Whether names without a number may be given; None: this opening has not looked yet."""
        self._swept_at: float | None = None
        """Loop time; None: not by this opening."""
        self._hot_since: float | None = None
        """Loop time since when there are batches that no file has."""
        self._is_file_full = False
        """Whether they are as many as one file is to have, and it was told."""
        self._unfit_offset: int | None = None
        """Of a batch that no file of records can hold: it becomes an object of its own."""
        self._is_compacting = False

    def load(self) -> None:
        """The log was opened anew."""
        self._plain_names = self._swept_at = self._hot_since = self._unfit_offset = None
        self._is_file_full = False
        self._kept.leave_all()

    @property
    def is_busy(self) -> bool:
        """Whether something is left to do that closing the partition would forget."""
        has_due = self._on_due is not None and self.due_at is not None
        has_kept = self._log.segment is not None and self._kept.is_waiting
        return has_due or self._is_compacting or has_kept

    # --- when a file is due ------------------------------------------------------------------

    @property
    def due_at(self) -> float | None:
        """Loop time at which the batches that no file has are to become one; None if there are none."""
        if self._hot_since is None or self._log.segment is None:
            return None
        if self._start.hot_bytes >= self._settings.file_bytes or self.is_filling:
            return -math.inf
        return self._hot_since + self._settings.file_seconds

    @property
    def is_filling(self) -> bool:
        """Whether half a file is there, and the other half comes within _AHEAD_SECONDS if it goes on like this.

        The file is begun then: when the last of its bytes have come little is left to do, and little was appended
        meanwhile that must be in Tier 2 before the segment can be truncated.
        """
        hot_bytes, file_bytes = self._start.hot_bytes, self._settings.file_bytes
        is_half = max(file_bytes / 2, self._settings.small_file_bytes) <= hot_bytes < file_bytes
        if self._hot_since is None or not is_half:
            return False
        return (now() - self._hot_since) * (file_bytes - hot_bytes) <= _AHEAD_SECONDS * hot_bytes

    def note_hot(self) -> None:
        """There may be more batches that no file has."""
        if self._on_due is None:
            return
        hot_bytes = self._start.hot_bytes
        if not hot_bytes:
            self._hot_since, self._is_file_full = None, False
            return
        is_full = 2 * hot_bytes >= self._settings.file_bytes and self.due_at == -math.inf
        if self._hot_since is None or is_full > self._is_file_full:
            if self._hot_since is None:
                self._hot_since = now()
            self._is_file_full = is_full
            self._on_due()

    # --- made --------------------------------------------------------------------------------

    async def make(self, *, bytes_max: int | None = None, is_filling: bool = False) -> int:
        """Puts the oldest records that are in batches into one file; how many bytes these batches have, 0 if there is
        none to be made.

        `bytes_max`: of the batches, if it is less than a file holds; one batch may be longer. `is_filling`: what is
        appended meanwhile becomes part of it, until it is full or due.

        Raises PartitionUnavailableError, UnknownPartitionError; what is to be a file is one later.
        """
        self._log.require_present()
        async with self.making:
            segment = self._log.segment
            if segment is None:
                return 0
            began = now()
            try:
                if self._start.position < self._start.hot_position:
                    # Behind a failure: the bytes of files go first, so that there is one begin of what is hot.
                    await self._start.drop_bytes()
                limit = self._settings.file_bytes
                limit = limit if bytes_max is None else min(limit, bytes_max)
                until = began
                if is_filling and self._hot_since is not None:
                    until = self._hot_since + self._settings.file_seconds
                gathered = await self._make_one(segment, limit, until)
            except SegmentStoreError as error:
                raise self._start.failed(segment, error) from error
            if gathered is not None:
                await self._start.drop_bytes()
            if segment is self._log.segment:  # what another opening has noted is due by itself
                # Also where all records are deleted: what is due no more must not be asked for again, at once.
                self._hot_since, self._is_file_full = None, False
                if self._start.hot_bytes and gathered is not None:
                    # Appended while this one was made.
                    self._hot_since = began
                    self._is_file_full = self._start.hot_bytes >= self._settings.file_bytes
            return 0 if gathered is None else gathered.size

    async def _make_one(
        self, segment: Segment, bytes_max: int, until: float
    ) -> BatchGathering | None:
        while True:
            gathered = await self._gathered(segment, bytes_max, until)
            if gathered is None:
                return None
            if gathered.begin.offset == self._unfit_offset:
                await self._keep(segment, gathered, await _kept_as_it_came(gathered))
                return gathered
            form = self._log.config.file_form(
                log_append_time=gathered.log_append_time, created_ms=self._wall_clock.now_ms()
            )
            try:
                async with aclosing(gathered.pieces()) as pieces:
                    made = await self._files.make(pieces, form)
            except UnfitBatchError as error:
                # Again, up to that batch, and that one alone: each time it lies further in front.
                self._note_unfit(error, gathered)
                continue
            await self._keep(segment, gathered, made)
            return gathered

    async def _gathered(
        self, segment: Segment, bytes_max: int, until: float
    ) -> BatchGathering | None:
        if self._log.log_start_offset > self._registered.cold_end and len(self._registered):
            await self._start.drop_bytes()  # all of them: files have no gap between them
            if len(self._registered):
                raise PartitionUnavailableError("files below the log start are not forgotten yet")
        first = max(self._log.log_start_offset, self._registered.cold_end)
        if first >= self._log.high_watermark:
            return None
        begin = await self._hot.place_of(segment, first)
        if begin.offset < self._registered.cold_end:
            raise CorruptedDataError(
                f"a batch is in a file and behind it name={segment.name!r} offset={begin.offset}"
            )
        if self._unfit_offset is not None and self._unfit_offset < begin.offset:
            self._unfit_offset = None  # it was kept, or deleted
        is_alone = begin.offset == self._unfit_offset
        waits = until > now() and not is_alone
        gathered = BatchGathering(
            segment,
            begin,
            self._log.durable_length,
            bytes_max=0 if is_alone else bytes_max,
            before_offset=None if is_alone else self._unfit_offset,
            wait_for_more=partial(self._wait_for_bytes, segment, until) if waits else None,
        )
        return gathered if await gathered.look() else None

    async def _wait_for_bytes(self, segment: Segment, until: float, end: int, least: int) -> int:
        """The durable end, when that has grown by `least` bytes, or it is late. Raises PartitionUnavailableError."""
        grown = asyncio.Event()
        unwatch = self._log.watch(grown.set)
        try:
            while self._log.durable_length < end + least and now() < until:
                grown.clear()
                await wait_for_event(grown, until=until)
                if segment is not self._log.segment:
                    raise PartitionUnavailableError("the partition is closed")
        finally:
            unwatch()
        return self._log.durable_length

    def _note_unfit(self, error: UnfitBatchError, gathered: BatchGathering) -> None:
        assert gathered.begin.offset <= error.base_offset < gathered.end.offset, f"{error}"
        if self._unfit_offset != error.base_offset:
            _LOG.error(
                "%s keeps a batch as it came, in an object of its own: %s", self._log.label, error
            )
        self._unfit_offset = error.base_offset

    async def _keep(self, segment: Segment, gathered: BatchGathering, made: MadeFile) -> None:
        """Put and registered. Raises SegmentStoreError."""
        begin, end, files = gathered.begin, gathered.end, self._registered
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
        async with self._log.changing:
            if segment is not self._log.segment:
                # The object is dead: another opening registers only what it puts itself.
                await self._delete_if_retired(file)
                return
            try:
                await self._log.append_marking_end(segment, files.adding(file))
            except SegmentStoreError:
                await self._delete_if_retired(file)
                raise
            files.added(file)
            self._start.note_filed(end.position)

    async def _delete_if_retired(self, file: RegisteredFile) -> None:
        """Of an object that was not registered, as far as is known: nothing else looks for one of a topic that is
        deleted. Its name is given to no other topic, because the mark NAMES_USED comes before the end of this one."""
        try:
            if not await self._is_retired():
                return  # or not yet: then the deletion lists the object afterwards
            await self._files.delete(self._key_of(file))
        except SegmentStoreError as error:
            _LOG.info("%s leaves an object behind that is no file: %s", self._log.label, error)

    async def _is_retired(self) -> bool:
        try:
            info = await self._all_segments.info(self._segment_name)
            return RETIRED in info.core_attributes
        except SegmentNotFoundError:
            return True

    async def _put(self, file: RegisteredFile, made: MadeFile, *, plain: bool) -> RegisteredFile:
        """The file with the number of the name that it was put under. Raises StorageError, StorageFullError."""
        if self._plain_names is None:
            used = topic_prefix(self._log.topic) + NAMES_USED
            self._plain_names = not await self._files.exists(used)
        number = 0 if plain and self._plain_names else self._random.getrandbits(64) or 1
        for _ in range(_NAMES_TRIED_MAX):
            file = replace(file, name_number=number)
            try:
                await self._files.put(self._key_of(file), made.image)
            except ObjectExistsError:
                # Another owner's, of a topic of the same name, or our own with a lost answer: it is never taken for it.
                number = self._random.getrandbits(64) or 1
            else:
                made.release()
                return file
        raise StorageError(f"names of files are taken topic={self._log.topic!r} file={file}")

    # --- replaced ----------------------------------------------------------------------------

    async def replace(self, number: int, old: RegisteredFile, made: MadeFile) -> bool:
        """Puts another file of the same range and registers it in the place of one; False: that is registered no more.
        The old object is kept for readers for a while.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        self._log.require_present()
        async with self.making:
            segment = self._log.require_live()
            new = replace(
                old,
                size=len(made.image),
                record_count=made.record_count,
                lowest_ms=made.lowest_ms,
                highest_ms=made.highest_ms,
            )
            try:
                new = await self._put(new, made, plain=False)
                async with self._log.changing:
                    files = self._registered
                    is_there = segment is self._log.segment and files.first <= number <= files.last
                    if not is_there or await files.get(segment, number) != old:
                        await self._delete_if_retired(new)
                        return False
                    try:
                        await self._log.append_alone(segment, files.replacing(number, old, new))
                    except SegmentStoreError:
                        await self._delete_if_retired(new)
                        raise
                    files.replaced(number, old, new)
                    self._keep_objects(segment, [self._key_of(old)])
            except SegmentStoreError as error:
                raise self._start.failed(segment, error) from error
            return True

    def _keep_objects(self, segment: Segment, keys: Sequence[str]) -> int:
        """Of what is registered no more, as of a change that is durable, and may have been before; for how many there
        was room."""
        return self._kept.keep(
            keys,
            seconds=self._log.config.file_delete_delay_ms / 1000,
            forgotten_at=segment.publishing().committed,
            has_live_records=True,
        )

    def _key_of(self, file: RegisteredFile) -> str:
        return file.name(self._log.topic, self._log.index).key

    async def compact(self, *, age_is_known: Callable[[], bool]) -> int:
        """One pass of compaction by key over the files, if a pass is due; how many files became smaller.

        It is due when a part of the files' bytes was in no pass yet (`min.cleanable.dirty.ratio`), or some were not for
        `delete.retention.ms` or are as old as `max.compaction.lag.ms`, or tombstones may go. Files whose records are
        younger than `min.compaction.lag.ms` count for none of that. One call at a time. `age_is_known` is asked again
        when the pass ends: it may take minutes, and the clock may jump meanwhile.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        segment = self._log.require_live()
        if not self._log.config.compacts or not len(self._registered):
            return 0
        is_known, now_ms = age_is_known(), self._wall_clock.now_ms()
        tombstone_ms = self._log.config.tombstone_ms
        replaced = 0

        async def replace_one(number: int, old: RegisteredFile, made: MadeFile) -> bool:
            nonlocal replaced
            is_registered = await self.replace(number, old, made)
            replaced += is_registered
            return is_registered

        self._is_compacting = True
        try:
            state = CompactionState.of(segment.info())
            if is_known and state.needs_time(now_ms, tombstone_ms):
                state = replace(state, tombstones_since_ms=now_ms)
                await self._note_passes(segment, state)
            removable = state.removable_end(now_ms, tombstone_ms) if is_known else 0
            until = await self._first_too_young(segment, now_ms if is_known else None)
            if not removable:
                dirty = await self._dirty(segment, state.end, until)
                waited = is_known and (
                    state.has_waited(now_ms, tombstone_ms) or dirty.waits_until_ms <= now_ms
                )
                if not dirty.size or not (dirty.is_enough or waited):
                    return 0
            end = await compact_files(
                segment,
                files=self._files,
                registered=self._registered,
                key_of=self._key_of,
                form=self._log.config.file_form(log_append_time=False, created_ms=now_ms),
                state=state,
                until=until,
                tombstones_end=removable,
                secret=self._random.randbytes(16),
                replace=replace_one,
            )
            if end is not None:
                # Tombstones wait from here on: the last values before them have only just gone.
                ended_ms = self._wall_clock.now_ms() if age_is_known() else NOT_TRUSTED
                after = state.behind(end, ended_ms, tombstones_went=bool(removable))
                await self._note_passes(segment, after)
        except SegmentStoreError as error:
            raise self._start.failed(segment, error) from error
        finally:
            self._is_compacting = False
        return replaced

    async def _note_passes(self, segment: Segment, state: CompactionState) -> None:
        """How far they have come, unless the partition was opened anew. Raises SegmentStoreError."""
        async with self._log.changing:
            if segment is self._log.segment:
                await self._log.append_alone(segment, state.updates())

    async def compaction_rests_until_ms(self, segment: Segment) -> float:
        """Wall time before which compaction finds nothing to do, if neither records nor settings change.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        if not self._log.config.compacts or not len(self._registered):
            return math.inf

        async def look() -> tuple[CompactionState, _Dirty]:
            state = CompactionState.of(segment.info())
            return state, await self._dirty(segment, state.end, self._registered.last + 1)

        state, dirty = await self._start.read(segment, look)
        waited_ms = state.tombstones_since_ms + self._log.config.tombstone_ms
        tombstones_ms = waited_ms if state.tombstones_end else math.inf
        if not dirty.size:
            return tombstones_ms
        due_ms = -math.inf if dirty.is_enough else min(waited_ms, dirty.waits_until_ms)
        return min(tombstones_ms, max(due_ms, dirty.is_young_until_ms))

    async def _first_too_young(self, segment: Segment, now_ms: int | None) -> int:
        """The number of the first file that no pass looks at yet; None: how old files are is not known."""
        lag_ms = self._log.config.compaction_lag_ms_min
        if not lag_ms:
            return self._registered.last + 1
        if now_ms is None:
            return self._registered.first
        return await self._registered.at_time(segment, now_ms - lag_ms + 1)

    async def _dirty(self, segment: Segment, compacted_end: int, until: int) -> _Dirty:
        """The files that no pass has noted, up to that number."""
        config = self._log.config
        number = await self._registered.at_offset(segment, compacted_end)
        size, waits_until_ms, is_young_until_ms = 0, math.inf, -math.inf
        if number < until:
            first = await self._registered.get(segment, number)
            waits_until_ms = first.lowest_ms + config.compaction_lag_ms_max
            if config.compaction_lag_ms_min:
                is_young_until_ms = first.highest_ms_until_end + config.compaction_lag_ms_min
        while number < until:
            some = await self._registered.some(
                segment, number, min(until - number, FILES_PER_UPDATE_MAX)
            )
            size += sum(file.size for file in some)
            number += len(some)
        is_enough = size >= config.dirty_part * self._registered.size_bytes
        return _Dirty(size, is_enough, waits_until_ms, is_young_until_ms)

    # --- swept -------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Finds objects that look like files of this partition and are none, if `file_sweep_seconds` have passed since
        this opening did so, or more were left over than could be kept; how many there were. They are deleted as those
        of replaced files are: one of them may have been replaced just before another process died.

        Raises PartitionUnavailableError, UnknownPartitionError.
        """
        self._log.require_present()
        async with self.making:
            segment, began = self._log.segment, now()
            pause = self._settings.file_sweep_seconds
            is_due = (
                self._swept_at is None
                or began >= self._swept_at + pause
                or self._kept.has_left_over
            )
            if segment is None or not is_due or not self._kept.has_room():
                return 0
            found = 0
            self._kept.has_left_over = False
            dead = find_dead_files(
                segment,
                topic=self._log.topic,
                partition=self._log.index,
                files=self._files,
                registered=self._registered,
                spared=self._kept.keys,
                prove=lambda: self._prove_ownership(segment),
            )
            try:
                async with aclosing(dead) as pages:
                    async for keys in pages:
                        if segment is not self._log.segment:
                            return found  # what another opening keeps is of its own numbers
                        found += self._keep_objects(segment, keys)
                        if not self._kept.has_room():
                            break
                await self._kept.delete_due(segment.publishing())
            except SegmentStoreError as error:
                raise self._start.failed(segment, error) from error
            self._swept_at = began
            return found

    async def _prove_ownership(self, segment: Segment) -> None:
        """And ends every other opening. Raises SegmentStoreError, PartitionUnavailableError."""
        async with self._log.changing:
            if segment is not self._log.segment:
                raise PartitionUnavailableError("the partition is closed")
            await self._log.append_alone(segment, [])


async def _kept_as_it_came(gathered: BatchGathering) -> MadeFile:
    """The one batch, whose records no reader can read, as the object that stands for a file."""
    async with aclosing(gathered.pieces()) as pieces:
        content = b"".join([bytes(each) async for each in pieces])
    highest_ms = parse_header(content).max_timestamp
    return MadeFile(content, gathered.begin.offset, gathered.end.offset, 0, highest_ms, highest_ms)
