"""The partitions that are open in this process: found, opened, closed.

    a request -> open() -> the container is here -> recovered if it is not open
    the catalogue's news, a container that left, idleness -> closed at once -> what it holds is let go of

Invariants:

- A partition is opened where its container is, and closed when that leaves.
- One of a topic that is deleted is never opened again in this process, from the moment on at which it is known.
- A recovery goes on when the requests that wait for it leave, or one that takes longer than a request waits would
  begin anew with each of them. It ends with its partition, or before that is closed.
- Of one partition at most one is in the table. What has left it is closed, and waited for by let_go().
- A partition that is not used is closed after a while, so that its segment may leave memory. Retention and compaction
  use none (upkeep.py); of a closed one it is remembered until when nothing can be due.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from segmentstore.contracts.segments import SegmentApi
from segmentstore.runtime.cancellation import await_shielded, retrieve_exception
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.waiting import gather_all
from segmentstore.topics.brokers import Brokers
from segmentstore.topics.catalogue import Catalogue, Topic, TopicKey
from segmentstore.topics.errors import (
    NotLeaderError,
    PartitionUnavailableError,
    TopicNotFoundError,
    UnknownPartitionError,
    UnknownTopicIdError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_records import TopicState, partition_segment_name


class OpenPartitions:
    """close() at the end."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        brokers: Brokers,
        segments: SegmentApi,
        all_segments: SegmentApi,
        wall_clock: WallClock,
        random: Random,
        settings: TopicSettings,
        record_files: RecordFiles | None,
        on_hot: Callable[[Partition], None] | None,
    ) -> None:
        """As of Partition: `on_hot` is told of batches that no file has."""
        self._catalogue = catalogue
        self._brokers = brokers
        self._segments = segments
        self._all_segments = all_segments
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._record_files = record_files
        self._on_hot = on_hot
        self._changes_seen = 0
        """Of the catalogue."""
        self._partitions: dict[tuple[UUID, int], Partition] = {}
        self._recoveries: dict[Partition, asyncio.Task[None]] = {}
        self._left: dict[Partition, UUID] = {}
        """Closed, because their containers have left or their topics are gone, and the ids of their topics; what they
        hold is let go of soon."""
        self._resting: dict[tuple[UUID, int], float] = {}
        """Wall time in Unix milliseconds until which nothing is due of a partition that was closed."""

    def all(self) -> Sequence[Partition]:
        """Those that are open, or were the last time that they were used."""
        return list(self._partitions.values())

    def is_known(self, key: TopicKey, index: int) -> bool:
        """Whether the catalogue, as it is known here, has the partition."""
        topic = self._catalogue.get(key)
        return topic is not None and topic.is_there and 0 <= index < topic.record.partitions

    def if_open(self, key: TopicKey, index: int) -> Partition | None:
        """What open() would give at once; None where it would wait or refuse."""
        topic = self._catalogue.get(key)
        if topic is None or not topic.is_there or index >= topic.record.partitions:
            return None
        partition = self._partitions.get((topic.record.topic_id, index))
        if partition is None or not partition.is_open:
            return None
        return partition if self._brokers.is_here(partition.segment_name) else None

    async def open(self, key: TopicKey, index: int) -> Partition:
        """Recovered if it was not open. Keep it for one request: it may be closed when it was not used for long.

        Raises TopicNotFoundError, UnknownTopicIdError, UnknownPartitionError, NotLeaderError,
        PartitionUnavailableError.
        """
        topic = self._catalogue.get(key)
        if topic is None or not topic.is_there:
            raise TopicNotFoundError(key) if isinstance(key, str) else UnknownTopicIdError(key)
        name = topic.name
        if not 0 <= index < topic.record.partitions:
            raise UnknownPartitionError(name, index)
        place = (topic.record.topic_id, index)
        partition = self._partitions.get(place)
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
                on_hot=self._on_hot,
            )
            self._partitions[place] = partition
            self._resting.pop(place, None)
        if not partition.is_open:
            await self._recover(partition)
        if not partition.is_open:
            # One that was under way had opened it already, and it was shut meanwhile.
            await self._recover(partition)
        return partition

    async def _recover(self, partition: Partition) -> None:
        """With all others that ask for it. Raises as open()."""
        recovery = self._recoveries.get(partition)
        if recovery is None:
            work = self._run_recovery(partition)
            recovery = asyncio.create_task(work, name=f"recovery {partition.label}")
            recovery.add_done_callback(retrieve_exception)
            self._recoveries[partition] = recovery
        try:
            await await_shielded(recovery)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if not recovery.cancelled() or (waiter is not None and waiter.cancelling()):
                raise
            raise PartitionUnavailableError(
                f"the partition was closed while it was recovered {partition.label}"
            ) from None

    async def _run_recovery(self, partition: Partition) -> None:
        try:
            await partition.recover()
        finally:
            self._recoveries.pop(partition, None)

    def _end_recovery(self, partition: Partition) -> None:
        """Its close() returns when that has ended."""
        # Taken out here as well: one that has not begun is never run.
        recovery = self._recoveries.pop(partition, None)
        if recovery is not None:
            recovery.cancel()

    # --- what is closed ----------------------------------------------------------------------

    def follow_catalogue(self) -> None:
        """What the catalogue says by now of the partitions that are open."""
        if self._changes_seen == self._catalogue.changes:
            return
        self._changes_seen = self._catalogue.changes
        # Other settings, or another owner in between, make other things due.
        self._resting.clear()
        for key, partition in list(self._partitions.items()):
            topic = self._catalogue.get(key[0])
            if topic is not None and topic.record.state is not TopicState.DELETING:
                partition.configure(topic.config)
                continue
            del self._partitions[key]
            self._left[partition] = key[0]
            partition.vanish()

    def close_left(self) -> None:
        """With no await in between, when a container has left this process: its partitions are closed."""
        for key, partition in list(self._partitions.items()):
            if not self._brokers.is_here(partition.segment_name):
                del self._partitions[key]
                self._left[partition] = key[0]
                partition.leave()

    async def let_go(self) -> None:
        """Of what those hold that have left; one that puts a file is waited for."""
        while self._left:
            await self._let_go_of(next(iter(self._left)))

    async def let_go_of_topic(self, topic_id: UUID) -> None:
        """Behind it nothing of this process puts a file of the topic, which is being deleted."""
        self.follow_catalogue()
        for partition in [each for each, id_ in self._left.items() if id_ == topic_id]:
            await self._let_go_of(partition)

    async def _let_go_of(self, partition: Partition) -> None:
        self._end_recovery(partition)
        await partition.close()
        self._left.pop(partition, None)

    async def close(self) -> None:
        """All of them."""
        partitions = [*self._partitions.values(), *self._left]
        self._partitions.clear()
        self._left.clear()
        for partition in list(self._recoveries):
            self._end_recovery(partition)
        await gather_all(partition.close() for partition in partitions)

    # --- rest --------------------------------------------------------------------------------

    def idle(self, since: float) -> Sequence[Partition]:
        """Those that were not used since then (loop time), and that nothing waits for."""
        return [
            each
            for each in self._partitions.values()
            if each.is_idle(since) and each not in self._recoveries
        ]

    async def rest(self, partition: Partition, *, since: float, until_ms: float) -> None:
        """Closes it if it still is idle; rests() is told until when nothing is due."""
        for key, known in self._partitions.items():
            if known is partition and partition.is_idle(since) and known not in self._recoveries:
                del self._partitions[key]
                self._resting[key] = until_ms
                await partition.close()
                return

    def rests(self, topic: Topic, index: int) -> bool:
        """Whether nothing is due of it, so that it may stay closed."""
        until = self._resting.get((topic.record.topic_id, index))
        return until is not None and self._wall_clock.now_ms() < until
