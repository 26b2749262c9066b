"""What is lost of a container's Tier 2, and what is left: without its owner, from listings and the runs."""

from collections.abc import AsyncGenerator
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import ContainerId, Epoch
from segmentstore.contracts.object_store import ObjectInfo
from tests.contracts.storage_publications import LOG_ID, change, data, merge, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import ROOT_KEY, first_round, keys_of, second_round
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline import lost_data
from tier2.offline.lost_data import (
    LostRange,
    find_lost_chunks,
    find_remains,
    find_snapshots_without_manifest,
)
from tier2.offline.verify import verify_container
from tier2.store_reader import ContainerReader

BIG = bytes(range(256)) * 8


class StaleStore(FaultyStore):
    """Lists nothing of what it is told to hide; `sizes_asked` are the keys asked for by name."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.hidden: set[str] = set()
        self.sizes_asked: list[str] = []

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        async for info in self.store.list(prefix):
            if info.key not in self.hidden:
                yield info

    async def size(self, key: str) -> int:
        self.sizes_asked.append(key)
        return await super().size(key)


@pytest.fixture
def store() -> StaleStore:
    return StaleStore()


@pytest.fixture
def backing(store: StaleStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


async def reader_of(store: FaultyStore) -> ContainerReader:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    return reader


async def chunk_keys(store: FaultyStore) -> list[str]:
    return sorted(key for key in await keys_of(store) if "/chunks/" in key)


async def fill(backing: ObjectStoreBacking) -> None:
    """Segment 1: two objects, the head cut off in the first. 2 has taken in 3, whose bytes lie in 1's second."""
    owner = await backing.claimed(1)
    await owner.publish(
        round_of(change(1, "a", length=2048, sequence_number=1, pieces=[data(0, BIG)]))
    )
    await owner.publish(
        round_of(
            change(1, "a", length=2051, sequence_number=2, pieces=[data(2048, b"end")]),
            change(2, "b", length=2, sequence_number=3, pieces=[data(0, b"bb")]),
            change(3, "c", length=4, sequence_number=4, pieces=[data(0, b"cccc")]),
        )
    )
    await owner.publish(
        round_of(
            change(1, "a", length=2051, sequence_number=5, start_offset=100),
            change(2, "b", length=6, sequence_number=6, pieces=[merge(2, 3, 4)]),
            change(3, "c", length=4, sequence_number=6, deleted=True),
            highest_id=3,
        )
    )


async def test_h8_ranges_whose_objects_are_gone_are_named_from_a_listing_alone(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    await fill(backing)
    first, second = await chunk_keys(store)
    sound = await find_lost_chunks(await reader_of(store))
    assert (sound.range_count, sound.ranges, store.sizes_asked) == (0, [], [])
    content = await store.store.get(second)
    await store.store.delete(second)
    lost = await find_lost_chunks(await reader_of(store))
    assert lost.ranges == [
        LostRange("a", 2048, 2051, second),
        LostRange("b", 0, 2, second),
        LostRange("b", 2, 6, second),
    ]
    assert (lost.range_count, lost.segment_count, lost.byte_count) == (3, 2, 9)
    assert set(store.sizes_asked) == {second}
    await store.store.put(second, [content.content])
    await store.store.delete(first)
    lost = await find_lost_chunks(await reader_of(store))
    assert lost.ranges == [LostRange("a", 100, 2048, first)]


async def test_an_object_that_ends_inside_an_image_has_lost_that_image(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    await fill(backing)
    _, second = await chunk_keys(store)
    content = (await store.store.get(second)).content
    await store.store.delete(second)
    await store.store.put(second, [content[:-1]])
    lost = await find_lost_chunks(await reader_of(store))
    assert [str(each) for each in lost.ranges] == [f"b [2, 6) in {second}"]


async def test_h3_what_a_stale_listing_does_not_show_is_not_lost(
    store: StaleStore, backing: ObjectStoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(backing)
    first, second = await chunk_keys(store)
    store.hidden = {first, second}
    assert (await find_lost_chunks(await reader_of(store))).range_count == 0
    assert store.sizes_asked == [first, second]
    monkeypatch.setattr(lost_data, "LOOKS_MAX", 1)
    await store.store.delete(first)
    lost = await find_lost_chunks(await reader_of(store))
    assert lost.segment_count == 2, "one is gone by name, the other by the listing"


async def test_h8_what_the_root_no_longer_names_is_not_lost_and_a_lost_run_is_damage(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    await fill(backing)
    first, _ = await chunk_keys(store)
    old = await reader_of(store)
    owner = await backing.claimed(2)
    await owner.publish(
        round_of(change(1, "a", length=2051, sequence_number=7, start_offset=2048), highest_id=3)
    )
    await store.store.delete(first)
    assert (await find_lost_chunks(old)).range_count == 0
    for part in (part for sst in old.manifest.ssts for part in sst):
        await store.store.delete(f"containers/0003/runs/{part.identity}")
    with pytest.raises(CorruptedDataError, match="container=3"):
        await find_lost_chunks(await reader_of(store))


async def test_h7_no_container_begins_anew_among_the_objects_of_one_whose_root_is_gone(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    left = await keys_of(store) - {ROOT_KEY}
    await store.store.delete(ROOT_KEY)
    for epoch in (1, 2, 57):
        with pytest.raises(CorruptedDataError, match="the manifest is gone"):
            await backing.claimed(epoch)
    assert await keys_of(store) == left


async def test_h7_a_root_that_appears_beside_its_objects_while_they_are_listed_is_taken_over(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    manifest = (await store.store.get(ROOT_KEY)).content
    await store.store.delete(ROOT_KEY)
    listed = store.store.list

    async def appears(prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        await store.store.put_if_absent(ROOT_KEY, manifest)
        async for info in listed(prefix):
            yield info

    store.list = appears  # type: ignore[method-assign]
    claimed = await backing.new_owner().claim(epoch=Epoch(2), log_id=LOG_ID)
    assert not claimed.created
    assert claimed.epoch == 2


@pytest.mark.parametrize("merged", [False, True])
async def test_h6_pins_are_found_in_the_runs_when_the_root_is_gone(
    store: StaleStore, backing: ObjectStoreBacking, merged: bool
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    monday = await owner.create_snapshot("monday")
    await owner.publish(second_round())
    await owner.create_snapshot("tuesday")
    await owner.create_snapshot("dropped")
    await owner.delete_snapshot("dropped")
    if merged:
        for number in range(3, 12):
            await owner.publish(
                round_of(change(1, "a", length=5, sequence_number=number), highest_id=1)
            )
            await owner.maintain()
            await owner.collect_garbage()
    keys = await keys_of(store)
    await store.store.delete(ROOT_KEY)
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    pins = await find_snapshots_without_manifest(reader.components)
    assert [pin.name for pin in pins] == ["monday", "tuesday"]
    assert pins[0].manifest.version == monday.version
    remains = await find_remains(reader.components)
    assert remains.object_count == len(keys) - 1
    assert remains.highest_epoch == 1


@pytest.mark.parametrize("seed", range(4))
async def test_h6_of_a_name_that_was_pinned_again_the_newest_pin_is_found_without_a_root(
    store: StaleStore, backing: ObjectStoreBacking, seed: int
) -> None:
    """Merges give old entries new identities."""
    random = Random(seed)
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    kept = await owner.create_snapshot("nightly")
    for number in range(2, 50):
        match random.choice(
            ["publish", "publish", "publish", "merge", "collect", "again", "prove"]
        ):
            case "publish":
                some = range(100 * number, 100 * number + 30)
                await owner.publish(
                    round_of(
                        *(change(at, f"{at}", length=0, sequence_number=number) for at in some),
                        highest_id=10_000,
                    )
                )
            case "merge":
                await owner.maintain()
            case "collect":
                await owner.collect_garbage()
            case "prove":
                assert await owner.prove_snapshot("nightly", kept.version)
                (kept,) = await owner.snapshots()
                assert kept.is_proved
            case _:
                await owner.delete_snapshot("nightly")
                kept = await owner.create_snapshot("nightly", is_proved=False)
        reader = ContainerReader(
            object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
        )
        found = await find_snapshots_without_manifest(reader.components)
        assert [pin.described() for pin in found] == [kept]


async def test_damaged_runs_are_passed_over_in_the_search_for_pins(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    await owner.create_snapshot("monday")
    await owner.publish(second_round())
    await owner.create_snapshot("tuesday")
    reader = await reader_of(store)
    newest = f"containers/0003/runs/{reader.manifest.ssts[0][0].identity}"
    content = (await store.store.get(newest)).content
    names: set[tuple[str, ...]] = set()
    for at in range(len(content)):
        await store.store.delete(newest)
        await store.store.put(newest, [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]])
        reader = ContainerReader(
            object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
        )
        names.add(
            tuple(pin.name for pin in await find_snapshots_without_manifest(reader.components))
        )
    # A flip in the part of the header or filter that nobody asks is not noticed, which is no harm here.
    assert names <= {("monday",), ("monday", "tuesday")}
    for length in (0, 1, 31, 40):
        await store.store.delete(newest)
        await store.store.put(newest, [content[:length]])
        assert [pin.name for pin in await find_snapshots_without_manifest(reader.components)] == [
            "monday"
        ]


async def test_h7_a_root_that_is_older_than_its_objects_is_found_by_their_epochs(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    old = (await store.store.get(ROOT_KEY)).content
    second = await backing.claimed(5)
    await second.publish(second_round())
    assert (await find_lost_chunks(await reader_of(store))).is_sound
    await store.store.delete(ROOT_KEY)
    await store.store.put(ROOT_KEY, [old])
    lost = await find_lost_chunks(await reader_of(store))
    assert (lost.newer_count, lost.highest_epoch, lost.range_count) == (2, 5, 0)
    assert not lost.is_sound
    report = await verify_container(await reader_of(store))
    assert report.damage_count == 1
    assert "manifest is older than 2 objects" in report.damages[0]


async def test_objects_that_were_uploaded_and_not_published_are_counted_and_are_no_loss(
    store: StaleStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(2)
    await owner.publish(first_round())
    await owner.publish(
        round_of(change(1, "a", length=3, sequence_number=2, start_offset=3), highest_id=1)
    )
    for key, content in {
        "chunks/0000000000000002-00000001-0000000000000777": b"unpublished",
        "runs/0000000000000002-00000001-0000000000000778": b"as well",
        "chunks/0000000000000001-00000001-0000000000000777": b"an older owner's orphan",
        "stranger": b"somebody's",
    }.items():
        await store.store.put(f"containers/0003/{key}", [content])
    found = await find_lost_chunks(await reader_of(store))
    assert found.is_sound
    assert (found.unpublished_count, found.unpublished_bytes) == (2, len(b"unpublishedas well"))
    assert found.highest_epoch == 2
