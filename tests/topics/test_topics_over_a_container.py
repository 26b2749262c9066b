"""Topics over a real container: what was acknowledged is there after it was recovered, from Tier 1 or from Tier 2."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.record_batch import Compression, Record, encode_batch
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.containers.node import MemoryTiers, running
from tests.topics.batches import NOW, batch_of, files_in, read_all, records_in

SETTINGS = TopicSettings(mark_bytes=100_000, positions_per_partition_max=4)


@asynccontextmanager
async def topics_over(
    container: StreamSegmentContainer, objects: ObjectStore | None = None
) -> AsyncIterator[Topics]:
    topics = Topics(
        segments=container,
        tables=container,
        wall_clock=SystemWallClock(),
        random=Random(3),
        settings=SETTINGS,
        record_files=None if objects is None else files_in(objects, batch_bytes_max=10_000),
    )
    await topics.start()
    try:
        yield topics
    finally:
        await topics.close()


async def fill(topics: Topics, *, batches: int = 200) -> list[Record]:
    await topics.create("t", 2, {})
    partition = await topics.own_partition("t", 1)
    random = Random(7)
    answers = []
    for n in range(batches):
        values = [random.randbytes(random.randrange(2_000)) for _ in range(random.randint(1, 5))]
        answers.append(
            partition.produce(
                batch_of(
                    *values,
                    time=NOW + 100 * n,
                    producer=(n % 10, 0, 0) if n < 10 else None,
                    compression=random.choice(list(Compression)),
                )
            )
        )
    appended = [await answer for answer in answers]
    records = await read_all(partition, max_bytes=100_000)
    assert appended[-1].base_offset < partition.high_watermark == len(records)
    return records


async def test_records_survive_the_recovery_of_their_container() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container, topics_over(container) as topics:
        records = await fill(topics)
    for flushed in (False, True):
        async with running(tiers) as container, topics_over(container) as topics:
            partition = await topics.own_partition("t", 1)
            assert await read_all(partition, max_bytes=100_000) == records
            for n in range(10):
                again = await partition.produce(batch_of(*[b"x"], producer=(n, 1, 0)))
                assert again.duplicate == flushed
            if not flushed:
                records = await read_all(partition, max_bytes=100_000)
                await container.flush()


async def test_cold_records_are_read_by_offset_and_by_time() -> None:
    """The cache is a quarter of what is stored; positions in memory are few."""
    tiers = MemoryTiers()
    async with running(tiers, cache_bytes=4 << 20) as container, topics_over(container) as topics:
        await topics.create("t", 1, {})
        partition = await topics.own_partition("t", 0)
        for n in range(400):
            values = [_value(2 * n), _value(2 * n + 1)]
            await partition.produce(batch_of(*values, time=NOW + 1000 * n))
            if n % 50 == 49:
                await container.flush()
        random = Random(1)
        for offset in random.sample(range(800), 40):
            content = await partition.fetch(offset, 1)
            found = [r for r in records_in(content) if r.offset == offset]
            assert found[0].value == _value(offset)
            time = NOW + 1000 * (offset // 2) + offset % 2
            assert await partition.offset_at_time(time) == (offset, time)
        assert await partition.delete_records(500) == 500
        assert (await container.info(partition._segment_name)).start_offset > 9_000_000
        await container.flush()
    async with running(tiers, cache_bytes=4 << 20) as container, topics_over(container) as topics:
        partition = await topics.own_partition("t", 0)
        assert (partition.log_start_offset, partition.high_watermark) == (500, 800)
        for offset in random.sample(range(500, 800), 20):
            found = [r for r in records_in(await partition.fetch(offset, 1)) if r.offset == offset]
            assert found[0].value == _value(offset)


def _value(offset: int) -> bytes:
    return Random(offset).randbytes(20_000)


async def test_files_survive_the_recovery_of_their_container_and_are_all_that_goes_to_tier_2() -> (
    None
):
    tiers = MemoryTiers()
    objects = tiers.object_store
    async with (
        running(tiers, settings=ContainerSettings()) as container,
        topics_over(container, objects) as topics,
    ):
        records = await fill(topics)
        partition = await topics.own_partition("t", 1)
        while await partition.make_file():
            pass
        made = partition.size_bytes
        assert partition.hot_bytes == 0
        assert await read_all(partition, max_bytes=100_000) == records
    for flushed in (False, True):
        async with (
            running(tiers, settings=ContainerSettings()) as container,
            topics_over(container, objects) as topics,
        ):
            partition = await topics.own_partition("t", 1)
            assert partition.size_bytes == made
            assert await read_all(partition, max_bytes=100_000) == records
            assert await partition.offset_at_time(NOW + 100 * 90) is not None
            for n in range(10):
                again = await partition.produce(batch_of(b"x", producer=(n, 1, 0)))
                assert again.duplicate == flushed
            if not flushed:
                await partition.make_file()
                made = partition.size_bytes
                records = await read_all(partition, max_bytes=100_000)
                await container.flush()
                in_chunks = [info.size async for info in objects.list("containers/0000/chunks")]
                in_files = [info.size async for info in objects.list("topics/")]
                assert sum(in_files) == made
                assert sum(in_chunks) < made / 20, "batches were moved as well"


async def test_a_batch_may_hold_more_records_than_it_has_bytes() -> None:
    tiers = MemoryTiers()
    batch = encode_batch(
        [Record(0, NOW, None, b"same") for _ in range(20_000)], compression=Compression.ZSTD
    )
    assert len(batch) < 20_000
    async with running(tiers) as container, topics_over(container) as topics:
        await topics.create("t", 1, {})
        partition = await topics.own_partition("t", 0)
        assert (await partition.produce(batch)).base_offset == 0
        assert (await partition.produce(batch)).base_offset == 20_000
        await container.flush()
    async with running(tiers) as container, topics_over(container) as topics:
        partition = await topics.own_partition("t", 0)
        assert partition.high_watermark == 40_000
        assert [r.offset for r in await read_all(partition)] == list(range(40_000))


async def test_a_partition_outlives_its_container_in_one_process() -> None:
    """The topics see another container of the same name behind the same door, as a store gives them after a failure."""
    tiers = MemoryTiers()
    async with running(tiers) as first:
        topics = Topics(
            segments=first,
            tables=first,
            wall_clock=SystemWallClock(),
            random=Random(3),
            settings=SETTINGS,
        )
        await topics.start()
        await topics.create("t", 1, {})
        partition = await topics.own_partition("t", 0)
        await partition.produce(batch_of(b"a", producer=(7, 0, 0)))
    async with running(tiers) as second:
        partition._segments = partition._start._segments = second
        topics._partitions._segments = topics._catalogue._tables = second
        assert (await topics.own_partition("t", 0)) is partition
        was_open = partition.is_open
        assert was_open, "it has not noticed yet"
        with pytest.raises(PartitionUnavailableError):
            await partition.fetch(1, 100)  # its end would be the word of a container that has ended
        assert not partition.is_open
        partition = await topics.own_partition("t", 0)
        assert (await partition.produce(batch_of(b"a", producer=(7, 0, 0)))).duplicate
        assert (await partition.produce(batch_of(b"b", producer=(7, 0, 1)))).base_offset == 1
        await topics.close()
