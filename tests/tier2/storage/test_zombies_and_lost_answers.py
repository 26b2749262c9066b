"""Former owners, lost answers and late effects: H3, H4, H7, H8, on a store that misbehaves on demand."""

import asyncio

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ServiceHaltError,
    StorageError,
    StorageNotPrimaryError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView, Epoch, SegmentId
from segmentstore.contracts.object_store import VersionedObject
from segmentstore.contracts.storage import Publication, SegmentPublication
from tests.contracts.storage_publications import (
    LOG_ID,
    change,
    data,
    listed,
    read_all,
    round_of,
)
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.small_rounds import ROOT_KEY, first_round, keys_of, root_of, second_round
from tier2.manifest.manifest import decode_manifest
from tier2.object_stores.memory import MemoryObjectStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


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


ONE_ATTRIBUTE = AttributeKey(b"one")


def with_attribute(
    value: int, *, sealed: bool = False, deleted: bool = False
) -> SegmentPublication:
    return change(
        1,
        "a",
        length=3,
        sequence_number=2,
        attributes={ONE_ATTRIBUTE: value},
        sealed=sealed,
        deleted=deleted,
    )


def an_empty_one() -> SegmentPublication:
    return change(2, "b", length=0, sequence_number=2, attributes={ONE_ATTRIBUTE: 1})


@pytest.mark.parametrize(
    "other",
    [
        round_of(with_attribute(6), highest_id=2),
        round_of(with_attribute(5, sealed=True), highest_id=2),
        round_of(with_attribute(5, deleted=True), highest_id=2),
        round_of(with_attribute(5), an_empty_one()),
        round_of(with_attribute(5), highest_id=2, highest_sequence=7),
        round_of(with_attribute(5), highest_id=3),
    ],
    ids=["attribute", "record", "deleted", "one segment more", "sequence number", "segment id"],
)
async def test_h4_another_publication_than_the_one_that_landed_late_is_published(
    store: FaultyStore, backing: ObjectStoreBacking, other: Publication
) -> None:
    """All else of it is what landed: taken for that one it would be lost."""
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    store.conditional.append(Fault.AFTER)
    store.reads.append(Fault.BEFORE)
    with pytest.raises(StorageError):
        await owner.publish(round_of(with_attribute(5), highest_id=2))
    await owner.publish(other)
    root = await root_of(store)
    assert root.highest_segment_id == other.highest_segment_id
    assert root.highest_sequence_number == other.highest_sequence_number
    after = await backing.claimed(2)
    for each in other.segments:
        assert await after.find(each.record.name) == (None if each.deleted else each.record)
        if not each.deleted and each.attributes:
            found = await after.load_attributes(each.record.segment_id, [ONE_ATTRIBUTE])
            assert found == each.attributes


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
    foreign = decode_manifest(current.content).successor(nonce=b"\x77" * 16, ssts=())
    await store.store.put_if_match(ROOT_KEY, foreign.encode(), current.tag)
    with pytest.raises(ServiceHaltError, match="another process"):
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
    with pytest.raises(InvalidRequestError, match="cannot hold Tier 2"):
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


def test_h41_a_claim_whose_answers_do_not_come_ends_in_time_and_what_it_sent_is_ours() -> None:
    class SilentStore(FaultyStore):
        """What is asked is done, and not answered, while `is_silent`."""

        is_silent = False

        async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
            found = await super().put_if_match(key, content, tag)
            if self.is_silent:
                await asyncio.Event().wait()
            return found

        async def get(self, key: str) -> VersionedObject:
            found = await super().get(key)
            if self.is_silent and found.content == claimed_by_other:
                return found
            if self.is_silent:
                await asyncio.Event().wait()
            return found

    claimed_by_other = b""

    async def main(loop: SimLoop) -> None:
        nonlocal claimed_by_other
        store = SilentStore(MemoryObjectStore())
        backing = ObjectStoreBacking(store, SMALL)
        await (await backing.claimed(1)).publish(first_round())
        claimed_by_other = (await store.get(ROOT_KEY)).content
        owner = backing.make()
        store.is_silent = True
        for _ in range(2):
            began = loop.time()
            with pytest.raises(StorageUnavailableError, match=r"not claimed in time"):
                await owner.claim(epoch=Epoch(2), log_id=LOG_ID)
            assert loop.time() - began == pytest.approx(SMALL.claim_seconds_max)
        store.is_silent = False
        claimed = await owner.claim(epoch=Epoch(2), log_id=LOG_ID)
        assert (claimed.epoch, claimed.created) == (2, False)
        assert await read_all(owner, 1, 0, 3) == b"abc"

    run_simulation(1, main)


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
    assert stale.manifest.version < owner.view.manifest.version
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
    zombie.forget_everything()
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
