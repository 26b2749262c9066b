"""Goal: what one task reads is what was produced, wherever it lies and whatever moves meanwhile."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from random import Random

import pytest

from segmentstore.codec.record_batch import Compression, Record, TimestampType, encode_batch
from segmentstore.codec.topic_files import file_key
from segmentstore.contracts.errors import CorruptedDataError, StorageError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.topics import partition_reader
from segmentstore.spark.topics.partition_reader import PartitionReader
from segmentstore.spark.topics.published_partition import PartitionFacts, PublishedPartition
from segmentstore.spark.topics.topic_columns import TOPIC_COLUMNS
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.spark.topics.topic_ranges import TopicRange
from segmentstore.topics.batch_positions import NO_TIME, Place
from tests.spark.event_segment import NAME
from tests.spark.stream_history import MovingStore, begin_history
from tests.spark.topics.topic_store import (
    NOW,
    TOPIC,
    Produced,
    TopicStore,
    some_records,
    topic_store,
)
from tests.topics.batches import known, unreadable_batch
from tests.topics.older_compaction import keep_no_last_record
from tests.topics.slow_reads import make_reads_slow

CODECS = list(Compression)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees less than its plan waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(partition_reader, "OPEN_PAUSE_SECONDS", 0.0)


async def fill(store: TopicStore, random: Random, batches: int) -> None:
    for _ in range(batches):
        records = some_records(random, random.choice([1, 2, 9]))
        await store.produce(records, compression=random.choice(CODECS))


async def mixed(store: TopicStore, random: Random) -> tuple[int, int]:
    """Two files, chunks, a tail: where that begins and ends."""
    await fill(store, random, 20)
    await store.make_file()
    await fill(store, random, 20)
    await store.make_file()
    await fill(store, random, 30)
    await store.flush()
    hot = len(store.produced)
    await fill(store, random, 10)
    return hot, len(store.produced)


@pytest.mark.parametrize("seed", range(8))
async def test_rows_are_what_was_produced_by_any_start_and_from_every_place(seed: int) -> None:
    random = Random(seed)
    async with topic_store() as store:
        hot, end = await mixed(store, random)
        assert await store.read(store.part(0, end)) == store.expected(0, end)
        assert await store.read(store.part(0, hot), served=False) == store.expected(0, hot)
        assert await store.read(store.part(0, end), tier2=False) == store.expected(0, end)
        for _ in range(12):
            start, stop = sorted(random.sample(range(end + 1), 2))
            assert await store.read(store.part(start, stop)) == store.expected(start, stop)


@pytest.mark.parametrize("seed", range(4))
async def test_bounds_of_time_leave_out_no_row_that_lies_within(seed: int) -> None:
    random = Random(seed)
    async with topic_store() as store:
        _, end = await mixed(store, random)
        for _ in range(6):
            low, high = sorted(NOW + random.randrange(-6_000, 6_000) for _ in range(2))
            part = store.part(0, end, lowest_time_ms=low, highest_time_ms=high)
            found = _within(await store.read(part), low, high)
            assert found == _within(store.expected(0, end), low, high)


def _within(rows: list[dict[str, object]], low: int, high: int) -> list[dict[str, object]]:
    return [row for row in rows if low * 1000 <= _time(row) <= high * 1000]


def _time(row: Mapping[str, object]) -> int:
    time = row["timestamp"]
    assert isinstance(time, int)
    return time


async def test_bounds_of_time_leave_blocks_and_batches_unread() -> None:
    async with topic_store() as store:
        _, end = await mixed(store, Random(1))
        part = store.part(0, end, lowest_time_ms=NOW + 100_000)
        assert await store.read(part) == []


async def test_a_row_is_the_same_whichever_columns_are_asked_for() -> None:
    async with topic_store() as store:
        _, end = await mixed(store, Random(2))
        whole = store.expected(0, end)
        for columns in (["offset"], ["timestampType", "value"], list(reversed(TOPIC_COLUMNS))):
            rows = await store.read(store.part(0, end), columns=columns)
            assert rows == [{name: row[name] for name in columns} for row in whole]


async def test_rows_say_whose_clock_their_times_are_of_in_batches_and_in_files() -> None:
    async with topic_store() as store:
        random = Random(9)
        for kind in ("CreateTime", "LogAppendTime", "CreateTime"):
            await store.service.topics.alter("logs", {"message.timestamp.type": kind})
            for _ in range(4):
                await store.produce(some_records(random, 3), compression=random.choice(CODECS))
        whole = await store.read(store.part(0, 36), tier2=False)
        assert [row["timestampType"] for row in whole] == [0] * 12 + [1] * 12 + [0] * 12
        untimed = [{**row, "timestamp": 0, "timestampType": 0} for row in whole]
        given = [{**row, "timestamp": 0} for row in store.expected(0, 36)]
        assert untimed == given
        appended = [_time(row) for row in whole[12:24]]
        assert min(appended) > (NOW + 10_000) * 1000
        await store.flush()
        assert await store.read(store.part(0, 36), served=False) == whole
        while store.file_count < 3:
            await store.make_file(small_blocks=False)
        await store.flush()
        assert await store.read(store.part(0, 36), served=False) == whole


async def test_batches_that_became_a_file_while_a_task_ran_are_read_from_it() -> None:
    async with topic_store() as store:
        await fill(store, Random(3), 30)
        await store.flush()
        published = await store.published()
        facts = await published.look()
        assert facts is not None
        assert facts.end == len(store.produced)
        # The task has looked; now the owner makes a file, and the chunks go.
        await store.make_file()
        await store.flush()
        rows = await store.read_with(store.part(0, len(store.produced)), published, served=False)
        assert rows == store.expected(0, len(store.produced))


async def test_h8_batches_whose_chunks_are_joined_while_they_are_read_come_once() -> None:
    batches = [
        encode_batch([Record(each, NOW, None, b"%d" % each * 50)], base_offset=each)
        for each in range(5)
    ]
    for reads in range(11):
        segment = (await begin_history()).segment
        for each in batches:
            await segment.append_bytes(each)
        published = PublishedPartition(
            await segment.view(), topic=TOPIC, partition=0, segment_name=NAME, executor=None
        )
        facts = await published.look()
        assert facts is not None
        store = segment.store
        assert isinstance(store, MovingStore)
        store.reads_left, store.before_read = reads, segment.compact
        found = published.batches(
            replace(facts, end=5), Place(0, 0, NO_TIME), offset=0, end=len(batches)
        )
        async with aclosing(found) as pieces:
            assert [piece async for piece in pieces] == [b"".join(batches)], reads


async def test_a_partition_that_is_deleted_while_it_is_read_is_loss() -> None:
    for reads in range(6):
        for fails in (True, False):
            segment = (await begin_history()).segment
            for each in range(3):
                segment.record = replace(segment.record, core_attributes={EVENT_COUNT: each + 1})
                await segment.append_bytes(
                    encode_batch([Record(each, NOW, None, b"x" * 50)], base_offset=each)
                )
            published = PublishedPartition(
                await segment.view(), topic=TOPIC, partition=0, segment_name=NAME, executor=None
            )
            assert isinstance(segment.store, MovingStore)
            segment.store.reads_left, segment.store.before_read = reads, segment.remove
            reader = PartitionReader(
                TopicRange(TOPIC, 0, NAME, 0, 3),
                options=TopicReadOptions(topics=(TOPIC,), fail_on_data_loss=fails),
                published=published,
                service=None,
            )
            async with aclosing(reader.batches()) as batches:
                if fails:
                    with pytest.raises(DataLossError, match="head=0 tail=0"):
                        [batch async for batch in batches]
                    continue
                offsets = [
                    offset async for batch in batches for offset in batch["offset"].to_pylist()
                ]
            assert offsets == list(range(len(offsets))), reads


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("tier2", [True, False])
async def test_a_topic_that_is_deleted_while_it_is_read_is_loss_and_no_other_is_read_for_it(
    tier2: bool, is_made_again: bool
) -> None:
    async with topic_store() as store:
        await fill(store, Random(6), 20)
        await store.flush()
        part = store.part(0, len(store.produced))
        views = [await store.published() if tier2 else None for _ in range(2)]
        for each in views:
            # The tasks have looked; now the topic goes.
            assert each is None or await each.look() is not None
        chunks = await chunks_of(store)
        await store.service.topics.delete(TOPIC)
        if is_made_again:
            await store.service.topics.create(TOPIC, 1, {})
            store.produced.clear()
            await fill(store, Random(7), 40)
            assert len(store.produced) > part.end
        await store.flush()
        for key in chunks:
            await store.tiers.object_store.delete(key)
        strict, lenient = views
        with pytest.raises(DataLossError, match="head=0 tail=0"):
            await store.read_with(part, strict, served=True)
        assert await store.read_with(part, lenient, served=True, fail_on_data_loss=False) == []


async def chunks_of(store: TopicStore) -> set[str]:
    """The objects of the partition's segment."""
    view = await store.view()
    container = await view.container(view.container_id(store.segment_name))
    record = await view.find(store.segment_name)
    assert container is not None
    assert record is not None
    blocks = container.list_blocks(record.segment_id, record.start_offset, record.length)
    async with aclosing(blocks) as found:
        return {block.object_key async for block in found}


async def test_a_file_that_compaction_replaced_is_looked_up_anew() -> None:
    async with topic_store() as store:
        await fill(store, Random(4), 20)
        await store.make_file()
        await store.flush()
        published = await store.published()
        await published.look()
        old = (await store.file(1)).name("logs", 0).key
        await store.replace_file(1, name_number=77)
        await store.flush()
        await store.tiers.object_store.delete(old)
        rows = await store.read_with(store.part(0, len(store.produced)), published, served=False)
        assert rows == store.expected(0, len(store.produced))


async def test_a_file_that_is_missing_ends_after_a_bounded_number_of_rounds() -> None:
    async with topic_store() as store:
        await fill(store, Random(5), 20)
        await store.make_file()
        behind = len(store.produced)
        await fill(store, Random(5), 20)
        await store.flush()
        await store.tiers.object_store.delete((await store.file(1)).name("logs", 0).key)
        part = store.part(0, len(store.produced))
        with pytest.raises(StorageError, match="looked up anew"):
            await store.read(part, served=False)
        rows = await store.read(part, served=False, fail_on_data_loss=False)
        assert rows == store.expected(behind, len(store.produced))


@pytest.mark.parametrize("is_registered", [True, False])
async def test_files_that_are_missing_one_behind_the_other_end_after_a_bounded_number_of_rounds(
    monkeypatch: pytest.MonkeyPatch, is_registered: bool
) -> None:
    looks = 0
    look = PublishedPartition.look

    async def counted_look(self: PublishedPartition) -> PartitionFacts | None:
        nonlocal looks
        looks += 1
        assert looks < 40, "it looks for ever"
        return await look(self)

    monkeypatch.setattr(PublishedPartition, "look", counted_look)
    async with topic_store() as store:
        for _ in range(3):
            await fill(store, Random(5), 20)
            await store.make_file()
        behind = (await store.file(3)).first_offset
        await fill(store, Random(5), 20)
        await store.flush()
        for number in (1, 2):
            await store.tiers.object_store.delete((await store.file(number)).name("logs", 0).key)
        if not is_registered:
            async with store.service.container.open_segment(store.segment_name) as segment:
                update = AttributeUpdate(file_key(2), None)
                await segment.append(b"", attribute_updates=[update])
            await store.flush()
        part = store.part(0, len(store.produced))
        rows = await store.read(part, served=False, fail_on_data_loss=False)
        assert rows == store.expected(behind, len(store.produced))


async def test_a_damaged_block_is_refused_and_its_neighbours_are_read() -> None:
    async with topic_store() as store:
        await fill(store, Random(6), 30)
        end = len(store.produced)
        await store.make_file()
        await store.flush()
        key = (await store.file(1)).name("logs", 0).key
        content = bytearray((await store.tiers.object_store.get(key)).content)
        content[len(content) // 2] ^= 1
        await store.tiers.object_store.delete(key)
        await store.tiers.object_store.put_if_absent(key, bytes(content))
        with pytest.raises(CorruptedDataError):
            await store.read(store.part(0, end), served=False)
        assert await store.read(store.part(0, 3), served=False) == store.expected(0, 3)
        assert await store.read(store.part(end - 3, end), served=False) == store.expected(
            end - 3, end
        )


@pytest.mark.parametrize("served", [True, False])
async def test_deleted_records_are_loss_or_passed_over(served: bool) -> None:
    async with topic_store() as store:
        await fill(store, Random(7), 20)
        partition = await store.service.topics.own_partition("logs", 0)
        await partition.delete_records(5)
        await store.flush()
        end = len(store.produced)
        for tier2 in {True, not served}:
            with pytest.raises(DataLossError, match=r"head=5"):
                await store.read(store.part(2, end), served=served, tier2=tier2)
            rows = await store.read(
                store.part(2, end), served=served, tier2=tier2, fail_on_data_loss=False
            )
            assert rows == store.expected(5, end)


@pytest.mark.parametrize("served", [True, False])
async def test_records_that_never_came_are_loss(served: bool) -> None:
    async with topic_store() as store:
        await fill(store, Random(8), 5)
        await store.flush()
        end = len(store.produced)
        with pytest.raises(DataLossError, match=f"tail={end}"):
            await store.read(store.part(0, end + 3), served=served)
        rows = await store.read(store.part(0, end + 3), served=served, fail_on_data_loss=False)
        assert rows == store.expected(0, end)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
async def test_records_that_the_service_reads_too_slowly_are_asked_for_again_and_no_loss(
    monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: bool
) -> None:
    async with topic_store() as store:
        await fill(store, Random(8), 5)
        end = len(store.produced)
        left = make_reads_slow(monkeypatch, 2)
        rows = await store.read(
            store.part(0, end), tier2=False, fail_on_data_loss=fail_on_data_loss
        )
        assert (rows, left()) == (store.expected(0, end), 0)


@pytest.mark.parametrize("served", [True, False])
async def test_offsets_at_the_end_that_compaction_left_without_records_are_no_loss(
    monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    keep_no_last_record(monkeypatch)
    async with topic_store() as store:
        compacted = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
        await store.service.topics.alter(TOPIC, compacted)
        for pairs in ([(b"a", b"1"), (b"b", b"1")], [(b"c", b"1"), (b"a", None)]):
            await store.produce([Record(0, NOW, *pair) for pair in pairs])
            await store.make_file(small_blocks=False)
        partition = await store.service.topics.own_partition(TOPIC, 0)
        for _ in range(2):  # what the tombstone supersedes, and then the tombstone
            assert await partition.compact(age_is_known=known)
        assert (partition.high_watermark, await partition.fetch(3, 1000)) == (4, b"")
        await store.flush()
        rows = await store.read(store.part(0, 4), served=served, tier2=not served)
        assert rows == [*store.expected(1, 2), *store.expected(2, 3)]


@pytest.mark.parametrize("seed", range(4))
async def test_a_time_is_found_where_the_service_finds_it(seed: int) -> None:
    random = Random(seed)
    async with topic_store() as store:
        await mixed(store, random)
        await store.flush()
        published = await store.published()
        for time_ms in [
            NOW - 9_000,
            NOW + 9_000,
            *(NOW + random.randrange(-5_000, 5_000) for _ in range(20)),
        ]:
            expected = next(
                (
                    each.record.offset
                    for each in store.produced
                    if each.record.timestamp_ms >= time_ms
                ),
                None,
            )
            assert await published.first_not_older(time_ms) == expected


async def test_records_that_no_reader_can_read_end_a_query_unless_it_goes_on_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "segmentstore.topics.acceptable_batches.require_readable", lambda _batch: None
    )
    random = Random(3)
    async with topic_store() as store:
        await fill(store, random, 3)
        at = len(store.produced)
        partition = await store.service.topics.partition(TOPIC, 0)
        await partition.produce(unreadable_batch())
        store.produced.append(Produced(Record(at, NOW, b"k", None), TimestampType.CREATE_TIME))
        await fill(store, random, 3)
        for _ in range(3):
            await store.make_file(small_blocks=False)
        await store.flush()
        end = len(store.produced)
        expected = store.expected(0, at) + store.expected(at + 1, end)
        with pytest.raises(CorruptedDataError, match=f"no reader can read .*first_offset={at} "):
            await store.read(store.part(0, end), served=False)
        assert await store.read(store.part(at + 1, end), served=False) == store.expected(
            at + 1, end
        )
        found = await store.read(store.part(0, end), served=False, fail_on_data_loss=False)
        assert found == expected
        assert "cannot be read" in caplog.text
        assert await (await store.published()).first_not_older(NOW - 10_000) == 0
