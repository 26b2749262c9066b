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
- A position behind the end of a partition is loss: the topic was made again, and what comes next would count as read.
  Without failOnDataLoss it goes back to the end.
- `maxOffsetsPerTrigger` is shared among the partitions in proportion to what waits in each, and no partition that has
  something waits for ever.
- With Trigger.AvailableNow the end is that of the moment when the query began.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack

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
    decode_topic_offsets,
    encode_topic_offsets,
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
        self._first: TopicOffsets | None = None
        self._last: TopicOffsets | None = None

    def __reduce__(self) -> "tuple[type[TopicStreamReader], tuple[TopicReadOptions]]":
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        # Asked for twice before the first batch; both answers have to be the same.
        if self._first is None:
            query = self._opened()
            self._first = query.runner.run(query.first())
        return encode_topic_offsets(self._first)

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
        end = query.runner.run(query.next_end(decode_topic_offsets(start), count))
        self._last = query.latest
        return encode_topic_offsets(end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  # Spark's name
        return None if self._last is None else encode_topic_offsets(self._last)

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        query = self._opened()
        return query.runner.run(
            query.ranges(decode_topic_offsets(start), decode_topic_offsets(end))
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
        self._frozen: TopicOffsets | None = None
        self._stop: TopicOffsets | None = None
        """Decided once; by a timestamp for each partition when it has a record of that time."""
        self.latest: TopicOffsets | None = None
        """The ends as they were seen last."""
        self._kept = OpenSource(self._enter)
        self._source = self._kept.source
        self.runner = self._kept.runner

    async def first(self) -> TopicOffsets:
        """Where the query begins."""
        partitions = await self._source.partitions()
        return await self._source.starts(partitions, default=LATEST)

    async def freeze(self) -> None:
        """What comes from now on is not for this run."""
        self._frozen = await self._ends(await self._source.partitions())

    async def next_end(self, start: TopicOffsets, count_max: int | None) -> TopicOffsets:
        """Where the next batch ends. Raises DataLossError."""
        reached = dict(start)
        for key, end in (self._frozen or {}).items():
            reached[key] = max(end, reached.get(key, end))
        partitions = await self._seen_up_to(reached)
        start = self._not_behind(start, reached, partitions)
        ends = self._frozen if self._frozen is not None else await self._ends(partitions)
        self.latest = ends
        known = {each.key: each for each in partitions}
        waiting: dict[tuple[str, int], tuple[int, int]] = {}
        topics = _topics_of(start)
        for key, end in ends.items():
            if key in known and key[0] not in topics:
                waiting[key] = (known[key].start, known[key].start)
                continue
            begin = start[key] if key in start else known[key].start if key in known else end
            waiting[key] = (begin, max(begin, end))
        # A partition that is gone keeps its place: whether that is loss is decided where ranges are made.
        found = {key: offset for key, offset in start.items() if key not in waiting}
        return found | shared_ends(waiting, count_max)

    async def _seen_up_to(self, position: TopicOffsets) -> list[TopicPartition]:
        """The partitions, once this process sees as much as the one that made the position: volumes are seen late."""
        partitions = await self._source.partitions()
        for _ in range(OPEN_ATTEMPTS - 1):
            if all(position.get(each.key, 0) <= each.end for each in partitions):
                break
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            partitions = await self._source.partitions()
        return partitions

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
            self._frozen = _at_most(self._frozen, ends)
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

    async def ranges(self, start: TopicOffsets, end: TopicOffsets) -> list[TopicRange]:
        """What the tasks of one batch read. Raises DataLossError."""
        partitions = [each for each in await self._seen_up_to(end) if each.key in end]
        here = {each.key for each in partitions}
        gone = [key for key in end if key not in here and end[key] > start.get(key, 0)]
        partitions += [TopicPartition(*key, "", 0, 0) for key in gone]
        topics = _topics_of(start)
        begins = {each.key: 0 if each.topic in topics else each.start for each in partitions}
        stretches = stretches_between(
            partitions,
            starts={**begins, **start},
            ends=end,
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
