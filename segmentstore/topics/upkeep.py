"""What partitions need without being asked: retention, compaction by key, and rest when they are not used.

Invariants:

- Nothing is deleted by its age while the clocks are not trusted.
- One partition is compacted at a time in a process.
- Between some partitions of a pass others have their turn: there may be thousands of which all is known in memory.
- A partition that rests stays closed until something of it can be due, for `rest_seconds_max` at most: another process
  may have appended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from uuid import UUID

from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.waiting import give_way
from segmentstore.topics.catalogue import Catalogue, Topic
from segmentstore.topics.errors import NotLeaderError, TopicError
from segmentstore.topics.open_partitions import OpenPartitions
from segmentstore.topics.partition import Partition
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import TopicConfig

_LOG = logging.getLogger(__name__)

_PARTITIONS_PER_TURN: Final = 16
"""Of a pass, in one turn of the loop: each may take some 0.1 ms without an await that waits."""


class Upkeep:
    """run() until cancelled."""

    def __init__(
        self,
        catalogue: Catalogue,
        partitions: OpenPartitions,
        *,
        wall_clock: WallClock,
        settings: TopicSettings,
        has_files: bool,
    ) -> None:
        """`has_files`: whether there is a Tier 2 for files of records."""
        self._catalogue = catalogue
        self._partitions = partitions
        self._wall_clock = wall_clock
        self._settings = settings
        self._has_files = has_files
        self.clock_watch = ClockWatch(
            wall_clock=wall_clock,
            difference_seconds_max=settings.clock_difference_seconds_max,
            settle_seconds=settings.clock_settle_seconds,
        )
        self._not_compacted: set[tuple[UUID, int]] = set()
        """Those of which the log said so, since the catalogue changed."""
        self._changes_seen = 0
        """Of the catalogue, by compaction."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(), name="retention of topics")
            group.create_task(self._compact(), name="compaction of topics")

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self.clock_watch.doubt("topics have just been started")
        next_pass = loop.time() + settings.retention_interval_seconds
        while True:
            # Looks often, so that a jump and its way back are not seen as one.
            due = min(settings.clock_look_seconds, next_pass - loop.time())
            await asyncio.sleep(max(0.0, due))
            self.clock_watch.look()
            if loop.time() >= next_pass:
                await self.expire_all()
                for number, partition in enumerate(self._partitions.all(), start=1):
                    await partition.delete_doomed()
                    await give_way(number, every=_PARTITIONS_PER_TURN)
                await self.close_idle()
                next_pass = loop.time() + settings.retention_interval_seconds

    async def _compact(self) -> None:
        while True:
            await asyncio.sleep(self._settings.compaction_interval_seconds)
            await self.compact_all()

    async def expire_all(self) -> None:
        """One pass over all partitions: retention by size and, while the clocks are trusted, by age."""
        async with aclosing(self._due_partitions()) as due:
            async for topic, index in due:
                # Where records become files each is opened: a process that died may have left some in batches.
                if not self._has_files and not _has_retention(
                    topic.config, age_is_known=self.clock_watch.trusted()
                ):
                    continue
                try:
                    partition = await self._partitions.open(topic.name, index)
                    # Asked for each of them: a pass may take minutes, and the clock may jump meanwhile.
                    await partition.expire(age_is_known=self.clock_watch.trusted())
                except NotLeaderError:
                    continue
                except TopicError as error:
                    _LOG.warning("partition=%s/%s keeps everything: %s", topic.name, index, error)

    async def compact_all(self) -> None:
        """One pass over the partitions of all topics that are compacted by key, one after the other."""
        if self._changes_seen != self._catalogue.changes:
            self._changes_seen = self._catalogue.changes
            self._not_compacted.clear()
        async with aclosing(self._due_partitions()) as due:
            async for topic, index in due:
                if not topic.config.compacts or not self._has_files:
                    continue
                key = (topic.record.topic_id, index)
                try:
                    partition = await self._partitions.open(topic.name, index)
                    await partition.compact(age_is_known=self.clock_watch.trusted)
                    await partition.delete_doomed()
                except NotLeaderError:
                    continue
                except TopicError as error:
                    level = logging.DEBUG if key in self._not_compacted else logging.WARNING
                    self._not_compacted.add(key)
                    _LOG.log(
                        level, "partition=%s/%s is compacted later: %s", topic.name, index, error
                    )
                else:
                    self._not_compacted.discard(key)

    async def _due_partitions(self) -> AsyncGenerator[tuple[Topic, int], None]:
        """Those that do not rest, by name of topic, as the catalogue is known when it is their turn."""
        looked_at = 0
        for name in sorted(self._catalogue.all()):
            topic = self._catalogue.get(name)
            if topic is None or not topic.is_there:
                continue
            for index in range(topic.record.partitions):
                looked_at += 1
                await give_way(looked_at, every=_PARTITIONS_PER_TURN)
                if not self._partitions.rests(topic, index):
                    yield topic, index

    async def close_idle(self) -> None:
        """Those that nothing uses any more."""
        since = asyncio.get_running_loop().time() - self._settings.idle_seconds
        for number, partition in enumerate(self._partitions.idle(since), start=1):
            until_ms = await self._rest_of(partition)
            await self._partitions.rest(partition, since=since, until_ms=until_ms)
            await give_way(number, every=_PARTITIONS_PER_TURN)

    async def _rest_of(self, partition: Partition) -> float:
        """Until when nothing is due of it."""
        now_ms = self._wall_clock.now_ms()
        try:
            await partition.expire(age_is_known=self.clock_watch.trusted())
            until = await partition.rest_until_ms()
        except TopicError:
            return now_ms
        return min(until, now_ms + self._settings.rest_seconds_max * 1000)


def _has_retention(config: TopicConfig, *, age_is_known: bool) -> bool:
    if config.compacts:
        return True
    return config.retention_bytes >= 0 or (age_is_known and config.retention_ms >= 0)
