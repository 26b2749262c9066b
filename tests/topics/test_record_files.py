"""Goal: behind the flush point a file is the only copy of a partition's records, and no reader or writer of the
partition sees a difference; what is in a file, where, and what is deleted when, is as the documents say.

Method: one partition over segments in memory and real files in a real object store in memory.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

import pytest
from crc32c import crc32c

from segmentstore.codec import record_columns
from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchProblem,
    Compression,
    check_batch,
    encode_batch,
)
from segmentstore.codec.record_columns import native_loops
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    RecordFileName,
    RegisteredFile,
    decode_file,
    file_key,
    files_prefix,
)
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    ObjectExistsError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.segments import AttributeUpdate, Segment
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    PartitionUnavailableError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_files import NAMES_USED, PartitionFiles
from segmentstore.topics.partition_log import PartitionLog
from segmentstore.topics.record_files import gathered_batches
from segmentstore.topics.record_files.cold_records import ColdRecords
from segmentstore.topics.record_files.record_files import MadeFile
from segmentstore.topics.record_files.registered_files import RegisteredFiles
from segmentstore.topics.topic_config import make_config
from tests.http.memory_segment import MemorySegment
from tests.http.memory_segments import MemorySegments
from tests.tier2.format.record_images import image_of
from tests.topics.batches import (
    NOW,
    SEGMENT,
    SMALL,
    Clock,
    batch_of,
    files_in,
    open_partition,
    read_all,
    records_in,
    unreadable_batch,
)
from tier2.format.chunk_format import ChunkFlag, parse_header
from tier2.format.chunk_format import Compression as FileCodec
from tier2.format.record_file import damages_of_record_file, open_record_file
from tier2.object_stores.memory import MemoryObjectStore

PREFIX = files_prefix("t", 0)


class Store:
    """What outlives a process."""

    def __init__(self) -> None:
        self.segments = MemorySegments()
        self.objects = MemoryObjectStore()
        self.clock = Clock()
        self.settings = SMALL

    async def opened(self, **config: str) -> Partition:
        return await open_partition(
            self.segments,
            clock=self.clock,
            settings=self.settings,
            config={
                "file.delete.delay.ms": "0",
                **{word.replace("_", "."): value for word, value in config.items()},
            },
            record_files=files_in(self.objects),
        )

    async def restarted(self, **config: str) -> Partition:
        self.segments = self.segments.restarted()
        return await self.opened(**config)

    async def keys(self) -> list[str]:
        return [info.key async for info in self.objects.list("")]

    async def registered(self) -> list[RegisteredFile]:
        """What the segment says, and that every file of it is whole."""
        attributes = await self.segments.attributes(SEGMENT)
        first, last = attributes.get(FIRST_FILE, 1), attributes.get(LAST_FILE, 0)
        assert isinstance(first, int)
        assert isinstance(last, int)
        files = [decode_file(attributes[file_key(n)]) for n in range(first, last + 1)]
        for file in files:
            image = (await self.objects.get(file.name("t", 0).key)).content
            assert not damages_of_record_file(image)
            opened = open_record_file(image)
            assert len(image) == file.size
            records = list(opened.records_from(0))
            assert len(records) == file.record_count
            assert min(r.timestamp_ms for r in records) == file.lowest_ms
            assert max(r.timestamp_ms for r in records) == file.highest_ms
            assert opened.header.start_offset == file.first_offset
            assert opened.header.end_offset == file.end_offset
        for one, other in pairwise(files):
            assert one.end_offset == other.first_offset
            assert one.highest_ms_until_end <= other.highest_ms_until_end
        if files:
            assert files[-1].end_offset == attributes[COLD_END]
        return files


async def fill(partition: Partition, count: int = 30, *, time: int = NOW) -> list[Record]:
    first = partition.high_watermark
    for n in range(count):
        await partition.produce(
            batch_of(
                b"%d" % (first + n),
                None,
                b"x" * (n % 7) * 40,
                time=time + 10 * n,
                producer=(5, 0, 3 * n) if first == 0 else None,
                compression=list(Compression)[n % 5],
            )
        )
    return await read_all(partition)


async def test_records_are_the_same_from_the_file() -> None:
    store = Store()
    partition = await store.opened()
    records = await fill(partition)
    before = len(store.segments.content(SEGMENT))
    made = await partition.make_file()
    assert made == before
    (file,) = await store.registered()
    assert await store.keys() == [f"{PREFIX}00000000-00000089.seg"]
    assert (file.first_offset, file.end_offset, file.name_number) == (0, 90, 0)
    info = await store.segments.info(SEGMENT)
    assert info.start_offset == info.length == before, "the file is the only copy"
    assert partition.hot_bytes == 0
    assert partition.size_bytes == file.size
    assert await read_all(partition) == records
    partition.check()
    assert await partition.make_file() == 0, "there is nothing more"
    await partition.close()
    partition = await store.restarted()
    assert await read_all(partition) == records
    assert (await partition.produce(batch_of(b"next"))).base_offset == 90
    assert await read_all(partition) == [*records, Record(90, NOW, b"k", b"next")]


@pytest.mark.parametrize(("piece_bytes", "read_bytes"), [(61, 50), (150, 70), (700, 10_000)])
async def test_a_file_is_the_same_however_its_batches_are_gathered(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int, read_bytes: int
) -> None:
    """Also if a batch is longer than a piece, or a read ends inside of a header."""
    contents = []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(gathered_batches, "_PIECE_BYTES", piece_bytes)
            monkeypatch.setattr(gathered_batches, "_READ_BYTES", read_bytes)
        store = Store()
        partition = await store.opened()
        records = await fill(partition)
        await partition.make_file()
        (file,) = await store.registered()
        contents.append((await store.objects.get(file.name("t", 0).key)).content)
        assert await read_all(partition) == records
    assert contents[0] == contents[1]


async def test_each_offset_is_fetched_in_files_and_behind_them() -> None:
    store = Store()
    partition = await store.opened()
    for _ in range(4):
        await fill(partition, 10)
        await partition.make_file()
    records = await fill(partition, 3)
    assert [file.first_offset for file in await store.registered()] == [0, 30, 60, 90]
    for offset in range(len(records)):
        for max_bytes in (0, 300, 100_000):
            content = await partition.fetch(offset, max_bytes)
            found = records_in(content)
            assert found[0].offset <= offset <= found[-1].offset
            assert found == records[found[0].offset : found[-1].offset + 1]
            if max_bytes == 0:
                assert len(content) == int.from_bytes(content[8:12]) + 12, "one batch"
            if max_bytes == 100_000:
                assert found[-1].offset == (119 if offset < 120 else 128), "up to the last file"
    assert await partition.fetch(129, 1000) == b""
    with pytest.raises(OffsetOutOfRangeError):
        await partition.fetch(130, 1000)


class ReadObjects(MemoryObjectStore):
    """Tells which objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self._read: set[str] = set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._read.add(key)
        return await super().get_range(key, start, length)

    async def read_since(self) -> int:
        """How many objects were read since the last call, when all that was begun has ended."""
        for _ in range(200):
            await asyncio.sleep(0)
        count = len(self._read)
        self._read.clear()
        return count


async def test_a_reader_in_order_is_read_ahead_of_and_one_that_jumps_is_not() -> None:
    store = Store()
    store.objects = objects = ReadObjects()
    partition = await store.opened()
    for _ in range(20):
        await fill(partition, 3)
        await partition.make_file()
    records = await read_all(partition)
    await partition.close()
    partition = await store.restarted()
    await objects.read_since()
    content = b""
    for offset in (90, 0, 45, 171, 27):
        content = await partition.fetch(offset, 1)
        assert await objects.read_since() == 1, "only what was asked for"
    assert records_in(content)[-1].offset == 35
    await partition.fetch(36, 1)
    assert await objects.read_since() == 7, "its file and eight behind it, two of which were known"
    assert await read_all(partition) == records
    partition.check()
    await partition.close()
    # Without it a reader meets one file after the other.
    store.settings = replace(SMALL, read_ahead_bytes_max=0)
    partition = await store.restarted()
    await objects.read_since()
    found, offset = list[Record](), 0
    while offset < partition.high_watermark:
        found += records_in(await partition.fetch(offset, 1))
        offset = found[-1].offset + 1
        assert await objects.read_since() <= 1
    assert found == records


async def test_batches_of_a_file_are_what_consumers_take() -> None:
    store = Store()
    partition = await store.opened()
    await fill(partition, 5)
    await partition.make_file()
    content = await partition.fetch(0, 100_000)
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at + 8 : at + 12]) + 12
        header = check_batch(content[at : at + size])
        assert not header.has_producer
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert header.compression is Compression.NONE
        at += size
    assert at == len(content) > BATCH_HEADER_BYTES


async def test_times_are_looked_up_in_files_and_behind_them() -> None:
    store = Store()
    partition = await store.opened()
    # Clocks go back: the second file is older than the first one.
    for n, time in enumerate((NOW, NOW - 5_000, NOW + 1_000, NOW + 900)):
        await fill(partition, 5, time=time)
        if n < 3:
            await partition.make_file()
    records = await read_all(partition)
    await partition.delete_records(2)
    for time in range(NOW - 5_010, NOW + 1_100, 7):
        expected = next(
            ((r.offset, r.timestamp_ms) for r in records[2:] if r.timestamp_ms >= time), None
        )
        assert await partition.offset_at_time(time) == expected, time
    assert (await store.registered())[1].highest_ms_until_end >= NOW + 40


async def test_a_time_is_found_of_records_that_become_a_file_between_the_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look at files comes before they are in one, and the look at the segment when they are no more in that."""
    store = Store()
    partition = await store.opened()
    await partition.produce(batch_of(b"old", time=NOW - 100))
    await partition.make_file()
    await partition.produce(batch_of(b"sought", time=NOW))
    original = ColdRecords.first_at_time
    looks = 0

    async def first_at_time(
        self: ColdRecords, segment: Segment, time_ms: int, from_offset: int
    ) -> tuple[int, int] | None:
        nonlocal looks
        found = await original(self, segment, time_ms, from_offset)
        looks += 1
        if looks == 1:
            await partition.make_file()
            await partition.produce(batch_of(b"new", time=NOW + 5))
        return found

    monkeypatch.setattr(ColdRecords, "first_at_time", first_at_time)
    assert await partition.offset_at_time(NOW - 50) == (1, NOW)
    assert looks == 2


async def test_a_duplicate_is_known_behind_the_flush_point() -> None:
    store = Store()
    partition = await store.opened()
    batches = [batch_of(b"%d" % n, producer=(9, 0, n)) for n in range(8)]
    for batch in batches[:7]:
        await partition.produce(batch)
    await partition.make_file()
    await partition.close()
    partition = await store.restarted()
    again = [await partition.produce(batch) for batch in batches[3:]]
    assert [each.base_offset for each in again] == [3, 4, 5, 6, 7]
    assert [each.duplicate for each in again] == [True] * 4 + [False]


async def test_a_file_has_at_most_so_many_bytes_and_one_kind_of_time() -> None:
    store = Store()
    settings = replace(SMALL, file_bytes=1_000)
    partition = await open_partition(
        store.segments, settings=settings, record_files=files_in(store.objects)
    )
    for n in range(10):
        await partition.produce(batch_of(b"x" * 400, time=NOW + n))
    partition.configure(make_config({"message.timestamp.type": "LogAppendTime"}, bytes_max=1000))
    for _ in range(3):
        await partition.produce(batch_of(b"x" * 400, b"y", time=NOW - 500))
    await partition.produce(batch_of(b"x" * 2_000))
    records = await read_all(partition)
    while await partition.make_file():
        pass
    files = await store.registered()
    assert [file.end_offset for file in files] == [2, 4, 6, 8, 10, 14, 16, 17]
    for file in files:
        image = (await store.objects.get(file.name("t", 0).key)).content
        is_append_time = bool(parse_header(image).flags & ChunkFlag.LOG_APPEND_TIME)
        assert is_append_time == (file.first_offset >= 10)
    assert await read_all(partition) == records
    header = check_batch(await partition.fetch(10, 10))
    assert header.attributes & 8, "the time of the append"


@pytest.mark.parametrize(
    ("word", "codec"),
    [
        ("producer", FileCodec.LZ4),
        ("gzip", FileCodec.LZ4),
        ("zstd", FileCodec.ZSTD),
        ("uncompressed", FileCodec.NONE),
    ],
)
async def test_files_are_compressed_as_the_topic_says(word: str, codec: FileCodec) -> None:
    store = Store()
    partition = await store.opened(compression_type=word)
    await partition.produce(batch_of(*[b"a" * 100] * 50))
    await partition.make_file()
    (key,) = await store.keys()
    assert parse_header((await store.objects.get(key)).content).compression is codec
    assert [r.value for r in await read_all(partition)] == [b"a" * 100] * 50


# --- deletion --------------------------------------------------------------------------------------


async def with_files(store: Store, files: int = 4, **config: str) -> tuple[Partition, list[Record]]:
    """Files of 15 records, ten minutes apart, and 15 records behind them."""
    partition = await store.opened(**config)
    for n in range(files):
        await fill(partition, 5, time=NOW + 600_000 * n)
        await partition.make_file()
    return partition, await fill(partition, 5, time=NOW + 600_000 * files)


async def test_whole_files_go_when_their_records_are_deleted() -> None:
    store = Store()
    partition, records = await with_files(store)
    for before, kept in ((14, 4), (15, 3), (40, 2), (59, 1), (60, 0), (61, 0)):
        assert await partition.delete_records(before) == before
        files = await store.registered()
        assert len(files) == kept
        assert await store.keys() == [file.name("t", 0).key for file in files]
        assert await read_all(partition) == records[before:]
        partition.check()
        with pytest.raises(OffsetOutOfRangeError):
            await partition.fetch(before - 1, 100)
    await partition.close()
    partition = await store.restarted()
    assert await read_all(partition) == records[61:]
    await partition.make_file()
    (file,) = await store.registered()
    assert (file.first_offset, file.end_offset) == (60, 75), "a batch is never cut"
    assert await read_all(partition) == records[61:]


async def test_objects_of_forgotten_files_stay_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For readers that have looked the file up, and for a recovery from what Tier 2 had published before."""
    store = Store()
    partition, records = await with_files(store, file_delete_delay_ms="3600000")
    await partition.delete_records(30)
    assert len(await store.registered()) == 2
    assert len(await store.keys()) == 4
    assert await partition.sweep_files() == 0, "they are kept"
    assert not partition.is_idle(float("inf"))
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as an_hour_later:
        now = loop.time
        an_hour_later.setattr(loop, "time", lambda: now() + 3_601)
        await partition.delete_doomed()
    assert len(await store.keys()) == 2
    assert partition.is_idle(float("inf"))
    await partition.delete_records(45)
    await partition.close()
    partition = await store.restarted()
    assert len(await store.keys()) == 2
    assert await partition.sweep_files() == 1, "the process that kept it is gone"
    assert await read_all(partition) == records[45:]


async def test_a_deletion_for_which_there_is_no_room_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system that copies what it changes, and a bucket at its quota, may refuse deletions too."""

    async def refused(_: MemoryObjectStore, key: str) -> None:
        raise StorageFullError(f"no space is left key={key}")

    store = Store()
    partition, records = await with_files(store)
    with monkeypatch.context() as full:
        full.setattr(MemoryObjectStore, "delete", refused)
        assert await partition.delete_records(45) == 45
        await partition.delete_doomed()
        with pytest.raises(PartitionUnavailableError):
            await partition.sweep_files()
        assert partition.is_open
    await partition.sweep_files()
    assert await store.keys() == [file.name("t", 0).key for file in await store.registered()]
    assert await read_all(partition) == records[45:]


async def test_no_file_is_made_as_long_as_those_below_the_log_start_cannot_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    partition, records = await with_files(store)
    keys = await store.keys()

    async def away(_: RegisteredFiles, *__: object) -> NoReturn:
        raise StorageError("tier 2 is away")

    with monkeypatch.context() as patch:
        patch.setattr(RegisteredFiles, "some", away)
        assert await partition.delete_records(64) == 64
        with pytest.raises(PartitionUnavailableError):
            await partition.make_file()
        assert await store.keys() == keys, "nothing was put"
        assert partition.is_open
    assert await partition.make_file()
    (file,) = await store.registered()
    assert (file.first_offset, file.end_offset) == (63, 75)
    assert await store.keys() == [file.name("t", 0).key]
    assert await read_all(partition) == records[64:]


async def test_everything_is_deleted_and_the_numbers_of_files_go_on() -> None:
    store = Store()
    partition, _ = await with_files(store)
    assert await partition.delete_records(-1) == 75
    assert await store.keys() == []
    await fill(partition, 2)
    await partition.make_file()
    attributes = await store.segments.attributes(SEGMENT)
    assert (attributes[FIRST_FILE], attributes[LAST_FILE]) == (5, 5)
    assert (await store.registered())[0].first_offset == 75


async def test_retention_by_age_deletes_whole_files() -> None:
    store = Store()
    partition, records = await with_files(store, retention_ms="600000")
    store.clock.now = NOW + 2 * 600_000 + 25
    await partition.expire(age_is_known=False)
    assert partition.log_start_offset == 0
    await partition.expire(age_is_known=True)
    assert partition.log_start_offset == 15, "the second file has a record that is young enough"
    store.clock.now += 10 * 600_000
    await partition.expire(age_is_known=True)
    assert partition.log_start_offset == partition.high_watermark == 75
    assert await store.keys() == []
    assert records


async def test_files_without_a_time_go_with_the_next_one_that_is_too_old() -> None:
    store = Store()
    partition = await store.opened(retention_ms="600000")
    for time in (-1, NOW, -1, NOW + 300_000, -1):
        await partition.produce(batch_of(b"v", time=time))
        await partition.make_file()
    for seconds, start in ((400, 0), (599, 0), (601, 2), (899, 2), (901, 4), (1000, 4), (1001, 5)):
        store.clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds
    assert await store.registered() == []
    for time in (-1, NOW):
        await partition.produce(batch_of(b"v", time=time))
        await partition.make_file()
    await partition.expire(age_is_known=True)
    assert partition.log_start_offset == 7, "and with the next file as well"


async def test_retention_by_size_deletes_whole_files() -> None:
    store = Store()
    partition, _ = await with_files(store, retention_bytes="0")
    sizes = [file.size for file in await store.registered()]
    hot = partition.hot_bytes
    for keep, expected in (
        (sum(sizes) + hot, 0),
        (sum(sizes) + hot - 1, 0),
        (sum(sizes[1:]) + hot, 15),
        (sum(sizes[3:]) + hot, 45),
        (hot + 1, 45),
        (hot, 60),
        (0, 75),
    ):
        partition.configure(make_config({"retention.bytes": str(keep)}, bytes_max=1000))
        await partition.expire(age_is_known=False)
        assert partition.log_start_offset == expected, keep


# --- names, dead files -----------------------------------------------------------------------------


async def test_a_taken_name_is_neither_adopted_nor_replaced() -> None:
    store = Store()
    foreign = f"{PREFIX}00000000-00000014.seg"
    await store.objects.put_if_absent(foreign, b"of a zombie")
    partition = await store.opened()
    records = await fill(partition, 5)
    await partition.make_file()
    (file,) = await store.registered()
    assert file.name_number != 0
    assert (await store.objects.get(foreign)).content == b"of a zombie"
    assert await read_all(partition) == records
    assert await partition.sweep_files() == 1, "it lies below the cold end now"
    assert await store.keys() == [file.name("t", 0).key]
    assert await partition.sweep_files() == 0


async def test_a_sweep_leaves_what_may_be_given_yet_and_what_is_no_file() -> None:
    store = Store()
    partition, _ = await with_files(store)
    others = [
        RecordFileName("t", 0, 60, 74).key,  # the next file's plain name
        RecordFileName("t", 1, 0, 14, 7).key,
        f"{PREFIX}notes.txt",
    ]
    dead = [RecordFileName("t", 0, 0, 14, 7).key, RecordFileName("t", 0, 500, 510, 8).key]
    for key in others + dead:
        await store.objects.put_if_absent(key, b"x")
    files = [file.name("t", 0).key for file in await store.registered()]
    assert await partition.sweep_files() == 2
    assert await store.keys() == sorted(files + others)
    await partition.close()
    partition = await store.restarted()
    assert await read_all(partition)
    assert await partition.sweep_files() == 0


async def test_a_zombie_deletes_no_file_of_another_owner() -> None:
    """It has listed, and is put aside before its proof."""
    store = Store()
    zombie, _ = await with_files(store)
    owner = await store.opened()
    await owner.produce(batch_of(b"of the owner"))
    await store.objects.put_if_absent(RecordFileName("t", 0, 0, 14, 7).key, b"x")
    with pytest.raises(PartitionUnavailableError):
        await zombie.sweep_files()
    assert RecordFileName("t", 0, 0, 14, 7).key in await store.keys()


class HeldAnswers(MemoryObjectStore):
    """A put happens at once, its answer comes when the test says so."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        super().__init__()
        self._objects = inner._objects
        self.put_happened = asyncio.Event()
        self.answer = asyncio.Event()

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        tag = await super().put_if_absent(key, content)
        self.put_happened.set()
        await self.answer.wait()
        return tag


async def test_a_sweep_ends_openings_that_could_register_what_it_deletes() -> None:
    """The other one was opened before the sweep, has put its object, and appends nothing but the registration: length
    and owner are as it read them, unless the proof gives the owner another number."""
    store = Store()
    owner, records = await with_files(store)
    await store.objects.put_if_absent(RecordFileName("t", 0, 60, 74).key, b"taken")
    held = HeldAnswers(store.objects)
    other = await open_partition(store.segments, record_files=files_in(held))
    making = asyncio.ensure_future(other.make_file())
    await held.put_happened.wait()
    assert await owner.sweep_files() == 1, "what the other one put, under a name with a number"
    held.answer.set()
    with pytest.raises(PartitionUnavailableError, match="another owner"):
        await making
    assert len(await store.registered()) == 4
    assert await read_all(await store.restarted()) == records


async def test_two_owners_never_register_the_same_range() -> None:
    """A registration leaves the length as it was: the owner's number alone tells that another one came in between."""
    store = Store()
    one, records = await with_files(store)
    held = HeldAnswers(store.objects)
    other = await open_partition(store.segments, record_files=files_in(held))
    making = asyncio.ensure_future(other.make_file())
    await held.put_happened.wait()
    await one.make_file()
    held.answer.set()
    with pytest.raises(PartitionUnavailableError, match="another owner"):
        await making
    assert not other.is_open
    await other.recover()
    assert await read_all(other) == records
    assert await other.make_file() == 0
    files = await store.registered()
    assert [file.end_offset for file in files] == [15, 30, 45, 60, 75]
    assert files[-1].name_number, "the plain name was taken"


async def test_where_a_topic_of_the_same_name_had_files_no_plain_name_is_given() -> None:
    store = Store()
    await store.objects.put_if_absent(f"topics/t/{NAMES_USED}", b"")
    partition, records = await with_files(store)
    assert all(file.name_number for file in await store.registered())
    assert await read_all(partition) == records


# --- the checks can fail ---------------------------------------------------------------------------


async def test_a_name_that_is_adopted_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is there is taken for what was put."""
    original = Tier2RecordFiles.put

    async def trusting(self: Tier2RecordFiles, key: str, image: BufferView) -> None:
        with suppress(ObjectExistsError):
            await original(self, key, image)

    monkeypatch.setattr(Tier2RecordFiles, "put", trusting)
    with pytest.raises(AssertionError):
        await test_a_taken_name_is_neither_adopted_nor_replaced()


async def test_changes_of_files_that_keep_the_number_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a registration, or a proof, leaves OWNER as it was."""

    async def as_before(
        self: PartitionLog, segment: Segment, updates: Sequence[AttributeUpdate]
    ) -> None:
        owned = [self._as_owner(), *updates]
        self._owner_before = self._owner
        await segment.append(b"", offset=self._length, attribute_updates=owned)

    monkeypatch.setattr(PartitionLog, "append_alone", as_before)
    for test in (
        test_two_owners_never_register_the_same_range,
        test_a_sweep_ends_openings_that_could_register_what_it_deletes,
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await test()


async def test_a_sweep_without_a_proof_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_proof(self: PartitionFiles, segment: Segment) -> None:
        del self, segment

    monkeypatch.setattr(PartitionFiles, "_prove_ownership", no_proof)
    with pytest.raises(pytest.fail.Exception):
        await test_a_zombie_deletes_no_file_of_another_owner()


# --- failures --------------------------------------------------------------------------------------


async def test_a_damaged_block_is_refused_and_its_neighbours_are_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    partition = await open_partition(
        store.segments,
        config={"max.message.bytes": "10000000", "compression.type": "uncompressed"},
        record_files=files_in(store.objects),
    )
    for n in range(3):
        await partition.produce(
            encode_batch([Record(0, NOW + n, None, bytes([n]) + b"r" * 1_100_000)])
        )
    await partition.make_file()
    (key,) = await store.keys()
    image = bytearray((await store.objects.get(key)).content)
    image[len(image) // 2] ^= 1
    await store.objects.delete(key)
    await store.objects.put_if_absent(key, bytes(image))
    await partition.close()
    partition = await store.restarted()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(PartitionUnavailableError, match="fails its checksum"):
                await partition.fetch(1, 100)
    events = [each for each in caplog.records if "damaged" in each.getMessage()]
    assert len(events) == 1
    assert partition.is_open
    for n in (0, 2):
        (record,) = records_in(await partition.fetch(n, 5_000_000))
        assert (record.offset, record.value) == (n, bytes([n]) + b"r" * 1_100_000)


async def test_a_range_that_was_damaged_on_its_way_is_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    partition, records = await with_files(store)
    damaged: set[tuple[str, int]] = set()
    original = store.objects.get_range

    async def once(key: str, start: int, length: int) -> bytes:
        content = bytearray(await original(key, start, length))
        if (key, start) not in damaged:
            damaged.add((key, start))
            content[len(content) // 2] ^= 1
        return bytes(content)

    partition = await store.restarted()
    store.objects.get_range = once  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        assert await read_all(partition) == records
    assert damaged
    assert not caplog.records


async def test_a_registered_file_that_is_missing_refuses_its_offsets_alone() -> None:
    store = Store()
    partition, records = await with_files(store)
    await store.objects.delete((await store.registered())[1].name("t", 0).key)
    partition = await store.restarted()
    with pytest.raises(PartitionUnavailableError, match="missing"):
        await partition.fetch(20, 100)
    assert partition.is_open
    assert records_in(await partition.fetch(14, 5_000))[-1] == records[14]
    assert records_in(await partition.fetch(30, 5_000))[0] == records[30]


@pytest.mark.parametrize("is_put", [False, True], ids=["not put", "put, and the answer lost"])
async def test_a_put_that_fails_is_made_again(*, is_put: bool) -> None:
    store = Store()
    partition = await store.opened()
    records = await fill(partition, 5)
    original = store.objects.put_if_absent

    async def failing(key: str, content: BufferView) -> str:
        if is_put:
            await original(key, content)
        raise StorageFullError("full")

    store.objects.put_if_absent = failing  # type: ignore[method-assign]
    with pytest.raises(PartitionUnavailableError):
        await partition.make_file()
    assert partition.is_open
    assert await read_all(partition) == records
    store.objects.put_if_absent = original  # type: ignore[method-assign]
    assert await partition.make_file()
    (file,) = await store.registered()
    assert bool(file.name_number) == is_put
    assert await partition.sweep_files() == is_put
    assert await read_all(partition) == records


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["lost answer", "cancelled"])
async def test_a_file_whose_registration_is_not_told_of_is_registered_once_and_stays(
    monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    """Its bytes are the only ones as soon as the next opening has dropped the batches that it holds."""
    store = Store()
    partition = await store.opened()
    records = await fill(partition, 5)
    append, registrations = MemorySegment.append, list[asyncio.Task[int]]()

    def not_told_of(
        segment: MemorySegment,
        data: BufferView,
        *,
        offset: int,
        attribute_updates: Sequence[AttributeUpdate],
    ) -> "asyncio.Future[int]":
        taken = append(segment, data, offset=offset, attribute_updates=attribute_updates)
        if registrations or all(update.key != LAST_FILE for update in attribute_updates):
            return taken
        if is_cancelled:
            making.cancel()

        async def lose() -> int:
            await taken
            raise ContainerStoppedError(0)

        registrations.append(asyncio.create_task(lose()))
        return registrations[0]

    monkeypatch.setattr(MemorySegment, "append", not_told_of)
    making = asyncio.create_task(partition.make_file())
    with pytest.raises(asyncio.CancelledError if is_cancelled else PartitionUnavailableError):
        await making
    with pytest.raises(ContainerStoppedError):
        await registrations[0]
    assert not partition.is_open, "what it knows of its files may not be so"
    await partition.recover()
    assert await partition.make_file() == 0
    (file,) = await store.registered()
    assert (file.first_offset, file.end_offset) == (0, 15)
    assert await read_all(partition) == records
    await fill(partition, 5)
    assert await partition.make_file()
    assert [file.end_offset for file in await store.registered()] == [15, 30]


async def test_bytes_of_files_that_cannot_be_dropped_yet_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention by size would delete more than it may, and files would be due of batches that have one."""

    async def refused(_: MemorySegments, name: str, offset: int) -> None:
        raise StorageFullError(f"no space is left name={name} offset={offset}")

    store = Store()
    partition = await store.opened()
    await fill(partition, 5)
    monkeypatch.setattr(MemorySegments, "truncate", refused)
    assert await partition.make_file()
    (file,) = await store.registered()
    assert store.segments.content(SEGMENT), "the batches are still there"
    assert partition.hot_bytes == 0
    assert partition.size_bytes == file.size


async def test_a_batch_that_no_file_can_hold_is_an_object_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken by a store that did not look. Nothing of it is lost, and nothing waits behind it."""
    store = Store()
    partition = await store.opened(retention_bytes="0")
    unreadable = unreadable_batch()
    with monkeypatch.context() as patched:
        patched.setattr(
            "segmentstore.topics.acceptable_batches.require_readable", lambda _batch: None
        )
        for value in (b"before", b"", b"between", b"", b"behind"):
            await partition.produce(batch_of(value) if value else unreadable)
    with caplog.at_level(logging.ERROR):
        made = [await partition.make_file() for _ in range(6)]
    assert [bool(each) for each in made] == [True] * 5 + [False]
    assert partition.file_due_at is None
    assert len([r for r in caplog.records if "as it came" in r.getMessage()]) == 2
    names = [RecordFileName.parsed(key) for key in await store.keys()]
    assert [(each.first_offset, each.is_batch) for each in names if each] == [
        (n, n in (1, 3)) for n in range(5)
    ]
    for opened in (partition, await store.restarted(retention_bytes="0")):
        for offset, value in ((0, b"before"), (2, b"between"), (4, b"behind")):
            assert records_in(await opened.fetch(offset, 10))[0].value == value
        kept = await opened.fetch(1, 10)
        assert kept[12:] == b"\xff\xff\xff\xff" + unreadable[16:]
        assert check_batch(kept).base_offset == 1
        assert await opened.offset_at_time(NOW) == (0, NOW)
        opened.check()
        partition = opened
    (kept_key,) = [key for key in await store.keys() if key.endswith("00000003.batch")]
    assert await partition.sweep_files() == 0
    await partition.delete_records(2)
    assert len(await store.keys()) == 3
    await store.objects.delete(kept_key)
    await store.objects.put_if_absent(kept_key, unreadable[:-1] + b"?")
    with pytest.raises(PartitionUnavailableError, match="damaged"):
        await partition.fetch(3, 10)
    await partition.expire(age_is_known=True)
    assert await store.keys() == []


@pytest.mark.parametrize("is_put", [False, True], ids=["not put", "put, and the answer lost"])
async def test_a_kept_batch_whose_put_fails_is_kept_at_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch, *, is_put: bool
) -> None:
    monkeypatch.setattr(
        "segmentstore.topics.acceptable_batches.require_readable", lambda _batch: None
    )
    store = Store()
    partition = await store.opened()
    await partition.produce(unreadable_batch())
    await partition.produce(batch_of(b"behind"))
    before = await partition.fetch(0, 10)
    original = store.objects.put_if_absent

    async def failing(key: str, content: BufferView) -> str:
        if is_put:
            await original(key, content)
        raise StorageFullError("full")

    store.objects.put_if_absent = failing  # type: ignore[method-assign]
    with pytest.raises(PartitionUnavailableError):
        await partition.make_file()
    store.objects.put_if_absent = original  # type: ignore[method-assign]
    partition = await store.restarted()
    assert await partition.make_file()
    assert await partition.make_file()
    assert await partition.sweep_files() == is_put
    assert len(await store.keys()) == 2
    assert await partition.fetch(0, 10) == before
    assert records_in(await partition.fetch(1, 100))[0].value == b"behind"


@pytest.mark.skipif(native_loops() is None, reason="records are looked at by the native loop alone")
async def test_records_that_no_reader_can_read_are_refused() -> None:
    partition = await Store().opened()
    whole = batch_of(b"one", b"two")
    fewer = bytearray(whole)
    fewer[57:61] = (3).to_bytes(4, "big")
    fewer[23:27] = (2).to_bytes(4, "big")
    fewer[17:21] = crc32c(bytes(fewer[21:])).to_bytes(4, "big")
    for bad in (unreadable_batch(), bytes(fewer)):
        with pytest.raises(InvalidRecordError) as refused:
            await partition.produce(bad)
        assert refused.value.problem is BatchProblem.INVALID
    for compression in Compression:
        await partition.produce(batch_of(b"one", b"two", compression=compression))
    await partition.produce((-5).to_bytes(8, "big", signed=True) + whole[8:])
    assert partition.high_watermark == 12


@pytest.mark.skipif(native_loops() is None, reason="records are looked at by the native loop alone")
@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_the_slow_loop_looks_at_no_record_whatever_offset_a_producer_writes(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await Store().opened(cleanup_policy=policy)

    def looked(*_arguments: object, **_more: object) -> NoReturn:
        raise AssertionError("records are looked at one by one")

    monkeypatch.setattr(record_columns, "records_to_columns_in_python", looked)
    monkeypatch.setattr(record_columns, "decode_batch", looked)
    whole = batch_of(b"one", b"two")
    for offset in (-(2**63), -1, 5, 2**63 - 1):
        await partition.produce(offset.to_bytes(8, "big", signed=True) + whole[8:])
    assert [each.offset for each in await read_all(partition)] == list(range(8))


async def test_a_file_may_be_replaced_by_another_one_of_its_range() -> None:
    """As compaction does it."""
    store = Store()
    partition, records = await with_files(store)
    old = (await store.registered())[1]
    keep = [r for r in records[15:30] if r.offset in (16, 20, 29)]
    image = image_of([[r] for r in keep], start_offset=15, end_offset=30)
    made = MadeFile(image, 15, 30, 3, keep[0].timestamp_ms, keep[-1].timestamp_ms)
    assert partition._files is not None
    assert await partition._files.replace(2, old, made)
    assert await partition.sweep_files() == 0, "readers may be at it"
    rest = [r for r in records if not 15 <= r.offset < 30 or r in keep]
    found: list[Record] = []
    offset = 0
    while offset < partition.high_watermark:
        found += [r for r in records_in(await partition.fetch(offset, 400)) if r.offset >= offset]
        offset = found[-1].offset + 1
    assert found == rest
    assert not await partition._files.replace(2, old, made), "another one is there by now"
    assert await partition.sweep_files() == 0
