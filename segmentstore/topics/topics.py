"""The topics of a store: which there are, what was set of them, and their partitions.

| change | is there from | steps |
|---|---|---|
| create | the third step on | record "being created"; segments of the partitions; record "there" |
| delete | gone from the first step on | record "being deleted"; segments retired; files, segments, record deleted |
| add partitions | the third step on | record with the new target; segments; record with the new count |
| alter | the only step | record with the new settings |

Any process of the store makes changes; what it writes reaches segments wherever they are. A change that is broken off,
by a failure or by the end of a process, is finished later: by the process that has the catalogue's container, or by the
next change of the same topic.

Invariants:

- A topic is told of, and takes batches, only while its record says that it is there, for partitions that are there.
- A segment of a partition exists only while a record of its topic does: none is left behind. One that a process made
  too late, because it stood still meanwhile, is found by a listing and, being empty, deleted.
- Changes of one topic follow one another: each is one conditional update of one entry. Of two processes one is refused;
  it reads the catalogue again, and decides anew.
- A change that has begun is not broken off because its caller left.
- Nothing is deleted by its age while the clocks are not trusted.
- A topic's files are deleted before its segments, and behind a mark that its name was used (NAMES_USED).
  Before that its segments are retired: no process registers a file any more. What a listing finds is deleted only if
  the record was there still behind the listing: else the files may be those of a later topic of the same name.
- What is named like a file of a topic that is gone (a put came late, or a backup kept it) is deleted when, behind the
  listing and behind that mark, the catalogue names no such topic and there is no segment of one. From the mark on no
  name is given that was listed before, so a deletion that comes late meets none of a topic that is made anew.
- A partition is opened where its container is, and closed when that leaves.
- A partition that is not used is closed after a while, so that its segment may leave memory. Retention and compaction
  use none; of a closed one they remember until when nothing can be due, for `rest_seconds_max` at most: another process
  may have appended.
- One partition is compacted at a time in a process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from segmentstore.codec.topic_files import RecordFileName, topic_prefix
from segmentstore.contracts.errors import (
    ObjectExistsError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, SHORT_LIVED
from segmentstore.contracts.segments import AttributeUpdate, SegmentApi
from segmentstore.contracts.tables import NOT_EXISTS, TableApi
from segmentstore.runtime.cancellation import ChangeTasks
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.waiting import gather_all
from segmentstore.topics.brokers import Broker, Brokers, OneBroker
from segmentstore.topics.catalogue import Catalogue, Topic
from segmentstore.topics.errors import (
    CatalogueConflictError,
    InvalidConfigError,
    InvalidPartitionsError,
    NotLeaderError,
    PartitionUnavailableError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
    UnknownPartitionError,
)
from segmentstore.topics.file_writer import FileStatistics, FileWriter
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_files import NAMES_USED
from segmentstore.topics.partition_log import OWNER, RETIRED
from segmentstore.topics.record_files.dead_files import files_of_unknown_topics
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.record_files.registered_files import FILES_PER_UPDATE_MAX, RegisteredFiles
from segmentstore.topics.served_partition import RemotePartitions, ServedPartition
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import CONFIGS, TopicConfig, make_config
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    PARTITION_PREFIX,
    TopicRecord,
    TopicState,
    check_topic_name,
    partition_segment_name,
    partition_segments_prefix,
    topic_id_of_segment,
)

_LOG = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 5
"""Of one change, while other processes change the same topic."""
_LISTED_KEYS_MAX: Final = 1_000
"""Keys of objects that are deleted behind one look at the catalogue."""
_LEADERS_ASKED_MAX: Final = 3
"""For one partition, whose leader may have changed."""
_SEGMENTS_PER_PAGE: Final = 1_000
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
        all_segments: SegmentApi | None = None,
        brokers: Brokers | None = None,
        remote_partitions: RemotePartitions | None = None,
    ) -> None:
        """`record_files`: None if there is no Tier 2 for files of records; all stay in segments then.

        In a store of several processes `segments` are those of this one, `all_segments` and `tables` those of all, and
        `brokers` and `remote_partitions` are given too.
        """
        self._segments = segments
        self._all_segments = segments if all_segments is None else all_segments
        self._brokers: Brokers = OneBroker() if brokers is None else brokers
        self._remote_partitions = remote_partitions
        self._catalogue = Catalogue(tables=tables, config_bytes_max=settings.config_bytes_max)
        self._changes_seen = 0
        """Of the catalogue, by the partitions that are open."""
        self._unsettled: dict[str, int] = {}
        """Topics that had something left to do at the last look, and their versions then."""
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
        self._partitions: dict[tuple[UUID, int], Partition] = {}
        self._resting: dict[tuple[UUID, int], float] = {}
        """Wall time in Unix milliseconds until which nothing is due of a partition that was closed."""
        self._not_compacted: set[tuple[UUID, int]] = set()
        """Those of which the log said so."""
        self._left: dict[Partition, None] = {}
        """Closed, because their containers have left or their topics are gone; what they hold is let go of soon."""
        self._changes = ChangeTasks()
        self._locks = KeyedLocks[str](waiters_max=_CHANGES_WAITING_MAX, refusal=_too_many)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the catalogue; finishes what was begun if that is its part. Raises TopicsUnavailableError."""
        await self._catalogue.start()
        self._take_news()
        if self._brokers.is_here(CATALOGUE_TABLE):
            await self._finish_all(self._unsettled_now())

    async def run(self) -> None:
        """Retention, what was broken off, files of records, and what other processes changed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(), name="retention of topics")
            group.create_task(self._compact(), name="compaction of topics")
            group.create_task(self._follow_catalogue(), name="catalogue of topics")
            group.create_task(self._let_go(), name="partitions that left")
            if self._file_writer is not None:
                group.create_task(self._file_writer.run(), name="files of topics")
            if self._record_files is not None:
                group.create_task(self._sweep(), name="files of topics that are gone")
            if self._remote_partitions is not None:
                group.create_task(self._remote_partitions.run(), name="partitions of others")

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._clock_watch.doubt("topics have just been started")
        next_pass = loop.time() + settings.retention_interval_seconds
        while True:
            # Looks often, so that a jump and its way back are not seen as one.
            due = min(settings.clock_look_seconds, next_pass - loop.time())
            await asyncio.sleep(max(0.0, due))
            self._clock_watch.look()
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
            if not self._brokers.is_here(CATALOGUE_TABLE):
                continue
            try:
                await self.sweep_gone_topics()
            except TopicError as error:
                _LOG.info("%s", error)

    async def _follow_catalogue(self) -> None:
        """Also what was broken off, and segments that came too late: where the catalogue's container is."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        next_resume = loop.time() + settings.resume_seconds
        next_sweep = loop.time() + settings.segment_sweep_seconds_first
        while True:
            await asyncio.sleep(settings.catalogue_look_seconds)
            with suppress(TopicsUnavailableError):  # it says so itself, in complaint()
                await self.refresh()
            if not self._brokers.is_here(CATALOGUE_TABLE):
                self._unsettled = {}
                continue
            if loop.time() >= next_resume:
                # What others are about to finish is left to them, unless nothing of it moves.
                unsettled = self._unsettled_now()
                before = self._unsettled
                await self._finish_all(
                    {
                        name: version
                        for name, version in unsettled.items()
                        if before.get(name) == version
                    }
                )
                self._unsettled = unsettled
                next_resume = loop.time() + settings.resume_seconds
            if loop.time() >= next_sweep:
                await self._sweep_segments()
                next_sweep = loop.time() + settings.segment_sweep_seconds

    async def close(self) -> None:
        """Changes that have begun are done to their end; then every partition is closed."""
        await self._changes.join()
        partitions = [*self._partitions.values(), *self._left]
        self._partitions.clear()
        self._left.clear()
        await gather_all(partition.close() for partition in partitions)
        if self._remote_partitions is not None:
            await self._remote_partitions.close()

    async def refresh(self) -> None:
        """Returns when what other processes have changed before this call is known. Raises TopicsUnavailableError."""
        await self._catalogue.refresh()
        self._take_news()

    def _take_news(self) -> None:
        """What the catalogue says by now of the partitions that are open."""
        if self._changes_seen == self._catalogue.changes:
            return
        self._changes_seen = self._catalogue.changes
        self._forget_rest()
        topics = {each.record.topic_id: each for each in self._catalogue.all().values()}
        for key, partition in list(self._partitions.items()):
            topic = topics.get(key[0])
            if topic is not None and topic.record.state is not TopicState.DELETING:
                partition.configure(topic.config)
                continue
            del self._partitions[key]
            self._left[partition] = None
            partition.vanish()

    def _forget_rest(self) -> None:
        """Other settings, or another owner in between, make other things due."""
        self._resting.clear()
        self._not_compacted.clear()

    def close_left(self) -> None:
        """With no await in between, when a container has left this process: its partitions are closed."""
        for key, partition in list(self._partitions.items()):
            if not self._brokers.is_here(partition.segment_name):
                del self._partitions[key]
                self._left[partition] = None
                partition.leave()

    async def _let_go(self) -> None:
        """Of what closed partitions hold. Alone, because one that puts a file is waited for."""
        while True:
            await asyncio.sleep(self._settings.catalogue_look_seconds)
            while self._left:
                partition = next(iter(self._left))
                await partition.close()
                self._left.pop(partition, None)

    def file_statistics(self) -> FileStatistics:
        """Of the files that were made."""
        return FileStatistics() if self._file_writer is None else self._file_writer.statistics

    def settle_clocks(self) -> None:
        """A person says that the present time is right: retention by age goes on."""
        self._clock_watch.settle()

    def complaint(self) -> str:
        """What a person should know, in a sentence; "" if all is well."""
        if self._catalogue.why_silent:
            return (
                "the catalogue of topics does not answer: what others change is not known here, and nothing can be"
                f" changed: {self._catalogue.why_silent}"
            )
        return self._clock_watch.complaint() if self._catalogue.all() else ""

    # --- what there is -----------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Of all topics, in order, as they are known here. O(topics)."""
        return sorted(name for name, topic in self._catalogue.all().items() if topic.is_there)

    def describe(self, name: str) -> TopicDescription | None:
        """None if there is no such topic, as far as is known here."""
        topic = self._catalogue.get(name)
        if topic is None or not topic.is_there:
            return None
        return TopicDescription(
            name=name,
            topic_id=topic.record.topic_id,
            partitions=topic.record.partitions,
            config=topic.config.effective(),
            given=topic.config.given,
        )

    async def find(self, name: str) -> TopicDescription | None:
        """As describe(), with another look at the catalogue for a name that is not known here.

        Raises TopicsUnavailableError: whether there is one cannot be told.
        """
        found = self.describe(name)
        if found is None:
            await self.refresh()
            found = self.describe(name)
        return found

    def leader_of(self, description: TopicDescription, index: int) -> Broker | None:
        """Of a partition; None while it has none."""
        return self._brokers.leader_of(
            partition_segment_name(description.name, description.topic_id, index)
        )

    async def partition(self, name: str, index: int) -> ServedPartition:
        """Wherever it is led; open. Keep it for one request.

        Raises TopicNotFoundError, UnknownPartitionError, PartitionUnavailableError.
        """
        for _ in range(_LEADERS_ASKED_MAX):
            try:
                return await self.own_partition(name, index)
            except NotLeaderError:
                leader = self._leader(name, index)
            assert self._remote_partitions is not None, "one process leads everything"
            if leader is not None:
                with suppress(NotLeaderError):
                    return await self._remote_partitions.open(name, index, leader)
            await self._remote_partitions.look_again()
        raise PartitionUnavailableError(
            f"no process is known to lead the partition now topic={name!r} partition={index}"
        )

    def _leader(self, name: str, index: int) -> Broker | None:
        """None if it is this process: it is about to lead it."""
        description = self.describe(name)
        leader = None if description is None else self.leader_of(description, index)
        return None if leader == self._brokers.own() else leader

    async def own_partition(self, name: str, index: int) -> Partition:
        """Open, and recovered if it was not. Keep it for one request: it may be closed when it was not used for long.

        Raises NotLeaderError, TopicNotFoundError, UnknownPartitionError, PartitionUnavailableError (also for a name
        that is not known while the catalogue does not answer).
        """
        topic = self._catalogue.get(name)
        if topic is None or not topic.is_there or not 0 <= index < topic.record.partitions:
            try:
                await self.refresh()
            except TopicsUnavailableError as error:
                raise PartitionUnavailableError(str(error)) from error
            topic = self._catalogue.get(name)
        if topic is None or not topic.is_there:
            raise TopicNotFoundError(name)
        if not 0 <= index < topic.record.partitions:
            raise UnknownPartitionError(name, index)
        key = (topic.record.topic_id, index)
        partition = self._partitions.get(key)
        segment_name = (
            partition_segment_name(name, topic.record.topic_id, index)
            if partition is None
            else partition.segment_name
        )
        if not self._brokers.is_here(segment_name):
            raise NotLeaderError(name, index)
        if partition is None:
            partition = Partition(
                topic=name,
                index=index,
                segment_name=segment_name,
                segments=self._segments,
                all_segments=self._all_segments,
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
        self._check_form(name, partitions, config)
        await self._change(name, lambda: self._create(name, partitions, config))

    def check_new(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Raises what create() would raise, as far as that is known now; changes nothing."""
        self._check_form(name, partitions, config)
        if self.describe(name) is not None:
            raise TopicExistsError(name)

    def _check_form(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        check_topic_name(name)
        self._require_count(partitions)
        make_config(config, bytes_max=self._settings.config_bytes_max)

    async def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        topic = self._catalogue.get(name)
        if topic is not None and not topic.record.is_settled:
            topic = await self._finish(topic)
        if topic is not None and not topic.is_there:
            raise CatalogueConflictError(f"another process is at work at the topic name={name!r}")
        if topic is not None:
            raise TopicExistsError(name)
        count = len(self._catalogue.all())
        if count >= self._settings.topics_max:
            raise TopicsUnavailableError(f"there are too many topics count={count}")
        record = TopicRecord(
            TopicState.CREATING,
            UUID(bytes=random_id(self._random)),
            0,
            partitions,
            self._wall_clock.now_ms(),
            dict(config),
        )
        topic = await self._catalogue.put(name, record, NOT_EXISTS)
        await self._finish(topic)

    async def delete(self, name: str) -> None:
        """Returns when it is gone, durably; its bytes may go later.

        Raises TopicNotFoundError, TopicsUnavailableError (it may be gone).
        """
        await self._change(name, lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        topic = self._catalogue.get(name)
        if topic is None or topic.record.state is TopicState.DELETING:
            raise TopicNotFoundError(name)
        topic = await self._catalogue.put(
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
        await self._finish(await self._catalogue.put(name, record, topic.version))

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
        await self._catalogue.put(name, replace(topic.record, config=given), topic.version)
        self._take_news()

    async def _change(self, name: str, change: Callable[[], Awaitable[None]]) -> None:
        async def alone() -> None:
            async with self._locks.held(name):
                for remaining in reversed(range(_ATTEMPTS_MAX)):
                    await self.refresh()
                    try:
                        await change()
                    except CatalogueConflictError:
                        if not remaining:
                            raise
                    else:
                        return

        await self._changes.run(alone())

    async def _settled(self, name: str) -> Topic:
        topic = self._catalogue.get(name)
        if topic is not None and not topic.record.is_settled:
            topic = await self._finish(topic)
        if topic is None:
            raise TopicNotFoundError(name)
        if not topic.record.is_settled:
            raise CatalogueConflictError(f"another process is at work at the topic name={name!r}")
        return topic

    def _require_count(self, count: int) -> None:
        if not 1 <= count <= self._settings.partitions_per_topic_max:
            raise InvalidPartitionsError(
                f"a topic has 1 to {self._settings.partitions_per_topic_max} partitions given={count}"
            )

    # --- steps -------------------------------------------------------------------------------

    async def _finish(self, topic: Topic) -> Topic | None:
        """Does what is left to do of its change; None if the topic is gone. Raises TopicsUnavailableError.

        Another process may do the same: then it is done by either.
        """
        try:
            return await self._do_rest(topic)
        except CatalogueConflictError:
            await self.refresh()
        current = self._catalogue.get(topic.name)
        is_same = current is not None and current.record.topic_id == topic.record.topic_id
        return current if is_same else None

    async def _do_rest(self, topic: Topic) -> Topic | None:
        record = topic.record
        if record.is_settled:
            return topic
        if record.state is TopicState.DELETING:
            await self._vanish(record.topic_id)
            indexes = range(record.partitions_target)
            await self._for_each(indexes, topic, self._retire_segment)
            await self._delete_files(topic)
            await self._for_each(indexes, topic, self._delete_segment)
            await self._catalogue.remove(topic)
            return None
        missing = range(record.partitions, record.partitions_target)
        await self._for_each(missing, topic, self._create_segment)
        record = replace(record, state=TopicState.ACTIVE, partitions=record.partitions_target)
        return await self._catalogue.put(topic.name, record, topic.version)

    async def _for_each(
        self, indexes: range, topic: Topic, step: Callable[[Topic, int], Awaitable[None]]
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

    async def _vanish(self, topic_id: UUID) -> None:
        self._forget_rest()
        for key, partition in list(self._partitions.items()):
            if key[0] == topic_id:
                partition.vanish()
                self._partitions.pop(key, None)
                await partition.close()

    async def _create_segment(self, topic: Topic, index: int) -> None:
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        with suppress(SegmentExistsError):
            is_short_lived = AttributeUpdate(SHORT_LIVED, int(self._file_writer is not None))
            await self._all_segments.create(name, [AttributeUpdate(EVENT_COUNT, 0), is_short_lived])

    async def _retire_segment(self, topic: Topic, index: int) -> None:
        """Ends every opening of the partition, in whatever process, and lets none follow."""
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        with suppress(SegmentNotFoundError):
            await self._all_segments.update_attributes(
                name,
                [
                    AttributeUpdate(OWNER, self._random.getrandbits(63)),
                    AttributeUpdate(RETIRED, 1),
                ],
            )

    async def _delete_files(self, topic: Topic) -> None:
        """Of all partitions, while their segments still say which there are. Raises TopicsUnavailableError."""
        files = self._record_files
        if files is None:
            return
        prefix = topic_prefix(topic.name)
        try:
            listed = False
            async with aclosing(files.keys(prefix)) as keys:
                async for key in keys:
                    listed = listed or RecordFileName.parsed(key) is not None
                    if listed:
                        break
            indexes = range(topic.record.partitions_target)
            have_records = [await self._had_records(topic, index) for index in indexes]
            if not listed and not any(have_records):
                return
            # From here on no topic of this name gives plain names: a deletion that comes late meets none of its files.
            # Also for records without files: one may be on its way.
            with suppress(ObjectExistsError):
                await files.put(prefix + NAMES_USED, b"")
            for index, has_records in enumerate(have_records):
                if has_records:
                    await self._delete_registered(topic, index, files)
            found: list[str] = []
            async with aclosing(files.keys(prefix)) as keys:
                async for key in keys:
                    if RecordFileName.parsed(key) is None:
                        continue
                    found.append(key)
                    if len(found) >= _LISTED_KEYS_MAX:
                        await self._delete_listed(topic, found, files)
                        found.clear()
            await self._delete_listed(topic, found, files)
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
            unknown = files_of_unknown_topics(files, lambda name: name in self._catalogue.all())
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
        await self.refresh()
        # Of a catalogue that lost its end with Tier 1 partitions may have outlived the record.
        prefix = partition_segments_prefix(name)
        if name in self._catalogue.all() or await self._all_segments.list_segments(prefix, limit=1):
            return 0
        deleted = 0
        for key in keys:
            if not await files.delete(key):
                break  # a backup is kept
            deleted += 1
        return deleted

    async def _delete_listed(self, topic: Topic, keys: Sequence[str], files: RecordFiles) -> None:
        """Another process may have finished the deletion meanwhile: then these may be files of another topic."""
        if keys and not await self._catalogue.is_current(topic):
            raise CatalogueConflictError(f"another process deleted the topic name={topic.name!r}")
        for key in keys:
            await files.delete(key)

    async def _had_records(self, topic: Topic, index: int) -> bool:
        with suppress(SegmentNotFoundError):
            info = await self._all_segments.info(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )
            return info.length > 0
        return False

    async def _delete_registered(self, topic: Topic, index: int, files: RecordFiles) -> None:
        """A listing may not have them yet."""
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        registered = RegisteredFiles(known_max=1)
        async with self._all_segments.open_segment(name) as segment:
            registered.load(segment.info().core_attributes)
            number = registered.first
            while number <= registered.last:
                several = await registered.some(segment, number, FILES_PER_UPDATE_MAX)
                for file in several:
                    await files.delete(file.name(topic.name, index).key)
                number += len(several)

    async def _delete_segment(self, topic: Topic, index: int) -> None:
        with suppress(SegmentNotFoundError):
            await self._all_segments.delete(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )

    def _unsettled_now(self) -> dict[str, int]:
        """Topics of which something is left to do, that no call here is at, with their versions."""
        return {
            name: topic.version
            for name, topic in self._catalogue.all().items()
            if not topic.record.is_settled and not self._locks.is_held(name)
        }

    async def _finish_all(self, names: Iterable[str]) -> None:
        """What cannot be finished now is tried again later."""
        for name in list(names):
            try:
                await self._change(name, partial(self._finish_named, name))
            except TopicError as error:
                _LOG.warning("topic=%s a change is not finished yet: %s", name, error)

    async def _finish_named(self, name: str) -> None:
        topic = self._catalogue.get(name)
        if topic is not None:
            await self._finish(topic)

    async def _sweep_segments(self) -> None:
        """Deletes empty segments of topics that are gone: a process that stood still may have made them since.

        A record is there before its segments, and an id is never given again: what is listed before the catalogue is
        read, and has no record then, has none any more. One with records is kept: the catalogue may have been restored
        as of an earlier time than the segment.
        """
        try:
            after = PARTITION_PREFIX
            while True:
                page = await self._all_segments.list_segments(
                    PARTITION_PREFIX, after, _SEGMENTS_PER_PAGE
                )
                await self.refresh()
                ids = {each.record.topic_id for each in self._catalogue.all().values()}
                for info in page:
                    topic_id = topic_id_of_segment(info.name)
                    if topic_id is None or topic_id in ids:
                        continue
                    if info.length > 0:
                        _LOG.warning("segment=%s has records and belongs to no topic", info.name)
                        continue
                    _LOG.info("segment=%s belongs to no topic any more, and is deleted", info.name)
                    with suppress(SegmentNotFoundError):
                        await self._all_segments.delete(info.name)
                if len(page) < _SEGMENTS_PER_PAGE:
                    return
                after = page[-1].name
        except (SegmentStoreError, TopicsUnavailableError) as error:
            _LOG.info("segments of deleted topics are looked for later: %s", error)

    # --- retention ---------------------------------------------------------------------------

    async def expire_all(self) -> None:
        """One pass over all partitions: retention by size and, while the clocks are trusted, by age."""
        age_is_known = self._clock_watch.trusted()
        for name in self.names():
            topic = self._catalogue.get(name)
            if topic is None or not _has_retention(topic.config, age_is_known=age_is_known):
                continue
            for index in range(topic.record.partitions):
                if self._rests(topic, index):
                    continue
                try:
                    partition = await self.own_partition(name, index)
                    await partition.expire(age_is_known=age_is_known)
                except NotLeaderError:
                    continue
                except TopicError as error:
                    _LOG.warning("partition=%s/%s keeps everything: %s", name, index, error)

    async def compact_all(self) -> None:
        """One pass over the partitions of all topics that are compacted by key, one after the other."""
        for name in self.names():
            topic = self._catalogue.get(name)
            if topic is None or not topic.config.compacts or self._record_files is None:
                continue
            for index in range(topic.record.partitions):
                if self._rests(topic, index):
                    continue
                key = (topic.record.topic_id, index)
                try:
                    partition = await self.own_partition(name, index)
                    await partition.compact(age_is_known=self._clock_watch.trusted())
                except NotLeaderError:
                    continue
                except TopicError as error:
                    level = logging.DEBUG if key in self._not_compacted else logging.WARNING
                    self._not_compacted.add(key)
                    _LOG.log(level, "partition=%s/%s is compacted later: %s", name, index, error)
                else:
                    self._not_compacted.discard(key)

    def _rests(self, topic: Topic, index: int) -> bool:
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


def _has_retention(config: TopicConfig, *, age_is_known: bool) -> bool:
    if config.compacts:
        return True
    return config.retention_bytes >= 0 or (age_is_known and config.retention_ms >= 0)


def _too_many(name: str, waiting: int) -> TopicsUnavailableError:
    return TopicsUnavailableError(f"too many changes wait name={name!r} waiting={waiting}")
