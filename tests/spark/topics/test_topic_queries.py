"""Goal: a streaming query of topics passes nothing over in silence, however its topics change between its batches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from segmentstore.codec.record_batch import Record, encode_batch
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.topics import topic_stream_reader
from segmentstore.spark.topics.topic_offsets import decode_topic_position, encode_topic_offsets
from segmentstore.spark.topics.topic_options import parse_topic_options
from segmentstore.spark.topics.topic_ranges import TopicRange
from segmentstore.spark.topics.topic_stream_reader import TopicStreamReader
from tests.spark.topics.topic_store import NOW, TOPIC, TopicStore, some_records, topic_store


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that sees less than its checkpoint waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(topic_stream_reader, "OPEN_PAUSE_SECONDS", 0.0)


class Query:
    """A streaming query as Spark asks it, from a thread: the topics are served by the test's own loop."""

    def __init__(self, store: TopicStore, **words: str) -> None:
        self._reader = TopicStreamReader(
            parse_topic_options({"topic": TOPIC, "kafka": store.service.address, **words})
        )

    async def end(self, start: dict[str, object]) -> dict[str, object]:
        """Where the batch that begins there ends, without the ids of topics."""
        return plain(await self.position_behind(start))

    async def position_behind(self, start: dict[str, object]) -> dict[str, object]:
        """Where the batch that begins there ends, as Spark's checkpoint has it."""
        return await asyncio.to_thread(self._reader.latestOffset, start, ReadAllAvailable())

    async def freeze(self) -> None:
        """As Trigger.AvailableNow begins."""
        await asyncio.to_thread(self._reader.prepareForTriggerAvailableNow)

    async def parts(
        self, start: dict[str, object], end: dict[str, object]
    ) -> list[tuple[int, int, int]]:
        """Partition, start and end of each range of a batch."""
        ranges: Sequence[object] = await asyncio.to_thread(self._reader.partitions, start, end)
        return [
            (each.index, each.start, each.end) for each in ranges if isinstance(each, TopicRange)
        ]

    async def stop(self) -> None:
        await asyncio.to_thread(self._reader.stop)


@asynccontextmanager
async def query(store: TopicStore, **words: str) -> AsyncIterator[Query]:
    opened = Query(store, **words)
    try:
        yield opened
    finally:
        await opened.stop()


def at(*offsets: int) -> dict[str, object]:
    """A position as the checkpoints of older versions have it."""
    return {TOPIC: {str(index): offset for index, offset in enumerate(offsets)}}


def plain(position: dict[str, object]) -> dict[str, object]:
    """Without the ids of topics."""
    return encode_topic_offsets(decode_topic_position(position).offsets)


async def make_again(store: TopicStore, count: int) -> None:
    await store.service.topics.delete(TOPIC)
    await store.service.topics.create(TOPIC, 1, {})
    store.produced.clear()
    if count:
        await store.produce(some_records(Random(1), count))


@pytest.mark.parametrize("count", [0, 5])
async def test_a_topic_that_is_shorter_than_a_checkpoint_without_its_id_says_is_loss(
    count: int,
) -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(0), 40))
        async with query(store) as strict, query(store, failOnDataLoss="false") as lenient:
            assert await strict.end(at(0)) == await lenient.end(at(0)) == at(40)
            await make_again(store, count)
            with pytest.raises(DataLossError, match=rf"asked=\[40, 40\) head=0 tail={count}"):
                await strict.end(at(40))
            # It goes back to the tail, so that what comes next is read.
            assert await lenient.end(at(40)) == at(count)
            assert await lenient.parts(at(40), at(count)) == []
            await store.produce(some_records(Random(2), 50))
            assert await lenient.end(at(count)) == at(count + 50)
            assert await lenient.parts(at(count), at(count + 50)) == [(0, count, count + 50)]


@pytest.mark.parametrize("count", [0, 5, 40, 60])
async def test_a_topic_that_was_made_again_is_loss_and_then_read_from_its_beginning(
    count: int,
) -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(0), 40))
        async with query(store) as strict, query(store, failOnDataLoss="false") as lenient:
            reached = await strict.position_behind(at(0))
            await make_again(store, count)
            with pytest.raises(DataLossError, match=r"made again.*asked=\[40, 40\) head=0 tail=0"):
                await strict.position_behind(reached)
            begun = await lenient.position_behind(reached)
            assert plain(begun) == at(0)
            assert await lenient.parts(reached, begun) == []
            # The batch is planned once more, by a query that accepts no loss.
            with pytest.raises(DataLossError, match=r"made again.*asked=\[40, 40\)"):
                await strict.parts(reached, begun)
            end = await lenient.position_behind(begun)
            assert plain(end) == at(count)
            assert await lenient.parts(begun, end) == ([(0, 0, count)] if count else [])


async def test_a_batch_of_a_topic_that_was_made_again_since_it_was_planned_is_loss() -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(0), 40))
        async with query(store) as strict, query(store, failOnDataLoss="false") as lenient:
            start = await strict.position_behind(at(0))
            await store.produce(some_records(Random(1), 10))
            end = await strict.position_behind(start)
            assert await strict.parts(start, end) == [(0, 40, 50)]
            await make_again(store, 60)
            for begin in (start, plain(start)):
                with pytest.raises(DataLossError, match=r"asked=\[40, 50\) head=0 tail=0"):
                    await strict.parts(begin, end)
                assert await lenient.parts(begin, end) == []


@pytest.mark.parametrize("count", [5, 60])
async def test_a_topic_that_was_made_again_while_it_is_read_to_a_fixed_end_is_loss(
    count: int,
) -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(0), 40))
        async with query(store) as strict, query(store, failOnDataLoss="false") as lenient:
            for each in (strict, lenient):
                await each.freeze()
            await make_again(store, count)
            with pytest.raises(DataLossError, match=r"asked=\[3, 40\) head=0 tail=0"):
                await strict.end(at(3))
            # What is there came behind the beginning of the run.
            begun = await lenient.position_behind(at(3))
            assert plain(begun) == at(0)
            assert await lenient.position_behind(begun) == begun


async def test_an_end_that_the_options_name_is_no_loss_for_what_lies_behind_it() -> None:
    async with (
        topic_store() as store,
        query(store, endingOffsets='{"0": 10}') as until,
    ):
        await store.produce(some_records(Random(0), 40))
        assert await until.end(at(0)) == at(10)
        assert await until.end(at(20)) == at(20)


async def test_records_of_a_partition_that_was_added_and_lost_its_head_are_loss() -> None:
    async with topic_store() as store:
        topics = store.service.topics
        await topics.add_partitions(TOPIC, 2)
        partition = await topics.own_partition(TOPIC, 1)
        await partition.produce(encode_batch(some_records(Random(3), 20)))
        async with query(store) as strict, query(store, failOnDataLoss="false") as lenient:
            # The query's checkpoint is from before the partition was there.
            end = await strict.end(at(0))
            assert end == at(0, 20)
            assert await strict.parts(at(0), end) == [(1, 0, 20)]
            await partition.delete_records(8)
            # The batch is planned once more, as after a restart.
            with pytest.raises(DataLossError, match=r"partition 1.*asked=\[0, 20\) head=8 tail=20"):
                await strict.parts(at(0), end)
            assert await lenient.parts(at(0), end) == [(1, 8, 20)]


async def test_a_topic_that_is_added_to_a_query_begins_where_its_checkpoint_says() -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(4), 20))
        partition = await store.service.topics.own_partition(TOPIC, 0)
        await partition.delete_records(5)
        other = {"other": {"0": 0}}
        await store.service.topics.create("other", 1, {})
        async with query(store, topic=f"{TOPIC},other") as added:
            begun = await added.end(dict(other))
            assert begun == {**at(5), **other}
            assert await added.parts(dict(other), begun) == []
            end = await added.end(begun)
            assert end == {**at(20), **other}
            assert await added.parts(begun, end) == [(0, 5, 20)]
            await partition.delete_records(8)
            with pytest.raises(DataLossError):
                await added.parts(begun, end)


async def test_an_end_in_time_that_no_record_has_reached_leaves_out_none_before_it() -> None:
    async with topic_store() as store, query(store, endingTimestamp=str(NOW)) as until:
        await produce_at(store, NOW - 20, NOW - 10)
        assert await until.end(at(0)) == at(2)
        await produce_at(store, NOW - 5)
        assert await until.end(at(2)) == at(3)
        await produce_at(store, NOW - 1, NOW, NOW + 1)
        assert await until.end(at(3)) == at(4)
        # Decided once: what is older and comes later lies behind it.
        await produce_at(store, NOW - 1)
        assert await until.end(at(4)) == at(4)


async def test_an_end_in_time_of_a_topic_that_was_made_again_is_looked_for_in_the_new_one() -> None:
    async with (
        topic_store() as store,
        query(store, endingTimestamp=str(NOW), failOnDataLoss="false") as until,
    ):
        await produce_at(store, NOW - 20, NOW)
        reached = await until.position_behind(at(0))
        assert plain(reached) == at(1)
        await make_again(store, 0)
        await produce_at(store, NOW - 20, NOW - 10, NOW - 5, NOW)
        begun = await until.position_behind(reached)
        assert plain(begun) == at(0)
        assert await until.end(begun) == at(3)


@pytest.mark.parametrize(
    ("words", "end"),
    [("latest", 0), ('{"0": -1}', 0), ('{"0": 6, "id": "ID"}', 0), ('{"0": 6}', 6)],
)
async def test_an_end_in_a_topic_is_none_in_the_one_that_was_made_again_by_its_name(
    words: str, end: int
) -> None:
    """An offset without the topic's id is one of whichever topic has the name."""
    async with topic_store() as store:
        await store.produce(some_records(Random(0), 8))
        described = store.service.topics.describe(TOPIC)
        assert described is not None
        words = words.replace("ID", described.topic_id.hex)
        async with (
            query(store, endingOffsets=words) as strict,
            query(store, endingOffsets=words, failOnDataLoss="false") as until,
        ):
            reached = await until.position_behind(at(0))
            assert await strict.position_behind(at(0)) == reached
            assert plain(reached) in (at(6), at(8))
            await make_again(store, 20)
            with pytest.raises(DataLossError, match="whose topic was made again"):
                await strict.position_behind(reached)
            begun = await until.position_behind(reached)
            assert plain(begun) == at(0)
            assert await until.end(begun) == at(end)
        async with query(store, endingOffsets=words, failOnDataLoss="false") as again:
            if described.topic_id.hex in words:
                with pytest.raises(
                    InvalidRequestError, match="a topic of that name that was deleted"
                ):
                    await again.position_behind(reached)


async def produce_at(store: TopicStore, *times: int) -> None:
    await store.produce([Record(0, each, None, b"") for each in times])
