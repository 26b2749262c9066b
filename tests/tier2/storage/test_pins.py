"""Manifest versions that are kept: H6 for backups, and a copy of what they name."""

import pytest

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectExistsError,
    StorageError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import ContainerId, Epoch
from tests.contracts.storage_publications import LOG_ID, change, read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_compaction import rounds, settle, trickle, verified
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.container_copy import CopyReport, copy_container
from tier2.publish import owned_manifest
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


async def drop_everything(owner: TieredStorage) -> None:
    await owner.publish(rounds(change(1, "s1", length=1200, sequence_number=50, deleted=True)))
    for _ in range(4):
        await settle(owner)


async def pins_of(store: FaultyStore) -> list[Snapshot]:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    return await read_snapshots(reader.view)


async def restore(store: FaultyStore, pin: Snapshot) -> tuple[FaultyStore, CopyReport]:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    target = FaultyStore(MemoryObjectStore())
    return target, await copy_container(pin.manifest, reader.components, target)


async def test_h6_what_a_pin_names_outlives_compaction_deletion_and_restarts(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    await owner.create_snapshot("monday")
    await trickle(owner, 4, first=12)
    await settle(owner)
    await drop_everything(owner)
    owner = await backing.claimed(2)
    await drop_nothing(owner)
    (pin,) = await pins_of(store)
    assert (pin.name, pin.manifest.epoch) == ("monday", 1)
    target, report = await restore(store, pin)
    assert report.missing == []
    restored = ObjectStoreBacking(target, SMALL)
    again = restored.make()
    await again.claim(epoch=Epoch(3), log_id=LOG_ID)
    assert await read_all(again, 1, 0, 1200) == content
    assert (await again.find("s1")) is not None
    assert await owner.find("s1") is None
    await verified(target)


async def test_h6_a_pin_that_is_not_proved_keeps_what_it_names_and_is_proved_once_by_its_version(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    made = await owner.create_snapshot("monday", is_proved=False)
    assert await owner.create_snapshot("monday") == made
    await drop_everything(owner)
    owner = await backing.claimed(2)
    await drop_nothing(owner)
    assert [each.is_proved for each in await owner.snapshots()] == [False]
    assert not await owner.prove_snapshot("monday", made.version + 1)
    assert not await owner.prove_snapshot("tuesday", made.version)
    assert [each.is_proved for each in await pins_of(store)] == [False]
    assert await owner.prove_snapshot("monday", made.version)
    assert await owner.prove_snapshot("monday", made.version)
    (pin,) = await pins_of(store)
    assert (pin.is_proved, pin.described()) == (True, (await owner.snapshots())[0])
    owner = await backing.claimed(3)
    await drop_nothing(owner)
    target, report = await restore(store, pin)
    assert report.missing == []
    again = ObjectStoreBacking(target, SMALL).make()
    await again.claim(epoch=Epoch(4), log_id=LOG_ID)
    assert await read_all(again, 1, 0, 1200) == content
    assert await owner.delete_snapshot("monday")
    assert await pins_of(store) == []


async def test_pins_of_versions_before_the_mark_count_as_proved(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.create_snapshot("monday")
    await owner.create_snapshot("tuesday", is_proved=False)
    monday, tuesday = await pins_of(store)
    assert (monday.encode()[0], tuesday.encode()[0]) == (1, 2)
    assert Snapshot.decode("monday", monday.encode()).is_proved
    assert not Snapshot.decode("tuesday", tuesday.encode()).is_proved
    with pytest.raises(CorruptedDataError, match="version 3"):
        Snapshot.decode("monday", bytes([3]) + monday.encode()[1:])


async def drop_nothing(owner: TieredStorage) -> None:
    for _ in range(4):
        await settle(owner)


async def test_h6_what_is_written_and_dropped_behind_a_pin_is_freed(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 4)
    await settle(owner)
    pinned = {key for key in await keys_of(store) if "/chunks/" in key}
    await owner.create_snapshot("monday")
    await trickle(owner, 20, first=4)
    await drop_everything(owner)
    left = {key for key in await keys_of(store) if "/chunks/" in key}
    assert left == pinned


async def test_h6_a_pin_keeps_what_owners_before_wrote(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 12)
    owner = await backing.claimed(2)
    await owner.create_snapshot("monday")
    await drop_everything(owner)
    (pin,) = await pins_of(store)
    target, report = await restore(store, pin)
    assert report.missing == []
    again = ObjectStoreBacking(target, SMALL).make()
    await again.claim(epoch=Epoch(3), log_id=LOG_ID)
    assert await read_all(again, 1, 0, 1200) == content


async def test_h6_what_was_garbage_before_a_pin_is_freed(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 12)
    await owner.publish(rounds(change(1, "s1", length=1200, sequence_number=50, deleted=True)))
    assert [key for key in await keys_of(store) if "/chunks/" in key]
    await owner.create_snapshot("monday")
    for _ in range(4):
        await settle(owner)
    assert not [key for key in await keys_of(store) if "/chunks/" in key]


async def test_a_pin_too_many_is_refused_until_one_is_dropped(
    monkeypatch: pytest.MonkeyPatch, backing: ObjectStoreBacking
) -> None:
    monkeypatch.setattr(owned_manifest, "SNAPSHOTS_MAX", 2)
    owner = await backing.claimed(1)
    for name in ("monday", "tuesday"):
        await owner.create_snapshot(name)
    with pytest.raises(InvalidRequestError, match="there are 2 backups already: drop one first"):
        await owner.create_snapshot("wednesday")
    await owner.create_snapshot("tuesday")
    assert await owner.delete_snapshot("monday")
    await owner.create_snapshot("wednesday")
    assert {each.name for each in await owner.snapshots()} == {"tuesday", "wednesday"}


async def test_h6_a_dropped_pin_lets_everything_go(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 12)
    await owner.create_snapshot("monday")
    await drop_everything(owner)
    assert any("/chunks/" in key for key in await keys_of(store))
    owner = await backing.claimed(2)
    assert await owner.delete_snapshot("monday")
    assert not await owner.delete_snapshot("monday")
    for _ in range(4):
        await settle(owner)
    assert not any("/chunks/" in key for key in await keys_of(store))
    assert await owner.snapshots() == []


async def test_pins_are_found_without_the_owner_and_made_once(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 2)
    first = await owner.create_snapshot("a.b-c_1")
    version = owner.statistics().root_version
    await trickle(owner, 1, first=2)
    assert await owner.create_snapshot("a.b-c_1") == first
    assert first.version == version - 1
    (pin,) = await pins_of(store)
    assert pin.described() == first
    for name in ("", "a/b", "-a", "é", "x" * 101):
        with pytest.raises(InvalidRequestError):
            await owner.create_snapshot(name)
    with pytest.raises(CorruptedDataError):
        Snapshot.decode("cut", pin.encode()[:10])
    assert Snapshot.decode("a.b-c_1", pin.encode()) == pin


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.LATE, Fault.BEFORE])
async def test_h4_a_pin_whose_answer_was_lost_is_there_once(
    store: FaultyStore, backing: ObjectStoreBacking, fault: Fault
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 2)
    store.conditional.append(fault)
    try:
        await owner.create_snapshot("monday")
    except StorageError:
        await store.land()
        await owner.create_snapshot("monday")
    assert [pin.name for pin in await owner.snapshots()] == ["monday"]
    assert [pin.name for pin in await (await backing.claimed(2)).snapshots()] == ["monday"]
    with pytest.raises(StorageNotPrimaryError):
        await owner.create_snapshot("tuesday")


async def test_a_copy_has_no_root_until_it_is_whole_and_names_what_is_lost(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 3)
    await owner.create_snapshot("monday")
    (pin,) = await pins_of(store)
    lost = next(key for key in sorted(await keys_of(store)) if "/chunks/" in key)
    await store.store.delete(lost)
    target, report = await restore(store, pin)
    assert report.missing == [lost]
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    with pytest.raises(ObjectExistsError):
        await copy_container(pin.manifest, reader.components, target)
    run = next(key for key in sorted(await keys_of(store)) if "/runs/" in key)
    store.damage = {run: lambda found: found[:-1] + bytes([found[-1] ^ 1])}
    empty = FaultyStore(MemoryObjectStore())
    with pytest.raises(CorruptedDataError):
        await copy_container(pin.manifest, reader.components, empty)
    assert not any(key.endswith("/root") for key in await keys_of(empty))
