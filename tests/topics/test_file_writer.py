"""Goal: every partition's records are in a file soon after they are due, a few files at a time; one partition that
cannot be written holds up no other one, and what waits for its file is not closed.

Method: whole topics over memory in simulated time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.topics.partition_start import PartitionStart
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.topics.batches import Clock, batch_of, files_in, read_all
from tier2.object_stores.memory import MemoryObjectStore

pytestmark = pytest.mark.simulation

SETTINGS = TopicSettings(
    file_seconds=10.0, file_bytes=2_000, files_at_once_max=2, idle_seconds=60.0
)


class Objects(MemoryObjectStore):
    """Puts take a second; those of some partitions fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""
        self.is_bug = False
        self.under_way = self.most_under_way = 0
        self.failed_at: list[float] = []

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        if self.broken and self.broken in key:
            self.failed_at.append(asyncio.get_running_loop().time())
            if self.is_bug:
                raise ZeroDivisionError
            raise StorageError("the object store is in trouble")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(1)
            return await super().put_if_absent(key, content)
        finally:
            self.under_way -= 1

    async def count(self) -> int:
        return len([info async for info in self.list("topics/")])


@asynccontextmanager
async def topics_over(
    objects: Objects, settings: TopicSettings = SETTINGS, partitions: int = 8
) -> AsyncIterator[Topics]:
    topics = Topics(
        segments=MemorySegments(),
        tables=MemoryTables(),
        wall_clock=Clock(),
        random=Random(5),
        settings=settings,
        record_files=files_in(objects),
    )
    await topics.start()
    await topics.create("t", partitions, {})
    running = asyncio.ensure_future(topics.run())
    try:
        yield topics
    finally:
        running.cancel()
        await asyncio.wait([running])
        await topics.close()


def test_files_are_made_when_they_are_due_and_few_at_a_time() -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        async with topics_over(objects) as topics:
            partitions = [await topics.own_partition("t", n) for n in range(8)]
            for each in partitions:
                await each.produce(batch_of(b"early"))
            await asyncio.sleep(5)
            await partitions[3].produce(batch_of(b"x" * 3_000))
            await asyncio.sleep(2.5)
            assert await objects.count() == 2, "one partition has more than a file's worth"
            await asyncio.sleep(2)
            assert await objects.count() == 2
            await asyncio.sleep(6)
            assert await objects.count() == 9
            assert objects.most_under_way == 2
            assert all(each.hot_bytes == 0 for each in partitions)
            for each in partitions:
                await each.produce(batch_of(b"late"))
            await asyncio.sleep(16)
            assert await objects.count() == 17
            for each in partitions:
                assert [r.value for r in await read_all(each)][-1] == b"late"
                each.check()
            numbers = topics.file_statistics()
            assert (numbers.files, numbers.failures, numbers.under_way) == (17, 0, 0)
            assert loop.time() > 0

    run_simulation(1, main)


def test_large_files_are_few_at_a_time_and_small_ones_pass_them() -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        settings = replace(
            SETTINGS,
            file_bytes=20_000,
            files_at_once_max=8,
            large_files_at_once_max=1,
            small_file_bytes=1_000,
        )
        async with topics_over(objects, settings) as topics:
            partitions = [await topics.own_partition("t", n) for n in range(8)]
            for number, each in enumerate(partitions):
                await each.produce(batch_of(b"x" * (5_000 if number < 4 else 10)))
            await asyncio.sleep(11.5)
            assert await objects.count() == 5, "four small ones, and one that is large"
            assert objects.most_under_way == 5
            await asyncio.sleep(1)
            assert await objects.count() == 6
            await asyncio.sleep(3)
            assert await objects.count() == 8
            assert all(each.hot_bytes == 0 for each in partitions)
            assert loop.time() > 0

    run_simulation(4, main)


def test_a_file_that_grows_fast_is_begun_when_it_is_half_full() -> None:
    """One that does not go on is put when it is due, and one whose partition is closed is not put at all."""

    async def main(loop: SimLoop) -> None:
        objects = Objects()
        settings = replace(
            SETTINGS,
            file_bytes=6_000,
            small_file_bytes=1_000,
            files_at_once_max=8,
            large_files_at_once_max=4,
        )
        async with topics_over(objects, settings) as topics:
            goes_on, ends_early, slow, closed = [
                await topics.own_partition("t", n) for n in range(4)
            ]
            began = loop.time()
            for each in (goes_on, ends_early, closed):
                for _ in range(4):
                    await each.produce(batch_of(b"x" * 900))
            await asyncio.sleep(0.1)
            assert topics.file_statistics().under_way == 3
            assert objects.under_way == 0
            for _ in range(3):
                await goes_on.produce(batch_of(b"x" * 900))
            await asyncio.sleep(0.1)
            assert objects.under_way == 1, "it is full"
            await closed.close()
            await asyncio.sleep(1)
            assert await objects.count() == 1
            assert 900 < goes_on.hot_bytes < 1_000, "one batch did not fit"
            for _ in range(4):
                await slow.produce(batch_of(b"x" * 900))
                await asyncio.sleep(1.5)
            assert topics.file_statistics().under_way == 1, "at this rate it will not be full soon"
            await asyncio.sleep(began + 9.9 - loop.time())
            assert objects.under_way == 0
            await asyncio.sleep(0.2)
            assert objects.under_way == 2, "and what did not fit into the first one"
            await asyncio.sleep(8)
            assert await objects.count() == 4
            for each in (goes_on, ends_early, slow):
                each.check()
                assert each.hot_bytes == 0

    run_simulation(3, main)


def test_a_partition_in_trouble_holds_up_no_other_one_and_is_tried_in_growing_pauses() -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        objects.broken = "/partitions/0/"
        async with topics_over(objects, partitions=2) as topics:
            for n in range(2):
                await (await topics.own_partition("t", n)).produce(batch_of(b"x"))
            await asyncio.sleep(120)
            assert await objects.count() == 1
            pauses = [b - a for a, b in zip(objects.failed_at, objects.failed_at[1:], strict=False)]
            assert pauses == sorted(pauses)
            assert 5 < len(objects.failed_at) < 12
            partition = await topics.own_partition("t", 0)
            assert [r.value for r in await read_all(partition)] == [b"x"]
            objects.broken = ""
            await asyncio.sleep(SETTINGS.file_retry_seconds_max + 2)
            assert await objects.count() == 2
            assert loop.time() > 0

    run_simulation(2, main)


def test_a_bug_that_one_partition_meets_is_told_and_holds_up_no_other_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        objects.broken, objects.is_bug = "/partitions/0/", True
        async with topics_over(objects, partitions=2) as topics:
            for n in range(2):
                await (await topics.own_partition("t", n)).produce(batch_of(b"x"))
            await asyncio.sleep(100)
            assert await objects.count() == 1
            assert len(objects.failed_at) == 2
            objects.broken = ""
            await asyncio.sleep(SETTINGS.file_retry_seconds_max)
            assert await objects.count() == 2
            assert loop.time() > 0

    run_simulation(5, main)
    assert len([each for each in caplog.records if "because of a bug" in each.getMessage()]) == 2


def test_a_partition_that_is_not_used_is_closed_behind_its_file() -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        settings = replace(SETTINGS, file_seconds=200.0, retention_interval_seconds=30.0)
        async with topics_over(objects, settings, partitions=1) as topics:
            await topics.alter("t", {"retention.ms": "-1"})
            partition = await topics.own_partition("t", 0)
            await partition.produce(batch_of(b"x"))
            await asyncio.sleep(150)
            was_open = partition.is_open
            await asyncio.sleep(150)
            assert (was_open, partition.is_open) == (True, False)
            assert await objects.count() == 1
            partition = await topics.own_partition("t", 0)
            assert [r.value for r in await read_all(partition)] == [b"x"]
            assert loop.time() > 0

    run_simulation(3, main)


@pytest.mark.parametrize("config", [{"retention.bytes": "1000000"}, {"retention.ms": "-1"}, {}])
def test_records_that_a_process_left_behind_become_a_file_of_the_next_one(
    config: dict[str, str],
) -> None:
    """Also of a topic of which nothing is to be deleted, or not while the clocks are not trusted."""

    async def main(loop: SimLoop) -> None:
        objects, segments, tables = Objects(), MemorySegments(), MemoryTables()

        def made() -> Topics:
            return Topics(
                segments=segments,
                tables=tables,
                wall_clock=Clock(),
                random=Random(int(loop.time())),
                settings=SETTINGS,
                record_files=files_in(objects),
            )

        topics = made()
        await topics.start()
        await topics.create("t", 1, config)
        await (await topics.own_partition("t", 0)).produce(batch_of(b"x"))
        await topics.close()
        topics = made()
        await topics.start()
        running = asyncio.ensure_future(topics.run())
        await asyncio.sleep(SETTINGS.retention_interval_seconds + 20)
        assert await objects.count() == 1, "upkeep has opened it"
        running.cancel()
        await asyncio.wait([running])
        await topics.close()

    run_simulation(4, main)


def test_of_records_that_are_deleted_before_their_file_is_due_no_file_is_due() -> None:
    """Else the partition is looked at again at once, for ever, with no turn of the loop for anything else."""

    async def main(loop: SimLoop) -> None:
        objects = Objects()
        async with topics_over(objects, partitions=2) as topics:
            deleted, other = [await topics.own_partition("t", n) for n in range(2)]
            await deleted.produce(batch_of(b"early"))
            await other.produce(batch_of(b"early"))
            assert await deleted.delete_records(-1) == 1
            await asyncio.sleep(12)
            assert await objects.count() == 1
            assert deleted.file_due_at is None
            await deleted.produce(batch_of(b"late"))
            await asyncio.sleep(12)
            assert [r.value for r in await read_all(deleted)] == [b"late"]
            assert await objects.count() == 2
            assert loop.time() > 0

    run_simulation(6, main)


def test_records_of_a_partition_that_is_opened_anew_beside_a_put_become_a_file_all_the_same() -> (
    None
):
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        async with topics_over(objects, partitions=1) as topics:
            partition = await topics.own_partition("t", 0)
            await partition.produce(batch_of(b"x"))
            await asyncio.sleep(10.5)
            assert objects.under_way == 1
            partition.leave()
            await partition.recover()
            await asyncio.sleep(20)
            assert partition.hot_bytes == 0
            assert [r.value for r in await read_all(partition)] == [b"x"]
            assert loop.time() > 0

    run_simulation(7, main)


def test_records_of_a_partition_whose_opening_was_broken_off_late_become_a_file_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(loop: SimLoop) -> None:
        objects = Objects()
        async with topics_over(objects, partitions=1) as topics:
            partition = await topics.own_partition("t", 0)
            await partition.produce(batch_of(b"x"))
            partition.leave()
            with monkeypatch.context() as patch:
                patch.setattr(PartitionStart, "drop_bytes", lambda _self: asyncio.sleep(5))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await partition.recover()
            assert partition.is_open
            await asyncio.sleep(20)
            assert partition.hot_bytes == 0
            assert loop.time() > 0

    run_simulation(8, main)
