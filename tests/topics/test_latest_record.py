"""Goal: the record with the highest time is found wherever it is, by what indexes say and few reads.

Method: one partition over segments in memory and real files in an object store in memory, compared with a look at every
record; times go up and down, and some come several times.
"""

import asyncio
import threading
import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
from crc32c import crc32c

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    Compression,
    check_batch,
    encode_batch,
    placed_copy,
)
from segmentstore.codec.record_columns import RecordColumns, columns_of_batches
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.identifiers import BufferView
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics import hot_records
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files import record_ranks
from segmentstore.topics.record_files.cold_records import ColdRecords
from segmentstore.topics.record_files.registered_files import RegisteredFiles
from tests.http.memory_segments import MemorySegments
from tests.topics.batches import (
    NOW,
    Clock,
    batch_of,
    files_in,
    known,
    open_partition,
    records_in,
    unreadable_batch,
)
from tier2.object_stores.memory import MemoryObjectStore


class Store:
    """What outlives a process, and what was read of Tier 2."""

    def __init__(self, **config: str) -> None:
        self.segments = MemorySegments()
        self.objects = MemoryObjectStore()
        self.clock = Clock()
        self.config = {
            "file.delete.delay.ms": "0",
            **{word.replace("_", "."): value for word, value in config.items()},
        }

    async def opened(self) -> Partition:
        return await open_partition(
            self.segments,
            clock=self.clock,
            config=self.config,
            record_files=files_in(self.objects),
        )

    async def restarted(self, partition: Partition) -> Partition:
        await partition.close()
        self.segments = self.segments.restarted()
        return await self.opened()


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First offsets of the files of which a block was read."""
    read: list[int] = []
    original = Tier2RecordFiles.batches

    async def batches(self: Tier2RecordFiles, key: str, file: RegisteredFile, number: int) -> bytes:
        read.append(file.first_offset)
        return await original(self, key, file, number)

    monkeypatch.setattr(Tier2RecordFiles, "batches", batches)
    return read


def timed(*times: int, compression: Compression = Compression.NONE, value: bytes = b"v") -> bytes:
    """One batch, of records with these times."""
    return encode_batch(
        [Record(0, time, b"k%d" % n, value) for n, time in enumerate(times)],
        compression=compression,
    )


def promising(batch: bytes, max_timestamp: int) -> bytes:
    """The same, with another highest time in its header than its records have."""
    changed = bytearray(batch)
    changed[35:43] = max_timestamp.to_bytes(8, "big", signed=True)
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    assert check_batch(bytes(changed)).max_timestamp == max_timestamp
    return bytes(changed)


async def all_records(partition: Partition) -> list[Record]:
    """As a consumer reads them, which goes on behind the last record that it was given."""
    found: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        given = [r for r in records_in(await partition.fetch(offset, 2_000)) if r.offset >= offset]
        if not given:
            break
        found += given
        offset = given[-1].offset + 1
    return found


def latest_of(records: Sequence[Record]) -> tuple[int, int] | None:
    if not records:
        return None
    latest = min(records, key=lambda record: (-record.timestamp_ms, record.offset))
    return latest.offset, latest.timestamp_ms


async def proved(partition: Partition) -> tuple[int, int] | None:
    """The latest record, compared with all records."""
    latest = await partition.latest_record()
    assert latest == latest_of(await all_records(partition))
    return latest


async def test_a_partition_without_records_has_no_latest_one() -> None:
    store = Store()
    partition = await store.opened()
    assert await partition.latest_record() is None
    await partition.produce(timed(NOW, NOW + 1))
    assert await proved(partition) == (1, NOW + 1)
    await partition.delete_records(-1)
    assert await partition.latest_record() is None, "all were deleted"
    await partition.produce(timed(NOW - 5))
    assert await proved(partition) == (2, NOW - 5)
    await partition.make_file()
    assert await proved(partition) == (2, NOW - 5)
    await partition.delete_records(-1)
    assert await partition.latest_record() is None, "its only file was deleted"
    partition = await store.restarted(partition)
    assert await partition.latest_record() is None


async def test_of_several_records_with_the_highest_time_it_is_the_first() -> None:
    store = Store()
    partition = await store.opened()
    for n in range(12):
        await partition.produce(timed(NOW, NOW + 7, NOW + 7, NOW + n % 3))
        if n in (3, 6):
            await partition.make_file()
    assert await proved(partition) == (1, NOW + 7)
    for before, expected in ((2, 2), (3, 5), (16, 17), (20, 21), (30, 30), (46, 46)):
        await partition.delete_records(before)
        assert await proved(partition) == (expected, NOW + 7)


async def test_what_is_not_durable_is_not_found() -> None:
    store = Store()
    partition = await store.opened()
    await partition.produce(timed(NOW + 1))
    store.segments.hold()
    answer = partition.produce(timed(NOW + 9))
    assert await partition.latest_record() == (0, NOW + 1)
    store.segments.let_go()
    await answer
    assert await proved(partition) == (1, NOW + 9)


async def test_of_a_topic_with_times_of_the_append_the_first_record_of_the_last_batch() -> None:
    store = Store(message_timestamp_type="LogAppendTime")
    partition = await store.opened()
    for is_filed in (False, True):
        for _ in range(3):
            store.clock.now += 10
            await partition.produce(timed(5, 900, 7))
        if is_filed:
            await partition.make_file()
        assert await proved(partition) == (partition.high_watermark - 3, store.clock.now)


@pytest.mark.parametrize("seed", range(20))
async def test_it_is_found_in_files_and_behind_them_whatever_was_deleted(seed: int) -> None:
    random = Random(seed)
    store = Store(retention_ms="-1")
    partition = await store.opened()
    spread = random.choice([3, 500, 100_000])
    ahead = random.choice([0, 40])
    for n in range(random.randint(20, 50)):
        times = [
            NOW - 2_000_000 + ahead * n + random.randrange(spread)
            for _ in range(random.randint(1, 5))
        ]
        await partition.produce(
            timed(
                *times,
                compression=random.choice(list(Compression)),
                value=bytes(random.randrange(200)),
            )
        )
        choice = random.random()
        if choice < 0.15:
            await partition.make_file()
        elif choice < 0.22:
            partition = await store.restarted(partition)
        elif choice < 0.5:
            start = partition.log_start_offset
            await partition.delete_records(
                random.choice([start, min(start + random.randrange(12), partition.high_watermark)])
            )
        await proved(partition)
    for before in range(partition.log_start_offset, partition.high_watermark + 1):
        await partition.delete_records(before)
        await proved(partition)
    partition.check()


async def test_records_that_compaction_removed_are_not_found() -> None:
    store = Store(cleanup_policy="compact", delete_retention_ms="1000")
    partition = await store.opened()
    for n, time in enumerate((NOW, NOW + 50, NOW + 10, NOW + 60, NOW + 20)):
        batch = [Record(0, time, b"same", b"%d" % n), Record(0, NOW - n, b"%d" % n, b"other")]
        await partition.produce(encode_batch(batch))
        await partition.make_file()
    await partition.produce(timed(NOW + 5))
    assert await proved(partition) == (6, NOW + 60)
    assert await partition.compact(age_is_known=known)
    assert await proved(partition) == (8, NOW + 20)
    partition = await store.restarted(partition)
    assert await proved(partition) == (8, NOW + 20)
    await partition.produce(encode_batch([Record(0, NOW - 7, b"same", b"new")]))
    await partition.make_file()
    store.clock.now += 1_000
    assert await partition.compact(age_is_known=known)
    assert await proved(partition) == (10, NOW + 5)


async def test_one_block_is_read_and_none_if_the_latest_record_is_in_no_file(
    blocks_read: list[int],
) -> None:
    store = Store(retention_ms="-1")
    partition = await store.opened()
    for n in range(40):
        await partition.produce(timed(*(NOW - 100_000 + 100 * n + m for m in range(10))))
        if n % 4 == 3:
            await partition.make_file()
    assert await proved(partition) == (399, NOW - 100_000 + 3_909)
    blocks_read.clear()
    assert await partition.latest_record() == (399, NOW - 100_000 + 3_909)
    assert blocks_read == [360]
    await partition.produce(timed(NOW, NOW - 1))
    blocks_read.clear()
    assert await partition.latest_record() == (400, NOW)
    assert blocks_read == []
    partition = await store.restarted(partition)
    assert await partition.latest_record() == (400, NOW)
    assert blocks_read == []


async def test_registrations_are_looked_at_where_the_highest_time_was_deleted(
    blocks_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record from the future goes, and every file behind it still says that it was there once."""
    monkeypatch.setattr("segmentstore.topics.record_files.registered_files.FILES_PER_UPDATE_MAX", 3)
    store = Store(retention_ms="-1")
    partition = await store.opened()
    await partition.produce(timed(NOW + 1_000, NOW - 500))
    await partition.make_file()
    for n in range(10):
        await partition.produce(timed(NOW - (n - 6) ** 2, NOW - 600))
        await partition.make_file()
    assert await proved(partition) == (0, NOW + 1_000)
    await partition.delete_records(1)
    blocks_read.clear()
    assert await partition.latest_record() == (14, NOW)
    assert blocks_read == [0, 14], "of the file whose latest record is deleted it is not known"
    await partition.delete_records(2)
    blocks_read.clear()
    assert await partition.latest_record() == (14, NOW)
    assert blocks_read == [14]
    await partition.produce(timed(NOW - 1))
    assert await proved(partition) == (14, NOW)
    await partition.produce(timed(NOW + 1))
    assert await proved(partition) == (23, NOW + 1)


@pytest.mark.parametrize("at_once", [1, 3, 16])
async def test_headers_that_promise_more_than_their_records_have_are_seen_through(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(hot_records, "_RANKED_BATCHES_MAX", at_once)
    store = Store(retention_ms="-1")
    partition = await store.opened()
    random = Random(5)
    for _ in range(30):
        time = NOW - 1_000 + random.randrange(300)
        batch = timed(time, time - 3, compression=random.choice(list(Compression)))
        if random.random() < 0.7:
            batch = promising(batch, NOW - random.randrange(500))
        await partition.produce(batch)
        await proved(partition)
    for before in range(60):
        await partition.delete_records(before)
        await proved(partition)
        if before == 20:
            await partition.make_file()
            await partition.produce(promising(timed(NOW - 999), NOW))
    partition = await store.restarted(partition)
    await proved(partition)


async def test_a_batch_that_cannot_be_read_is_passed_over_by_looks_for_times_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Tier 2, where it counts as a file without records: no reader gets one of it."""
    monkeypatch.setattr(
        "segmentstore.topics.acceptable_batches.require_readable", lambda _batch: None
    )
    store = Store()
    partition = await store.opened()
    await partition.produce(timed(NOW - 5))
    await partition.produce(unreadable_batch())
    await partition.produce(timed(NOW - 6))
    assert await partition.latest_record() == (0, NOW - 5)
    assert await partition.offset_at_time(NOW - 4) is None
    assert await partition.offset_at_time(NOW - 6) == (0, NOW - 5)
    assert "passed over" in caplog.text
    assert "first_offset=1 next_offset=2" in caplog.text
    for _ in range(3):
        await partition.make_file()
    assert await partition.latest_record() == (0, NOW - 5)
    assert await partition.offset_at_time(NOW - 4) is None
    await partition.produce(timed(NOW - 4))
    assert await partition.latest_record() == (3, NOW - 4)
    assert await partition.offset_at_time(NOW - 4) == (3, NOW - 4)


async def test_batches_beside_one_that_cannot_be_read_are_looked_into() -> None:
    batches = [timed(NOW), unreadable_batch(), timed(NOW + 1), unreadable_batch(), timed(NOW + 2)]
    content = b"".join(placed_copy(each, at) for at, each in enumerate(batches))
    for time_ms, expected in ((NOW, (0, NOW)), (NOW + 1, (2, NOW + 1)), (NOW + 2, (4, NOW + 2))):
        assert await record_ranks.first_not_older(content, time_ms, 0) == expected
    assert await record_ranks.first_not_older(content, NOW, 1) == (2, NOW + 1)
    latest = await record_ranks.latest_in_batches(content, 0)
    assert latest is not None
    assert (latest.offset, latest.time_ms) == (4, NOW + 2)


@pytest.mark.parametrize("is_cold_first", [False, True])
async def test_records_that_become_a_file_between_the_looks_are_found(
    monkeypatch: pytest.MonkeyPatch, *, is_cold_first: bool
) -> None:
    """The look at files comes before they are in one, and the look at the segment when they are no more in that."""
    store = Store(retention_ms="-1")
    partition = await store.opened()
    # The first record's time is above all others, and it is deleted: neither index has the answer by itself.
    await partition.produce(timed(NOW))
    await partition.make_file()
    await partition.produce(timed(NOW - 50 if is_cold_first else NOW + 1))
    await partition.make_file()
    await partition.delete_records(1)
    await partition.produce(timed(NOW - 20))
    await partition.produce(timed(NOW - 30))
    looks = 0
    original = ColdRecords.latest

    async def latest(self: ColdRecords, *given: object) -> object:
        nonlocal looks
        found = await original(self, *given)  # type: ignore[arg-type]  # as it was called
        looks += 1
        if looks == 1:
            await partition.make_file()
            await partition.produce(timed(NOW - 40))
        return found

    monkeypatch.setattr(ColdRecords, "latest", latest)
    assert await partition.latest_record() == ((2, NOW - 20) if is_cold_first else (1, NOW + 1))
    assert looks
    await proved(partition)


async def test_a_file_that_is_replaced_or_deleted_during_the_look_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(retention_ms="-1")
    partition = await store.opened()
    for time in (NOW, NOW - 10, NOW - 5):
        await partition.produce(timed(time, time - 100))
        await partition.make_file()
    original = RegisteredFiles.latest

    async def latest(self: RegisteredFiles, *given: object, **more: object) -> object:
        found = await original(self, *given, **more)  # type: ignore[arg-type]  # as it was called
        if not partition.log_start_offset:
            await partition.delete_records(2)
            await partition.delete_doomed()
        return found

    monkeypatch.setattr(RegisteredFiles, "latest", latest)
    assert await partition.latest_record() == (4, NOW - 5)
    await proved(partition)


async def test_a_file_that_is_damaged_refuses_the_answer_if_it_may_be_in_it() -> None:
    store = Store(retention_ms="-1")
    partition = await store.opened()
    for time in (NOW, NOW - 10):
        await partition.produce(timed(time, value=b"x" * 300))
        await partition.make_file()
    (key, _) = [info.key async for info in store.objects.list("")]
    image = bytearray((await store.objects.get(key)).content)
    image[70] ^= 0xFF
    await store.objects.delete(key)
    damaged: BufferView = bytes(image)
    await store.objects.put_if_absent(key, damaged)
    partition = await store.restarted(partition)
    with pytest.raises(PartitionUnavailableError, match="fails its checksum"):
        await partition.latest_record()
    await partition.produce(timed(NOW + 1))
    assert await partition.latest_record() == (2, NOW + 1)


async def test_a_walk_over_many_headers_gives_way_to_others() -> None:
    """They are in memory: without a wait of its own nothing else would run until all have been looked at."""
    partition = await Store().opened()
    # No record has the time that the first header promises.
    await partition.produce(promising(batch_of(b"a"), NOW + 9))
    for _ in range(3000):
        await partition.produce(batch_of(b"v"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await partition.latest_record() == (0, NOW)
    counting.cancel()
    assert turns >= 3, f"one for each 64 KiB {turns=}"


def test_a_header_has_the_highest_time_where_these_tests_write_it() -> None:
    assert BATCH_HEADER_BYTES > 43
    assert check_batch(promising(batch_of(b"a"), NOW + 9)).max_timestamp == NOW + 9


@pytest.mark.parametrize("time_is_asked_for", [True, False])
async def test_what_is_compressed_is_looked_into_beside_the_loop(
    time_is_asked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of a client may hold millions of records."""
    threads: list[threading.Thread] = []

    def noting(content: bytes, offset: int) -> tuple[RecordColumns, int]:
        threads.append(threading.current_thread())
        return columns_of_batches(content, offset)

    monkeypatch.setattr(record_ranks, "columns_of_batches", noting)
    partition = await Store().opened()
    await partition.produce(batch_of(b"a", b"b", time=NOW, compression=Compression.ZSTD))
    found = await (
        partition.offset_at_time(NOW + 1) if time_is_asked_for else partition.latest_record()
    )
    assert found == (1, NOW + 1)
    assert threads
    assert threading.main_thread() not in threads
    await partition.close()


@pytest.mark.parametrize("time_is_asked_for", [True, False])
async def test_a_look_into_many_compressed_batches_takes_the_memory_of_one(
    *, time_is_asked_for: bool
) -> None:
    """Each may be a thousand times as long as it says."""
    batch = timed(*range(NOW, NOW + 4_000), compression=Compression.GZIP, value=bytes(100))

    peaks: list[int] = []
    for count in (1, 12):
        end = 4_000 * count
        content = b"".join(placed_copy(batch, 4_000 * n) for n in range(count))
        content += placed_copy(timed(NOW - 1, NOW + 9_999), end)
        tracemalloc.start()
        try:
            if time_is_asked_for:
                found = await record_ranks.first_not_older(content, NOW + 5_000, 0)
            else:
                latest = await record_ranks.latest_in_batches(content, 0)
                found = None if latest is None else (latest.offset, latest.time_ms)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert found == (end + 1, NOW + 9_999)
    assert peaks[1] < 2 * peaks[0], peaks
