"""The catalogue of topics over segments and tables in memory."""

import asyncio
from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest

from segmentstore.contracts.errors import ContainerStoppedError, CorruptedDataError
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    PartitionUnavailableError,
    RecordBatchTooLargeError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
    UnknownPartitionError,
)
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_records import (
    TopicRecord,
    TopicState,
    decode_topic,
    encode_topic,
)
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.topics.batches import Clock, batch_of, records_in

NO_CONFIG: Mapping[str, str] = {}


class Store:
    """A process of topics over a store that outlives it."""

    def __init__(self, *, settings: TopicSettings | None = None) -> None:
        self.segments = MemorySegments()
        self.tables = MemoryTables()
        self.clock = Clock()
        self.settings = settings or TopicSettings()
        self.random = Random(5)
        self.topics: Topics

    async def start(self) -> Topics:
        """Another process; what was committed is there, nothing else."""
        self.segments = self.segments.restarted()
        self.tables = self.tables.restarted()
        self.topics = Topics(
            segments=self.segments,
            tables=self.tables,
            wall_clock=self.clock,
            random=self.random,
            settings=self.settings,
        )
        await self.topics.start()
        return self.topics


async def test_a_topic_is_there_after_a_restart() -> None:
    store = Store()
    topics = await store.start()
    assert topics.names() == []
    await topics.create("b", 3, {"retention.ms": "1000"})
    await topics.create("a", 1, NO_CONFIG)
    for _ in range(2):
        assert topics.names() == ["a", "b"]
        described = topics.describe("b")
        assert described is not None
        assert described.partitions == 3
        assert described.given == {"retention.ms": "1000"}
        assert described.config["retention.ms"] == "1000"
        assert described.config["max.message.bytes"] == "1048588"
        topic_id = described.topic_id
        topics = await store.start()
        again = topics.describe("b")
        assert again is not None
        assert again.topic_id == topic_id
    assert topics.describe("c") is None
    assert len(store.segments.names()) == 4


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a~b", "a\n"])
async def test_a_name_that_no_topic_may_have_is_refused(name: str) -> None:
    topics = await Store().start()
    with pytest.raises(InvalidTopicError):
        await topics.create(name, 1, NO_CONFIG)
    await topics.create("x" * 249, 1, NO_CONFIG)


@pytest.mark.parametrize("count", [0, -1, 10_001])
async def test_a_count_that_no_topic_may_have_is_refused(count: int) -> None:
    store = Store()
    topics = await store.start()
    with pytest.raises(InvalidPartitionsError):
        await topics.create("a", count, NO_CONFIG)
    assert store.segments.names() == []


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("no.such.word", "1"),
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("cleanup.policy", "squash"),
        ("compression.type", "LZ4"),
        ("message.timestamp.type", "logappendtime"),
        ("max.message.bytes", str(1 << 31)),
    ],
)
async def test_a_setting_that_no_topic_has_is_refused(word: str, value: str) -> None:
    topics = await Store().start()
    with pytest.raises(InvalidConfigError):
        await topics.create("a", 1, {word: value})
    await topics.create("a", 1, NO_CONFIG)
    with pytest.raises(InvalidConfigError):
        await topics.alter("a", {"retention.ms": "5", word: value})
    described = topics.describe("a")
    assert described is not None
    assert described.given == {}


async def test_settings_are_set_and_taken_back() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 1, {"retention.ms": "7", "retention.bytes": "8"})
    partition = await topics.own_partition("a", 0)
    await topics.alter("a", {"retention.ms": None, "max.message.bytes": "70"})
    with pytest.raises(InvalidConfigError):
        await topics.alter("a", {"no.such.word": None})
    with pytest.raises(TopicNotFoundError):
        await topics.alter("b", {})
    with pytest.raises(RecordBatchTooLargeError):
        await partition.produce(batch_of(b"longer than that"))
    topics = await store.start()
    described = topics.describe("a")
    assert described is not None
    assert described.given == {"retention.bytes": "8", "max.message.bytes": "70"}
    assert described.config["retention.ms"] == "604800000"


async def test_a_name_is_taken_once() -> None:
    store = Store()
    topics = await store.start()
    outcomes = await asyncio.gather(
        *(topics.create("a", 2, NO_CONFIG) for _ in range(5)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, TopicExistsError) for outcome in outcomes) == 4
    assert len(store.segments.names()) == 2


async def test_a_topic_that_is_made_again_has_nothing_of_the_old_one() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    old = await topics.own_partition("a", 0)
    await old.produce(batch_of(b"old", producer=(7, 0, 0)))
    called: list[bool] = []
    old.watch(lambda: called.append(old.is_open))
    first = topics.describe("a")
    await topics.delete("a")
    assert called == [False]
    assert topics.names() == []
    assert store.segments.names() == []
    with pytest.raises(TopicNotFoundError):
        await topics.own_partition("a", 0)
    with pytest.raises(TopicNotFoundError):
        await topics.delete("a")
    with pytest.raises(UnknownPartitionError):
        await old.produce(batch_of(b"late"))
    await topics.create("a", 1, NO_CONFIG)
    second = topics.describe("a")
    assert first is not None
    assert second is not None
    assert first.topic_id != second.topic_id
    new = await topics.own_partition("a", 0)
    assert new.high_watermark == 0
    assert not (await new.produce(batch_of(b"new", producer=(7, 0, 0)))).duplicate
    with pytest.raises(UnknownPartitionError):
        await old.produce(batch_of(b"late"))


async def test_partitions_are_added_and_never_taken_away() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 2, NO_CONFIG)
    await (await topics.own_partition("a", 1)).produce(batch_of(b"kept"))
    with pytest.raises(UnknownPartitionError):
        await topics.own_partition("a", 2)
    for count in (1, 2):
        with pytest.raises(InvalidPartitionsError):
            await topics.add_partitions("a", count)
    await topics.add_partitions("a", 40)
    topics = await store.start()
    assert (await topics.own_partition("a", 39)).high_watermark == 0
    assert (await topics.own_partition("a", 1)).high_watermark == 1
    for index in (-1, 40):
        with pytest.raises(UnknownPartitionError):
            await topics.own_partition("a", index)
    assert len(store.segments.names()) == 40


async def test_partitions_are_logs_of_their_own() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 3, NO_CONFIG)
    for index in range(3):
        for n in range(index + 1):
            partition = await topics.own_partition("a", index)
            assert (await partition.produce(batch_of(b"%d" % index))).base_offset == n
    topics = await store.start()
    for index in range(3):
        partition = await topics.own_partition("a", index)
        assert partition is await topics.own_partition("a", index)
        records = records_in(await partition.fetch(0, 10_000))
        assert [record.value for record in records] == [b"%d" % index] * (index + 1)


async def test_a_partition_that_failed_is_recovered_by_its_next_use() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    partition = await topics.own_partition("a", 0)
    store.segments.hold()
    lost = partition.produce(batch_of(b"lost"))
    store.segments.fail(ContainerStoppedError("stopped"))
    with pytest.raises(PartitionUnavailableError):
        await lost
    assert not partition.is_open
    partition = await topics.own_partition("a", 0)
    assert (await partition.produce(batch_of(b"kept"))).base_offset == 0


async def test_another_owner_of_the_catalogue_is_noticed() -> None:
    store = Store()
    first = await store.start()
    second = Topics(
        segments=store.segments,
        tables=store.tables,
        wall_clock=store.clock,
        random=store.random,
        settings=store.settings,
    )
    await second.start()
    await first.create("a", 1, NO_CONFIG)
    with pytest.raises(TopicExistsError):
        await second.create("a", 1, NO_CONFIG)
    assert second.names() == ["a"]
    assert len(store.segments.names()) == 1


async def test_a_catalogue_that_stands_still_is_told_as_unavailable() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    store.tables.stop()
    with pytest.raises(TopicsUnavailableError):
        await topics.create("b", 1, NO_CONFIG)
    with pytest.raises(TopicsUnavailableError):
        await topics.delete("a")
    topics = await store.start()
    assert topics.names() == ["a"]


async def test_retention_deletes_by_age_only_when_the_clock_is_trusted() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 2, {"retention.ms": "1000"})
    await topics.create("b", 1, {"retention.ms": "-1", "retention.bytes": "0"})
    for name, index in (("a", 0), ("a", 1), ("b", 0)):
        await (await topics.own_partition(name, index)).produce(
            batch_of(b"v", time=store.clock.now)
        )
    store.clock.now += 1001
    topics._clock_watch.doubt("a test says so")
    await topics.expire_all()
    assert (await topics.own_partition("a", 1)).log_start_offset == 0
    assert (await topics.own_partition("b", 0)).log_start_offset == 1
    topics.settle_clocks()
    await topics.expire_all()
    assert (await topics.own_partition("a", 0)).log_start_offset == 1
    assert (await topics.own_partition("a", 1)).log_start_offset == 1


async def test_a_partition_that_is_not_used_is_closed() -> None:
    store = Store(settings=TopicSettings(idle_seconds=-1.0))
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    partition = await topics.own_partition("a", 0)
    await partition.produce(batch_of(b"v"))
    (name,) = store.segments.names()
    unwatch = partition.watch(lambda: None)
    await topics._close_idle()
    was_open = partition.is_open
    assert was_open, "it is watched"
    unwatch()
    await topics._close_idle()
    assert not partition.is_open
    assert store.segments.pin_count(name) == 0
    assert (await topics.own_partition("a", 0)).high_watermark == 1


async def test_closing_leaves_no_segment_open() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 5, NO_CONFIG)
    for index in range(5):
        await topics.own_partition("a", index)
    await topics.close()
    assert [store.segments.pin_count(name) for name in store.segments.names()] == [0] * 5


def test_a_record_of_a_topic_is_what_the_table_says() -> None:
    record = TopicRecord(
        TopicState.ACTIVE, UUID(int=0xABCD), 2, 5, 1_700_000_000_000, {"retention.ms": "7"}
    )
    value = encode_topic(record)
    assert value.hex() == (
        "01" "02" "0000000000000000000000000000abcd" "00000002" "00000005"
        "0000018bcfe56800" "0001" "000c" "726574656e74696f6e2e6d73" "0001" "37"
    )  # fmt: skip
    assert decode_topic(value, name="t") == record


def test_a_record_that_is_damaged_is_found() -> None:
    value = encode_topic(TopicRecord(TopicState.ACTIVE, UUID(int=1), 2, 5, 0, {"a": "b"}))
    for length in range(len(value)):
        with pytest.raises(CorruptedDataError):
            decode_topic(value[:length], name="t")
    for damaged in (value + b"\0", b"\x02" + value[1:], value[:1] + b"\x04" + value[2:]):
        with pytest.raises(CorruptedDataError):
            decode_topic(damaged, name="t")
