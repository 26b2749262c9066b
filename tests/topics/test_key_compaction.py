"""Goal: a compacted partition gives the last value of each key, and nothing of it is lost by a pass that breaks off.

Method: one partition over segments in memory, with files in a simulated object store whose requests fail, happen
although they failed, come late, and end with the process; two owners compact, make files and sweep. A model knows the
last values.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from segmentstore.codec.record_batch import Compression, encode_batch
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import file_key
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    PartitionUnavailableError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import MadeFile
from tests.http.memory_segment import MemorySegment
from tests.http.memory_segments import MemorySegments
from tests.sim.loop import SimLoop
from tests.sim.object_store import SimulatedObjectStore, StoreFaults
from tests.sim.simulation import run_simulation
from tests.topics.batches import (
    NOW,
    SMALL,
    Clock,
    files_in,
    known,
    not_known,
    open_partition,
    records_in,
)
from tests.topics.older_compaction import keep_no_last_record
from tier2.format.record_compaction import NewestOffsets
from tier2.object_stores.memory import MemoryObjectStore

CONFIG = {
    "cleanup.policy": "compact",
    "file.delete.delay.ms": "0",
    "delete.retention.ms": "1000",
    "retention.ms": "1",
}

YEAR_MS = 365 * 86_400_000


def keyed(*pairs: tuple[bytes | None, bytes | None], at: int = NOW) -> bytes:
    return encode_batch([Record(0, at, key, value) for key, value in pairs])


def last_values(records: list[Record]) -> dict[bytes | None, bytes | None]:
    """None: a tombstone, or nothing at all."""
    found = {record.key: record.value for record in records}
    return {key: value for key, value in found.items() if value is not None}


async def read_all(partition: Partition) -> list[Record]:
    """As a consumer does, which goes on behind the last record that it was given."""
    found: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        given = records_in(await partition.fetch(offset, 500))
        records = [each for each in given if each.offset >= offset]
        if not records:
            break
        found += records
        offset = records[-1].offset + 1
    return found


async def test_superseded_records_go_and_tombstones_later() -> None:
    clock, objects, segments = Clock(), MemoryObjectStore(), MemorySegments()
    partition = await open_partition(
        segments, clock=clock, config=CONFIG, record_files=files_in(objects)
    )
    for n in range(6):
        await partition.produce(keyed((b"a", b"%d" % n), (b"b", b"%d" % n), (b"%d" % n, b"x")))
        await partition.make_file()
    await partition.produce(keyed((b"a", None)))
    await partition.make_file()
    before = await read_all(partition)
    assert await partition.compact(age_is_known=known) == 6
    records = await read_all(partition)
    assert last_values(records) == last_values(before)
    assert [(r.offset, r.key) for r in records] == [
        (2, b"0"), (5, b"1"), (8, b"2"), (11, b"3"), (14, b"4"), (16, b"b"), (17, b"5"), (18, b"a"),
    ]  # fmt: skip
    assert await partition.compact(age_is_known=known) == 0, "nothing is new"
    clock.now += 999
    assert await partition.compact(age_is_known=known) == 0
    clock.now += 1
    assert await partition.compact(age_is_known=not_known) == 0, "the clock is not trusted"
    await partition.compact(age_is_known=known)
    # The file of the tombstone has no other record: it keeps it, and that changes nothing.
    assert await read_all(partition) == records
    await partition.produce(keyed((b"b", None), (b"c", b"c")))
    await partition.make_file()
    await partition.expire(age_is_known=True)
    assert partition.log_start_offset == 0, "nothing goes by its age alone"
    for _ in range(2):
        clock.now += 1000
        await partition.compact(age_is_known=known)
    assert last_values(await read_all(partition)) == {
        **{b"%d" % n: b"x" for n in range(6)},
        b"c": b"c",
    }
    await partition.delete_doomed()
    await partition.close()
    partition = await open_partition(
        segments, clock=clock, config=CONFIG, record_files=files_in(objects)
    )
    assert b"b" not in {r.key for r in await read_all(partition)}
    partition.check()


async def test_tombstones_wait_from_the_end_of_the_pass_that_removed_what_they_hide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer that has read a value meanwhile has `delete.retention.ms` left to read its tombstone."""
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    for value in (b"x", None):
        await partition.produce(keyed((b"a", value), (b"b", b"x")))
        await partition.make_file()
    surviving = Tier2RecordFiles.surviving

    async def slow(files: Tier2RecordFiles, *args: Any, **more: Any) -> MadeFile | None:
        clock.now += 600
        return await surviving(files, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Tier2RecordFiles, "surviving", slow)
        assert await partition.compact(age_is_known=known) == 1
    clock.now += 999
    await partition.compact(age_is_known=known)
    assert (b"a", None) in {(r.key, r.value) for r in await read_all(partition)}
    clock.now += 1
    await partition.compact(age_is_known=known)
    assert b"a" not in {r.key for r in await read_all(partition)}


async def test_tombstones_of_a_pass_wait_from_when_the_clock_is_trusted() -> None:
    """It was a year behind when the pass ended, and what it said then tells nothing of how long they have waited."""
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    for value in (b"x", None):
        await partition.produce(keyed((b"a", value), (b"b", b"x")))
        await partition.make_file()
    clock.now -= YEAR_MS
    assert await partition.compact(age_is_known=not_known) == 1
    clock.now += YEAR_MS
    for passed in (0, 999):
        clock.now += passed
        assert await partition.rest_until_ms() <= clock.now + 1000
        await partition.compact(age_is_known=known)
        assert (b"a", None) in {(r.key, r.value) for r in await read_all(partition)}, passed
    clock.now += 1
    await partition.compact(age_is_known=known)
    assert b"a" not in {r.key for r in await read_all(partition)}


async def assert_the_tombstone_waits_from_now(partition: Partition, clock: Clock) -> None:
    """That of `a`, for `delete.retention.ms`."""
    for passed in (0, 999):
        clock.now += passed
        await partition.compact(age_is_known=known)
        assert (b"a", None) in {(r.key, r.value) for r in await read_all(partition)}, passed
    clock.now += 1
    await partition.compact(age_is_known=known)
    assert b"a" not in {r.key for r in await read_all(partition)}


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
async def test_a_jump_of_the_clock_during_a_pass_does_not_say_since_when_tombstones_wait(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    """What it says at the end of the pass is not believed, and they wait once it is right again."""
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    for value in (b"x", None):
        await partition.produce(keyed((b"a", value), (b"b", b"x")))
        await partition.make_file()
    surviving = Tier2RecordFiles.surviving
    right = clock.now

    async def jumps(files: Tier2RecordFiles, *args: Any, **more: Any) -> MadeFile | None:
        clock.now = right + jump_ms
        return await surviving(files, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Tier2RecordFiles, "surviving", jumps)
        assert await partition.compact(age_is_known=lambda: clock.now == right) == 1
    clock.now = right + 5000  # it came back later
    await assert_the_tombstone_waits_from_now(partition, clock)


async def test_tombstones_that_wait_since_a_time_that_has_not_come_wait_from_now() -> None:
    """A server wrote it whose clock was a year ahead, and was taken for right."""
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    for value in (b"x", None):
        await partition.produce(keyed((b"a", value), (b"b", b"x")))
        await partition.make_file()
    clock.now += YEAR_MS
    assert await partition.compact(age_is_known=known) == 1
    clock.now -= YEAR_MS
    await assert_the_tombstone_waits_from_now(partition, clock)


async def test_a_consumer_reaches_the_end_behind_a_tombstone_that_is_the_last_record() -> None:
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    await partition.produce(keyed((b"a", b"x"), (b"b", b"x")))
    await partition.produce(keyed((b"c", None), (b"b", None)))
    await partition.make_file()
    for _ in range(3):
        await partition.compact(age_is_known=known)
        clock.now += 1000
    records = await read_all(partition)
    assert [(r.offset, r.key) for r in records] == [(0, b"a"), (3, b"b")]
    assert records[-1].offset + 1 == partition.high_watermark, "else it waits for what never comes"
    await partition.produce(keyed((b"d", b"x")))
    await partition.make_file()
    for _ in range(3):
        await partition.compact(age_is_known=known)
        clock.now += 1000
    assert [(r.offset, r.key) for r in await read_all(partition)] == [(0, b"a"), (4, b"d")]


async def test_a_reader_waits_where_an_older_version_left_no_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it asks again and again, with no turn of the loop for anything else."""
    keep_no_last_record(monkeypatch)
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    await partition.produce(keyed((b"a", b"x"), (b"b", None)))
    await partition.make_file()
    for _ in range(3):
        await partition.compact(age_is_known=known)
        clock.now += 1000
    assert await partition.fetch(1, 1000) == b""
    waiting = asyncio.create_task(partition.wait_behind(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await partition.produce(keyed((b"c", b"x")))
    await waiting
    assert [each.offset for each in records_in(await partition.fetch(1, 1000))] == [2]
    await partition.delete_records(2)
    await partition.wait_behind(1)


async def test_a_file_that_is_replaced_beside_a_slow_look_up_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look-up says what was registered before. Were that remembered, a sweep would delete the only copy."""
    objects, segments = MemoryObjectStore(), MemorySegments()

    async def opened() -> Partition:
        """No registration is known."""
        settings = replace(SMALL, files_known_per_partition_max=100)
        return await open_partition(
            segments, settings=settings, config=CONFIG, record_files=files_in(objects)
        )

    partition = await opened()
    for n in range(6):
        await partition.produce(keyed((b"a", b"%d" % n), (b"%d" % n, b"kept")))
        await partition.make_file()
    partition = await opened()
    looks, may_answer = asyncio.Event(), asyncio.Event()
    load_attributes = MemorySegment.load_attributes

    async def slow(
        segment: MemorySegment, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        found = await load_attributes(segment, keys)
        if asyncio.current_task() is reader and file_key(1) in keys:
            looks.set()
            await may_answer.wait()
        return found

    monkeypatch.setattr(MemorySegment, "load_attributes", slow)
    reader = asyncio.create_task(partition.fetch(0, 1))
    await looks.wait()
    assert await partition.compact(age_is_known=known) == 5
    may_answer.set()
    await reader
    assert await partition.sweep_files() == 0
    after = await read_all(partition)
    assert [(r.offset, r.key) for r in after[:3]] == [(1, b"0"), (3, b"1"), (5, b"2")]
    assert await read_all(await opened()) == after


async def test_what_a_pass_left_out_does_not_hide_that_a_reader_goes_on() -> None:
    files = files_in(MemoryObjectStore())
    partition = await open_partition(MemorySegments(), config=CONFIG, record_files=files)
    for n in range(12):
        await partition.produce(keyed((b"%d" % n, b"kept"), (b"a", b"x"), (b"b", b"x")))
        await partition.make_file()
    assert await partition.compact(age_is_known=known)
    before = files.metrics()["kafka_file_reads_ahead_total"]
    offsets = [each.offset for each in await read_all(partition)]
    assert offsets == [*range(0, 33, 3), 33, 34, 35]
    while files._ahead_tasks:
        await asyncio.sleep(0.001)
    assert files.metrics()["kafka_file_reads_ahead_total"] >= before + 5


async def test_a_pass_is_due_when_files_or_tombstones_are_and_a_partition_rests_until_then() -> (
    None
):
    clock, objects = Clock(), MemoryObjectStore()
    partition = await open_partition(
        MemorySegments(), clock=clock, config=CONFIG, record_files=files_in(objects)
    )
    assert await partition.rest_until_ms() == math.inf
    for n in range(8):
        await partition.produce(keyed((b"a", b"%d" % n), (b"other", b"x" * 900)))
        await partition.produce(keyed((b"%d" % n, b"kept" * 100)))
        await partition.make_file()
    assert await partition.rest_until_ms() == -math.inf, "no pass has seen it"
    assert await partition.compact(age_is_known=known) == 7
    assert await partition.rest_until_ms() == NOW + 1000
    clock.now += 1000
    assert await partition.compact(age_is_known=known) == 0
    assert await partition.rest_until_ms() == math.inf, "there is no tombstone"
    clock.now += 100_000
    assert await partition.compact(age_is_known=known) == 0
    await partition.produce(keyed((b"a", None)))
    await partition.make_file()
    assert await partition.compact(age_is_known=not_known) == 0, "it is a small part"
    assert await partition.rest_until_ms() <= clock.now, "and it has waited"
    assert await partition.compact(age_is_known=known) == 1
    assert await partition.rest_until_ms() == clock.now + 1000


async def test_records_stay_until_they_are_as_old_as_the_topic_says() -> None:
    """`min.compaction.lag.ms`: histories of keys, as Kafka Streams reads them into its versioned stores."""
    clock, objects = Clock(), MemoryObjectStore()
    partition = await open_partition(
        MemorySegments(),
        clock=clock,
        config={**CONFIG, "min.compaction.lag.ms": "5000", "delete.retention.ms": "100000"},
        record_files=files_in(objects),
    )
    for n in range(4):
        await partition.produce(keyed((b"a", b"%d" % n), (b"%d" % n, b"x"), at=clock.now))
        await partition.make_file()
        clock.now += 1000
    assert await partition.compact(age_is_known=known) == 0, "all are young"
    assert await partition.rest_until_ms() == NOW + 5000
    clock.now = NOW + 5000
    assert await partition.compact(age_is_known=not_known) == 0, "how old they are is not known"
    # Half of the bytes, and one more file, are as old.
    clock.now = NOW + 6999
    assert await partition.compact(age_is_known=known) == 1
    offsets = [each.offset for each in await read_all(partition)]
    assert offsets == [1, 2, 3, 4, 5, 6, 7], "only what was superseded by what is as old"
    assert await partition.compact(age_is_known=known) == 0, "the others are young"
    clock.now = NOW + 8000
    assert await partition.compact(age_is_known=known) == 2
    assert [each.offset for each in await read_all(partition)] == [1, 3, 5, 6, 7]
    assert await partition.rest_until_ms() == NOW + 6999 + 100_000, "tombstones of the first pass"


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ({}, [False, False, True]),
        ({"min.cleanable.dirty.ratio": "0"}, [True, True, True]),
        ({"min.cleanable.dirty.ratio": "1"}, [False, False, False]),
        ({"max.compaction.lag.ms": "1500"}, [False, True, False]),
    ],
)
async def test_the_topic_says_how_much_or_how_old_a_pass_waits_for(
    words: Mapping[str, str], passes: Sequence[bool]
) -> None:
    clock, objects = Clock(), MemoryObjectStore()
    partition = await open_partition(
        MemorySegments(),
        clock=clock,
        config={
            **CONFIG,
            "delete.retention.ms": "100000",
            "compression.type": "uncompressed",
            **words,
        },
        record_files=files_in(objects),
    )
    await partition.produce(keyed((b"a", b"x" * 1000), (b"b", b"x" * 4000), at=clock.now))
    await partition.make_file()
    await partition.compact(age_is_known=known)
    for n, is_due in enumerate(passes):
        # A third of the first file's bytes, and so each time: more than half are new behind the third.
        await partition.produce(
            keyed((b"a", b"%d" % n * 1800), (b"%d" % n, b"x" * 50), at=clock.now)
        )
        await partition.make_file()
        clock.now += 1000
        assert (await partition.rest_until_ms() <= clock.now) == is_due
        assert (await partition.compact(age_is_known=known) > 0) == is_due


async def test_upkeep_is_told_that_the_container_of_a_compacted_partition_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on with the next partition, and this one is opened anew by its next use."""

    def ended(_: MemorySegment) -> SegmentProperties:
        raise ContainerNotFoundError(0, "it has ended")

    segments = MemorySegments()
    partition = await open_partition(
        segments, config=CONFIG, record_files=files_in(MemoryObjectStore())
    )
    calls: Sequence[Callable[[], Awaitable[object]]] = (
        partition.rest_until_ms,
        partial(partition.compact, age_is_known=known),
    )
    for upkeep in calls:
        await partition.produce(keyed((b"a", b"x"), (b"b", b"x")))
        await partition.make_file()
        with monkeypatch.context() as patch:
            patch.setattr(MemorySegment, "info", ended)
            with pytest.raises(PartitionUnavailableError):
                await upkeep()
        assert not partition.is_open
        await partition.recover()
    assert await partition.compact(age_is_known=known) == 1


@pytest.mark.parametrize("compression", list(Compression))
async def test_a_record_without_a_key_is_refused(compression: Compression) -> None:
    partition = await open_partition(MemorySegments(), config=CONFIG)
    batch = encode_batch(
        [Record(0, NOW, b"k", b"v"), Record(0, NOW, None, b"v")], compression=compression
    )
    with pytest.raises(InvalidRecordError, match="has none"):
        await partition.produce(batch)
    await partition.produce(encode_batch([Record(0, NOW, b"", b"v")], compression=compression))
    assert partition.high_watermark == 1


FAULTS = StoreFaults(
    error_before=0.05, error_after=0.08, late=0.08, late_seconds_max=30.0, own_retry=0.3
)
SETTINGS = replace(SMALL, file_bytes=2_000, file_sweep_seconds=0.0)


async def one_schedule(loop: SimLoop, seed: int, *, trims: bool = False) -> dict[str, int]:
    random = Random(seed)
    clock = Clock()
    segments = MemorySegments()
    objects = SimulatedObjectStore(loop, Random(seed + 1), FAULTS)
    model: dict[bytes | None, tuple[int, bytes | None]] = {}
    """The newest record of each key: offset and value."""
    seen = {"compacted": 0, "files": 0, "refused": 0, "killed": 0, "trimmed": int(not trims)}
    owners: list[Partition] = []

    async def opened() -> Partition:
        files = files_in(objects.mount())
        files._compaction_keys_max = 5
        return await open_partition(
            segments, clock=clock, settings=SETTINGS, config=CONFIG, record_files=files
        )

    async def work(owner: Partition) -> None:
        try:
            if not owner.is_open:
                await owner.recover()
            match random.randrange(4):
                case 0:
                    await owner.sweep_files()
                case 1:
                    seen["files"] += bool(await owner.make_file())
                case _:
                    seen["compacted"] += await owner.compact(age_is_known=known)
                    await owner.delete_doomed()
        except PartitionUnavailableError:
            seen["refused"] += 1

    async def trim(owner: Partition) -> None:
        """Beside a pass, as retention does it."""
        if not trims or random.random() < 0.9 or not owner.is_open:
            return
        try:
            start = owner.log_start_offset
            end = min(owner.high_watermark, start + random.randrange(4))
            await asyncio.sleep(random.random() * 0.05)
            seen["trimmed"] += await owner.delete_records(end) > start
        except (PartitionUnavailableError, OffsetOutOfRangeError):
            seen["refused"] += 1

    owners = [await opened(), await opened()]
    for step in range(120):
        clock.now += random.randrange(300)
        owner = random.choice(owners)
        if random.random() < 0.5:
            key = b"%d" % random.randrange(12)
            value = None if random.random() < 0.2 else b"%d" % step + b"x" * random.randrange(80)
            while True:
                if not owner.is_open:
                    await owner.recover()
                try:
                    appended = await owner.produce(keyed((key, value)))
                    model[key] = appended.base_offset, value
                    break
                except PartitionUnavailableError:
                    seen["refused"] += 1
        else:
            tasks = [asyncio.ensure_future(part(each)) for each in owners for part in (work, trim)]
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.05)
                for task in tasks:
                    seen["killed"] += task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for each in owners:
                    await each.close()
                owners = [await opened(), await opened()]
            else:
                await asyncio.gather(*tasks)
    objects.settle()
    await asyncio.sleep(FAULTS.late_seconds_max)
    for each in owners:
        await each.close()
    owner = await opened()
    start = owner.log_start_offset
    wanted = {
        key: value
        for key, (offset, value) in model.items()
        if value is not None and offset >= start
    }
    try:
        assert last_values(await read_all(owner)) == wanted
        while await owner.make_file():
            pass
        clock.now += 10_000
        for _ in range(40):
            await owner.compact(age_is_known=known)
            clock.now += 1_000
        records = await read_all(owner)
    except OffsetOutOfRangeError as error:
        raise AssertionError("records went") from error
    assert last_values(records) == wanted
    owner.check()
    await owner.close()
    return seen


@pytest.mark.simulation
def test_random_schedules_keep_the_last_value_of_each_key() -> None:
    total: dict[str, int] = {}
    for seed in range(8):
        found = run_simulation(seed, partial(one_schedule, seed=seed)).result
        for word, count in found.items():
            total[word] = total.get(word, 0) + count
    assert all(total.values()), total


@pytest.mark.simulation
def test_random_schedules_keep_them_beside_retention() -> None:
    total: dict[str, int] = {}
    for seed in range(100, 108):
        schedule = partial(one_schedule, seed=seed, trims=True)
        for word, count in run_simulation(seed, schedule).result.items():
            total[word] = total.get(word, 0) + count
    assert all(total.values()), total


@pytest.mark.simulation
def test_a_tombstone_that_goes_before_the_value_that_it_hides_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug: what a file keeps only because it would be empty is not told."""
    monkeypatch.setattr(NewestOffsets, "pin", lambda _self, _key: None)

    def until_one_fails() -> None:
        for seed in range(8):
            run_simulation(seed, partial(one_schedule, seed=seed))

    with pytest.raises(AssertionError):
        until_one_fails()
