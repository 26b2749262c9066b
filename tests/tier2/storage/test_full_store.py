"""A store without room: what is free to go goes, whatever waits for an answer: H52."""

from dataclasses import replace

import pytest

from segmentstore.contracts.errors import StorageFullError, StorageNotPrimaryError
from segmentstore.contracts.storage import Publication
from tests.contracts.storage_publications import change, data, read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.test_compaction import rounds
from tier2.object_stores.memory import MemoryObjectStore


class FullStore(FaultyStore):
    """From `fill()` on there is no room for a manifest until a chunk was deleted."""

    def fill(self) -> None:
        async def refuse() -> None:
            if not any("/chunks/" in key for key in self.deleted):
                self.conditional.append(Fault.FULL)

        self.before_conditional = refuse


@pytest.fixture
def store() -> FullStore:
    return FullStore(MemoryObjectStore())


def appended() -> Publication:
    return rounds(change(2, "b", length=3, sequence_number=3, pieces=[data(0, b"def")]))


async def test_h52_garbage_goes_while_a_root_that_found_no_room_is_open(store: FullStore) -> None:
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    await owner.publish(
        rounds(change(1, "a", length=3, sequence_number=1, pieces=[data(0, b"abc")]))
    )
    await owner.publish(rounds(change(1, "a", length=3, sequence_number=2, deleted=True)))
    store.fill()
    with pytest.raises(StorageFullError):
        await owner.publish(appended())
    with pytest.raises(StorageFullError):
        await owner.collect_garbage()
    await owner.publish(appended())
    assert await read_all(owner, 2, 0, 3) == b"def"
    while await owner.collect_garbage():
        pass
    assert owner.statistics().garbage_objects == 0


async def test_garbage_goes_beside_an_object_whose_deletion_finds_no_room(
    store: FullStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that copies what it changes, and a bucket at its quota, may refuse deletions too."""
    owner = await ObjectStoreBacking(store, replace(SMALL, upload_count_max=1)).claimed(1)
    for number in range(1, 4):
        piece = change(number, f"s{number}", length=3, sequence_number=1, pieces=[data(0, b"abc")])
        await owner.publish(rounds(piece))
    chunks = [key for key in store.put_keys if "/chunks/" in key]
    gone = [change(n, f"s{n}", length=3, sequence_number=2, deleted=True) for n in range(1, 4)]
    await owner.publish(rounds(*gone))

    async def refused(faulty: FullStore, key: str) -> None:
        if key == chunks[0]:
            raise StorageFullError(f"no space is left key={key}")
        await FaultyStore.delete(faulty, key)

    with monkeypatch.context() as full:
        full.setattr(FullStore, "delete", refused)
        while await owner.collect_garbage():
            pass
    assert set(chunks) - set(store.deleted) == {chunks[0]}
    assert owner.statistics().garbage_objects == 1, "what went is recorded"
    while await owner.collect_garbage():
        pass
    assert set(chunks) <= set(store.deleted)
    assert owner.statistics().garbage_objects == 0


async def test_h6_a_zombie_whose_root_found_no_room_deletes_nothing(store: FullStore) -> None:
    backing = ObjectStoreBacking(store, SMALL)
    zombie = await backing.claimed(1)
    await zombie.publish(
        rounds(change(1, "a", length=3, sequence_number=1, pieces=[data(0, b"abc")]))
    )
    await zombie.publish(rounds(change(1, "a", length=3, sequence_number=2, deleted=True)))
    store.conditional.append(Fault.FULL)
    with pytest.raises(StorageFullError):
        await zombie.publish(appended())
    await backing.claimed(2)
    before = list(store.deleted)
    store.conditional.append(Fault.FULL)
    with pytest.raises(StorageNotPrimaryError):
        await zombie.collect_garbage()
    assert store.deleted == before
