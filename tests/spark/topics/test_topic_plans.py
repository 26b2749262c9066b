"""Goal: a plan covers what was asked for, each offset once, and says what is not there."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

from segmentstore.codec.record_batch import Record
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.topics.topic_catalogue import Tier2TopicCatalogue
from segmentstore.spark.topics.topic_offsets import (
    EARLIEST,
    LATEST,
    TopicPosition,
    decode_topic_position,
    encode_topic_position,
)
from segmentstore.spark.topics.topic_options import (
    names_topics,
    parse_topic_options,
    writes_topics,
)
from segmentstore.spark.topics.topic_ranges import (
    TopicRange,
    split_stretches,
    stretches_between,
    topic_bounds_of,
)
from segmentstore.spark.topics.topic_service import TopicService
from segmentstore.spark.topics.topic_source import TopicPartition, TopicSource
from segmentstore.spark.topics.topic_stream_reader import shared_ends
from tests.spark.topics.topic_store import TOPIC, TopicStore, some_records, topic_store

WORDS = {"topic": "logs", "tier2": "data"}


async def source_of(store: TopicStore, service: TopicService | None, **words: str) -> TopicSource:
    options = parse_topic_options({**WORDS, "kafka": store.service.address, **words})
    view = await store.view()
    return TopicSource(options, view=view, service=service, executor=None)


def check_cover(ranges: list[TopicRange], start: int, end: int) -> None:
    assert (ranges[0].start, ranges[-1].end) == (start, end)
    for one, other in pairwise(ranges):
        assert one.start < one.end == other.start


@pytest.mark.parametrize("served", [True, False])
async def test_ranges_are_cut_where_files_and_marks_meet(served: bool) -> None:
    random = Random(1)
    async with topic_store(mark_bytes=1500) as store:
        edges: list[int] = []
        for _ in range(3):
            for _ in range(10):
                await store.produce(some_records(random, 5))
            await store.make_file(small_blocks=False)
            edges.append(len(store.produced))
        for _ in range(30):
            await store.produce(some_records(random, 5))
        await store.flush()
        end = len(store.produced)
        async with TopicService(store.service.address) as service:
            source = await source_of(store, service if served else None)
            (partition,) = await source.partitions()
            assert (partition.start, partition.end) == (0, end)
            stretches = stretches_between(
                [partition], starts={(TOPIC, 0): 3}, ends={(TOPIC, 0): end}, fail_on_data_loss=True
            )
            ranges = await split_stretches(source, stretches, bytes_max=1, count_min=1)
            check_cover(ranges, 3, end)
            assert [each.start for each in ranges[1:4]] == edges
            assert len(ranges) > 6, "marks cut what lies in batches"
            assert all(each.size_bytes > 0 for each in ranges)
            whole = await split_stretches(source, stretches, bytes_max=1 << 30, count_min=1)
            assert len(whole) == 1
            many = await split_stretches(source, stretches, bytes_max=1 << 30, count_min=9)
            check_cover(many, 3, end)
            assert len(many) >= 9


async def test_filters_on_partition_and_offset_bound_the_ranges() -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(2), 50))
        async with TopicService(store.service.address) as service:
            source = await source_of(store, service)
            (partition,) = await source.partitions()
            stretches = stretches_between(
                [partition], starts={(TOPIC, 0): 0}, ends={(TOPIC, 0): 50}, fail_on_data_loss=True
            )

            async def found(*filters: object) -> list[tuple[int, int]]:
                bounds = topic_bounds_of(filters)  # type: ignore[arg-type]
                ranges = await split_stretches(
                    source, stretches, bounds=bounds, bytes_max=1 << 20, count_min=1
                )
                return [(each.start, each.end) for each in ranges]

            assert await found(EqualTo(("partition",), 1)) == []
            assert await found(In(("partition",), (0, 4))) == [(0, 50)]
            assert await found(GreaterThanOrEqual(("offset",), 7), LessThan(("offset",), 9)) == [
                (7, 10)
            ]


async def test_a_topic_that_was_made_again_never_meets_the_records_of_the_old_one() -> None:
    random = Random(3)
    async with topic_store() as store:
        await store.produce(some_records(random, 40))
        await store.flush()
        topics = store.service.topics
        await topics.delete(TOPIC)
        await topics.create(TOPIC, 1, {})
        store.produced.clear()
        await store.produce(some_records(random, 5))
        # Tier 2 shows the old topic still.
        view = await store.view()
        old = await Tier2TopicCatalogue(view).find(TOPIC)
        new = topics.describe(TOPIC)
        assert old is not None
        assert new is not None
        assert old.topic_id != new.topic_id
        async with TopicService(store.service.address) as service:
            source = await source_of(store, service)
            (partition,) = await source.partitions()
        assert partition.end == 5
        part = TopicRange(TOPIC, 0, partition.segment_name, 0, 5)
        store.segment_name = partition.segment_name
        assert await store.read(part) == store.expected(0, 5)


async def test_a_start_at_offsets_of_a_topic_that_was_deleted_is_refused() -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(5), 5))
        topics = store.service.topics
        old = topics.describe(TOPIC)
        assert old is not None
        words = {"startingOffsets": json.dumps({TOPIC: {"0": 3, "id": old.topic_id.hex}})}
        async with TopicService(store.service.address) as service:
            source = await source_of(store, service, **words)
            starts = await source.starts(await source.partitions(), default=EARLIEST)
            assert starts == {(TOPIC, 0): 3}
            await topics.delete(TOPIC)
            await topics.create(TOPIC, 1, {})
            partitions = await source.partitions()
            with pytest.raises(InvalidRequestError, match="that was deleted topic='logs'"):
                await source.starts(partitions, default=EARLIEST)


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("time", ["1969-12-31T23:59:59.999Z", "1900-01-01"])
async def test_a_start_at_a_time_before_1970_takes_all_records(time: str, served: bool) -> None:
    async with topic_store() as store:
        await store.produce(some_records(Random(4), 5))
        await store.flush()
        async with TopicService(store.service.address) as service:
            source = await source_of(store, service if served else None, startingTimestamp=time)
            partitions = await source.partitions()
            assert await source.starts(partitions, default=LATEST) == {(TOPIC, 0): 0}


def partition(index: int, start: int, end: int) -> TopicPartition:
    return TopicPartition("logs", index, f"p{index}", start, end)


@pytest.mark.parametrize("served", [True, False])
async def test_a_start_and_an_end_before_1970_are_found_wherever_they_are_looked_for(
    served: bool,
) -> None:
    times = [-9_000, -7, -3, -1, -5_000, -2]
    async with topic_store() as store:
        for each in times:
            await store.produce([Record(0, each, None, b"")])
        for more in ([], [Record(0, 5, None, b"")]):
            if more:
                await store.produce(more)
            await store.flush()
            end = len(store.produced)
            expected = {-9_000: 0, -8_999: 1, -7: 1, -6: 2, -3: 2, -2: 3, -1: 3, 0: 6, 6: end}
            async with TopicService(store.service.address) as service:
                for time_ms, offset in expected.items():
                    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
                    source = await source_of(
                        store,
                        service if served else None,
                        startingTimestamp=time.isoformat(),
                        endingTimestamp=time.isoformat(),
                    )
                    partitions = await source.partitions()
                    for found in (
                        await source.starts(partitions, default=LATEST),
                        await source.ends(partitions),
                    ):
                        assert found == {(TOPIC, 0): offset}, time_ms


def test_what_is_not_there_is_loss_or_left_out() -> None:
    some = [partition(0, 5, 20), partition(1, 0, 3)]
    for starts, ends in (((2, 0), (20, 3)), ((5, 0), (21, 3)), ((5, 4), (20, 4))):
        words = {
            "starts": {("logs", each): starts[each] for each in range(2)},
            "ends": {("logs", each): ends[each] for each in range(2)},
        }
        with pytest.raises(DataLossError):
            stretches_between(some, **words, fail_on_data_loss=True)
        kept = stretches_between(some, **words, fail_on_data_loss=False)
        assert all(
            each.partition.start <= each.start < each.end <= each.partition.end for each in kept
        )


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b", "c.d"]), st.integers(0, 9)), st.integers(0, 2**62)
    ),
    st.dictionaries(st.sampled_from(["a", "b", "c.d"]), st.uuids()),
)
def test_positions_come_back_from_the_checkpoint(
    offsets: Mapping[tuple[str, int], int], ids: Mapping[str, UUID]
) -> None:
    content = json.loads(json.dumps(encode_topic_position(TopicPosition(offsets, ids))))
    found = decode_topic_position(content)
    assert found.offsets == dict(offsets)
    assert found.ids == {topic: ids[topic] for topic, _ in offsets if topic in ids}


@given(
    st.dictionaries(
        st.tuples(st.just("t"), st.integers(0, 9)),
        st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda p: (p[0], p[0] + p[1])),
        min_size=1,
    ),
    st.integers(1, 3000),
)
def test_a_batch_has_as_much_as_it_may_and_no_more(
    waiting: Mapping[tuple[str, int], tuple[int, int]], count: int
) -> None:
    ends = shared_ends(waiting, count)
    assert ends.keys() == waiting.keys()
    assert all(begin <= ends[key] <= end for key, (begin, end) in waiting.items())
    total = sum(end - begin for begin, end in waiting.values())
    assert sum(ends[key] - begin for key, (begin, _) in waiting.items()) == min(total, count)
    assert shared_ends(waiting, None) == {key: end for key, (_, end) in waiting.items()}


def test_no_partition_waits_for_ever_where_a_batch_has_fewer_offsets_than_partitions_wait() -> None:
    keys = [("t", index) for index in range(5)]
    begins = dict.fromkeys(keys, 0)
    tails = {**dict.fromkeys(keys, 3), ("t", 2): 1000}
    for _ in range(10):
        ends = shared_ends({key: (begins[key], tails[key]) for key in keys}, 2)
        assert sum(ends[key] - begins[key] for key in keys) == 2
        # What was read of the short ones comes again.
        tails = {key: tails[key] + ends[key] - begins[key] for key in keys}
        begins = ends
    assert set(begins.values()) == {4}


def test_words_become_options() -> None:
    options = parse_topic_options(
        {
            "Subscribe": "a, b,a",
            "kafka.bootstrap.servers": "host:9092",
            "startingoffsets": '{"a": {"0": 5, "1": -1}, "b": {"0": -2}}',
            "includeHeaders": "true",
        }
    )
    assert options.topics == ("a", "b")
    assert options.service == "host:9092"
    assert options.columns[-1] == "headers"
    assert options.starting is not None
    found = [options.starting.of(*each) for each in (("a", 0), ("a", 1), ("b", 0), ("b", 1))]
    assert found == [5, LATEST, EARLIEST, None]
    assert names_topics({"SUBSCRIBE": "a"})
    assert not names_topics({"stream": "a/b"})
    assert writes_topics({"kafka": "h:1"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"topic": " , "}, "names no topic"),
        ({"tier2": ""}, "nowhere to read from"),
        ({"tier2": "", "kafka": "h:1", "mode": "offline"}, "nowhere to read from"),
        ({"kafka": "h:1,i"}, "kafka is HOST:PORT"),
        ({"kafka": "h:1", "kafka.bootstrap.servers": "i:2"}, "given twice"),
        ({"stream": "a/b"}, "unknown option stream"),
        ({"startingOffsets": "5"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"other": {"0": 5}}'}, "no topic that is read"),
        ({"startingOffsets": '{"0": -3}'}, "no offset"),
        ({"startingOffsets": '{"0": 3, "id": 7}'}, "no id of a topic"),
        ({"topic": "a,b", "startingOffsets": '{"0": 3}'}, "stand under their names"),
        ({"endingOffsets": '{"0": -2}'}, "cannot be the earliest"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "exclude each other"),
        ({"columns": "key,segment_id"}, "columns are some of"),
    ],
)
def test_words_without_a_meaning_are_refused(words: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        parse_topic_options({**WORDS, **words})
