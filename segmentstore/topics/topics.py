"""The topics of a store as one process serves them: which there are, what was set of them, their partitions.

| part | is |
|---|---|
| `catalogue.py` | the table of topics, and what this process knows of it |
| `topic_changes.py` | create, delete, add partitions, alter; what was broken off is finished |
| `gone_topics.py` | what deleted topics have left |
| `open_partitions.py` | which partitions are open here |
| `upkeep.py` | retention, compaction, rest |
| `file_writer.py` | which partition's file is made next |

Invariants:

- A topic is told of, and takes batches, only while its record says that it is there, for partitions that are there.
- What another process changed is known here a second later, and at once where a name or a partition is not known.
- What was broken off, and what deleted topics left, is finished by the process that has the catalogue's container.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.topics.brokers import Broker, Brokers, OneBroker
from segmentstore.topics.catalogue import Catalogue, TopicKey
from segmentstore.topics.errors import (
    NotLeaderError,
    PartitionUnavailableError,
    TopicError,
    TopicsUnavailableError,
)
from segmentstore.topics.file_writer import FileStatistics, FileWriter
from segmentstore.topics.gone_topics import GoneTopics
from segmentstore.topics.open_partitions import OpenPartitions
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.served_partition import RemotePartitions, ServedPartition
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_changes import TopicChanges
from segmentstore.topics.topic_records import CATALOGUE_TABLE, partition_segment_name
from segmentstore.topics.upkeep import Upkeep

_LOG = logging.getLogger(__name__)

_LEADERS_ASKED_MAX: Final = 3
"""For one partition, whose leader may have changed."""
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
        all_segments = segments if all_segments is None else all_segments
        self._brokers: Brokers = OneBroker() if brokers is None else brokers
        self._remote_partitions = remote_partitions
        self._settings = settings
        self._has_files = record_files is not None
        self._file_writer: FileWriter | None = None
        if record_files is not None and settings.file_seconds > 0:
            self._file_writer = FileWriter(settings)
        self._unsettled: dict[str, int] = {}
        """Topics that had something left to do at the last look, and their versions then."""
        self._catalogue = Catalogue(tables=tables, config_bytes_max=settings.config_bytes_max)
        self._partitions = OpenPartitions(
            self._catalogue,
            brokers=self._brokers,
            segments=segments,
            all_segments=all_segments,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
            record_files=record_files,
            on_hot=None if self._file_writer is None else self._file_writer.note,
        )
        self._upkeep = Upkeep(
            self._catalogue,
            self._partitions,
            wall_clock=wall_clock,
            settings=settings,
            has_files=self._has_files,
        )
        locks = KeyedLocks[str](waiters_max=_CHANGES_WAITING_MAX, refusal=_too_many)
        self._gone = GoneTopics(
            self._catalogue,
            refresh=self.refresh,
            locks=locks,
            all_segments=all_segments,
            record_files=record_files,
        )
        self._changes = TopicChanges(
            self._catalogue,
            self._partitions,
            self._gone,
            refresh=self.refresh,
            locks=locks,
            all_segments=all_segments,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
            files_are_made=self._file_writer is not None,
        )

    # --- start and close -------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the catalogue; finishes what was begun if that is its part. Raises TopicsUnavailableError."""
        await self._catalogue.start()
        self._partitions.follow_catalogue()
        if self._brokers.is_here(CATALOGUE_TABLE):
            await self._changes.finish_all(self._changes.unsettled())

    async def run(self) -> None:
        """Retention, what was broken off, files of records, and what other processes changed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._upkeep.run(), name="upkeep of topics")
            group.create_task(self._follow_catalogue(), name="catalogue of topics")
            group.create_task(self._let_go(), name="partitions that left")
            if self._file_writer is not None:
                group.create_task(self._file_writer.run(), name="files of topics")
            if self._has_files:
                group.create_task(self._sweep(), name="files of topics that are gone")
            if self._remote_partitions is not None:
                group.create_task(self._remote_partitions.run(), name="partitions of others")

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
                unsettled = self._changes.unsettled()
                before = self._unsettled
                await self._changes.finish_all(
                    {
                        name: version
                        for name, version in unsettled.items()
                        if before.get(name) == version
                    }
                )
                self._unsettled = unsettled
                next_resume = loop.time() + settings.resume_seconds
            if loop.time() >= next_sweep:
                await self._gone.sweep_segments()
                next_sweep = loop.time() + settings.segment_sweep_seconds

    async def close(self) -> None:
        """Changes that have begun are done to their end; then every partition is closed."""
        await self._changes.join()
        await self._partitions.close()
        if self._remote_partitions is not None:
            await self._remote_partitions.close()

    async def refresh(self) -> None:
        """Returns when what other processes have changed before this call is known. Raises TopicsUnavailableError."""
        await self._catalogue.refresh()
        self._partitions.follow_catalogue()

    def close_left(self) -> None:
        """With no await in between, when a container has left this process: its partitions are closed."""
        self._partitions.close_left()

    async def _let_go(self) -> None:
        """Of what closed partitions hold. Alone, because one that puts a file is waited for."""
        while True:
            await asyncio.sleep(self._settings.catalogue_look_seconds)
            await self._partitions.let_go()

    def file_statistics(self) -> FileStatistics:
        """Of the files that were made."""
        return FileStatistics() if self._file_writer is None else self._file_writer.statistics

    def settle_clocks(self) -> None:
        """A person says that the present time is right: retention by age goes on."""
        self._upkeep.clock_watch.settle()

    def complaint(self) -> str:
        """What a person should know, in a sentence; "" if all is well."""
        if self._catalogue.why_silent:
            return (
                "the catalogue of topics does not answer: what others change is not known here, and nothing can be"
                f" changed: {self._catalogue.why_silent}"
            )
        return self._upkeep.clock_watch.complaint() if self._catalogue.all() else ""

    # --- what there is -----------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Of all topics, in order, as they are known here. O(topics)."""
        return sorted(name for name, topic in self._catalogue.all().items() if topic.is_there)

    def describe(self, key: TopicKey) -> TopicDescription | None:
        """None if there is no such topic, as far as is known here."""
        topic = self._catalogue.get(key)
        if topic is None or not topic.is_there:
            return None
        return TopicDescription(
            name=topic.name,
            topic_id=topic.record.topic_id,
            partitions=topic.record.partitions,
            config=topic.config.effective(),
            given=topic.config.given,
        )

    async def find(self, key: TopicKey) -> TopicDescription | None:
        """As describe(), with another look at the catalogue for what is not known here.

        Raises TopicsUnavailableError: whether there is one cannot be told.
        """
        found = self.describe(key)
        if found is None:
            await self.refresh()
            found = self.describe(key)
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

    def own_partition_if_open(self, key: TopicKey, index: int) -> Partition | None:
        """What own_partition() would give at once; None where it would wait or refuse."""
        return self._partitions.if_open(key, index)

    async def own_partition(self, key: TopicKey, index: int) -> Partition:
        """Open, and recovered if it was not. Keep it for one request: it may be closed when it was not used for long.

        Raises NotLeaderError, TopicNotFoundError, UnknownTopicIdError, UnknownPartitionError, PartitionUnavailableError
        (also for a topic that is not known while the catalogue does not answer).
        """
        if not self._partitions.is_known(key, index):
            try:
                await self.refresh()
            except TopicsUnavailableError as error:
                raise PartitionUnavailableError(str(error)) from error
        return await self._partitions.open(key, index)

    # --- changes: as TopicChanges ------------------------------------------------------------

    async def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Returns when it is there, durably."""
        await self._changes.create(name, partitions, config)

    def check_new(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Raises what create() would raise, as far as that is known now; changes nothing."""
        self._changes.check_new(name, partitions, config)

    async def delete(self, name: str, *, topic_id: UUID | None = None) -> None:
        """Returns when it is gone, durably; its bytes may go later. `topic_id`: only the topic that has it."""
        await self._changes.delete(name, topic_id=topic_id)

    def check_more(self, name: str, count: int) -> None:
        """Raises what add_partitions() would raise, as far as that is known now; changes nothing."""
        self._changes.check_more(name, count)

    async def add_partitions(self, name: str, count: int) -> None:
        """`count` partitions in all."""
        await self._changes.add_partitions(name, count)

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets words, or back to the default with None."""
        await self._changes.alter(name, changes)

    # --- what is done by itself, at once -----------------------------------------------------

    async def expire_all(self) -> None:
        """One pass of retention over all partitions."""
        await self._upkeep.expire_all()

    async def compact_all(self) -> None:
        """One pass of compaction over the partitions of all topics that are compacted by key."""
        await self._upkeep.compact_all()

    async def sweep_gone_topics(self) -> int:
        """Deletes files of topics that are gone; how many there were. Raises TopicsUnavailableError."""
        deleted = await self._gone.sweep_files()
        if deleted and self._file_writer is not None:
            self._file_writer.statistics.dead_files += deleted
        return deleted


def _too_many(name: str, waiting: int) -> TopicsUnavailableError:
    return TopicsUnavailableError(f"too many changes wait name={name!r} waiting={waiting}")
