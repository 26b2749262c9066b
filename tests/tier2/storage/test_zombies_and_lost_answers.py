"""Former owners, lost answers and late effects: H2 to H7, on a store that misbehaves on demand."""

import asyncio

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ServiceHaltError,
    StorageError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import Epoch, SegmentId
from segmentstore.contracts.storage import Publication
from tests.contracts.storage_suite import LOG_ID, change, data, listed, merge, read_all, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.storage.root import Root, decode_root
from tier2.storage.tiered_storage import TieredStorage

ROOT_KEY = "containers/0003/root"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


def first_round(text: bytes = b"abc") -> Publication:
    return round_of(change(1, "a", length=len(text), sequence_number=1, pieces=[data(0, text)]))


def second_round() -> Publication:
    return round_of(change(1, "a", length=5, sequence_number=2, pieces=[data(3, b"de")]))


async def root_of(store: FaultyStore) -> Root:
    return decode_root((await store.store.get(ROOT_KEY)).content)


async def keys_of(store: FaultyStore) -> set[str]:
    return {info.key async for info in store.store.list("containers/")}


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.DENIED])
async def test_h4_a_lost_answer_of_the_root_update_is_read_back_as_success(
    store: FaultyStore, backing: ObjectStoreBacking, fault: Fault
) -> None:
    owner = await backing.claimed(1)
    store.conditional.append(fault)
    await owner.publish(first_round())
    assert await read_all(owner, 1, 0, 3) == b"abc"
    await owner.publish(second_round())
    assert await read_all(await backing.claimed(2), 1, 0, 5) == b"abcde"


async def test_h4_a_root_update_that_did_not_happen_is_handed_in_again(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    publication = first_round()
    store.conditional.append(Fault.BEFORE)
    with pytest.raises(StorageError, match="unknown"):
        await owner.publish(publication)
    assert await owner.find("a") is None
    version = (await root_of(store)).version
    await owner.publish(publication)
    assert (await root_of(store)).version == version + 1
    assert await read_all(owner, 1, 0, 3) == b"abc"


@pytest.mark.parametrize("lands", ["before the retry", "during the retry"])
async def test_h4_a_root_update_that_lands_late_is_published_once(
    store: FaultyStore, backing: ObjectStoreBacking, lands: str
) -> None:
    owner = await backing.claimed(1)
    store.conditional.append(Fault.LATE)
    with pytest.raises(StorageError, match="unknown"):
        await owner.publish(first_round())
    version = (await root_of(store)).version
    if lands == "before the retry":
        await store.land()
    else:
        store.before_conditional = store.land
    await owner.publish(first_round())
    assert (await root_of(store)).version == version + 1
    await owner.publish(second_round())
    assert await read_all(await backing.claimed(2), 1, 0, 5) == b"abcde"


async def test_h4_a_late_update_under_an_unreadable_root_is_settled_by_the_next_call(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    store.conditional.append(Fault.AFTER)
    store.reads.append(Fault.BEFORE)
    with pytest.raises(StorageError):
        await owner.publish(first_round())
    assert not await owner.maintain()
    assert await read_all(owner, 1, 0, 3) == b"abc"
    version = (await root_of(store)).version
    await owner.publish(first_round())
    assert (await root_of(store)).version == version, "published twice"


async def test_h4_a_cancelled_publication_that_landed_is_recognised(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    store.before_conditional = hang
    task = asyncio.create_task(owner.publish(first_round()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.before_conditional = None
    await owner.publish(first_round())
    await owner.publish(second_round())
    assert await read_all(owner, 1, 0, 5) == b"abcde"


async def test_h4_a_foreign_writer_of_the_same_epoch_halts_the_owner(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    current = await store.get(ROOT_KEY)
    foreign = decode_root(current.content).successor(nonce=b"\x77" * 16, runs=())
    await store.store.put_if_match(ROOT_KEY, foreign.encode(), current.tag)
    with pytest.raises(ServiceHaltError, match="somebody else"):
        await owner.publish(first_round())
    with pytest.raises(ServiceHaltError):
        await owner.publish(first_round())
    with pytest.raises(ServiceHaltError):
        await owner.collect_garbage()


async def test_h4_a_store_in_which_two_racing_writers_win_is_refused() -> None:
    class TwoWinners(FaultyStore):
        async def put_if_match(self, key: str, content: object, tag: str) -> str:
            return "always"

    backing = ObjectStoreBacking(TwoWinners(MemoryObjectStore()))
    with pytest.raises(InvalidRequestError, match="cannot hold a root"):
        await backing.claimed(1)


async def test_h4_the_probe_leaves_nothing_behind(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    await backing.claimed(1)
    assert await keys_of(store) == {ROOT_KEY}


async def test_h41_a_claim_without_an_answer_may_be_made_again(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = backing.make()
    store.reads.append(Fault.BEFORE)
    with pytest.raises(StorageError):
        await owner.claim(epoch=Epoch(1), log_id=LOG_ID)
    claimed = await owner.claim(epoch=Epoch(1), log_id=LOG_ID)
    assert claimed.created


async def test_h7_a_claim_that_landed_late_is_still_ours(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    await (await backing.claimed(1)).publish(first_round())
    owner = backing.make()
    store.conditional.append(Fault.LATE)
    with pytest.raises(StorageError, match="unknown"):
        await owner.claim(epoch=Epoch(2), log_id=LOG_ID)
    await store.land()
    claimed = await owner.claim(epoch=Epoch(2), log_id=LOG_ID)
    assert (claimed.epoch, claimed.created) == (2, False)
    assert await read_all(owner, 1, 0, 3) == b"abc"


async def test_h3_a_deleted_segment_is_not_resurrected_by_a_zombie(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    zombie = await backing.claimed(1)
    await zombie.publish(first_round())
    store.conditional.append(Fault.LATE)
    with pytest.raises(StorageError):
        await zombie.publish(second_round())
    owner = await backing.claimed(2)
    await owner.publish(round_of(change(1, "a", length=3, sequence_number=3, deleted=True)))
    for _ in range(3):
        await owner.collect_garbage()
    await store.land()
    with pytest.raises(StorageNotPrimaryError):
        await zombie.publish(second_round())
    assert await owner.find("a") is None
    assert await listed(await backing.claimed(3)) == []


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


async def test_h6_dropped_chunks_stay_for_the_grace_and_then_go(store: FaultyStore) -> None:
    from dataclasses import replace

    backing = ObjectStoreBacking(store, replace(SMALL, garbage_grace_seconds=0.05))
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    (chunk,) = {key for key in store.put_keys if "/chunks/" in key}
    await owner.publish(round_of(change(1, "a", length=3, sequence_number=2, deleted=True)))
    assert await owner.collect_garbage() == 0
    assert owner.statistics().garbage_objects == 1
    assert chunk in await keys_of(store)
    await asyncio.sleep(0.06)
    assert await owner.collect_garbage() == 1
    assert chunk not in await keys_of(store)
    assert owner.statistics().garbage_objects == 0
    assert await owner.collect_garbage() == 0


async def test_h6_a_restart_begins_the_grace_anew(store: FaultyStore) -> None:
    from dataclasses import replace

    backing = ObjectStoreBacking(store, replace(SMALL, garbage_grace_seconds=0.05))
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    await owner.publish(round_of(change(1, "a", length=3, sequence_number=2, deleted=True)))
    await owner.collect_garbage()
    await asyncio.sleep(0.06)
    successor = await backing.claimed(2)
    assert await successor.collect_garbage() == 0
    await asyncio.sleep(0.06)
    assert await successor.collect_garbage() == 1


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


async def test_h8_a_reader_over_a_swap_resolves_again(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    for number in range(1, 4):
        await owner.publish(
            round_of(
                change(
                    1, "a", length=number, sequence_number=number, pieces=[data(number - 1, b"x")]
                )
            )
        )
    stale = owner.view
    assert await owner.maintain()
    while await owner.collect_garbage():
        pass
    missing = [key for key in store.deleted if "/runs/" in key]
    assert missing
    assert stale.root.version < owner.view.root.version
    assert (await owner.load([SegmentId(1)]))[SegmentId(1)].length == 3
    assert await read_all(owner, 1, 0, 3) == b"xxx"


async def test_h8_a_fenced_owner_takes_objects_that_its_successor_deleted_for_no_damage(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    zombie = await backing.claimed(1)
    await zombie.publish(first_round())
    await backing.claimed(2)
    for key in sorted(await keys_of(store)):
        if key != ROOT_KEY:
            await store.store.delete(key)
    zombie._segments.forget_everything()
    zombie._components.check()
    with pytest.raises(StorageNotPrimaryError):
        await zombie.find("nobody asked for this before")


async def test_a_full_store_that_was_never_claimed_is_unavailable(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    store.conditional.extend([Fault.FULL] * 100)
    with pytest.raises(StorageError):
        await backing.claimed(1)
    store.conditional.clear()
    await backing.claimed(1)
