"""What a scrub sees besides chunks of the newest manifest: layouts that do not join, SSTs, what backups alone name."""

from dataclasses import replace

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from tests.contracts.storage_publications import change, data
from tests.tier2.storage.backings import ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_compaction import rounds, settle, trickle
from tests.tier2.storage.test_pins import drop_everything
from tests.tier2.storage.test_scrubbing import FAST, Cache, chunk_keys, scrub
from tier2.maintenance.scrub import Scrubber, SuspectLayout
from tier2.manifest.commit import ManifestUpdate
from tier2.manifest.view import ManifestView
from tier2.object_stores.memory import MemoryObjectStore
from tier2.sst.keyspace import layout_key
from tier2.tiered_storage import TieredStorage

ONE_PASS = replace(FAST, scrub_pass_seconds=1e9)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


def backing_of(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, ONE_PASS)


async def remove_entry(owner: TieredStorage, end_offset: int) -> None:
    """A manifest that no correct owner publishes."""
    owned = owner._claimed()
    changes: dict[bytes, bytes | None] = {layout_key(1, end_offset): None}  # type: ignore[arg-type]
    async with owned.lock:
        with owned.uploading() as uploader:
            sst = await owned.upload_sst(changes, uploader)
            manifest = owned.next_manifest((sst, *owned.manifest.ssts))
            await owned.commit(ManifestUpdate(manifest=manifest), uploader)


@pytest.mark.parametrize(
    ("end_offset", "said"), [(300, "has a hole"), (100, "has a hole"), (500, "layout ends at 400")]
)
async def test_a_layout_that_does_not_join_is_reported_once_in_a_pass(
    store: FaultyStore, caplog: pytest.LogCaptureFixture, end_offset: int, said: str
) -> None:
    owner = await backing_of(store).claimed(1)
    await trickle(owner, 5)
    await remove_entry(owner, end_offset)
    await scrub(owner, Cache())
    statistics = owner.statistics()
    assert (statistics.scrub_passes, statistics.scrub_damages) == (1, 1)
    assert said in caplog.text


async def test_h8_a_layout_that_changed_under_the_walk_is_looked_at_again_and_no_damage(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tier2.maintenance.scrub._WALK_PAGE_ENTRIES", 2)
    monkeypatch.setattr("tier2.maintenance.scrub._STEP_SECONDS_MAX", 0.0)
    looked: list[SuspectLayout] = []
    look_again = Scrubber._look_again

    async def spy(scrubber: Scrubber, doubt: SuspectLayout) -> None:
        looked.append(doubt)
        await look_again(scrubber, doubt)

    monkeypatch.setattr(Scrubber, "_look_again", spy)
    owner = await ObjectStoreBacking(
        store, replace(FAST, compaction_bytes_per_second=1 << 40)
    ).claimed(1)
    length = 0
    for number in range(60):
        piece = data(length, bytes([number]) * 100)
        length += 100
        await owner.publish(
            rounds(
                change(
                    1,
                    "s1",
                    length=length,
                    sequence_number=number + 1,
                    start_offset=max(0, length - 2000),
                    pieces=[piece],
                )
            )
        )
        for _ in range(5):
            await owner.scrub(Cache().kept)
        if number % 7 == 6:
            await owner.maintain()
    statistics = owner.statistics()
    assert looked, "nothing moved while it was looked at"
    assert statistics.scrub_passes > 2
    assert statistics.scrub_damages == 0


@pytest.mark.parametrize("kind", ["flipped", "missing"])
async def test_h6_damage_that_only_a_backup_has_is_reported_and_not_mended(
    store: FaultyStore, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    owner = await ObjectStoreBacking(
        store, replace(ONE_PASS, compaction_bytes_per_second=1 << 40)
    ).claimed(1)
    content = await trickle(owner, 3)
    await owner.create_snapshot("monday")
    await settle(owner)
    await drop_everything(owner)
    (damaged, *_) = await chunk_keys(store)
    if kind == "missing":
        await store.store.delete(damaged)
    else:
        store.damage = {damaged: lambda found: found[:70] + bytes([found[70] ^ 1]) + found[71:]}
    await scrub(owner, Cache(content))
    statistics = owner.statistics()
    assert (statistics.scrub_passes, statistics.scrubbed_chunks) == (1, 3)
    assert (statistics.scrub_damages, statistics.scrub_repairs) == (1, 0)
    assert "backup='monday'" in caplog.text


async def test_h6_what_a_backup_shares_with_the_newest_root_is_read_once_in_a_pass(
    store: FaultyStore,
) -> None:
    owner = await backing_of(store).claimed(1)
    await trickle(owner, 4)
    await owner.create_snapshot("monday")
    await owner.create_snapshot("tuesday")
    await scrub(owner, Cache())
    assert owner.statistics().scrubbed_chunks == 4
    assert owner.statistics().scrub_passes == 1


async def test_h6_a_backup_that_is_dropped_while_it_is_read_is_no_damage(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await backing_of(store).claimed(1)
    await trickle(owner, 3)
    await owner.create_snapshot("monday")
    await drop_everything(owner)
    get_range = store.get_range
    seen: list[str] = []

    async def drop_before(key: str, start: int, length: int) -> bytes:
        if "/chunks/" in key and not seen:
            assert await owner.delete_snapshot("monday")
            for each in await chunk_keys(store):
                await store.store.delete(each)
        if "/chunks/" in key:
            seen.append(key)
        return await get_range(key, start, length)

    monkeypatch.setattr(store, "get_range", drop_before)
    await scrub(owner, Cache())
    assert seen
    assert (owner.statistics().scrub_passes, owner.statistics().scrub_damages) == (1, 0)


async def test_a_run_that_cannot_be_read_is_reported_and_backups_are_still_looked_at(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    backing = backing_of(store)
    owner = await backing.claimed(1)
    await trickle(owner, 3)
    await owner.create_snapshot("monday")
    known = await keys_of(store)
    await trickle(owner, 1, first=3)
    newest = next(key for key in await keys_of(store) - known if "/runs/" in key)
    owner = await backing.claimed(2)
    assert len(await owner._claimed().snapshots()) == 1, "they are known from here on"
    store.damage = {newest: lambda found: bytes(len(found))}
    await scrub(owner, Cache())
    statistics = owner.statistics()
    assert (statistics.scrub_passes, statistics.scrub_damages) == (1, 1)
    assert "an SST cannot be read" in caplog.text
    assert statistics.scrubbed_chunks == 3, "those of the backup"


async def test_a_run_that_cannot_be_read_stops_no_owner_though_the_backups_are_not_known(
    store: FaultyStore,
) -> None:
    backing = backing_of(store)
    await trickle(await backing.claimed(1), 3)
    owner = await backing.claimed(2)
    (*_, newest) = sorted(key for key in await keys_of(store) if "/runs/" in key)
    store.damage = {newest: lambda found: bytes(len(found))}
    await scrub(owner, Cache())
    statistics = owner.statistics()
    assert (statistics.scrub_passes, statistics.scrub_damages) == (1, 1)


async def test_a_run_that_cannot_be_read_behind_a_damaged_chunk_stops_no_owner(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await backing_of(store).claimed(1)
    await trickle(owner, 3)
    (_, damaged, _) = await chunk_keys(store)
    store.damage = {damaged: lambda found: bytes(len(found))}

    async def unreadable(*_: object) -> dict[bytes, bytes]:
        raise CorruptedDataError("run is corrupted")

    monkeypatch.setattr(ManifestView, "get_many", unreadable)
    await scrub(owner, Cache())
    statistics = owner.statistics()
    assert (statistics.scrub_passes, statistics.scrubbed_chunks) == (1, 3)
    assert statistics.scrub_damages == 1


async def test_a_pass_ends_although_more_is_written_than_it_may_read(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tier2.maintenance.scrub._WALK_PAGE_ENTRIES", 12)
    monkeypatch.setattr("tier2.maintenance.scrub._STEP_SECONDS_MAX", 0.0)
    owner = await backing_of(store).claimed(1)
    await trickle(owner, 10)
    for number in range(10, 200, 4):
        await trickle(owner, 4, first=number)
        await owner.scrub(Cache().kept)
    statistics = owner.statistics()
    # What was there at the first step that had something to spend.
    assert (statistics.scrub_passes, statistics.scrubbed_chunks) == (1, 18)
