"""The topics of one query, opened on the driver: their partitions, and where the options say that reading begins and
ends.

Invariants:

- mode=offline, and a read without `kafka`, ask Tier 2 alone; otherwise the service says which partitions there are and
  how far they go, and the topic's id, by which Tier 2 is read: a topic that was made again never meets old records.
- Every call looks again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Reader,
    open_tier2_reader,
)
from segmentstore.spark.topics.published_partition import PublishedPartition
from segmentstore.spark.topics.topic_catalogue import Tier2TopicCatalogue, TopicMissingError
from segmentstore.spark.topics.topic_offsets import EARLIEST, LATEST, OffsetWords
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.topics.topic_records import partition_segment_name, topic_id_of_segment

if TYPE_CHECKING:
    from segmentstore.spark.topics.topic_service import TopicService


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition as it is now."""

    topic: str
    index: int
    segment_name: str
    start: int
    """Of the first record there is."""
    end: int
    """Behind the last one."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.index

    @property
    def topic_id(self) -> UUID | None:
        """Which topic of that name; None for a partition that is gone."""
        return topic_id_of_segment(self.segment_name)


class TopicSource:
    """Made by `open_topic_source`."""

    def __init__(
        self,
        options: TopicReadOptions,
        *,
        view: Tier2Reader | None,
        service: "TopicService | None",
        executor: Executor | None,
    ) -> None:
        self._options = options
        self._view = view
        self._service = service
        self._executor = executor

    async def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics, in order. Raises TopicMissingError, StorageError, ClientError."""
        found: list[TopicPartition] = []
        for topic in self._options.topics:
            found += await self._partitions_of(topic)
        return found

    async def starts(
        self, partitions: list[TopicPartition], *, default: int
    ) -> dict[tuple[str, int], int]:
        """Where the options say that reading begins; a time behind the last record is the end."""
        time_ms = self._options.starting_timestamp_ms
        if time_ms is not None:
            return await self._at_time(partitions, time_ms)
        words = self._options.starting
        if words is None:
            words = OffsetWords(default)
        return _resolved(words, partitions, unnamed=EARLIEST)

    async def ends(self, partitions: list[TopicPartition]) -> dict[tuple[str, int], int]:
        """Where the options say that reading ends; the ends as they are now if they say nothing."""
        time_ms = self._options.ending_timestamp_ms
        if time_ms is not None:
            return await self._at_time(partitions, time_ms)
        return _resolved(self._options.ending or OffsetWords(LATEST), partitions, unnamed=LATEST)

    def published(self, partition: TopicPartition) -> PublishedPartition | None:
        """What Tier 2 has of it; None without Tier 2."""
        if self._view is None:
            return None
        return PublishedPartition(
            self._view,
            topic=partition.topic,
            partition=partition.index,
            segment_name=partition.segment_name,
            executor=self._executor,
        )

    async def _partitions_of(self, topic: str) -> list[TopicPartition]:
        if self._service is None:
            return await self._published_partitions(topic)
        served = await self._service.described(topic)
        if self._view is not None:
            await self._view.refresh()
        return [
            TopicPartition(
                topic,
                each.partition,
                partition_segment_name(topic, served.topic_id, each.partition),
                each.first,
                each.end,
            )
            for each in served.offsets
        ]

    async def _published_partitions(self, topic: str) -> list[TopicPartition]:
        """Looked for again, within a bound: what was flushed to volumes a moment ago is seen up to a second late."""
        view = self._view
        assert view is not None, "neither Tier 2 nor the service is open"
        catalogue = Tier2TopicCatalogue(view)
        await view.refresh()
        record = await catalogue.find(topic)
        for _ in range(OPEN_ATTEMPTS - 1):
            if record is not None:
                break
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            await view.refresh()
            record = await catalogue.find(topic)
        if record is None:
            raise TopicMissingError(f"topic does not exist in Tier 2 topic={topic!r}")
        found: list[TopicPartition] = []
        for index in range(record.partitions):
            name = partition_segment_name(topic, record.topic_id, index)
            partition = TopicPartition(topic, index, name, 0, 0)
            published = self.published(partition)
            facts = None if published is None else await published.look()
            if facts is not None:
                end = max(facts.end, facts.log_start)
                partition = TopicPartition(topic, index, name, facts.log_start, end)
            found.append(partition)
        return found

    async def first_not_older(
        self, partitions: list[TopicPartition], time_ms: int
    ) -> dict[tuple[str, int], int]:
        """The first record of each partition that is not older than that; partitions without one are left out."""
        found: dict[tuple[str, int], int] = {}
        served: dict[str, Mapping[int, int]] = {}
        for each in partitions:
            offset: int | None
            if self._service is not None:
                topic = each.topic
                if topic not in served:
                    served[topic] = await self._service.offsets_at_time(topic, time_ms)
                offset = served[topic].get(each.index)
            else:
                published = self.published(each)
                offset = None if published is None else await published.first_not_older(time_ms)
            if offset is not None:
                found[each.key] = offset
        return found

    async def _at_time(
        self, partitions: list[TopicPartition], time_ms: int
    ) -> dict[tuple[str, int], int]:
        found = await self.first_not_older(partitions, time_ms)
        return {each.key: found.get(each.key, each.end) for each in partitions}


def _resolved(
    words: OffsetWords, partitions: list[TopicPartition], *, unnamed: int
) -> dict[tuple[str, int], int]:
    known = {each.key for each in partitions}
    strangers = [each[:2] for each in words.named if each[:2] not in known]
    if strangers:
        raise InvalidRequestError(f"there is no such partition topic, partition={strangers[0]}")
    ids = dict(words.ids)
    others = [each.topic for each in partitions if ids.get(each.topic) not in (None, each.topic_id)]
    if others:
        raise InvalidRequestError(
            f"the offsets are those of a topic of that name that was deleted topic={others[0]!r}"
        )
    found: dict[tuple[str, int], int] = {}
    for each in partitions:
        offset = words.of(*each.key)
        if offset is None:
            offset = unnamed
        found[each.key] = {EARLIEST: each.start, LATEST: each.end}.get(offset, offset)
    return found


@asynccontextmanager
async def open_topic_source(
    options: TopicReadOptions, *, executor: Executor | None
) -> AsyncIterator[TopicSource]:
    """Raises InvalidRequestError if there is no Tier 2 at the place, StorageError."""
    async with AsyncExitStack() as opened:
        view: Tier2Reader | None = None
        if options.place is not None:
            view = await opened.enter_async_context(
                open_tier2_reader(options.place, executor=executor)
            )
        service = None
        if options.service:
            # Only queries that ask the service need its client library.
            from segmentstore.spark.topics.topic_service import TopicService

            service = await opened.enter_async_context(TopicService(options.service))
        yield TopicSource(options, view=view, service=service, executor=executor)
