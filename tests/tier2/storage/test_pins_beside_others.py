"""Pins that are made while something else works on the manifest: H4 and H6 for backups."""

import asyncio

import pytest

from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import Epoch
from tests.contracts.storage_publications import LOG_ID, read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.small_rounds import first_round, second_round
from tests.tier2.storage.test_compaction import settle, trickle
from tests.tier2.storage.test_pins import drop_everything, pins_of, restore
from tier2.object_stores.memory import MemoryObjectStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


async def require_whole(store: FaultyStore, content: bytes) -> None:
    """What is pinned can still be copied, and holds the bytes of the moment."""
    (pin,) = await pins_of(store)
    target, report = await restore(store, pin)
    assert report.missing == []
    again = ObjectStoreBacking(target, SMALL).make()
    await again.claim(epoch=Epoch(9), log_id=LOG_ID)
    assert await read_all(again, 1, 0, len(content)) == content


async def test_h6_runs_that_a_merge_replaced_behind_a_pin_made_meanwhile_stay(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 3)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hold(key: str) -> None:
        if "/runs/" in key and not began.is_set():
            began.set()
            await go_on.wait()

    store.before_put = hold
    merging = asyncio.create_task(owner.maintain())
    await began.wait()
    content = await trickle(owner, 2, first=3)
    await owner.create_snapshot("monday")
    go_on.set()
    assert await merging
    await settle(owner)
    await drop_everything(owner)
    await require_whole(store, content)


async def test_h6_a_pin_that_landed_late_is_known_to_who_collects_garbage(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    store.conditional.append(Fault.LATE)
    with pytest.raises(StorageError):
        await owner.create_snapshot("monday")
    assert await owner.snapshots() == []
    await store.land()
    await drop_everything(owner)
    assert [pin.name for pin in await owner.snapshots()] == ["monday"]
    await require_whole(store, content)


async def test_h6_pins_read_while_one_was_made_are_not_taken_for_all(
    store: FaultyStore, backing: ObjectStoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    asked, go_on = asyncio.Event(), asyncio.Event()
    get_range = store.get_range

    async def slow(key: str, start: int, length: int) -> bytes:
        if "/runs/" in key and asyncio.current_task() is asking:
            asked.set()
            await go_on.wait()
        return await get_range(key, start, length)

    monkeypatch.setattr(store, "get_range", slow)
    asking = asyncio.create_task(owner.snapshots())
    async with asyncio.timeout(60):
        await asked.wait()
    await owner.create_snapshot("monday")
    go_on.set()
    await asking
    await drop_everything(owner)
    assert [pin.name for pin in await owner.snapshots()] == ["monday"]
    await require_whole(store, content)


@pytest.mark.parametrize("second", ["pin", "maintain"])
async def test_h4_a_publication_that_landed_late_is_recognised_behind_another_lost_answer(
    store: FaultyStore, backing: ObjectStoreBacking, second: str
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    store.conditional.append(Fault.LATE)
    with pytest.raises(StorageError):
        await owner.publish(second_round())
    await store.land()
    store.conditional += [Fault.BEFORE, Fault.AFTER]
    store.reads += [Fault.NONE, Fault.BEFORE]
    with pytest.raises(StorageError):
        await owner.create_snapshot("monday")
    await owner.publish(second_round())
    assert await read_all(owner, 1, 0, 5) == b"abcde"
