"""Damage is found while the bytes can still be had from elsewhere: repair through the owner, report otherwise."""

import asyncio
import errno
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import CorruptedDataError, StorageError, StorageNotPrimaryError
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.storage import DataPiece
from tests.contracts.storage_publications import change, read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_blocks_of_events import blocks_of, event, known
from tests.tier2.storage.test_compaction import rounds, settle, trickle, verified
from tier2.format.chunk_format import ChunkIndex
from tier2.layout_entry import LayoutEntry
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.verify import VerifyReport, verify_container
from tier2.read.chunk_images import verify_image
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage

FAST = replace(
    SMALL, scrub_bytes_per_second=1 << 40, scrub_pass_seconds=0.0, compaction_bytes_per_second=0
)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, FAST)


class Cache:
    """What the container still has in memory."""

    def __init__(self, content: bytes = b"", first: int = 0) -> None:
        self.content, self.first = content, first
        self.asked: list[tuple[int, int, int]] = []

    def kept(self, segment_id: SegmentId, start: int, end: int) -> bytes | None:
        self.asked.append((segment_id, start, end))
        if start < self.first or end > self.first + len(self.content):
            return None
        return self.content[start - self.first : end - self.first]


async def scrub(owner: TieredStorage, cache: Cache) -> None:
    """A pass and a bit."""
    for _ in range(4):
        await owner.scrub(cache.kept)
        await asyncio.sleep(0.001)


async def chunk_keys(store: FaultyStore) -> list[str]:
    return [key for key in sorted(await keys_of(store)) if "/chunks/" in key]


async def look(store: FaultyStore, *, deep: bool) -> VerifyReport:
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SMALL, executor=None
    )
    await reader.refresh()
    return await verify_container(reader, deep=deep)


@pytest.mark.parametrize("where", ["block", "tail", "missing", "short"])
async def test_a_damaged_chunk_is_written_anew_from_what_is_cached(
    store: FaultyStore, backing: ObjectStoreBacking, where: str
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 5)
    damaged = (await chunk_keys(store))[2]
    if where == "missing":
        await store.store.delete(damaged)
    else:
        spoil = {
            "block": lambda found: found[:70] + bytes([found[70] ^ 1]) + found[71:],
            "tail": lambda found: found[:-3] + bytes([found[-3] ^ 1]) + found[-2:],
            "short": lambda found: found[:-1],
        }[where]
        store.damage = {damaged: spoil}
    cache = Cache(content)
    await scrub(owner, cache)
    statistics = owner.statistics()
    assert (statistics.scrub_damages, statistics.scrub_repairs) == (1, 1)
    assert statistics.scrub_passes > 0
    assert statistics.last_scrubbed_ms > 0
    assert await read_all(owner, 1, 0, len(content)) == content
    assert await read_all(await backing.claimed(2), 1, 0, len(content)) == content
    await settle(await backing.claimed(3))
    assert damaged not in await keys_of(store)
    await verified(store)


async def test_a_damaged_chunk_whose_bytes_are_nowhere_else_stays_corrupt_and_is_never_served(
    store: FaultyStore, backing: ObjectStoreBacking, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 3)
    damaged = (await chunk_keys(store))[1]
    store.damage = {damaged: lambda found: found[:70] + bytes([found[70] ^ 1]) + found[71:]}
    cache = Cache(content[:100])
    await scrub(owner, cache)
    assert owner.statistics().scrub_repairs == 0
    assert owner.statistics().scrub_damages >= 1
    assert cache.asked[0] == (1, 100, 200)
    assert "stay CORRUPT" in caplog.text
    with pytest.raises(CorruptedDataError):
        await read_all(owner, 1, 100, 200)
    assert await read_all(owner, 1, 200, 300) == content[200:]
    assert damaged in await keys_of(store), "the evidence is kept"


async def test_cached_bytes_that_contradict_a_sound_block_repair_nothing(
    store: FaultyStore,
) -> None:
    owner = await ObjectStoreBacking(store, replace(FAST, chunk_bytes_max=8 << 20)).claimed(1)
    runs = [b"a" * 2_000_000, b"b" * 2_000_000]
    whole = b"".join(runs)
    await owner.publish(
        rounds(change(1, "a", length=len(whole), sequence_number=1, pieces=[DataPiece(0, runs)]))
    )
    (damaged,) = await chunk_keys(store)
    store.damage = {damaged: lambda found: found[:70] + bytes([found[70] ^ 1]) + found[71:]}
    await scrub(owner, Cache(whole[:-1] + b"!"))
    assert owner.statistics().scrub_damages >= 1
    assert owner.statistics().scrub_repairs == 0
    await scrub(owner, Cache(whole))
    assert owner.statistics().scrub_repairs == 1
    assert await read_all(owner, 1, 0, len(whole)) == whole


async def test_h76_a_repaired_chunk_knows_of_its_events_what_it_knew(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    piece = DataPiece(0, [b"e" * 30, b"f" * 70], [event(4), event(5)])
    await owner.publish(rounds(change(1, "a", length=100, sequence_number=1, pieces=[piece])))
    before = await blocks_of(owner, 1, 0, 100)
    (damaged,) = await chunk_keys(store)
    store.damage = {damaged: lambda found: found[:66] + bytes([found[66] ^ 1]) + found[67:]}
    await scrub(owner, Cache(b"e" * 30 + b"f" * 70))
    assert owner.statistics().scrub_repairs == 1
    after = await blocks_of(owner, 1, 0, 100)
    assert known(after) == known(before)
    assert after[0].object_key != damaged


async def test_scrubbing_is_off_unless_it_is_asked_for_and_keeps_to_its_rate(
    store: FaultyStore,
) -> None:
    owner = await ObjectStoreBacking(store, replace(FAST, scrub_bytes_per_second=0)).claimed(1)
    content = await trickle(owner, 6)
    before = owner.statistics().gets
    await scrub(owner, Cache(content))
    assert owner.statistics().gets == before
    slow = replace(FAST, scrub_bytes_per_second=1)
    owner = await ObjectStoreBacking(store, slow).claimed(2)
    await scrub(owner, Cache(content))
    assert owner.statistics().scrubbed_chunks <= 1
    whole = await ObjectStoreBacking(store, replace(FAST, scrub_pass_seconds=1e9)).claimed(3)
    await scrub(whole, Cache(content))
    assert whole.statistics().scrubbed_chunks == 6
    assert whole.statistics().scrub_passes == 1


async def test_a_zombie_repairs_nothing_and_reports_nothing(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    zombie = await backing.claimed(1)
    content = await trickle(zombie, 3)
    owner = await backing.claimed(2)
    await owner.publish(rounds(change(1, "s1", length=300, sequence_number=9, deleted=True)))
    while await owner.collect_garbage() or owner.statistics().garbage_objects:
        pass
    assert await chunk_keys(store) == []
    with pytest.raises(StorageNotPrimaryError):
        await scrub(zombie, Cache(content))
    assert zombie.statistics().scrub_damages == 0


async def test_a_quick_look_finds_what_is_missing_and_a_deep_one_what_is_damaged(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 4)
    keys = await chunk_keys(store)
    assert (await look(store, deep=False)).sound
    store.damage = {keys[1]: lambda found: found[:70] + bytes([found[70] ^ 1]) + found[71:]}
    quick = await look(store, deep=False)
    assert (quick.sound, quick.chunks) == (True, 4)
    assert (await look(store, deep=True)).damage_count >= 1
    store.damage = {}
    await store.store.delete(keys[2])
    lost = await look(store, deep=False)
    assert lost.damage_count == 1
    assert "chunk is missing" in lost.damages[0]


async def test_bytes_that_the_store_itself_calls_damaged_are_damage_and_the_rest_is_proved(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    def refuse(_: bytes) -> bytes:
        raise CorruptedDataError("the store compared a checksum of its own")

    owner = await backing.claimed(1)
    await trickle(owner, 4)
    keys = await chunk_keys(store)
    store.damage = {keys[1]: refuse}
    found = await look(store, deep=True)
    assert (found.damage_count, found.chunks) == (1, 4)
    assert "a checksum of its own" in found.damages[0]


def test_h36_publications_wait_a_second_or_so_for_a_scrub_of_many_tiny_chunks() -> None:
    run_simulation(1, _scrub_slowly)


async def _scrub_slowly(loop: SimLoop) -> None:
    store = SlowStore(MemoryObjectStore())
    owner = await ObjectStoreBacking(store, FAST).claimed(1)
    await trickle(owner, 100)
    await owner.scrub(Cache().kept)
    await asyncio.sleep(1.0)
    while not owner.statistics().scrub_passes:
        began = loop.time()
        await owner.scrub(Cache().kept)
        assert loop.time() - began < 2.0
    assert owner.statistics().scrubbed_chunks >= 100


class SlowStore(FaultyStore):
    """A tenth of a second for each read of a chunk."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if "/chunks/" in key:
            await asyncio.sleep(0.1)
        return await super().get_range(key, start, length)


async def test_what_a_disk_cannot_read_is_damage_and_is_written_anew_from_what_is_cached(
    store: FaultyStore, backing: ObjectStoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 5)
    bad = (await chunk_keys(store))[2]
    get_range = store.get_range

    async def fail(key: str, start: int, length: int) -> bytes:
        if key == bad:
            raise StorageError("file system failed") from OSError(errno.EIO, "Input/output error")
        return await get_range(key, start, length)

    monkeypatch.setattr(store, "get_range", fail)
    report = await look(store, deep=True)
    assert report.damage_count == 1
    assert "name='s1' id=1 offset=200" in report.damages[0]
    await scrub(owner, Cache(content))
    statistics = owner.statistics()
    assert (statistics.scrub_damages, statistics.scrub_repairs) == (1, 1)
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_a_sound_chunk_is_proved_once(
    store: FaultyStore, backing: ObjectStoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 4)
    proofs = 0

    def counting(entry: LayoutEntry, image: bytes) -> ChunkIndex:
        nonlocal proofs
        proofs += 1
        return verify_image(entry, image)

    monkeypatch.setattr("tier2.maintenance.scrub.verify_image", counting)
    await scrub(owner, Cache())
    assert proofs == owner.statistics().scrubbed_chunks > 0


async def test_a_bit_that_flips_on_the_way_is_no_damage_to_repair(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await trickle(owner, 4)
    flips = iter([True])

    def damaged_once(found: bytes) -> bytes:
        return found[:-1] + bytes([found[-1] ^ 1]) if next(flips, False) else found

    store.damage = dict.fromkeys(await chunk_keys(store), damaged_once)
    await scrub(owner, Cache())
    assert next(flips, None) is None
    assert owner.statistics().scrub_damages == 0
