"""The process dies at every step of every change of a topic; the next one finishes what was begun.

Method: run the change once to count its calls through the doors, then once per call (and per side of its effect) with a
death there, start another process over the same state, and check everything. Then the change is asked for again: its
outcome has to be the same as if nothing had happened.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from segmentstore.codec.record_batch import Record
from segmentstore.codec.topic_files import RecordFileName, files_prefix
from segmentstore.contracts.segments import Segment, SegmentProperties
from segmentstore.topics.catalogue import Topic
from segmentstore.topics.errors import (
    InvalidPartitionsError,
    PartitionUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended, PartitionLog
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_changes import TopicChanges
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    TopicRecord,
    TopicState,
    decode_topic,
    partition_segment_name,
)
from segmentstore.topics.topics import Topics
from tests.controller.crashing_doors import CrashingTables, CrashPlan, ProcessDiedError
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.topics.batches import NOW, Clock, batch_of, files_in, read_all
from tests.topics.crashing_segments import ObjectsOfADyingProcess, SegmentsOfADyingProcess
from tier2.object_stores.memory import MemoryObjectStore

SETTINGS = TopicSettings(mark_bytes=2_000, partition_steps_at_once_max=1, file_sweep_seconds=0.0)
BATCHES = 40


class Process:
    """Topics over a store that outlives them."""

    def __init__(self) -> None:
        self.segments = MemorySegments()
        self.tables = MemoryTables()
        self.objects = MemoryObjectStore()
        self.clock = Clock()
        self.random = Random(9)
        self.plan = CrashPlan()
        self.topics: Topics
        self.acknowledged: dict[tuple[str, int], list[Record]] = {}

    async def restart(self, *, plan: CrashPlan | None = None) -> None:
        """Another process over the same store: what was committed is there, nothing else."""
        self.segments = self.segments.restarted()
        self.tables = self.tables.restarted()
        self.plan = plan or CrashPlan()
        self.topics = Topics(
            segments=SegmentsOfADyingProcess(self.segments, self.plan),
            tables=CrashingTables(self.tables, self.plan),
            wall_clock=self.clock,
            random=self.random,
            settings=SETTINGS,
            record_files=files_in(ObjectsOfADyingProcess(self.objects, self.plan)),
        )
        await self.topics.start()

    async def fill(self, name: str, index: int) -> None:
        partition = await self.topics.own_partition(name, index)
        first = partition.high_watermark
        for n in range(BATCHES):
            await partition.produce(
                batch_of(
                    b"%d" % n,
                    b"x" * 50,
                    time=self.clock.now + n,
                    producer=(7, 0, first + 2 * n),
                )
            )
        self.acknowledged[name, index] = await read_all(partition)

    async def check(self) -> None:
        """Nothing is under way, each segment belongs to a topic, and all records from the log starts on are there."""
        self.tables.check()
        expected: set[str] = set()
        async with self.tables.open_table(CATALOGUE_TABLE) as table:
            for entry in (await table.read_entries(count=100)).entries:
                name = entry.key.decode()
                record = decode_topic(entry.value, name=name)
                assert record.state is TopicState.ACTIVE, record
                assert record.partitions == record.partitions_target
                for index in range(record.partitions):
                    expected.add(partition_segment_name(name, record.topic_id, index))
        assert set(self.segments.names()) == expected
        assert {name.split("~")[0].rpartition("/")[2] for name in expected} == set(
            self.topics.names()
        )
        for (name, index), records in self.acknowledged.items():
            if self.topics.describe(name) is not None:
                partition = await self.topics.own_partition(name, index)
                kept = [r for r in records if r.offset >= partition.log_start_offset]
                assert await read_all(partition) == kept
                assert partition.high_watermark == len(records)
                partition.check()
                if partition._registered.last:
                    await self.check_files(name, index, partition)
                    continue
                info = await self.segments.info(partition._segment_name)
                dropped = (
                    partition.log_start_offset
                    // 2
                    * (len(self.segments.content(info.name)) // BATCHES)
                )
                assert abs(info.start_offset - dropped) < 200, "bytes below the log start stay"

    async def check_files(self, name: str, index: int, partition: Partition) -> None:
        """Registered ones are there; behind a sweep no others but names that may be given yet; bytes are dropped."""
        partition.configure(replace(partition._log.config, file_delete_delay_ms=0))
        await partition.sweep_files()
        registered = partition._registered
        prefix = files_prefix(name, index)
        keys = {info.key async for info in self.objects.list(prefix)}
        async with self.segments.open_segment(partition._segment_name) as segment:
            files = await registered.some(segment, registered.first, 100)
        names = {file.name(name, index).key for file in files}
        assert names <= keys
        for key in keys - names:
            dead = RecordFileName.parsed(key)
            assert dead is not None
            assert not dead.name_number
            assert dead.first_offset >= registered.cold_end
        assert all(file.end_offset > partition.log_start_offset for file in files)
        assert partition.hot_bytes == (
            (await self.segments.info(partition._segment_name)).length
            - (await self.segments.info(partition._segment_name)).start_offset
        )


Step = Callable[[Process], Awaitable[None]]


async def nothing(process: Process) -> None:
    await process.restart()


async def a_topic(process: Process) -> None:
    await nothing(process)
    await process.topics.create("a", 3, {"retention.ms": "1000000"})
    await process.topics.create("b", 1, {})
    await process.fill("a", 1)


async def files(process: Process) -> None:
    """A topic with three files, and batches behind them."""
    await nothing(process)
    config = {"retention.ms": "1000000", "file.delete.delay.ms": "0"}
    await process.topics.create("a", 3, config)
    await process.topics.create("b", 1, {})
    for _ in range(3):
        await process.fill("a", 1)
        await (await process.topics.own_partition("a", 1)).make_file()
    await process.fill("a", 1)


async def make_file(process: Process) -> None:
    partition = await process.topics.own_partition("a", 1)
    await partition.make_file()
    assert partition.hot_bytes == 0


async def sweep(process: Process) -> None:
    await process.objects.put_if_absent(
        f"{files_prefix('a', 1)}00000000-00000019.00000000{process.random.getrandbits(32):08x}.seg",
        b"dead",
    )
    partition = await process.topics.own_partition("a", 1)
    await partition.sweep_files()
    keys = [info.key async for info in process.objects.list(files_prefix("a", 1))]
    assert len(keys) == partition._registered.last


async def delete_with_files(process: Process) -> None:
    await delete(process)
    assert [info.key async for info in process.objects.list("")] == ["topics/a/names-used"]


async def delete_records_in_files(process: Process) -> None:
    partition = await process.topics.own_partition("a", 1)
    assert await partition.delete_records(171) == 171
    assert len(partition._registered) == 1


async def delete_all_records_in_files(process: Process) -> None:
    partition = await process.topics.own_partition("a", 1)
    assert await partition.delete_records(-1) == 8 * BATCHES
    assert len(partition._registered) == 0


async def retention_of_files(process: Process) -> None:
    process.topics.settle_clocks()
    process.clock.now = NOW + 1_000_020
    await process.topics.expire_all()
    partition = await process.topics.own_partition("a", 1)
    assert partition.log_start_offset in (0, partition.high_watermark), "files are young enough"
    process.clock.now += 1_000
    process.topics.settle_clocks()
    await process.topics.expire_all()
    assert partition.log_start_offset == partition.high_watermark == 8 * BATCHES


async def create(process: Process) -> None:
    with suppress(TopicExistsError):
        await process.topics.create("c", 3, {"retention.ms": "5"})
    described = process.topics.describe("c")
    assert described is not None
    assert (described.partitions, described.given) == (3, {"retention.ms": "5"})


async def delete(process: Process) -> None:
    with suppress(TopicNotFoundError):
        await process.topics.delete("a")
    assert process.topics.names() == ["b"]


async def add_partitions(process: Process) -> None:
    with suppress(InvalidPartitionsError):
        await process.topics.add_partitions("a", 6)
    described = process.topics.describe("a")
    assert described is not None
    assert described.partitions == 6


async def alter(process: Process) -> None:
    await process.topics.alter("a", {"retention.ms": None, "retention.bytes": "77"})
    described = process.topics.describe("a")
    assert described is not None
    assert described.given == {"retention.bytes": "77"}


async def delete_records(process: Process) -> None:
    partition = await process.topics.own_partition("a", 1)
    assert await partition.delete_records(31) == 31


async def delete_all_records(process: Process) -> None:
    partition = await process.topics.own_partition("a", 1)
    assert await partition.delete_records(-1) == 2 * BATCHES


async def retention(process: Process) -> None:
    if process.clock.now == NOW:
        process.clock.now += 1_000_020
    process.topics.settle_clocks()
    await process.topics.expire_all()
    assert (await process.topics.own_partition("a", 1)).log_start_offset == 38


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("before", "change"),
    [
        (nothing, create),
        (a_topic, create),
        (a_topic, delete),
        (a_topic, add_partitions),
        (a_topic, alter),
        (a_topic, delete_records),
        (a_topic, delete_all_records),
        (a_topic, retention),
        (a_topic, make_file),
        (files, make_file),
        (files, sweep),
        (files, delete_with_files),
        (files, delete_records_in_files),
        (files, delete_all_records_in_files),
        (files, retention_of_files),
    ],
    ids=lambda step: step.__name__ if callable(step) else None,
)
async def test_a_change_that_dies_at_any_step_is_finished_by_the_next_process(
    before: Step, change: Step, *, behind: bool
) -> None:
    process = Process()
    await before(process)
    process.plan.arm(die_at=0, behind=False)
    await change(process)
    steps = process.plan.count
    await process.check()
    assert steps > 0
    for die_at in range(1, steps + 1):
        process = Process()
        await before(process)
        process.plan.arm(die_at=die_at, behind=behind)
        with suppress(ProcessDiedError, PartitionUnavailableError, AssertionError):
            await change(process)
        assert process.plan.dead
        await process.restart()
        await process.check()
        await change(process)
        await process.check()


@pytest.mark.parametrize("die_at", range(1, 8))
async def test_a_process_that_dies_while_it_resumes_is_followed_by_one_that_finishes(
    die_at: int,
) -> None:
    for change in (create, delete, add_partitions):
        process = Process()
        await a_topic(process)
        process.plan.arm(die_at=3, behind=True)
        with pytest.raises(ProcessDiedError):
            await change(process)
        for _ in range(3):
            plan = CrashPlan(die_at=die_at)
            with suppress(ProcessDiedError, TopicsUnavailableError):
                await process.restart(plan=plan)
        await process.restart()
        await process.check()
        await change(process)
        await process.check()


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_a_batch_that_dies_on_its_way_is_stored_once_or_not_at_all(*, behind: bool) -> None:
    process = Process()
    await a_topic(process)
    partition = await process.topics.own_partition("b", 0)
    batches = [batch_of(b"%d" % n, producer=(7, 0, n)) for n in range(6)]
    process.plan.arm(die_at=4, behind=behind)
    answers = [partition.produce(batch) for batch in batches]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    # Those behind it were on their way as well; what was acknowledged has its own offset all the same.
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, PartitionUnavailableError)
            assert outcome.stored is None
        else:
            assert outcome.base_offset == n
    assert isinstance(outcomes[2], Appended)
    assert isinstance(outcomes[3], BaseException)
    await process.restart()
    partition = await process.topics.own_partition("b", 0)
    again = [await partition.produce(batch) for batch in batches[3:]]
    assert [each.base_offset for each in again] == [3, 4, 5]
    assert again[0].duplicate == behind
    assert [r.value for r in await read_all(partition)] == [b"%d" % n for n in range(6)]


async def test_a_topic_that_is_made_again_meets_no_file_of_the_one_before() -> None:
    process = Process()
    await files(process)
    await process.topics.delete("a")
    # What a process that died, or is late, has left there.
    zombies = [RecordFileName("a", 1, 0, 79), RecordFileName("a", 1, 0, 79, 5)]
    for name in zombies:
        await process.objects.put_if_absent(name.key, b"of the topic before")
    process.acknowledged.clear()
    await process.topics.create("a", 2, {})
    await process.fill("a", 1)
    partition = await process.topics.own_partition("a", 1)
    await partition.make_file()
    await process.restart()
    await process.check()
    (key,) = [info.key async for info in process.objects.list(files_prefix("a", 1))]
    found = RecordFileName.parsed(key)
    assert found is not None
    assert found.name_number, "a plain name may meet a deletion that is late"


# --- the checks can fail -----------------------------------------------------------------------


async def test_a_log_start_that_is_stored_behind_the_bytes_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: bytes are dropped before the log start is durable."""
    original = Partition.delete_records

    async def dropped_first(self: Partition, before: int) -> int:
        place = await self._hot.place_of(self._log.require_open(), before)
        await self._segments.truncate(self._segment_name, place.position)
        return await original(self, before)

    monkeypatch.setattr(Partition, "delete_records", dropped_first)
    with pytest.raises((AssertionError, PartitionUnavailableError)):
        await test_a_change_that_dies_at_any_step_is_finished_by_the_next_process(
            a_topic, delete_records, behind=True
        )


async def test_segments_that_are_made_before_their_record_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the record is written when the segments are there."""
    original = TopicChanges._create

    async def late(
        self: TopicChanges, name: str, partitions: int, config: Mapping[str, str]
    ) -> None:
        put = self._catalogue.put

        async def put_late(name: str, record: TopicRecord, version: int) -> Topic:
            if record.state is TopicState.CREATING:
                made = self._catalogue.made(name, record, version)
                await self._for_each(range(record.partitions_target), made, self._create_segment)
            return await put(name, record, version)

        monkeypatch.setattr(self._catalogue, "put", put_late)
        await original(self, name, partitions, config)

    monkeypatch.setattr(TopicChanges, "_create", late)
    with pytest.raises(AssertionError):
        await test_a_change_that_dies_at_any_step_is_finished_by_the_next_process(
            nothing, create, behind=True
        )


async def test_windows_that_are_not_rebuilt_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a recovery forgets what it read of producers."""
    original = PartitionLog.load

    async def forgetful(self: PartitionLog, segment: Segment) -> SegmentProperties:
        info = await original(self, segment)
        self._windows.load(())
        return info

    monkeypatch.setattr(PartitionLog, "load", forgetful)
    with pytest.raises(AssertionError):
        await test_a_batch_that_dies_on_its_way_is_stored_once_or_not_at_all(behind=True)
