"""Listing, reading and verifying Tier 2 with the service off: damage is found and never served, nothing is changed."""

import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import (
    BadOffsetError,
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import AttributeKey, ContainerId, SegmentId
from tests.contracts.storage_publications import change, data, listed, merge, read_all, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tier2.manifest.manifest import decode_manifest
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.verify import verify_container
from tier2.store_reader import ContainerReader, StoreReader
from tier2.tiered_storage import TieredStorage

ROOT_KEY = "containers/0003/root"
BIG = b"".join(number.to_bytes(4, "big") for number in range(3000))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
async def owner(store: FaultyStore) -> TieredStorage:
    """A container with packed and lone chunks, a merge, a truncation, a deletion, attributes and a merged run."""
    owner = await ObjectStoreBacking(store, replace(SMALL, sst_tier_bytes=1 << 20)).claimed(1)
    big_runs = [BIG[at : at + 900] for at in range(0, len(BIG), 900)]
    await owner.publish(
        round_of(
            change(1, "big", length=len(BIG), sequence_number=1, pieces=[data(0, *big_runs)]),
            *(
                change(
                    n,
                    f"small/{n}",
                    length=40,
                    sequence_number=n,
                    pieces=[data(0, bytes([n]) * 40)],
                    attributes={AttributeKey(b"w"): n},
                )
                for n in range(2, 30)
            ),
        )
    )
    await owner.publish(
        round_of(
            change(2, "small/2", length=80, sequence_number=31, pieces=[merge(40, 3, 40)]),
            change(3, "small/3", length=40, sequence_number=31, deleted=True),
            change(4, "small/4", length=40, sequence_number=31, start_offset=10),
            change(5, "small/5", length=40, sequence_number=31, deleted=True),
            highest_id=29,
        )
    )
    await owner.publish(
        round_of(
            change(6, "small/6", length=41, sequence_number=32, pieces=[data(40, b"!")]),
            highest_id=29,
        )
    )
    assert await owner.maintain()
    return owner


async def reader_of(store: FaultyStore) -> ContainerReader:
    stores = StoreReader(object_store=store, settings=SMALL, executor=None)
    return await stores.open(ContainerId(3))


async def keys_of(store: FaultyStore, folder: str = "") -> list[str]:
    return [info.key async for info in store.store.list(f"containers/0003/{folder}")]


async def cat(reader: ContainerReader, name: str, **bounds: int) -> bytes:
    async with aclosing(reader.cat(name, **bounds)) as pieces:
        return b"".join([bytes(piece) async for piece in pieces])


async def test_containers_segments_and_bytes_are_read_from_the_roots(
    store: FaultyStore, owner: TieredStorage
) -> None:
    stores = StoreReader(object_store=store, settings=SMALL, executor=None)
    assert await stores.containers() == [3]
    reader = await stores.open(ContainerId(3))
    assert await listed(reader) == await listed(owner)
    assert await cat(reader, "big") == BIG
    assert await cat(reader, "big", start=1000, end=9001) == BIG[1000:9001]
    assert await cat(reader, "small/2") == bytes([2]) * 40 + bytes([3]) * 40
    assert await cat(reader, "small/4") == bytes([4]) * 30
    with pytest.raises(SegmentNotFoundError):
        await cat(reader, "small/5")
    with pytest.raises(SegmentTruncatedError):
        await cat(reader, "small/4", start=9)
    with pytest.raises(BadOffsetError):
        await cat(reader, "small/4", end=41)


async def test_an_empty_store_has_no_containers() -> None:
    stores = StoreReader(object_store=MemoryObjectStore(), settings=SMALL, executor=None)
    assert await stores.containers() == []


async def test_verify_finds_a_sound_container_sound_and_reports_its_progress(
    store: FaultyStore, owner: TieredStorage
) -> None:
    steps: list[tuple[int, int]] = []
    report = await verify_container(
        await reader_of(store), progress=lambda done, total: steps.append((done, total))
    )
    assert report.damages == []
    assert report.orphans == []
    assert report.segments == 27
    assert report.bytes_of_segments == len(BIG) + 26 * 40 + 40 - 10 + 1
    assert steps == sorted(steps)
    assert 0 < steps[-1][0] <= steps[-1][1]


async def test_verify_reports_orphans_and_leaves_them_alone(
    store: FaultyStore, owner: TieredStorage
) -> None:
    orphans = [
        "containers/0003/chunks/0000000000000001-00000001-0000000000000777",
        "containers/0003/runs/0000000000000001-00000001-0000000000000778",
        "containers/0003/stranger",
    ]
    for orphan in orphans:
        await store.store.put(orphan, [b"left behind"])
    report = await verify_container(await reader_of(store))
    assert report.sound
    assert report.orphans == orphans
    assert set(orphans) <= set(await keys_of(store))


@pytest.mark.parametrize("folder", ["chunks/", "runs/"])
async def test_verify_finds_every_missing_object(
    store: FaultyStore, owner: TieredStorage, folder: str
) -> None:
    named = await _keys_in_use(store, owner, folder)
    for key in named:
        content = await store.store.get(key)
        await store.store.delete(key)
        report = await verify_container(await reader_of(store))
        assert not report.sound, key
        assert any("missing" in damage for damage in report.damages)
        await store.store.put(key, [content.content])
    assert (await verify_container(await reader_of(store))).sound


async def _keys_in_use(store: FaultyStore, owner: TieredStorage, folder: str) -> list[str]:
    while await owner.collect_garbage():
        pass
    return await keys_of(store, folder)


async def test_h10_a_flipped_bit_anywhere_is_found_by_verify_and_never_served(
    store: FaultyStore, owner: TieredStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    expected = {
        record.segment_id: await read_all(
            owner, record.segment_id, record.start_offset, record.length
        )
        for record in await listed(owner)
    }
    keys = [*await _keys_in_use(store, owner, "runs/"), *await keys_of(store, "chunks/")]
    unseen: list[tuple[str, int]] = []
    for key in keys:
        size = await store.store.size(key)
        for position in range(0, size, max(1, size // 40)):
            store.damage = {key: _flip_at(position, await _content(store, key))}
            report = await verify_container(await reader_of(store))
            if report.sound:
                unseen.append((key, position))
            await _expect_right_bytes_or_an_error(await reader_of(store), expected)
    store.damage = {}
    # One image in a packed object belongs to the deleted segment: nobody reads it any more.
    assert all("/chunks/" in key for key, _ in unseen)
    assert len(unseen) <= 4


async def _content(store: FaultyStore, key: str) -> bytes:
    return (await store.store.get(key)).content


def _flip_at(position: int, content: bytes) -> Callable[[bytes], bytes]:
    flipped = bytearray(content)
    flipped[position] ^= 1 << (position % 8)

    def damage(found: bytes) -> bytes:
        start = content.find(found) if found != content else 0
        return bytes(flipped[start : start + len(found)])

    return damage


async def _expect_right_bytes_or_an_error(
    reader: ContainerReader, expected: dict[SegmentId, bytes]
) -> None:
    for segment_id, content in expected.items():
        try:
            records = await reader.load([segment_id])
            record = records[segment_id]
            found = await read_all(reader, segment_id, record.start_offset, record.length)
        except CorruptedDataError:
            continue
        assert found == content, segment_id


async def test_a_flipped_bit_in_the_root_is_refused(
    store: FaultyStore, owner: TieredStorage
) -> None:
    content = await _content(store, ROOT_KEY)
    decode_manifest(content)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptedDataError):
            decode_manifest(bytes(flipped))
    for length in range(0, len(content), 7):
        with pytest.raises(CorruptedDataError):
            decode_manifest(content[:length])


async def test_a_damaged_answer_is_read_again_once_and_then_counted(
    store: FaultyStore, owner: TieredStorage, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await reader_of(store)
    await reader.load([SegmentId(1)])
    answers = iter([True, False])
    chunk_keys = await keys_of(store, "chunks/")

    def damaged_once(found: bytes) -> bytes:
        return bytes(len(found)) if next(answers, False) else found

    store.damage = dict.fromkeys(chunk_keys, damaged_once)
    assert (await reader.read(SegmentId(1), 0, 10)).content[:10] == BIG[:10]
    assert reader.statistics().checksum_failures == 0
    store.damage = dict.fromkeys(chunk_keys, lambda found: bytes(len(found)))
    with pytest.raises(CorruptedDataError):
        await reader.read(SegmentId(1), 5000, 10)
    assert reader.statistics().checksum_failures == 1
    assert any("corrupted" in record.message for record in caplog.records)


async def test_h10_another_sound_chunk_in_the_place_of_the_right_one_is_refused(
    store: FaultyStore, owner: TieredStorage
) -> None:
    lone = [key for key in await keys_of(store, "chunks/") if await store.size(key) > 1000]
    first, second = [await _content(store, key) for key in lone[:2]]
    await store.store.delete(lone[0])
    await store.store.put(lone[0], [second])
    assert first != second
    reader = await reader_of(store)
    with pytest.raises(CorruptedDataError):
        await read_all(reader, 1, 0, len(BIG))


async def test_h8_a_reader_without_the_owner_follows_a_swap(
    store: FaultyStore, owner: TieredStorage
) -> None:
    reader = await reader_of(store)
    stale = reader.manifest.version
    for number in range(33, 40):
        await owner.publish(
            round_of(
                change(
                    6,
                    "small/6",
                    length=number + 9,
                    sequence_number=number,
                    pieces=[data(number + 8, b"!")],
                ),
                highest_id=29,
            )
        )
        await owner.maintain()
    while await owner.collect_garbage():
        pass
    assert (await reader.load([SegmentId(29)]))[SegmentId(29)].length == 40
    assert reader.manifest.version > stale
    assert await cat(reader, "big") == BIG


async def test_h8_a_segment_that_was_removed_since_its_record_was_read_is_gone(
    store: FaultyStore, owner: TieredStorage
) -> None:
    readers = [await reader_of(store) for _ in range(3)]
    records = [await reader.find("big") for reader in readers]
    await owner.publish(
        round_of(change(1, "big", length=len(BIG), sequence_number=33, deleted=True), highest_id=29)
    )
    while await owner.collect_garbage():
        pass
    assert all(record is not None and record.length == len(BIG) for record in records)
    blocks, chunks, read = readers
    with pytest.raises(SegmentNotFoundError, match="segment_id=1 container=3"):
        async with aclosing(blocks.list_blocks(SegmentId(1), 0, len(BIG))) as listed_blocks:
            await anext(listed_blocks)
    async with aclosing(chunks.list_chunks(SegmentId(1), 0, len(BIG))) as listed_chunks:
        await anext(listed_chunks)
        # No chunk is looked at, so nothing is found missing.
        await chunks.refresh()
        with pytest.raises(SegmentNotFoundError):
            await anext(listed_chunks)
    with pytest.raises(SegmentNotFoundError):
        await read.read(SegmentId(1), 0, 10)


async def test_h8_an_object_that_the_current_root_names_and_nobody_has_is_loss(
    store: FaultyStore, owner: TieredStorage
) -> None:
    for key in await _keys_in_use(store, owner, "chunks/"):
        await store.store.delete(key)
    reader = await reader_of(store)
    with pytest.raises(CorruptedDataError, match="missing"):
        await reader.read(SegmentId(1), 0, 1)


async def test_a_settings_value_never_changes_what_is_read(
    store: FaultyStore, owner: TieredStorage
) -> None:
    for block_bytes in (64, 1 << 16):
        other = ObjectStoreBacking(store, replace(SMALL, sst_block_bytes=block_bytes, sst_fanout=2))
        storage = await other.claimed(1 + block_bytes)
        while await storage.maintain():
            pass
        assert await read_all(storage, 1, 0, len(BIG)) == BIG


class OnceDamaged:
    """What comes from an object the first time has a flipped bit; the object is sound."""

    def __init__(self) -> None:
        self._is_sound = False

    def __call__(self, found: bytes) -> bytes:
        was_sound, self._is_sound = self._is_sound, True
        return found if was_sound else found[:-1] + bytes([found[-1] ^ 1])


async def test_a_bit_that_flips_on_the_way_is_no_damage(
    store: FaultyStore, owner: TieredStorage
) -> None:
    reader = await reader_of(store)
    store.damage = {key: OnceDamaged() for key in await keys_of(store)}
    report = await verify_container(reader, deep=True)
    assert report.damages == []
    assert report.segments == 27


async def test_an_index_that_is_read_again_counts_as_corrupted_if_it_is_again(
    store: FaultyStore, owner: TieredStorage
) -> None:
    chunk_keys = await keys_of(store, "chunks/")
    reader = await reader_of(store)
    store.damage = {key: OnceDamaged() for key in chunk_keys}
    async with aclosing(reader.list_blocks(SegmentId(1), 0, len(BIG))) as blocks:
        assert [block async for block in blocks]
    assert reader.statistics().checksum_failures == 0
