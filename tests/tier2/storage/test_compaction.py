"""Small neighbouring chunks become large ones, and nothing else changes: H6, H8, H12, H76."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import StorageError, StorageNotPrimaryError
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.storage import (
    DataPiece,
    MergePiece,
    Publication,
    RunEvents,
    SegmentPublication,
)
from tests.contracts.storage_publications import change, data, merge, read_all, round_of
from tests.reference.counted_lines import counted_lines
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_blocks_of_events import blocks_of, event, known
from tier2.container_objects import ObjectIdentity
from tier2.format.chunk_format import Compression
from tier2.layout_entry import LayoutEntry
from tier2.maintenance import chunk_rewriting, compaction
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.verify import verify_container
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage


def rounds(*changes: SegmentPublication) -> Publication:
    """Whatever the order of a test, its numbers never go back."""
    return round_of(*changes, highest_id=9, highest_sequence=100)


COLD = replace(SMALL, cold_seconds=0.0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


async def trickle(
    owner: TieredStorage, count: int, *, segment_id: int = 1, first: int = 0, length: int = 100
) -> bytes:
    """One small chunk in each round; returns the bytes of all rounds so far."""
    content = b"".join(bytes([number % 251]) * length for number in range(first + count))
    for number in range(first, first + count):
        await owner.publish(
            rounds(
                change(
                    segment_id,
                    f"s{segment_id}",
                    length=(number + 1) * length,
                    sequence_number=number + 1,
                    pieces=[
                        data(number * length, content[number * length : (number + 1) * length])
                    ],
                )
            )
        )
    return content


async def settle(owner: TieredStorage) -> None:
    while await owner.maintain():
        pass
    while await owner.collect_garbage():
        pass


async def chunks_of(owner: TieredStorage, segment_id: int, end: int, start: int = 0) -> int:
    blocks = await blocks_of(owner, segment_id, start, end)
    return len({(block.object_key, block.image_position) for block in blocks})


async def verified(store: FaultyStore) -> None:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    report = await verify_container(reader)
    assert report.damages == []
    assert report.orphans == []


async def test_small_chunks_of_a_growing_segment_are_joined_and_the_old_objects_go(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 30)
    assert await chunks_of(owner, 1, len(content)) == 30
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) < 6
    assert len([key for key in await keys_of(store) if "/chunks/" in key]) < 6
    assert await read_all(owner, 1, 0, len(content)) == content
    assert await read_all(await backing.claimed(2), 1, 0, len(content)) == content
    await verified(store)


async def test_a_byte_is_copied_a_few_times_only_however_long_a_segment_trickles(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = b""
    for first in range(0, 120, 3):
        content = await trickle(owner, 3, first=first, length=20)
        await owner.maintain()
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) <= 12
    assert owner.statistics().joined_bytes <= 5 * len(content)


async def test_what_is_not_worth_a_copy_stays_until_its_segment_is_cold(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 3)
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) == 3
    cold = ObjectStoreBacking(store, COLD)
    owner = await cold.claimed(2)
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) == 1
    assert await read_all(owner, 1, 0, len(content)) == content


@pytest.mark.parametrize("settings", [SMALL, COLD])
async def test_small_chunks_in_front_of_a_large_one_are_joined(
    store: FaultyStore, settings: StorageSettings
) -> None:
    owner = await ObjectStoreBacking(store, settings).claimed(1)
    content = await trickle(owner, 8) + b"x" * 3_200
    large = data(800, content[800:])
    await owner.publish(rounds(change(1, "s1", length=4_000, sequence_number=9, pieces=[large])))
    assert await chunks_of(owner, 1, len(content)) == 9
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) == 2
    assert await read_all(owner, 1, 0, len(content)) == content
    await verified(store)


@pytest.mark.parametrize("cold", [False, True])
def test_windows_in_front_of_a_large_chunk_are_found_in_a_few_steps_an_entry(cold: bool) -> None:
    count = 300
    entries = [
        LayoutEntry(start, start + 1_000, ObjectIdentity(1, 1, start), 0, 500, 0, start)
        for start in range(0, count * 1_000, 1_000)
    ]
    end = entries[-1].end_offset
    large = LayoutEntry(end, end + (30 << 20), ObjectIdentity(1, 2, 1), 0, 500, 0, end)
    with counted_lines() as lines:
        windows = compaction.windows_to_join([*entries, large], StorageSettings(), cold=cold)
    assert windows == [entries]
    assert lines.count < 20 * count


async def test_cold_chunks_are_encoded_again_and_only_once(store: FaultyStore) -> None:
    text = b"the same words again and again, " * 120
    owner = await ObjectStoreBacking(store, COLD).claimed(1)
    await owner.publish(
        rounds(change(1, "a", length=len(text), sequence_number=1, pieces=[data(0, text)]))
    )
    zstd = ObjectStoreBacking(store, replace(COLD, cold_compression=Compression.ZSTD))
    for epoch, kinds in ((2, True), (3, False)):
        owner = await zstd.claimed(epoch)
        await settle(owner)
        assert (owner.statistics().joined_chunks > 0) is kinds
        blocks = await blocks_of(owner, 1, 0, len(text))
        assert {block.compression for block in blocks} == {int(Compression.ZSTD)}
        assert await read_all(owner, 1, 0, len(text)) == text
    await verified(store)


async def test_chunks_beyond_the_size_of_a_joined_one_are_left_alone(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await ObjectStoreBacking(store, COLD).claimed(1)
    random = Random(1)
    content = b""
    for number in range(6):
        piece = random.randbytes(3000)
        content += piece
        await owner.publish(
            rounds(
                change(
                    1,
                    "a",
                    length=len(content),
                    sequence_number=number + 1,
                    pieces=[data(number * 3000, piece)],
                )
            )
        )
    before = await keys_of(store)
    await settle(owner)
    assert {key for key in before if "/chunks/" in key} <= await keys_of(store)
    assert owner.statistics().joined_chunks == 0


async def test_the_rate_bounds_what_is_joined(store: FaultyStore) -> None:
    slow = replace(SMALL, compaction_bytes_per_second=100, compaction_step_bytes=400)
    owner = await ObjectStoreBacking(store, slow).claimed(1)
    for segment_id in (1, 2, 3):
        await trickle(owner, 4, segment_id=segment_id, first=0)
    while await owner.maintain():
        pass
    assert owner.statistics().joined_bytes == 400


async def test_no_rate_is_no_compaction(store: FaultyStore) -> None:
    off = replace(COLD, compaction_bytes_per_second=0)
    owner = await ObjectStoreBacking(store, off).claimed(1)
    await trickle(owner, 8)
    await settle(owner)
    assert owner.statistics().joined_chunks == 0


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.DENIED, Fault.LATE, Fault.BEFORE])
async def test_h4_a_lost_answer_of_a_compaction_loses_no_byte(
    store: FaultyStore, backing: ObjectStoreBacking, fault: Fault
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 4)
    store.conditional.append(fault)
    try:
        while await owner.maintain():
            pass
    except StorageError:
        await store.land()
    content = await trickle(owner, 4, first=4)
    await settle(owner)
    assert await read_all(owner, 1, 0, len(content)) == content
    await verified(store)


@pytest.mark.parametrize("what", ["truncated", "deleted", "merged", "recreated"])
async def test_what_changes_while_it_is_joined_is_left_as_it_became(
    store: FaultyStore, backing: ObjectStoreBacking, what: str
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 5)
    await trickle(owner, 2, segment_id=2)
    gone = change(1, "s1", length=500, sequence_number=30, deleted=True)
    meanwhile = {
        "truncated": rounds(
            change(1, "s1", length=500, sequence_number=30, start_offset=250),
        ),
        "deleted": rounds(gone),
        "recreated": rounds(
            gone, change(3, "s1", length=3, sequence_number=31, pieces=[data(0, b"new")])
        ),
        "merged": rounds(
            gone, change(2, "s2", length=700, sequence_number=31, pieces=[merge(200, 1, 500)])
        ),
    }[what]
    published = False

    async def publish_meanwhile(key: str) -> None:
        nonlocal published
        if "/chunks/" in key and not published:
            published = True
            await owner.publish(meanwhile)

    store.before_put = publish_meanwhile
    while await owner.maintain():
        pass
    assert published
    await settle(owner)
    if what == "truncated":
        assert await read_all(owner, 1, 250, 500) == content[250:]
    elif what == "merged":
        assert await read_all(owner, 2, 200, 700) == content
    elif what == "recreated":
        assert await read_all(owner, 3, 0, 3) == b"new"
    records = await owner.load([SegmentId(1)])
    assert (SegmentId(1) in records) is (what == "truncated")
    await verified(store)


async def test_a_damaged_chunk_is_never_copied_and_holds_up_nobody_else(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 4)
    damaged = [key for key in store.put_keys if "/chunks/" in key][1]
    other = await trickle(owner, 4, segment_id=2)
    store.damage = {damaged: lambda found: found[:-1] + bytes([found[-1] ^ 1])}
    while await owner.maintain():
        pass
    assert await chunks_of(owner, 2, len(other)) == 1
    assert owner.statistics().checksum_failures > 0
    store.damage = {}
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_h76_joined_blocks_know_what_their_parts_knew(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await ObjectStoreBacking(store, COLD).claimed(1)
    length = 0
    for number in range(4):
        runs = [b"e" * 30, b"f" * 70]
        # Two publications of one time each: only these may share a block.
        said = [
            RunEvents(2 * number + row, 1000 + number // 2, 2000 + number + row) for row in range(2)
        ]
        await owner.publish(
            rounds(
                change(
                    1,
                    "a",
                    length=length + 100,
                    sequence_number=number + 1,
                    pieces=[DataPiece(length, runs, said)],
                )
            )
        )
        length += 100
    await owner.publish(
        rounds(
            change(2, "b", length=6, sequence_number=9, pieces=[data(0, b"plain!")]),
        )
    )
    moved = DataPiece(0, [b"x" * 50], [event(0)])
    await owner.publish(rounds(change(3, "c", length=50, sequence_number=9, pieces=[moved])))
    await owner.publish(
        rounds(
            change(
                1,
                "a",
                length=456,
                sequence_number=10,
                pieces=[
                    MergePiece(400, SegmentId(2), 6),
                    MergePiece(406, SegmentId(3), 50, first_event=8, begins_event=True),
                ],
            ),
            change(2, "b", length=6, sequence_number=10, deleted=True),
            change(3, "c", length=50, sequence_number=10, deleted=True),
        )
    )
    before = await blocks_of(owner, 1, 0, 456)
    await settle(owner)
    after = await blocks_of(owner, 1, 0, 456)
    assert known(after) == [
        (0, 200, 0, 0),
        (200, 200, 200, 4),
        (400, 6, None, -1),
        (406, 50, 406, 8),
    ]
    assert [(block.lowest_time_ms, block.highest_time_ms) for block in after[:2]] == [
        (1000, 2002),
        (1001, 2004),
    ]
    assert [block.lowest_time_ms for block in before[:4]] == [1000, 1000, 1001, 1001]
    await verified(store)


async def test_a_chunk_with_a_block_for_each_of_many_times_is_bounded_and_not_joined_again(
    store: FaultyStore, backing: ObjectStoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_rewriting, "JOINED_TIMES_MAX", 16)
    monkeypatch.setattr(compaction, "_FULL_CHUNK_BLOCKS", 8)
    owner = await ObjectStoreBacking(store, COLD).claimed(1)
    content = b""
    for number in range(100):
        run = b"%04d" % number * 25
        piece = DataPiece(len(content), [run], [RunEvents(number, 1000 + number, 1000 + number)])
        content += run
        await owner.publish(
            rounds(
                change(
                    1,
                    "a",
                    length=len(content),
                    sequence_number=number + 1,
                    pieces=[piece],
                )
            )
        )
    await settle(owner)
    assert 100 // 16 <= await chunks_of(owner, 1, len(content)) <= 100 // 8
    blocks = await blocks_of(owner, 1, 0, len(content))
    assert [block.lowest_time_ms for block in blocks] == list(range(1000, 1100))
    assert await read_all(owner, 1, 0, len(content)) == content
    await verified(store)


async def test_h6_a_zombie_that_slept_past_a_compaction_and_its_garbage_resurrects_nothing(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    """Its manifest is old, the chunks it names are gone: its publication is fenced and no acknowledged byte is lost."""
    zombie = await backing.claimed(1)
    await trickle(zombie, 12)
    assert await read_all(zombie, 1, 0, 1200)
    uploading, wake = asyncio.Event(), asyncio.Event()

    async def pause(key: str) -> None:
        if "/runs/" in key and not wake.is_set():
            uploading.set()
            await wake.wait()

    store.before_put = pause
    pending = rounds(
        change(1, "s1", length=1300, sequence_number=13, pieces=[data(1200, b"z" * 100)])
    )
    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(publish_fenced(zombie, pending))
        await uploading.wait()
        store.before_put = None
        old_chunks = {key for key in await keys_of(store) if "/chunks/" in key}
        owner = await backing.claimed(2)
        await trickle(owner, 1, first=12)
        await settle(owner)
        await settle(owner)
        assert len(old_chunks & await keys_of(store)) == 0, "compacted and collected"
        wake.set()
    assert isinstance(sleeper.result(), StorageNotPrimaryError)
    with pytest.raises(StorageNotPrimaryError):
        await zombie.publish(pending)
    with pytest.raises(StorageNotPrimaryError):
        await zombie.maintain()
    with pytest.raises(StorageNotPrimaryError):
        await read_all(zombie, 1, 0, 1200)
    expected = b"".join(bytes([number]) * 100 for number in range(13))
    assert await read_all(owner, 1, 0, 1300) == expected
    third = await backing.claimed(3)
    assert await read_all(third, 1, 0, 1300) == expected
    while await third.collect_garbage() or third.statistics().garbage_objects:
        pass
    await settle(third)
    await verified(store)


async def publish_fenced(zombie: TieredStorage, pending: Publication) -> BaseException | None:
    try:
        await zombie.publish(pending)
    except StorageError as error:
        return error
    return None


async def test_h8_a_reader_with_an_old_layout_follows_a_compaction(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    assert await read_all(reader, 1, 0, 100) == content[:100]
    await settle(owner)
    await settle(owner)
    assert await read_all(reader, 1, 0, len(content)) == content


async def test_when_everything_is_joined_nothing_is_asked_of_the_store(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await ObjectStoreBacking(store, COLD).claimed(1)
    await trickle(owner, 9)
    await settle(owner)
    await settle(owner)
    before = owner.statistics()
    for _ in range(20):
        assert not await owner.maintain()
        assert not await owner.collect_garbage()
    after = owner.statistics()
    assert (after.puts, after.gets) == (before.puts, before.gets)
