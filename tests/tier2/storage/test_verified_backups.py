"""H6: a verification without the owner proves what backups keep as well, and each finding says whose it is."""

import pytest

from segmentstore.contracts.identifiers import ContainerId
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_compaction import settle, trickle
from tests.tier2.storage.test_pins import drop_everything
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.manifest.view import ManifestView
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline import verify
from tier2.offline.verify import VerifyReport, verify_container
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
async def owner(store: FaultyStore) -> TieredStorage:
    """Everything that its backup names is nowhere else."""
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    await trickle(owner, 12)
    await owner.create_snapshot("monday")
    await trickle(owner, 4, first=12)
    await settle(owner)
    await drop_everything(owner)
    return owner


async def reader_of(store: FaultyStore) -> ContainerReader:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    return reader


async def verified(store: FaultyStore, *, deep: bool) -> VerifyReport:
    return await verify_container(await reader_of(store), deep=deep)


async def lowest(store: FaultyStore, folder: str) -> str:
    return next(key for key in sorted(await keys_of(store)) if folder in key)


@pytest.mark.parametrize("deep", [False, True])
async def test_h6_a_sound_backup_is_counted_and_its_segments_are_not(
    store: FaultyStore, owner: TieredStorage, deep: bool
) -> None:
    report = await verified(store, deep=deep)
    assert report.damages == []
    assert (report.backups, report.segments, report.chunks) == (1, 0, 0)
    assert await owner.delete_snapshot("monday")
    assert (await verified(store, deep=deep)).backups == 0


@pytest.mark.parametrize("folder", ["/chunks/", "/runs/"])
@pytest.mark.parametrize("deep", [False, True])
async def test_h6_an_object_that_only_a_backup_needs_is_missed(
    store: FaultyStore, owner: TieredStorage, deep: bool, folder: str
) -> None:
    await store.store.delete(await lowest(store, folder))
    report = await verified(store, deep=deep)
    assert report.damages
    assert all(found.startswith("backup 'monday': ") for found in report.damages)
    assert "missing" in report.damages[0]


@pytest.mark.parametrize(("folder", "shallow"), [("/chunks/", False), ("/runs/", True)])
async def test_h6_a_flipped_bit_that_only_a_backup_has_is_found(
    store: FaultyStore, owner: TieredStorage, folder: str, shallow: bool
) -> None:
    key = await lowest(store, folder)
    store.damage = {key: lambda found: found[:9] + bytes([found[9] ^ 1]) + found[10:]}
    assert (await verified(store, deep=False)).sound is not shallow
    report = await verified(store, deep=True)
    assert report.damages
    assert all(found.startswith("backup 'monday': ") for found in report.damages)


async def test_h6_what_a_backup_shares_with_the_newest_root_is_read_once(
    store: FaultyStore,
) -> None:
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    await trickle(owner, 12)
    alone: list[tuple[int, int]] = []
    await verify_container(await reader_of(store), progress=lambda *at: alone.append(at))
    await owner.create_snapshot("monday")
    await owner.create_snapshot("tuesday")
    beside: list[tuple[int, int]] = []
    report = await verify_container(await reader_of(store), progress=lambda *at: beside.append(at))
    assert (report.damages, report.backups) == ([], 2)
    pins = 2
    assert len(beside) == len(alone) + pins, "each pin is a run of its own and nothing else"
    assert all(done <= total for done, total in beside)


@pytest.mark.parametrize("folder", ["/chunks/", "/runs/"])
async def test_h6_a_backup_that_is_dropped_meanwhile_is_no_damage(
    store: FaultyStore, owner: TieredStorage, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await lowest(store, folder)
    get_range = store.get_range
    dropped: list[str] = []

    async def drop_before(key: str, start: int, length: int) -> bytes:
        if key == gone and not dropped:
            dropped.append(key)
            assert await owner.delete_snapshot("monday")
            await store.delete(key)
        return await get_range(key, start, length)

    reader = await reader_of(store)
    monkeypatch.setattr(store, "get_range", drop_before)
    report = await verify_container(reader)
    assert dropped == [gone]
    assert (report.damages, report.backups) == ([], 1)


@pytest.mark.parametrize("deep", [False, True])
async def test_h8_runs_that_are_merged_while_a_backup_is_read_are_no_damage_of_it(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    await trickle(owner, 12)
    await owner.create_snapshot("monday")
    await trickle(owner, 4, first=12)
    before = await keys_of(store)
    moved: list[str] = []

    async def move_on(view: ManifestView) -> list[Snapshot]:
        pins = await read_snapshots(view)
        if not moved:
            moved.append("on")
            await trickle(owner, 20, first=16)
            await settle(owner)
        return pins

    reader = await reader_of(store)
    monkeypatch.setattr(verify, "read_snapshots", move_on)
    report = await verify_container(reader, deep=deep)
    assert (report.damages, report.backups) == ([], 1)
    assert any("/runs/" in key for key in before - await keys_of(store))
