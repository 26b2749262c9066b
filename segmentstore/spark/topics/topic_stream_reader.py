"""The streaming reader of topics as Spark calls it, and the opened query behind it.

Where a query begins and ends, in words of the options:

| option | begins | ends |
|---|---|---|
| nothing | at the latest record (as Spark's Kafka source) | never |
| earliest, latest, offsets, a timestamp | there, as it is when the query is made | latest, offsets: there |
| | | a timestamp: before the first record that is not older, once there is one |

Invariants:

- The offsets that Spark keeps in its checkpoint are all that a query remembers: between two of them are the same
  records whenever they are read, as long as they are there.
- A partition that is added later is read from offset 0: records that it lost before the query saw them are lost. A
  topic that is added to the options is first entered in a position, at its earliest records, and read from the batch
  after it, so that its beginning is a part of the checkpoint.
- A position names the id of each topic. One that was deleted and made again is loss: the offsets say nothing of it.
  Without failOnDataLoss it is entered in the position as a topic that is added, and no batch holds records of both; an
  end that was found in the old one ends nothing in the new one.
- A position behind the end of a partition is loss: the topic of one without ids (of an older version) was made again,
  and what comes next would count as read. Without failOnDataLoss it goes back to the end.
- `maxOffsetsPerTrigger` is shared among the partitions in proportion to what waits in each, and no partition that has
  something waits for ever.
- With Trigger.AvailableNow the end is that of the moment when the query began.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from segmentstore.spark.python_worker import OpenSource
from segmentstore.spark.scan.data_loss import DataLossError, pass_over
from segmentstore.spark.tier2_access import OPEN_ATTEMPTS, OPEN_PAUSE_SECONDS
from segmentstore.spark.topics.partition_reader import read_topic_range
from segmentstore.spark.topics.topic_offsets import (
    LATEST,
    TopicOffsets,
    TopicPosition,
    decode_topic_position,
    encode_topic_offsets,
    encode_topic_position,
)
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.spark.topics.topic_ranges import (
    TopicRange,
    partition_name,
    split_stretches,
    stretches_between,
)
from segmentstore.spark.topics.topic_source import TopicPartition, TopicSource, open_topic_source


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's reader. Its methods raise DataLossError, TopicMissingError, StorageError, ClientError."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self._query: _OpenTopics | None = None
        self._first: TopicPosition | None = None
        self._last: TopicOffsets | None = None

    def __reduce__(self) -> "tuple[type[TopicStreamReader], tuple[TopicReadOptions]]":
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        # Asked for twice before the first batch; both answers have to be the same.
        if self._first is None:
            query = self._opened()
            self._first = query.runner.run(query.first())
        return encode_topic_position(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        count = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        query = self._opened()
        query.runner.run(query.freeze())

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802  # Spark's name
        query = self._opened()
        count = self._options.max_offsets_per_trigger
        if isinstance(limit, ReadAllAvailable):
            count = None
        end = query.runner.run(query.next_end(decode_topic_position(start), count))
        self._last = query.latest
        return encode_topic_position(end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  # Spark's name
        return None if self._last is None else encode_topic_offsets(self._last)

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        query = self._opened()
        return query.runner.run(
            query.ranges(decode_topic_position(start), decode_topic_position(end))
        )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, TopicRange):
            yield from read_topic_range(partition, self._options)

    def commit(self, end: dict[str, object]) -> None:
        """Nothing depends on it."""

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.close()

    def _opened(self) -> "_OpenTopics":
        if self._query is None:
            self._query = _OpenTopics(self._options)
        return self._query


class _OpenTopics:
    """What a reader holds open between Spark's calls."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self._frozen: TopicPosition | None = None
        self._stop: TopicOffsets | None = None
        """Decided once; by a timestamp for each partition when it has a record of that time."""
        self.latest: TopicOffsets | None = None
        """The ends as they were seen last."""
        self._kept = OpenSource(self._enter)
        self._source = self._kept.source
        self.runner = self._kept.runner

    async def first(self) -> TopicPosition:
        """Where the query begins."""
        partitions = await self._source.partitions()
        starts = await self._source.starts(partitions, default=LATEST)
        return TopicPosition(starts, _ids_of(partitions))

    async def freeze(self) -> None:
        """What comes from now on is not for this run."""
        partitions = await self._source.partitions()
        self._frozen = TopicPosition(await self._ends(partitions), _ids_of(partitions))

    async def next_end(self, start: TopicPosition, count_max: int | None) -> TopicPosition:
        """Where the next batch ends. Raises DataLossError."""
        if self._frozen is not None:
            # A position without an id is one of the topic that was there when the run began.
            start = TopicPosition(start.offsets, {**self._frozen.ids, **start.ids})
        partitions = await self._seen_up_to(self._reached(start))
        start = self._without_other_topics(start, partitions)
        begins = self._not_behind(start.offsets, self._reached(start).offsets, partitions)
        ends = self._frozen.offsets if self._frozen is not None else await self._ends(partitions)
        self.latest = ends
        known = {each.key: each for each in partitions}
        waiting: dict[tuple[str, int], tuple[int, int]] = {}
        topics = _topics_of(begins)
        for key, end in ends.items():
            if key in known and key[0] not in topics:
                waiting[key] = (known[key].start, known[key].start)
                continue
            begin = begins[key] if key in begins else known[key].start if key in known else end
            waiting[key] = (begin, max(begin, end))
        # A partition that is gone keeps its place: whether that is loss is decided where ranges are made.
        found = {key: offset for key, offset in begins.items() if key not in waiting}
        offsets = found | shared_ends(waiting, count_max)
        ids = {**start.ids, **_ids_of(partitions)}
        return TopicPosition(offsets, ids)

    def _reached(self, start: TopicPosition) -> TopicPosition:
        """As far as anything was seen of the topics of a position."""
        reached = dict(start.offsets)
        if self._frozen is not None:
            for key, end in self._frozen.offsets.items():
                if start.ids.get(key[0]) == self._frozen.ids.get(key[0]):
                    reached[key] = max(end, reached.get(key, end))
        return TopicPosition(reached, start.ids)

    async def _seen_up_to(self, position: TopicPosition) -> list[TopicPartition]:
        """The partitions, once this process sees as much as the one that made the position: volumes are seen late."""
        partitions = await self._source.partitions()
        for _ in range(OPEN_ATTEMPTS - 1):
            is_behind = any(position.offsets.get(each.key, 0) > each.end for each in partitions)
            if not is_behind and not _others(position.ids, partitions):
                break
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            partitions = await self._source.partitions()
        return partitions

    def _without_other_topics(
        self, start: TopicPosition, partitions: list[TopicPartition]
    ) -> TopicPosition:
        """The start of a batch, and the frozen ends, without topics that were made again. Raises DataLossError."""
        others = _others(start.ids, partitions)
        self._lose_topics(self._reached(start), start, others)
        ending = self._options.ending
        if self._stop is not None and ending is not None:
            # Its end as it was when the query was made: what is there instead lies behind it.
            behind = [each for each in partitions if each.topic in others]
            heads = {each.key: each.start for each in behind if not ending.is_of_any(*each.key)}
            self._stop = {**self._stop, **heads}
        elif self._stop is not None:
            # Where the old topic reached a time says nothing of the new one.
            self._stop = {key: end for key, end in self._stop.items() if key[0] not in others}
        if self._frozen is not None:
            # What is there instead came behind the beginning of the run.
            new = _others(self._frozen.ids, partitions)
            kept = {key: end for key, end in self._frozen.offsets.items() if key[0] not in new}
            heads = {each.key: each.start for each in partitions if each.topic in new}
            self._frozen = TopicPosition(kept | heads, {**self._frozen.ids, **_ids_of(partitions)})
        kept = {key: offset for key, offset in start.offsets.items() if key[0] not in others}
        return TopicPosition(kept, start.ids)

    def _lose_topics(
        self, reached: TopicPosition, start: TopicPosition, topics: frozenset[str]
    ) -> None:
        """What was not read of topics that were made again is gone. Raises DataLossError."""
        for key, offset in sorted(start.offsets.items()):
            if key[0] in topics:
                loss = DataLossError(
                    f"{partition_name(*key)}, whose topic was made again",
                    start=offset,
                    end=reached.offsets.get(key, offset),
                    head=0,
                    tail=0,
                )
                pass_over(loss, fail=self._options.fail_on_data_loss)

    def _not_behind(
        self, start: TopicOffsets, reached: TopicOffsets, partitions: list[TopicPartition]
    ) -> TopicOffsets:
        """The start of a batch, and the frozen ends, back at ends that lie before them. Raises DataLossError."""
        ends = {each.key: each.end for each in partitions if each.end < reached.get(each.key, 0)}
        for each in partitions:
            if each.key in ends:
                begin = start.get(each.key, 0)
                loss = DataLossError(
                    partition_name(*each.key),
                    start=begin,
                    end=reached[each.key],
                    head=each.start,
                    tail=each.end,
                )
                pass_over(loss, fail=self._options.fail_on_data_loss)
        if self._frozen is not None:
            self._frozen = TopicPosition(_at_most(self._frozen.offsets, ends), self._frozen.ids)
        return _at_most(start, ends)

    async def _ends(self, partitions: list[TopicPartition]) -> TopicOffsets:
        options = self._options
        stop = self._stop or {}
        if options.ending_timestamp_ms is not None:
            # What has no such record yet may get older ones still: its end as it is now decides nothing.
            open_ended = [each for each in partitions if each.key not in stop]
            found = await self._source.first_not_older(open_ended, options.ending_timestamp_ms)
            stop = self._stop = {**stop, **found}
        elif options.ending is not None and self._stop is None:
            stop = self._stop = await self._source.ends(partitions)
        return {each.key: min(each.end, stop.get(each.key, each.end)) for each in partitions}

    async def ranges(self, start: TopicPosition, end: TopicPosition) -> list[TopicRange]:
        """What the tasks of one batch read. Raises DataLossError."""
        seen = await self._seen_up_to(end)
        # Between two topics of one name the batch holds nothing of either.
        crossed = frozenset(
            topic for topic, each in end.ids.items() if start.ids.get(topic, each) != each
        )
        self._lose_topics(start, start, crossed)
        left_out = crossed | _others(end.ids, seen)
        partitions = [
            each for each in seen if each.key in end.offsets and each.topic not in left_out
        ]
        here = {each.key for each in partitions}
        gone = [
            key
            for key, offset in end.offsets.items()
            if key not in here and key[0] not in crossed and offset > start.offsets.get(key, 0)
        ]
        partitions += [TopicPartition(*key, "", 0, 0) for key in gone]
        topics = _topics_of(start.offsets)
        begins = {each.key: 0 if each.topic in topics else each.start for each in partitions}
        stretches = stretches_between(
            partitions,
            starts={**begins, **start.offsets},
            ends=end.offsets,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return await split_stretches(
            self._source,
            stretches,
            bytes_max=self._options.max_bytes_per_partition,
            count_min=self._options.min_partitions,
        )

    def close(self) -> None:
        self._kept.close()

    async def _enter(self, opened: AsyncExitStack, executor: Executor) -> TopicSource:
        return await opened.enter_async_context(open_topic_source(self._options, executor=executor))


def _ids_of(partitions: Sequence[TopicPartition]) -> dict[str, UUID]:
    return {each.topic: each.topic_id for each in partitions if each.topic_id is not None}


def _others(ids: Mapping[str, UUID], partitions: Sequence[TopicPartition]) -> frozenset[str]:
    """Topics that are there under another id than that one."""
    now = _ids_of(partitions)
    return frozenset(topic for topic, each in ids.items() if now.get(topic, each) != each)


def _topics_of(position: TopicOffsets) -> set[str]:
    return {topic for topic, _ in position}


def _at_most(offsets: TopicOffsets, ends: TopicOffsets) -> TopicOffsets:
    return {key: min(offset, ends.get(key, offset)) for key, offset in offsets.items()}


def shared_ends(
    waiting: Mapping[tuple[str, int], tuple[int, int]], count_max: int | None
) -> dict[tuple[str, int], int]:
    """Ends of at most so many offsets more, in proportion to what waits; where there is less than one for each
    partition, one for as many as there may be, in turn."""
    total = sum(end - begin for begin, end in waiting.values())
    if count_max is None or total <= count_max:
        return {key: end for key, (_, end) in waiting.items()}
    some = sorted(key for key, (begin, end) in waiting.items() if begin < end)
    if count_max < len(some):
        # What was read grows by `count_max` with each such batch: the next one begins behind the last partition here.
        first = sum(begin for begin, _ in waiting.values()) % len(some)
        chosen = set((some + some)[first : first + count_max])
        return {key: begin + int(key in chosen) for key, (begin, _) in waiting.items()}
    ends: dict[tuple[str, int], int] = {}
    left, behind = count_max, total
    # The shortest first: what they do not use is shared by the others.
    for key, (begin, end) in sorted(waiting.items(), key=lambda each: each[1][1] - each[1][0]):
        size = end - begin
        share = min(size, -(-left * size // behind)) if behind else 0
        ends[key] = begin + min(share, left)
        left -= ends[key] - begin
        behind -= size
    return ends
