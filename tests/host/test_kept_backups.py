"""Goal: a process that deletes files of records knows of every backup of the store, wherever its container runs."""

from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.kept_backups import KeptBackups
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.test_compaction import trickle
from tier2.object_stores.memory import MemoryObjectStore


async def test_a_backup_of_a_container_that_runs_elsewhere_is_known_as_long_as_it_is_kept() -> None:
    store = FaultyStore(MemoryObjectStore())
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    backups = KeptBackups(registry=ContainerRegistry(container_count=5), object_store=store)
    assert not await backups.exist()
    await trickle(owner, 3)
    assert not await backups.exist()
    await owner.create_snapshot("monday")
    assert await backups.exist()
    await trickle(owner, 3, first=3)
    assert await backups.exist()
    await owner.delete_snapshot("monday")
    assert not await backups.exist()


async def test_what_cannot_be_read_may_have_a_backup() -> None:
    store = FaultyStore(MemoryObjectStore())
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    await trickle(owner, 3)
    backups = KeptBackups(registry=ContainerRegistry(container_count=5), object_store=store)
    store.reads.append(Fault.BEFORE)
    assert await backups.exist()
    assert not await backups.exist()
