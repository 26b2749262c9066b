"""Objects that nobody names any more, and those that are mostly dead: H2, H5, H6, H12."""

import asyncio
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import (
    StorageError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import Epoch
from tests.contracts.storage_publications import (
    LOG_ID,
    change,
    data,
    merge,
    read_all,
    round_of,
)
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.small_rounds import ROOT_KEY, first_round, keys_of, second_round
from tier2.object_stores.memory import MemoryObjectStore
from tier2.tiered_storage import TieredStorage

WITH_GRACE = replace(SMALL, garbage_grace_seconds=30.0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


async def test_h5_objects_of_an_unfinished_publication_outlive_every_collection(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    store.conditional.extend([Fault.LATE] * 4)
    with pytest.raises(StorageError):
        await owner.publish(second_round())
    uploaded = [key for key in store.put_keys if key != ROOT_KEY]
    for _ in range(3):
        with pytest.raises(StorageError):
            await owner.maintain()
    assert store.deleted == [key for key in store.deleted if "probe" in key]
    await store.land()
    await owner.publish(second_round())
    for _ in range(3):
        await owner.collect_garbage()
    assert set(uploaded) <= await keys_of(store)
    assert await read_all(owner, 1, 0, 5) == b"abcde"


async def test_h5_what_a_failed_publication_uploaded_is_collected_in_the_end(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    store.plain.extend([Fault.NONE] + [Fault.BEFORE] * SMALL.put_attempts_max)
    with pytest.raises(StorageError):
        await owner.publish(first_round())
    (orphan,) = {key for key in store.put_keys if "/chunks/" in key}
    await owner.publish(first_round())
    assert orphan in await keys_of(store)
    assert await owner.collect_garbage() >= 1
    assert orphan not in await keys_of(store)
    assert await read_all(owner, 1, 0, 3) == b"abc"


async def test_h5_the_next_owner_sweeps_orphans_of_lower_epochs_only(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    zombie = await backing.claimed(1)
    await zombie.publish(first_round())
    store.plain.extend([Fault.NONE] + [Fault.BEFORE] * SMALL.put_attempts_max)
    with pytest.raises(StorageError):
        await zombie.publish(second_round())
    orphan = [key for key in store.put_keys if "/chunks/" in key][-1]
    higher = "containers/0003/chunks/0000000000000009-00000001-0000000000000001"
    own = "containers/0003/chunks/0000000000000002-ffffffff-0000000000000001"
    await store.store.put(higher, [b"from a later owner"])
    await store.store.put(own, [b"being uploaded"])
    owner = await backing.claimed(2)
    while await owner.collect_garbage() or owner.statistics().garbage_objects:
        pass
    keys = await keys_of(store)
    assert orphan not in keys
    assert {higher, own} <= keys
    assert await read_all(owner, 1, 0, 3) == b"abc"


def test_h5_orphans_are_found_beside_publications_merges_and_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More keys than are held at once; SSTs that the sweep looks into are deleted as soon as they are merged."""
    monkeypatch.setattr("tier2.manifest.garbage._SWEPT_KEYS_MAX", 24)

    async def main(_: SimLoop) -> None:
        store = FaultyStore(MemoryObjectStore())
        backing = ObjectStoreBacking(store, SMALL)
        texts = {number: bytes([number]) * 1500 for number in range(1, 21)}
        first = await backing.claimed(1)
        for number, text in texts.items():
            added = change(number, f"s{number}", length=1500, sequence_number=number)
            await first.publish(round_of(replace(added, pieces=[data(0, text)])))
        orphans = {
            f"containers/0003/{folder}/0000000000000001-{claim}-{serial:016x}"
            for folder in ("runs", "chunks")
            for claim in ("00000000", "ffffffff")
            for serial in range(25)
        }
        for key in orphans:
            await store.store.put(key, [b"never published"])
        owner = await backing.claimed(2)
        sweep = asyncio.create_task(owner.sweep_orphans())
        sequence_number = 100
        while not sweep.done():
            for number in (1, 2, 3):
                sequence_number += 1
                length = len(texts[number])
                appended = change(
                    number, f"s{number}", length=length + 3, sequence_number=sequence_number
                )
                appended = replace(appended, pieces=[data(length, b"abc")])
                await owner.publish(round_of(appended, highest_id=20))
                texts[number] += b"abc"
            await owner.maintain()
            await owner.collect_garbage()
            await asyncio.sleep(0.05)
        await sweep
        while await owner.collect_garbage() or owner.statistics().garbage_objects:
            pass
        assert not orphans & await keys_of(store)
        for number, text in texts.items():
            assert await read_all(owner, number, 0, len(text)) == text

    run_simulation(1, main)


def test_h6_dropped_chunks_stay_for_the_grace_and_then_go() -> None:
    async def main(_loop: SimLoop) -> None:
        store = FaultyStore(MemoryObjectStore())
        owner = await ObjectStoreBacking(store, WITH_GRACE).claimed(1)
        await owner.publish(first_round())
        (chunk,) = {key for key in store.put_keys if "/chunks/" in key}
        await owner.publish(round_of(change(1, "a", length=3, sequence_number=2, deleted=True)))
        for _ in range(2):
            assert await owner.collect_garbage() == 0
            assert owner.statistics().garbage_objects == 1
            assert chunk in await keys_of(store)
            await asyncio.sleep(0.6 * WITH_GRACE.garbage_grace_seconds)
        assert await owner.collect_garbage() == 1
        assert chunk not in await keys_of(store)
        assert owner.statistics().garbage_objects == 0
        assert await owner.collect_garbage() == 0

    run_simulation(1, main)


def test_h6_a_restart_begins_the_grace_anew() -> None:
    async def main(_: SimLoop) -> None:
        backing = ObjectStoreBacking(FaultyStore(MemoryObjectStore()), WITH_GRACE)
        owner = await backing.claimed(1)
        await owner.publish(first_round())
        await owner.publish(round_of(change(1, "a", length=3, sequence_number=2, deleted=True)))
        await owner.collect_garbage()
        await asyncio.sleep(1.2 * WITH_GRACE.garbage_grace_seconds)
        successor = await backing.claimed(2)
        assert await successor.collect_garbage() == 0
        await asyncio.sleep(1.2 * WITH_GRACE.garbage_grace_seconds)
        assert await successor.collect_garbage() == 1

    run_simulation(1, main)


async def test_h6_a_zombie_deletes_nothing(store: FaultyStore, backing: ObjectStoreBacking) -> None:
    zombie = await backing.claimed(1)
    await zombie.publish(first_round())
    await zombie.publish(round_of(change(1, "a", length=3, sequence_number=2, deleted=True)))
    await backing.claimed(2)
    before = list(store.deleted)
    with pytest.raises(StorageNotPrimaryError):
        await zombie.collect_garbage()
    assert store.deleted == before


async def test_h2_no_key_is_ever_put_twice_with_other_bytes(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    store.plain.extend([Fault.AFTER, Fault.LATE, Fault.NONE, Fault.BEFORE])
    publication = first_round()
    for _ in range(3):
        try:
            await owner.publish(publication)
            break
        except StorageError:
            continue
    await store.land()  # MemoryObjectStore refuses other bytes under a key that exists
    assert await read_all(owner, 1, 0, 3) == b"abc"
    await owner.publish(second_round())
    assert await read_all(owner, 1, 0, 5) == b"abcde"


async def test_h12_a_packed_object_lives_until_its_last_segment_goes(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(
        round_of(
            *(
                change(n, f"s{n}", length=2, sequence_number=n, pieces=[data(0, bytes([n] * 2))])
                for n in range(1, 9)
            )
        )
    )
    (pack,) = {key for key in store.put_keys if "/chunks/" in key}
    await owner.publish(
        round_of(
            change(8, "s8", length=4, sequence_number=9, pieces=[merge(2, 7, 2)]),
            change(7, "s7", length=2, sequence_number=9, deleted=True),
        )
    )
    gone = {7}
    for number in (1, 2, 3, 4, 5, 6):
        await owner.publish(
            round_of(
                change(number, f"s{number}", length=2, sequence_number=10 + number, deleted=True),
                highest_id=8,
            )
        )
        gone.add(number)
        await owner.collect_garbage()
        await owner.maintain()
        assert pack in await keys_of(store)
        for other in set(range(1, 9)) - gone:
            assert (await read_all(owner, other, 0, 2)) == bytes([other] * 2)
    assert await read_all(owner, 8, 0, 4) == bytes([8, 8, 7, 7])
    await owner.publish(round_of(change(8, "s8", length=4, sequence_number=20, deleted=True)))
    await owner.collect_garbage()
    assert pack not in await keys_of(store)


async def thinned_pack(owner: TieredStorage, store: FaultyStore) -> str:
    """Sixteen segments in one object, of which three are left; their bytes were read, so their places are cached."""
    await owner.publish(
        round_of(
            *(
                change(n, f"s{n}", length=2, sequence_number=n, pieces=[data(0, bytes([n] * 2))])
                for n in range(1, 17)
            )
        )
    )
    (pack,) = {key for key in store.put_keys if "/chunks/" in key}
    for n in (2, 9, 16):
        await read_all(owner, n, 0, 2)
    await owner.publish(
        round_of(
            *(
                change(n, f"s{n}", length=2, sequence_number=20, deleted=True)
                for n in range(1, 17)
                if n not in (2, 9, 16)
            ),
            highest_id=16,
        )
    )
    return pack


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.AFTER, Fault.LATE])
async def test_h12_a_packed_object_that_is_mostly_dead_is_unpacked(
    store: FaultyStore, backing: ObjectStoreBacking, fault: Fault
) -> None:
    owner = await backing.claimed(1)
    pack = await thinned_pack(owner, store)
    store.conditional.append(fault)
    if fault is Fault.LATE:
        with pytest.raises(StorageError):
            await owner.maintain()
        await store.land()
    while await owner.maintain():
        pass
    while await owner.collect_garbage():
        pass
    assert pack not in await keys_of(store)
    for reader in (owner, await backing.claimed(2)):
        for n in (2, 9, 16):
            assert await read_all(reader, n, 0, 2) == bytes([n] * 2)


async def test_h12_what_changes_while_it_is_copied_is_not_moved(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    pack = await thinned_pack(owner, store)
    meanwhile = round_of(
        change(2, "s2", length=4, sequence_number=21, pieces=[merge(2, 9, 2)]),
        change(9, "s9", length=2, sequence_number=21, deleted=True),
        highest_id=16,
    )
    published = False

    async def publish_meanwhile(key: str) -> None:
        nonlocal published
        if "/chunks/" in key and not published:
            published = True
            await owner.publish(meanwhile)

    store.before_put = publish_meanwhile
    assert await owner.maintain()
    assert published
    while await owner.collect_garbage():
        pass
    assert pack in await keys_of(store), "the merged segment still lies in it"
    assert await read_all(owner, 2, 0, 4) == bytes([2, 2, 9, 9])
    assert await read_all(owner, 16, 0, 2) == bytes([16] * 2)
    while await owner.maintain():
        pass
    while await owner.collect_garbage():
        pass
    assert pack not in await keys_of(store)
    assert await read_all(owner, 2, 0, 4) == bytes([2, 2, 9, 9])
    await owner.publish(
        round_of(
            change(2, "s2", length=4, sequence_number=22, deleted=True),
            change(16, "s16", length=2, sequence_number=22, deleted=True),
        )
    )
    while await owner.collect_garbage():
        pass
    left = [key for key in await keys_of(store) if "/chunks/" in key]
    assert not left, "the copy is named for what went while it was made"


async def test_h12_a_damaged_image_is_never_copied(
    store: FaultyStore, backing: ObjectStoreBacking, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await backing.claimed(1)
    pack = await thinned_pack(owner, store)
    store.damage = {pack: lambda found: found[:-1] + bytes([found[-1] ^ 1])}
    while await owner.maintain():
        pass
    while await owner.collect_garbage():
        pass
    assert pack in await keys_of(store)
    assert owner.statistics().checksum_failures == 1


@pytest.mark.parametrize("grace_seconds", [0.0, 3600.0])
async def test_what_races_for_the_first_root_left_behind_goes_when_its_grace_is_over(
    store: FaultyStore, grace_seconds: float
) -> None:
    settings = replace(SMALL, garbage_grace_seconds=grace_seconds)
    storage = ObjectStoreBacking(store, settings).make()
    store.conditional.extend([Fault.AFTER] * 4)
    with pytest.raises(StorageError):
        await storage.claim(epoch=Epoch(1), log_id=LOG_ID)
    left = {key for key in await keys_of(store) if "probe-" in key}
    assert left
    await storage.claim(epoch=Epoch(1), log_id=LOG_ID)
    await storage.collect_garbage()
    await storage.collect_garbage()
    assert {key for key in await keys_of(store) if "probe-" in key} == (
        left if grace_seconds else set()
    )
