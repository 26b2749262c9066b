"""Changes of topics: created, deleted, grown, altered, by any process; and finished by another one if one breaks off.

| change | is there from | steps |
|---|---|---|
| create | the third step on | record "being created"; segments of the partitions; record "there" |
| delete | gone from the first step on | record "being deleted"; segments retired; files, segments, record deleted |
| add partitions | the third step on | record with the new target; segments; record with the new count |
| alter | the only step | record with the new settings |

What a process writes reaches segments wherever they are. A change that is broken off, by a failure or by the end of a
process, is finished later: by the process that has the catalogue's container, or by the next change of the same topic.

Invariants:

- A segment of a partition exists only while a record of its topic does: none is left behind. One that a process made
  too late, because it stood still meanwhile, is swept (gone_topics.py).
- Changes of one topic follow one another: each is one conditional update of one entry. Of two processes one is refused;
  it reads the catalogue again, and decides anew.
- A change that has begun is not broken off because its caller left.
- Before files of a topic are deleted its segments are retired, everywhere, and its partitions closed, here.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from segmentstore.codec.topic_files import RETIRED
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, SHORT_LIVED
from segmentstore.contracts.segments import AttributeUpdate, SegmentApi
from segmentstore.contracts.tables import NOT_EXISTS
from segmentstore.runtime.cancellation import ChangeTasks
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.waiting import gather_all
from segmentstore.topics.catalogue import Catalogue, Topic
from segmentstore.topics.errors import (
    CatalogueConflictError,
    InvalidConfigError,
    InvalidPartitionsError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
)
from segmentstore.topics.gone_topics import GoneTopics
from segmentstore.topics.open_partitions import OpenPartitions
from segmentstore.topics.partition_log import OWNER
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import CONFIGS, make_config
from segmentstore.topics.topic_records import (
    TopicRecord,
    TopicState,
    check_topic_name,
    partition_segment_name,
)

_LOG = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 5
"""Of one change, while other processes change the same topic."""


class TopicChanges:
    """join() at the end."""

    def __init__(
        self,
        catalogue: Catalogue,
        partitions: OpenPartitions,
        gone: GoneTopics,
        *,
        refresh: Callable[[], Awaitable[None]],
        locks: KeyedLocks[str],
        all_segments: SegmentApi,
        wall_clock: WallClock,
        random: Random,
        settings: TopicSettings,
        files_are_made: bool,
    ) -> None:
        """As GoneTopics. `files_are_made`: the batches of new partitions wait for their files."""
        self._catalogue = catalogue
        self._partitions = partitions
        self._gone = gone
        self._refresh = refresh
        self._locks = locks
        self._all_segments = all_segments
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._files_are_made = files_are_made
        self._changes = ChangeTasks()

    async def join(self) -> None:
        """Changes that have begun are done to their end."""
        await self._changes.join()

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
        topic = self._catalogue.get(name)
        if topic is not None and topic.is_there:
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

    async def delete(self, name: str, *, topic_id: UUID | None = None) -> None:
        """Returns when it is gone, durably; its bytes may go later.

        `topic_id`: another topic that has the name by now is left alone.

        Raises TopicNotFoundError, TopicsUnavailableError (it may be gone).
        """
        await self._change(name, lambda: self._delete(name, topic_id))

    async def _delete(self, name: str, topic_id: UUID | None) -> None:
        topic = self._catalogue.get(name)
        if topic is None or topic.record.state is TopicState.DELETING:
            raise TopicNotFoundError(name)
        if topic_id not in (None, topic.record.topic_id):
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

    def check_more(self, name: str, count: int) -> None:
        """Raises what add_partitions() would raise, as far as that is known now; changes nothing."""
        self._require_count(count)
        topic = self._catalogue.get(name)
        if topic is None or not topic.is_there:
            raise TopicNotFoundError(name)
        _require_more(topic, count)

    async def _add_partitions(self, name: str, count: int) -> None:
        topic = await self._settled(name)
        _require_more(topic, count)
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
        self._partitions.follow_catalogue()

    async def _change(self, name: str, change: Callable[[], Awaitable[None]]) -> None:
        async def alone() -> None:
            async with self._locks.held(name):
                for remaining in reversed(range(_ATTEMPTS_MAX)):
                    await self._refresh()
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
            await self._refresh()
        return self._catalogue.get(topic.record.topic_id)

    async def _do_rest(self, topic: Topic) -> Topic | None:
        record = topic.record
        if record.is_settled:
            return topic
        if record.state is TopicState.DELETING:
            await self._partitions.let_go_of_topic(record.topic_id)
            indexes = range(record.partitions_target)
            await self._for_each(indexes, topic, self._retire_segment)
            await self._gone.delete_files(topic)
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

    async def _create_segment(self, topic: Topic, index: int) -> None:
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        with suppress(SegmentExistsError):
            is_short_lived = AttributeUpdate(SHORT_LIVED, int(self._files_are_made))
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

    async def _delete_segment(self, topic: Topic, index: int) -> None:
        with suppress(SegmentNotFoundError):
            await self._all_segments.delete(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )

    # --- what was broken off -----------------------------------------------------------------

    def unsettled(self) -> dict[str, int]:
        """Topics of which something is left to do, that no call here is at, with their versions."""
        return {
            name: topic.version
            for name, topic in self._catalogue.all().items()
            if not topic.record.is_settled and not self._locks.is_held(name)
        }

    async def finish_all(self, names: Iterable[str]) -> None:
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


def _require_more(topic: Topic, count: int) -> None:
    """Raises InvalidPartitionsError."""
    if count <= topic.record.partitions:
        raise InvalidPartitionsError(
            f"a topic never has fewer partitions than before, nor as many name={topic.name!r}"
            f" partitions={topic.record.partitions} given={count}"
        )
