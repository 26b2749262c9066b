"""Goal: files of topics are made, put, read by ranges and deleted alike in every kind of Tier 2; what is kept in memory
is bounded, and what many ask for at once is read once.

Method: the real thing over each object store that runs in this process.
"""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from segmentstore.codec.record_batch import batch_size, decode_batch, encode_batch, parse_header
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    TooManyWaitersError,
)
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host import record_files as module
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.topics.record_files.record_files import FileCompression, FileForm, MadeFile
from tier2.background_pace import BackgroundPace
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.lazy_object_store import LazyObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.volumes.settings import VolumeSettings

KEY: Final = "topics/t/partitions/0/segments/00000000-00000199.seg"
FORM: Final = FileForm(FileCompression.NONE, 3, log_append_time=False, created_ms=1)


@pytest.fixture(params=["memory", "filesystem", "volumes"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store: ObjectStore
    files, random = SystemFileSystem(), Random(1)
    if request.param == "memory":
        store = MemoryObjectStore()
    elif request.param == "filesystem":
        store = LazyObjectStore(
            FilesystemObjectStore(str(tmp_path / "o"), files=files, executor=None, random=random)
        )
    else:
        store = LazyObjectStore(
            LateVolumes(
                str(tmp_path / "v"),
                files=files,
                executor=None,
                wall_clock=SystemWallClock(),
                random=random,
                settings=VolumeSettings(),
            )
        )
    yield store
    await store.close()


class Counted(MemoryObjectStore):
    """Counts ranges, and gives the loop a turn for each."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((start, length))
        await asyncio.sleep(0)
        return await super().get_range(key, start, length)


def files_over(objects: ObjectStore, cache_bytes: int = 1 << 20) -> Tier2RecordFiles:
    return Tier2RecordFiles(
        object_store=objects, writers=None, readers=None, cache_bytes=cache_bytes
    )


async def pieces_of(content: bytes) -> AsyncGenerator[bytes, None]:
    """Some batches at a time, as a partition gives them."""
    at = begin = 0
    while at < len(content):
        at += batch_size(memoryview(content), at)
        if at - begin > 500_000 or at == len(content):
            yield content[begin:at]
            begin = at


def batches_of(count: int, size: int) -> tuple[bytes, list[Record]]:
    """A block each."""
    random = Random(4)
    records = [
        Record(n, 1_000 + n, b"k", random.randbytes(size) if size < 100_000 else b"%d" % n * size)
        for n in range(count)
    ]
    return b"".join(encode_batch([each], keeps_offsets=True) for each in records), records


def registered(made: MadeFile) -> RegisteredFile:
    return RegisteredFile(
        made.first_offset,
        made.end_offset,
        len(made.image),
        made.record_count,
        made.lowest_ms,
        made.highest_ms,
        made.highest_ms,
    )


def records_of(batches: bytes) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(batches):
        size = parse_header(batches, at).size
        found += decode_batch(batches[at : at + size])
        at += size
    return found


async def test_a_file_goes_round_in_every_object_store(objects: ObjectStore) -> None:
    """Of 40 MiB: by one put, as any other."""
    files = files_over(objects)
    content, records = batches_of(40, 1 << 20)
    made = await files.make(pieces_of(content), FORM)
    assert len(made.image) > 40 << 20
    assert (made.first_offset, made.end_offset, made.record_count) == (0, 40, 40)
    assert not await files.exists(KEY)
    await files.put(KEY, made.image)
    assert await files.exists(KEY)
    with pytest.raises(ObjectExistsError):
        await files.put(KEY, b"other bytes")
    blocks = await files.blocks(KEY, registered(made))
    assert [block.first_offset for block in blocks] == list(range(40))
    assert [block.end_offset for block in blocks] == list(range(1, 41))
    assert [block.highest_ms for block in blocks] == list(range(1_000, 1_040))
    for number in (0, 17, 39):
        batches = await files.batches(KEY, registered(made), number)
        assert records_of(batches) == [records[number]]
    assert [key async for key in files.keys("topics/t/")] == [KEY]
    await files.delete(KEY)
    await files.delete(KEY)
    assert [key async for key in files.keys("topics/t/")] == []
    with pytest.raises(ObjectNotFoundError):
        await files.blocks(KEY, registered(made))


async def test_the_memory_of_an_image_is_used_again_once_the_caller_says_so() -> None:
    """Not by a put alone: one that failed may still read it."""
    files = files_over(MemoryObjectStore())
    contents = [batches_of(n, 60_000)[0] for n in (3, 2, 1)]
    made = [await files.make(pieces_of(content), FORM) for content in contents[:2]]
    images = [bytes(each.image) for each in made]
    await files.put("a", made[0].image)
    await files.put("b", made[1].image)
    assert [bytes(each.image) for each in made] == images
    made[0].release()
    again = await files.make(pieces_of(contents[2]), FORM)
    assert bytes(made[0].image)[: len(again.image)] == again.image, "the same memory"
    assert bytes(made[1].image) == images[1]
    assert [(await files._objects.get(key)).content for key in "ab"] == images


async def test_an_index_that_is_longer_than_what_is_read_first_is_read_whole() -> None:
    store = Counted()
    files = files_over(store)
    content, _ = batches_of(400, 700_000)
    made = await files.make(pieces_of(content), FileForm(FileCompression.LZ4, 3, False, 1))
    await files.put(KEY, made.image)
    blocks = await files.blocks(KEY, registered(made))
    assert len(blocks) == 400
    assert len(store.ranges) == 3, "header, end, index"
    await files.blocks(KEY, registered(made))
    assert len(store.ranges) == 3


async def test_a_block_is_read_once_for_many_and_memory_is_bounded() -> None:
    store = Counted()
    files = files_over(store, cache_bytes=3_000_000)
    content, _ = batches_of(10, 1 << 20)
    made = await files.make(pieces_of(content), FORM)
    await files.put(KEY, made.image)
    file = registered(made)
    await asyncio.gather(*(files.batches(KEY, file, 3) for _ in range(50)))
    assert len(store.ranges) == 3, "header, end and the block"
    for number in range(10):
        await files.batches(KEY, file, number)
        assert files.metrics()["kafka_file_cache_bytes"] < 3_100_000
    reads = len(store.ranges)
    await files.batches(KEY, file, 9)
    assert len(store.ranges) == reads
    await files.batches(KEY, file, 3)
    assert len(store.ranges) == reads + 1, "it had to leave"
    assert files.metrics()["kafka_file_block_hits_total"] == 50


async def test_readers_of_one_block_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 5)
    store = Counted()
    files = files_over(store)
    content, _ = batches_of(2, 200_000)
    made = await files.make(pieces_of(content), FORM)
    await files.put(KEY, made.image)
    file = registered(made)
    outcomes = await asyncio.gather(
        *(files.batches(KEY, file, 0) for _ in range(20)), return_exceptions=True
    )
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert refused
    assert all(isinstance(each, TooManyWaitersError) for each in refused)
    assert len(refused) < 20


class Gated(Counted):
    """Ranges wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.waiting_max = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        try:
            await self.gate.wait()
            return await super().get_range(key, start, length)
        finally:
            self.waiting -= 1


AHEAD_BLOCKS: Final = 12


async def gated_file(cache_bytes: int) -> tuple[Gated, Tier2RecordFiles, RegisteredFile]:
    """A file of so many blocks of 1 and 2 MiB, whose index is in memory and no block."""
    store = Gated()
    files = files_over(store, cache_bytes=cache_bytes)
    content, _ = batches_of(AHEAD_BLOCKS, 1 << 20)
    made = await files.make(pieces_of(content), FORM)
    await files.put(KEY, made.image)
    file = registered(made)
    assert len(await files.blocks(KEY, file)) == AHEAD_BLOCKS
    del store.ranges[:]
    return store, files, file


async def settled(store: Gated, files: Tier2RecordFiles) -> None:
    """Until everything that reads ahead waits for the gate or has ended. Threads look at what it reads."""
    await asyncio.sleep(0)
    while len(files._ahead_tasks) > (0 if store.gate.is_set() else store.waiting):
        await asyncio.sleep(0.001)


async def test_blocks_are_read_ahead_side_by_side_and_each_once() -> None:
    store, files, file = await gated_file(100 << 20)
    store.gate.clear()
    files.read_ahead(KEY, file, 0, 1 << 30)
    reader = asyncio.create_task(files.batches(KEY, file, 0))
    for _ in range(5):
        await settled(store, files)
        files.read_ahead(KEY, file, 0, 1 << 30)
    assert store.waiting_max == module.READS_AHEAD_MAX, "one of them has a reader as well"
    store.gate.set()
    assert records_of(await reader)[0].offset == 0
    await settled(store, files)
    files.read_ahead(KEY, file, 0, 1 << 30)
    await settled(store, files)
    store.gate.clear()
    for number in range(AHEAD_BLOCKS):
        content = await files.batches(KEY, file, number)
        assert [each.offset for each in records_of(content)] == [number], "without a way to Tier 2"
    assert len(store.ranges) == AHEAD_BLOCKS
    assert files.metrics()["kafka_file_reads_ahead_total"] == AHEAD_BLOCKS
    await files.close()


async def test_no_more_is_read_ahead_than_was_asked_for_and_than_half_of_the_memory_holds() -> None:
    store, files, file = await gated_file(100 << 20)
    files.read_ahead(KEY, file, 4, 2 * (1 << 20))
    await settled(store, files)
    assert 1 <= len(store.ranges) <= 2
    store, files, file = await gated_file(10 << 20)
    for number in range(AHEAD_BLOCKS):
        for _ in range(3):
            files.read_ahead(KEY, file, number, 1 << 30)
            await settled(store, files)
            assert sum(files._ahead.values()) <= 5 << 20
        await files.batches(KEY, file, number)
    assert len(store.ranges) == AHEAD_BLOCKS, "none left the cache before it was asked for"


async def test_blocks_that_left_the_cache_unasked_give_their_room_back() -> None:
    store, files, file = await gated_file(10 << 20)
    files.read_ahead(KEY, file, 8, 1 << 30)
    await settled(store, files)
    ahead = dict(files._ahead)
    assert ahead
    for number in range(8):
        await files.batches(KEY, file, number)
    files.read_ahead(KEY, file, 9, 1 << 30)
    await settled(store, files)
    assert set(files._ahead) - set(ahead), "others are read ahead in their place"
    assert sum(files._ahead.values()) <= 5 << 20


async def test_what_fails_ahead_is_told_to_the_one_who_asks_for_it_alone() -> None:
    store, files, file = await gated_file(100 << 20)
    await store.delete(KEY)
    files.read_ahead(KEY, file, 0, 1 << 30)
    await settled(store, files)
    assert not files._ahead
    with pytest.raises(ObjectNotFoundError):
        await files.batches(KEY, file, 0)
    files.read_ahead("never/put.seg", file, 0, 1 << 30)
    await settled(store, files)
    with pytest.raises(ObjectNotFoundError):
        await files.blocks("never/put.seg", file)


async def test_nothing_is_read_ahead_behind_the_end() -> None:
    store, files, file = await gated_file(100 << 20)
    store.gate.clear()
    files.read_ahead(KEY, file, 0, 1 << 30)
    await settled(store, files)
    assert store.waiting
    await files.close()
    assert not store.waiting
    files.read_ahead(KEY, file, 0, 1 << 30)
    await settled(store, files)
    assert not store.waiting
    assert not store.ranges


@pytest.mark.parametrize("where", ["header", "index", "footer", "short", "other range"])
async def test_what_contradicts_its_registration_is_refused(where: str) -> None:
    store = MemoryObjectStore()
    files = files_over(store)
    content, _ = batches_of(5, 50_000)
    made = await files.make(pieces_of(content), FORM)
    file = registered(made)
    image = bytearray(made.image)
    if where == "header":
        image[3] ^= 1
    elif where == "index":
        image[-40] ^= 1
    elif where == "footer":
        image[-1] ^= 1
    elif where == "short":
        del image[-1]
    else:
        file = RegisteredFile(0, 6, file.size, 5, 0, 0, 0)
    await store.put_if_absent(KEY, bytes(image))
    with pytest.raises(CorruptedDataError):
        await files.blocks(KEY, file)


async def test_a_file_is_compacted_with_the_memory_of_a_few_blocks() -> None:
    """Its records may be a hundred times as long as the file is, or more: producers and files compress."""
    objects = MemoryObjectStore()
    files = files_over(objects)
    files._pace = BackgroundPace(busy_share_min=1, busy_share_max=1)
    value = bytes(1 << 20)
    keys = [b"superseded", *(b"%d" % n for n in range(22)), b"superseded"]
    records = [Record(n, 1_000 + n, key, value) for n, key in enumerate(keys)]
    content = b"".join(encode_batch([each], keeps_offsets=True) for each in records)
    form = FileForm(FileCompression.LZ4, 3, log_append_time=False, created_ms=1)
    made = await files.make(pieces_of(content), form)
    assert len(made.image) < 1 << 20
    await files.put(KEY, made.image)
    file = registered(made)
    newest = files.newest_offsets(start_offset=0, secret=b"s")
    assert await files.note_keys(KEY, file, newest)
    tracemalloc.start()
    try:
        smaller = await files.surviving(
            KEY, file, newest, tombstones_end=0, keeps_last=True, form=form
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert smaller is not None
    assert (smaller.first_offset, smaller.end_offset, smaller.record_count) == (0, 24, 23)
    assert peak < 16 << 20, f"{peak=}"
    other = KEY.replace(".seg", ".0000000000000001.seg")
    await files.put(other, smaller.image)
    blocks = [
        await files.batches(other, registered(smaller), number)
        for number in range(len(await files.blocks(other, registered(smaller))))
    ]
    assert [each for block in blocks for each in records_of(block)] == records[1:]
