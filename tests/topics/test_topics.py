"""The catalogue of topics over segments and tables in memory."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from uuid import UUID

import pytest

from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.errors import ContainerStoppedError, CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.segments import Segment
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.brokers import Brokers, OneBroker
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
from segmentstore.topics.hot_records import HotRecords
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_records import (
    TopicRecord,
    TopicState,
    decode_topic,
    encode_topic,
    partition_segment_name,
)
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.topics.batches import Clock, batch_of, files_in, records_in
from tier2.object_stores.memory import MemoryObjectStore

NO_CONFIG: Mapping[str, str] = {}


class Elsewhere(OneBroker):
    """Of which partitions may have left."""

    is_elsewhere = False

    def is_here(self, segment: str) -> bool:
        return not self.is_elsewhere and super().is_here(segment)


class Store:
    """A process of topics over a store that outlives it."""

    def __init__(self, *, settings: TopicSettings | None = None) -> None:
        self.segments = MemorySegments()
        self.tables = MemoryTables()
        self.clock = Clock()
        self.settings = settings or TopicSettings()
        self.random = Random(5)
        self.record_files: RecordFiles | None = None
        self.brokers: Brokers | None = None
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
            record_files=self.record_files,
            brokers=self.brokers,
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
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("preallocate", "1"),
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


async def test_the_settings_of_a_topic_of_kafka_are_taken() -> None:
    """All that Kafka 4.2 tells of a topic, but for those of copies: programs set them, and take them from elsewhere."""
    given = {
        "cleanup.policy": "compact,delete",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.type": "producer",
        "compression.zstd.level": "3",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }
    topics = await Store().start()
    await topics.create("a", 1, given)
    described = topics.describe("a")
    assert described is not None
    assert described.given == given
    await topics.create("b", 1, {"cleanup.policy": given["cleanup.policy"]})
    described = topics.describe("b")
    assert described is not None
    assert described.config == given, "what is not set is as in Kafka"


async def test_the_least_lag_of_compaction_is_not_above_the_most() -> None:
    topics = await Store().start()
    with pytest.raises(InvalidConfigError, match="is not above"):
        await topics.create("a", 1, {"min.compaction.lag.ms": "8", "max.compaction.lag.ms": "7"})
    await topics.create("a", 1, {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "7"})
    with pytest.raises(InvalidConfigError, match="is not above"):
        await topics.alter("a", {"max.compaction.lag.ms": "6"})


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


async def test_what_is_given_at_once_is_open_and_everything_else_is_asked_for() -> None:
    store = Store()
    topics = await store.start()
    assert topics.own_partition_if_open("a", 0) is None
    await topics.create("a", 2, NO_CONFIG)
    assert topics.own_partition_if_open("a", 0) is None, "it was never used"
    partition = await topics.own_partition("a", 0)
    assert topics.own_partition_if_open("a", 0) is partition
    for index in (-1, 1, 2):
        assert topics.own_partition_if_open("a", index) is None
    store.segments.hold()
    lost = partition.produce(batch_of(b"lost"))
    store.segments.fail(ContainerStoppedError("stopped"))
    with pytest.raises(PartitionUnavailableError):
        await lost
    assert topics.own_partition_if_open("a", 0) is None, "it has to be recovered"
    partition = await topics.own_partition("a", 0)
    assert topics.own_partition_if_open("a", 0) is partition
    await topics.delete("a")
    assert topics.own_partition_if_open("a", 0) is None


async def test_what_another_process_leads_is_not_given_at_once() -> None:
    store = Store()
    brokers = Elsewhere()
    store.brokers = brokers
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    partition = await topics.own_partition("a", 0)
    assert topics.own_partition_if_open("a", 0) is partition
    brokers.is_elsewhere = True
    assert partition.is_open
    assert topics.own_partition_if_open("a", 0) is None


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
    topics._upkeep.clock_watch.doubt("a test says so")
    await topics.expire_all()
    assert (await topics.own_partition("a", 1)).log_start_offset == 0
    assert (await topics.own_partition("b", 0)).log_start_offset == 1
    topics.settle_clocks()
    await topics.expire_all()
    assert (await topics.own_partition("a", 0)).log_start_offset == 1
    assert (await topics.own_partition("a", 1)).log_start_offset == 1


async def test_a_clock_that_jumps_during_a_pass_of_retention_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in the partition whose turn it is, nor in those behind it."""
    store = Store()
    topics = await store.start()
    await topics.create("a", 2, {"retention.ms": "1000", "retention.bytes": "1000000"})
    for index in range(2):
        await (await topics.own_partition("a", index)).produce(batch_of(b"v", time=store.clock.now))
    topics.settle_clocks()
    end_by_size = HotRecords.end_by_size

    async def while_it_jumps(records: HotRecords, segment: Segment, keep_bytes: int) -> int:
        store.clock.now += 86_400_000
        return await end_by_size(records, segment, keep_bytes)

    monkeypatch.setattr(HotRecords, "end_by_size", while_it_jumps)
    await topics.expire_all()
    starts = [(await topics.own_partition("a", index)).log_start_offset for index in range(2)]
    assert starts == [0, 0]


async def test_a_partition_at_rest_is_opened_when_something_can_be_due_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(settings=TopicSettings(idle_seconds=-1.0, rest_seconds_max=500.0))
    topics = await store.start()
    opened: list[int] = []
    open_segment = store.segments.open_segment

    def noted(name: str) -> AbstractAsyncContextManager[Segment]:
        opened.append(int(name[-1]))
        return open_segment(name)

    monkeypatch.setattr(store.segments, "open_segment", noted)
    topics.settle_clocks()
    start = store.clock.now
    await topics.create("a", 2, {"retention.ms": "100000"})
    await (await topics.own_partition("a", 0)).produce(batch_of(b"v", time=start + 50_000))

    async def opened_by_retention() -> list[int]:
        opened.clear()
        topics.settle_clocks()
        await topics.expire_all()
        await topics._upkeep.close_idle()
        assert not topics._partitions.all()
        return opened

    assert await opened_by_retention() == [1], "the other one is open"
    for passed in (0, 1_000, 150_000):
        store.clock.now = start + passed
        assert await opened_by_retention() == []
    store.clock.now = start + 150_001
    assert await opened_by_retention() == [0], "the oldest record is due"
    assert (await topics.own_partition("a", 0)).log_start_offset == 1
    await topics._upkeep.close_idle()
    assert await opened_by_retention() == []
    await topics.alter("a", {"retention.ms": "1"})
    assert await opened_by_retention() == [0, 1], "other settings"
    store.clock.now += 499_000
    assert await opened_by_retention() == []
    store.clock.now += 1_000
    assert await opened_by_retention() == [0, 1], "another process may have appended"
    partition = await topics.own_partition("a", 0)
    await partition.produce(batch_of(b"v", time=start))
    assert await opened_by_retention() == []
    assert (await topics.own_partition("a", 0)).log_start_offset == 2


class FilesStore(Store):
    """With files of records, which a backup may keep."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = MemoryObjectStore()
        self.has_backup = False
        self.record_files = Tier2RecordFiles(
            object_store=self.objects,
            writers=None,
            readers=None,
            cache_bytes=20_000,
            has_backups=self._has_backups,
        )

    async def _has_backups(self) -> bool:
        return self.has_backup

    async def keys(self) -> list[str]:
        return [info.key async for info in self.objects.list("topics/")]

    async def fill(self, topics: Topics, name: str) -> None:
        await topics.create(name, 1, NO_CONFIG)
        partition = await topics.own_partition(name, 0)
        await partition.produce(batch_of(b"v"))
        assert await partition.make_file()


async def test_files_that_a_backup_kept_go_when_it_is_dropped_and_their_topic_is_gone() -> None:
    store = FilesStore()
    topics = await store.start()
    for name in ("gone", "there", ".dot"):
        await store.fill(topics, name)
    files = await store.keys()
    store.has_backup = True
    await topics.delete("gone")
    await topics.delete(".dot")
    assert await topics.sweep_gone_topics() == 0
    assert set(files) < set(await store.keys())
    topics = await store.start()
    store.has_backup = False
    assert await topics.sweep_gone_topics() == 2
    assert [key for key in await store.keys() if key.endswith(".seg")] == [
        RecordFileName("there", 0, 0, 0).key
    ]
    assert await topics.sweep_gone_topics() == 0
    assert records_in(await (await topics.own_partition("there", 0)).fetch(0, 100))[0].value == b"v"


async def test_a_put_that_came_late_goes_and_its_name_is_not_given_again() -> None:
    store = FilesStore()
    topics = await store.start()
    await topics.create("gone", 1, NO_CONFIG)
    await topics.delete("gone")
    late = RecordFileName("gone", 0, 0, 0).key
    await store.objects.put_if_absent(late, b"late")
    assert await topics.sweep_gone_topics() == 1
    await store.fill(topics, "gone")
    (file,) = [key for key in await store.keys() if key.endswith(".seg")]
    assert file != late


@pytest.mark.parametrize("is_made_by", ["another process", "a recovery that lost the record"])
async def test_no_file_of_a_topic_that_is_there_by_now_is_deleted(is_made_by: str) -> None:
    """It is made when its files were listed already, right before the catalogue is read."""
    store = FilesStore()
    topics = await store.start()
    await store.objects.put_if_absent(RecordFileName("t", 0, 0, 0).key, b"an old one")
    other = Topics(
        segments=store.segments,
        tables=store.tables,
        wall_clock=store.clock,
        random=Random(9),
        settings=store.settings,
        record_files=files_in(store.objects),
    )
    await other.start()
    put = store.objects.put_if_absent

    async def beside(key: str, content: BufferView) -> str:
        if is_made_by == "another process":
            await other.create("t", 1, NO_CONFIG)
        else:
            await store.segments.create(partition_segment_name("t", UUID(int=3), 0), [])
        return await put(key, content)

    store.objects.put_if_absent = beside  # type: ignore[method-assign]
    assert await topics.sweep_gone_topics() == 0
    assert RecordFileName("t", 0, 0, 0).key in await store.keys()


async def test_retention_is_no_use_of_a_partition() -> None:
    store = Store()
    topics = await store.start()
    await topics.create("a", 1, {"retention.ms": "100000"})
    partition = await topics.own_partition("a", 0)
    await partition.produce(batch_of(b"v"))
    await asyncio.sleep(0.01)
    unused_since = asyncio.get_running_loop().time()
    topics.settle_clocks()
    await topics.expire_all()
    await topics.compact_all()
    assert partition.is_idle(unused_since)
    await partition.fetch(0, 100)
    assert not partition.is_idle(unused_since)


@pytest.mark.parametrize("are_elsewhere", [False, True])
async def test_upkeep_of_many_partitions_gives_others_their_turn(*, are_elsewhere: bool) -> None:
    """Retention, compaction and rest, where everything is known in memory and no await waits."""
    count = 200
    store = Store(settings=TopicSettings(idle_seconds=-1.0))
    brokers = Elsewhere()
    store.brokers = brokers
    topics = await store.start()
    await topics.create("t", count, {"cleanup.policy": "compact,delete"})
    for index in range(count):
        await (await topics.own_partition("t", index)).produce(batch_of(b"v"))
    brokers.is_elsewhere = are_elsewhere
    topics.settle_clocks()
    turns = 0

    async def look() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    upkeep = topics._upkeep
    for work in (topics.expire_all, topics.compact_all, upkeep.close_idle, topics.expire_all):
        turns = 0
        await work()
        assert turns >= 10, f"{work.__name__} turns={turns}"
    looking.cancel()
    assert not upkeep._partitions.all()
    await topics.close()


async def test_a_partition_that_is_not_used_is_closed() -> None:
    store = Store(settings=TopicSettings(idle_seconds=-1.0))
    topics = await store.start()
    await topics.create("a", 1, NO_CONFIG)
    partition = await topics.own_partition("a", 0)
    await partition.produce(batch_of(b"v"))
    (name,) = store.segments.names()
    unwatch = partition.watch(lambda: None)
    await topics._upkeep.close_idle()
    was_open = partition.is_open
    assert was_open, "it is watched"
    unwatch()
    await topics._upkeep.close_idle()
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


class SlowRecoveries:
    """A partition that is opened reads for 15 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = self.ended = 0
        recover = Partition._load

        async def slowly(partition: Partition, segment: Segment) -> None:
            self.begun += 1
            try:
                await asyncio.sleep(15.0)
                await recover(partition, segment)
            finally:
                self.ended += 1

        monkeypatch.setattr(Partition, "_load", slowly)


def test_a_partition_that_recovers_for_longer_than_a_request_waits_is_recovered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(_: SimLoop) -> None:
        store = Store()
        topics = await store.start()
        await topics.create("a", 1, NO_CONFIG)
        slow = SlowRecoveries(monkeypatch)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await topics.own_partition("a", 0)
        async with asyncio.timeout(10.0):
            first, second = await asyncio.gather(
                topics.own_partition("a", 0), topics.own_partition("a", 0)
            )
        assert first is second
        assert (await first.produce(batch_of(b"stored"))).base_offset == 0
        assert slow.begun == 1
        await topics.close()

    run_simulation(1, main)


def test_a_partition_that_is_shut_again_before_its_recovery_has_ended_is_opened_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the moment at which it is open a recovery deletes objects: an append that fails meanwhile shuts it."""

    async def main(_: SimLoop) -> None:
        topics = await Store().start()
        await topics.create("a", 1, NO_CONFIG)
        honest = Partition.recover
        begun = 0

        async def recover(partition: Partition) -> None:
            nonlocal begun
            begun += 1
            await (honest(partition) if begun > 1 else asyncio.sleep(1.0))

        monkeypatch.setattr(Partition, "recover", recover)
        found = await topics.own_partition("a", 0)
        assert found.is_open
        assert (await found.produce(batch_of(b"stored"))).base_offset == 0
        await topics.close()

    run_simulation(1, main)


@pytest.mark.parametrize("ends", ["close", "deletion", "leave"])
def test_a_recovery_that_no_request_waits_for_ends_with_its_partition(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async def main(loop: SimLoop) -> None:
        store = Store()
        store.brokers = brokers = Elsewhere()
        topics = await store.start()
        await topics.create("a", 1, NO_CONFIG)
        slow = SlowRecoveries(monkeypatch)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await topics.own_partition("a", 0)
        waiting = asyncio.ensure_future(topics.own_partition("a", 0))
        await asyncio.sleep(1.0)
        assert slow.ended == 0
        began = loop.time()
        if ends == "close":
            await topics.close()
        elif ends == "deletion":
            await topics.delete("a")
        else:
            brokers.is_elsewhere = True
            topics.close_left()
            await topics._partitions.let_go()
        assert loop.time() - began < 1.0
        assert slow.ended == 1
        with pytest.raises(PartitionUnavailableError):
            await waiting
        if ends != "close":
            await topics.close()

    run_simulation(1, main)
