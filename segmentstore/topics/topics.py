"""The topics of a store: which there are, what was set of them, and their partitions.

| change | is there from | steps |
|---|---|---|
| create | the third step on | record "being created"; segments of the partitions; record "there" |
| delete | gone from the first step on | record "being deleted"; segments deleted; record removed |
| add partitions | the third step on | record with the new target; segments; record with the new count |
| alter | the only step | record with the new settings |

A change that is broken off, by a failure or by the end of the process, is finished later: by run(), by the next start,
or by the next change of the same topic.

Invariants:

- A topic is told of, and takes batches, only while its record says that it is there, for partitions that are there.
- A segment of a partition exists only while a record of its topic does: none is left behind.
- Changes of one topic follow one another. Each is one conditional update of one entry, so of two owners one is refused;
  it reads the catalogue again.
- A change that has begun is not broken off because its caller left.
- Nothing is deleted by its age while the clocks are not trusted.
- A topic's files are deleted before its segments, and behind a mark that its name was used (partition.py, NAMES_USED).
- What is named like a file of a topic that is gone (a put came late, or a backup kept it) is deleted when, behind the
  listing and behind that mark, the catalogue names no such topic and there is no segment of one. From the mark on no
  name is given that was listed before, so a deletion that comes late meets none of a topic that is made anew.
- A partition that is not used is closed after a while, so that its segment may leave memory. Retention and compaction
  use none; of a closed one they remember until when nothing can be due, for `rest_seconds_max` at most: another process
  may have appended.
- One partition is compacted at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from segmentstore.codec.topic_files import LAST_FILE, RecordFileName, topic_prefix
from segmentstore.contracts.errors import (
    ObjectExistsError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, SHORT_LIVED
from segmentstore.contracts.segments import AttributeUpdate, SegmentApi
from segmentstore.contracts.tables import NOT_EXISTS, TableApi, TableEntry, TableKey
from segmentstore.runtime.cancellation import ChangeTasks, await_shielded
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.waiting import gather_all
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
    UnknownPartitionError,
)
from segmentstore.topics.file_writer import FileStatistics, FileWriter
from segmentstore.topics.partition import NAMES_USED, Partition
from segmentstore.topics.record_files.dead_files import files_of_unknown_topics
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.record_files.registered_files import FILES_PER_UPDATE_MAX, RegisteredFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import CONFIGS, TopicConfig, make_config
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    TopicRecord,
    TopicState,
    check_topic_name,
    decode_topic,
    encode_topic,
    partition_segment_name,
    partition_segments_prefix,
)

_LOG = logging.getLogger(__name__)

_ENTRIES_PER_PAGE: Final = 500
_CHANGES_WAITING_MAX: Final = 100
"""Of one topic."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic, as it is told of."""

    name: str
    topic_id: UUID
    partitions: int
    config: Mapping[str, str]
    """Every word of topic_config.CONFIGS with its value."""
    given: Mapping[str, str]
    """Those that are not defaults because they were set."""


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic's record, its version in the catalogue, and what follows from it."""

    name: str
    record: TopicRecord
    version: int
    config: TopicConfig


class Topics:
    """start(), run() until cancelled, close(). Calls are answered from start() on."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        tables: TableApi,
        wall_clock: WallClock,
        random: Random,
        settings: TopicSettings,
        record_files: RecordFiles | None = None,
    ) -> None:
        """`record_files`: None if there is no Tier 2 for files of records; all stay in segments then."""
        self._segments = segments
        self._tables = tables
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._record_files = record_files
        self._file_writer: FileWriter | None = None
        if record_files is not None and settings.file_seconds > 0:
            self._file_writer = FileWriter(settings)
        self._clock_watch = ClockWatch(
            wall_clock=wall_clock,
            difference_seconds_max=settings.clock_difference_seconds_max,
            settle_seconds=settings.clock_settle_seconds,
        )
        self._topics: dict[str, _Topic] = {}
        self._is_loaded = False
        """Whether the catalogue in memory is what the table says: not behind a change whose outcome is unknown."""
        self._change_count = 0
        self._loading = asyncio.Lock()
        self._partitions: dict[tuple[UUID, int], Partition] = {}
        self._resting: dict[tuple[UUID, int], float] = {}
        """Wall time in Unix milliseconds until which nothing is due of a partition that was closed."""
        self._not_compacted: set[tuple[UUID, int]] = set()
        """Those of which the log said so."""
        self._changes = ChangeTasks()
        self._locks = KeyedLocks[str](waiters_max=_CHANGES_WAITING_MAX, refusal=_too_many)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the catalogue and tries to finish what was begun. Raises TopicsUnavailableError."""
        try:
            await self._tables.create_table(CATALOGUE_TABLE)
        except SegmentExistsError:
            pass
        except SegmentStoreError as error:
            raise TopicsUnavailableError(f"the catalogue cannot be made: {error}") from error
        await self._load()
        await self._finish_all()

    async def run(self) -> None:
        """Retention, what was broken off, and files of records, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(), name="retention of topics")
            group.create_task(self._compact(), name="compaction of topics")
            if self._file_writer is not None:
                group.create_task(self._file_writer.run(), name="files of topics")
            if self._record_files is not None:
                group.create_task(self._sweep(), name="files of topics that are gone")

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._clock_watch.doubt("topics have just been started")
        next_resume = loop.time() + settings.resume_seconds
        next_pass = loop.time() + settings.retention_interval_seconds
        while True:
            # Looks often, so that a jump and its way back are not seen as one.
            due = min(settings.clock_look_seconds, next_resume - loop.time())
            await asyncio.sleep(max(0.0, min(due, next_pass - loop.time())))
            self._clock_watch.look()
            if loop.time() >= next_resume:
                await self._finish_all()
                next_resume = loop.time() + settings.resume_seconds
            if loop.time() >= next_pass:
                await self.expire_all()
                for partition in list(self._partitions.values()):
                    await partition.delete_doomed()
                await self._close_idle()
                next_pass = loop.time() + settings.retention_interval_seconds

    async def _compact(self) -> None:
        while True:
            await asyncio.sleep(self._settings.compaction_interval_seconds)
            await self.compact_all()

    async def _sweep(self) -> None:
        settings = self._settings
        pause = min(settings.gone_topics_first_seconds, settings.file_sweep_seconds)
        while True:
            await asyncio.sleep(pause)
            pause = settings.file_sweep_seconds
            try:
                await self.sweep_gone_topics()
            except TopicError as error:
                _LOG.info("%s", error)

    async def close(self) -> None:
        """Changes that have begun are done to their end; then every partition is closed."""
        await self._changes.join()
        partitions = list(self._partitions.values())
        self._partitions.clear()
        await gather_all(partition.close() for partition in partitions)

    def file_statistics(self) -> FileStatistics:
        """Of the files that were made."""
        return FileStatistics() if self._file_writer is None else self._file_writer.statistics

    def settle_clocks(self) -> None:
        """A person says that the present time is right: retention by age goes on."""
        self._clock_watch.settle()

    def complaint(self) -> str:
        """Why nothing is deleted because of its age; "" if all is well, or there is nothing to delete."""
        return self._clock_watch.complaint() if self._topics else ""

    # --- what there is -----------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Of all topics, in order. O(topics)."""
        return sorted(name for name, topic in self._topics.items() if _is_there(topic))

    def describe(self, name: str) -> TopicDescription | None:
        """None if there is no such topic."""
        topic = self._topics.get(name)
        if topic is None or not _is_there(topic):
            return None
        return TopicDescription(
            name=name,
            topic_id=topic.record.topic_id,
            partitions=topic.record.partitions,
            config=topic.config.effective(),
            given=topic.config.given,
        )

    async def partition(self, name: str, index: int) -> Partition:
        """Open, and recovered if it was not. Keep it for one request: it may be closed when it was not used for long.

        Raises TopicNotFoundError, UnknownPartitionError, PartitionUnavailableError.
        """
        topic = self._topics.get(name)
        if topic is None or not _is_there(topic):
            raise TopicNotFoundError(name)
        if not 0 <= index < topic.record.partitions:
            raise UnknownPartitionError(name, index)
        key = (topic.record.topic_id, index)
        partition = self._partitions.get(key)
        if partition is None:
            partition = Partition(
                topic=name,
                index=index,
                segment_name=partition_segment_name(name, topic.record.topic_id, index),
                segments=self._segments,
                wall_clock=self._wall_clock,
                random=self._random,
                config=topic.config,
                settings=self._settings,
                record_files=self._record_files,
                on_hot=None if self._file_writer is None else self._file_writer.note,
            )
            self._partitions[key] = partition
            self._resting.pop(key, None)
        if not partition.is_open:
            await partition.recover()
        return partition

    # --- changes -----------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Returns when it is there, durably.

        Raises InvalidTopicError, InvalidPartitionsError, InvalidConfigError, TopicExistsError, TopicsUnavailableError
        (it may be there later).
        """
        self.check_new(name, partitions, config)
        await self._change(name, lambda: self._create(name, partitions, config))

    def check_new(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Raises what create() would raise, as far as that is known now; changes nothing."""
        check_topic_name(name)
        self._require_count(partitions)
        make_config(config, bytes_max=self._settings.config_bytes_max)
        if self.describe(name) is not None:
            raise TopicExistsError(name)

    async def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        topic = self._topics.get(name)
        if topic is not None and not topic.record.is_settled:
            topic = await self._finish(topic)
        if topic is not None:
            raise TopicExistsError(name)
        if len(self._topics) >= self._settings.topics_max:
            raise TopicsUnavailableError(f"there are too many topics count={len(self._topics)}")
        record = TopicRecord(
            TopicState.CREATING,
            UUID(bytes=random_id(self._random)),
            0,
            partitions,
            self._wall_clock.now_ms(),
            dict(config),
        )
        topic = await self._put(name, record, NOT_EXISTS)
        await self._finish(topic)

    async def delete(self, name: str) -> None:
        """Returns when it is gone, durably; its bytes may go later.

        Raises TopicNotFoundError, TopicsUnavailableError (it may be gone).
        """
        await self._change(name, lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.record.state is TopicState.DELETING:
            raise TopicNotFoundError(name)
        topic = await self._put(
            name, replace(topic.record, state=TopicState.DELETING), topic.version
        )
        try:
            await self._finish(topic)
        except TopicsUnavailableError as error:
            _LOG.warning("topic=%s is deleted, its bytes stay for now: %s", name, error)

    async def add_partitions(self, name: str, count: int) -> None:
        """`count` partitions in all.

        Raises TopicNotFoundError, InvalidPartitionsError (not more than there are, or too many),
        TopicsUnavailableError (they may be there later).
        """
        self._require_count(count)
        await self._change(name, lambda: self._add_partitions(name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        topic = await self._settled(name)
        if count <= topic.record.partitions:
            raise InvalidPartitionsError(
                f"a topic never has fewer partitions than before, nor as many name={name!r}"
                f" partitions={topic.record.partitions} given={count}"
            )
        record = replace(topic.record, partitions_target=count)
        await self._finish(await self._put(name, record, topic.version))

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets words, or back to the default with None.

        Raises TopicNotFoundError, InvalidConfigError, TopicsUnavailableError (it may be changed).
        """
        await self._change(name, lambda: self._alter(name, changes))

    async def _alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        topic = await self._settled(name)
        given = dict(topic.record.config)
        for word, value in changes.items():
            if value is not None:
                given[word] = value
            elif word in CONFIGS:
                given.pop(word, None)
            else:
                raise InvalidConfigError(f"a topic has no such setting name={word!r}")
        make_config(given, bytes_max=self._settings.config_bytes_max)
        topic = await self._put(name, replace(topic.record, config=given), topic.version)
        for (topic_id, _), partition in self._partitions.items():
            if topic_id == topic.record.topic_id:
                partition.configure(topic.config)
        self._forget_rest(topic.record)

    async def _change(self, name: str, change: Callable[[], Awaitable[None]]) -> None:
        async def alone() -> None:
            async with self._locks.held(name):
                if not self._is_loaded:
                    await self._load()
                await change()

        await self._changes.run(alone())

    async def _settled(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is not None and not topic.record.is_settled:
            topic = await self._finish(topic)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def _require_count(self, count: int) -> None:
        if not 1 <= count <= self._settings.partitions_per_topic_max:
            raise InvalidPartitionsError(
                f"a topic has 1 to {self._settings.partitions_per_topic_max} partitions given={count}"
            )

    # --- steps -------------------------------------------------------------------------------

    async def _finish(self, topic: _Topic) -> _Topic | None:
        """Does what is left to do of its change; None if the topic is gone. Raises TopicsUnavailableError."""
        record = topic.record
        if record.is_settled:
            return topic
        if record.state is TopicState.DELETING:
            await self._vanish(record)
            await self._delete_files(topic)
            await self._for_each(range(record.partitions_target), topic, self._delete_segment)
            await self._remove(topic)
            return None
        missing = range(record.partitions, record.partitions_target)
        await self._for_each(missing, topic, self._create_segment)
        record = replace(record, state=TopicState.ACTIVE, partitions=record.partitions_target)
        return await self._put(topic.name, record, topic.version)

    async def _for_each(
        self, indexes: range, topic: _Topic, step: Callable[[_Topic, int], Awaitable[None]]
    ) -> None:
        """Some at a time. Raises TopicsUnavailableError."""
        at_once = self._settings.partition_steps_at_once_max
        try:
            for first in range(0, len(indexes), at_once):
                await gather_all(step(topic, n) for n in indexes[first : first + at_once])
        except SegmentStoreError as error:
            raise TopicsUnavailableError(
                f"a change of a topic is not finished yet name={topic.name!r}: {error}"
            ) from error

    def _forget_rest(self, record: TopicRecord) -> None:
        for index in range(record.partitions_target):
            self._resting.pop((record.topic_id, index), None)
            self._not_compacted.discard((record.topic_id, index))

    async def _vanish(self, record: TopicRecord) -> None:
        self._forget_rest(record)
        for key, partition in list(self._partitions.items()):
            if key[0] == record.topic_id:
                partition.vanish()
                del self._partitions[key]
                await partition.close()

    async def _create_segment(self, topic: _Topic, index: int) -> None:
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        with suppress(SegmentExistsError):
            is_short_lived = AttributeUpdate(SHORT_LIVED, int(self._file_writer is not None))
            await self._segments.create(name, [AttributeUpdate(EVENT_COUNT, 0), is_short_lived])

    async def _delete_files(self, topic: _Topic) -> None:
        """Of all partitions, while their segments still say which there are. Raises TopicsUnavailableError."""
        files = self._record_files
        if files is None:
            return
        try:
            listed = False
            async with aclosing(files.keys(topic_prefix(topic.name))) as keys:
                async for key in keys:
                    listed = listed or RecordFileName.parsed(key) is not None
                    if listed:
                        break
            registered = [
                await self._has_files(topic, index)
                for index in range(topic.record.partitions_target)
            ]
            if not listed and not any(registered):
                return
            # From here on no topic of this name gives plain names: a deletion that comes late meets none of its files.
            with suppress(ObjectExistsError):
                await files.put(topic_prefix(topic.name) + NAMES_USED, b"")
            for index, has_files in enumerate(registered):
                if has_files:
                    await self._delete_registered(topic, index, files)
            async with aclosing(files.keys(topic_prefix(topic.name))) as keys:
                async for key in keys:
                    if RecordFileName.parsed(key) is not None:
                        await files.delete(key)
        except SegmentStoreError as error:
            raise TopicsUnavailableError(
                f"files of a deleted topic are not deleted yet name={topic.name!r}: {error}"
            ) from error

    async def sweep_gone_topics(self) -> int:
        """Deletes files of topics that are gone; how many there were. Raises TopicsUnavailableError."""
        files, deleted = self._record_files, 0
        if files is None:
            return 0
        try:
            unknown = files_of_unknown_topics(files, lambda name: name in self._topics)
            async with aclosing(unknown) as found:
                async for name, keys in found:
                    async with self._locks.held(name):
                        deleted += await self._delete_if_gone(name, keys, files)
        except SegmentStoreError as error:
            raise TopicsUnavailableError(
                f"files of topics that are gone are not deleted yet: {error}"
            ) from error
        if deleted and self._file_writer is not None:
            self._file_writer.statistics.dead_files += deleted
        return deleted

    async def _delete_if_gone(self, name: str, keys: Sequence[str], files: RecordFiles) -> int:
        with suppress(ObjectExistsError):
            await files.put(topic_prefix(name) + NAMES_USED, b"")
        await self._load()
        # Of a catalogue that lost its end with Tier 1 partitions may have outlived the record.
        prefix = partition_segments_prefix(name)
        if name in self._topics or await self._segments.list_segments(prefix, limit=1):
            return 0
        deleted = 0
        for key in keys:
            if not await files.delete(key):
                break  # a backup is kept
            deleted += 1
        return deleted

    async def _has_files(self, topic: _Topic, index: int) -> bool:
        with suppress(SegmentNotFoundError):
            info = await self._segments.info(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )
            return bool(info.core_attributes.get(LAST_FILE, 0))
        return False

    async def _delete_registered(self, topic: _Topic, index: int, files: RecordFiles) -> None:
        """A listing may not have them yet."""
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        registered = RegisteredFiles(known_max=1)
        async with self._segments.open_segment(name) as segment:
            registered.load(segment.info().core_attributes)
            number = registered.first
            while number <= registered.last:
                several = await registered.some(segment, number, FILES_PER_UPDATE_MAX)
                for file in several:
                    await files.delete(file.name(topic.name, index).key)
                number += len(several)

    async def _delete_segment(self, topic: _Topic, index: int) -> None:
        with suppress(SegmentNotFoundError):
            await self._segments.delete(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )

    async def _finish_all(self) -> None:
        """What cannot be finished now is tried again later."""
        if not self._is_loaded:
            with suppress(TopicsUnavailableError):
                await self._load()
        for topic in list(self._topics.values()):
            if topic.record.is_settled or self._locks.is_held(topic.name):
                continue
            try:
                name = topic.name
                await self._change(name, partial(self._finish_named, name))
            except TopicError as error:
                _LOG.warning("topic=%s a change is not finished yet: %s", topic.name, error)

    async def _finish_named(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None:
            await self._finish(topic)

    # --- the catalogue -----------------------------------------------------------------------

    async def _load(self) -> None:
        async with self._loading:
            while True:
                # A change of another topic beside the reading may be in what was read, or not.
                changes = self._change_count
                try:
                    found = await self._read_all()
                except SegmentStoreError as error:
                    raise TopicsUnavailableError(
                        f"the catalogue cannot be read: {error}"
                    ) from error
                if changes == self._change_count:
                    break
            self._topics = found
            self._is_loaded = True

    async def _read_all(self) -> dict[str, _Topic]:
        found: dict[str, _Topic] = {}
        async with self._tables.open_table(CATALOGUE_TABLE) as table:
            token = b""
            while True:
                page = await table.read_entries(count=_ENTRIES_PER_PAGE, token=token)
                for entry in page.entries:
                    topic = self._topic_of(entry)
                    found[topic.name] = topic
                token = page.token
                if not token:
                    break
            await table.confirm()
        return found

    def _topic_of(self, entry: TableEntry) -> _Topic:
        name = entry.key.decode(errors="replace")
        record = decode_topic(entry.value, name=name)
        return self._made(name, record, entry.version)

    def _made(self, name: str, record: TopicRecord, version: int) -> _Topic:
        config = make_config(record.config, bytes_max=self._settings.config_bytes_max)
        return _Topic(name, record, version, config)

    async def _put(self, name: str, record: TopicRecord, version: int) -> _Topic:
        """Raises TopicsUnavailableError: the change may have been made, the catalogue has to be read again."""
        entry = TableEntry(name.encode(), encode_topic(record), version)
        try:
            async with self._tables.open_table(CATALOGUE_TABLE) as table:
                (version,) = await await_shielded(table.update([entry]))
        except (TableVersionError, TableKeyNotFoundError) as error:
            self._is_loaded = False
            raise TopicsUnavailableError(f"the catalogue has another owner: {error}") from error
        except SegmentStoreError as error:
            self._is_loaded = False
            raise TopicsUnavailableError(f"the catalogue cannot be written: {error}") from error
        self._change_count += 1
        self._topics[name] = topic = self._made(name, record, version)
        return topic

    async def _remove(self, topic: _Topic) -> None:
        key = TableKey(topic.name.encode(), topic.version)
        try:
            async with self._tables.open_table(CATALOGUE_TABLE) as table:
                await await_shielded(table.remove([key]))
        except SegmentStoreError as error:
            self._is_loaded = False
            raise TopicsUnavailableError(f"the catalogue cannot be written: {error}") from error
        self._change_count += 1
        self._topics.pop(topic.name, None)

    # --- retention ---------------------------------------------------------------------------

    async def expire_all(self) -> None:
        """One pass over all partitions: retention by size and, while the clocks are trusted, by age."""
        age_is_known = self._clock_watch.trusted()
        for name in self.names():
            topic = self._topics.get(name)
            if topic is None or not _has_retention(topic.config, age_is_known=age_is_known):
                continue
            for index in range(topic.record.partitions):
                if self._rests(topic, index):
                    continue
                try:
                    partition = await self.partition(name, index)
                    await partition.expire(age_is_known=age_is_known)
                except TopicError as error:
                    _LOG.warning("partition=%s/%s keeps everything: %s", name, index, error)

    async def compact_all(self) -> None:
        """One pass over the partitions of all topics that are compacted by key, one after the other."""
        for name in self.names():
            topic = self._topics.get(name)
            if topic is None or not topic.config.compacts or self._record_files is None:
                continue
            for index in range(topic.record.partitions):
                if self._rests(topic, index):
                    continue
                key = (topic.record.topic_id, index)
                try:
                    partition = await self.partition(name, index)
                    await partition.compact(age_is_known=self._clock_watch.trusted())
                except TopicError as error:
                    level = logging.DEBUG if key in self._not_compacted else logging.WARNING
                    self._not_compacted.add(key)
                    _LOG.log(level, "partition=%s/%s is compacted later: %s", name, index, error)
                else:
                    self._not_compacted.discard(key)

    def _rests(self, topic: _Topic, index: int) -> bool:
        key = (topic.record.topic_id, index)
        until = self._resting.get(key)
        return until is not None and self._wall_clock.now_ms() < until

    async def _close_idle(self) -> None:
        unused_since = asyncio.get_running_loop().time() - self._settings.idle_seconds
        for key, partition in list(self._partitions.items()):
            if not partition.is_idle(unused_since):
                continue
            until = await self._rest_of(partition)
            if not partition.is_idle(unused_since) or self._partitions.get(key) is not partition:
                continue
            del self._partitions[key]
            self._resting[key] = until
            await partition.close()

    async def _rest_of(self, partition: Partition) -> float:
        """Until when nothing is due of it."""
        now_ms = self._wall_clock.now_ms()
        try:
            await partition.expire(age_is_known=self._clock_watch.trusted())
            until = await partition.rest_until_ms()
        except TopicError:
            return now_ms
        return min(until, now_ms + self._settings.rest_seconds_max * 1000)


def _is_there(topic: _Topic) -> bool:
    return topic.record.state is TopicState.ACTIVE


def _has_retention(config: TopicConfig, *, age_is_known: bool) -> bool:
    if config.compacts:
        return True
    return config.retention_bytes >= 0 or (age_is_known and config.retention_ms >= 0)


def _too_many(name: str, waiting: int) -> TopicsUnavailableError:
    return TopicsUnavailableError(f"too many changes wait name={name!r} waiting={waiting}")
