"""Compaction passes over chunks that are damaged or lost: nobody is stopped or held up by them."""

from dataclasses import replace

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from tests.contracts.storage_publications import change, data, read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.test_blocks_of_events import blocks_of
from tests.tier2.storage.test_compaction import chunks_of, rounds, settle, trickle
from tier2.format.chunk_format import Compression
from tier2.object_stores.memory import MemoryObjectStore

TEXT = b"the same words again and again, " * 120


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.mark.parametrize("how", ["damaged", "lost"])
async def test_a_cold_chunk_whose_index_cannot_be_read_stays_as_it_is(
    store: FaultyStore, how: str
) -> None:
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    for segment_id in (1, 2):
        await owner.publish(
            rounds(
                change(
                    segment_id,
                    f"s{segment_id}",
                    length=len(TEXT),
                    sequence_number=1,
                    pieces=[data(0, TEXT)],
                )
            )
        )
    bad = next(key for key in store.put_keys if "/chunks/" in key)
    if how == "lost":
        await store.delete(bad)
    else:
        store.damage = {bad: lambda found: found[:-1] + bytes([found[-1] ^ 1])}
    zstd = replace(SMALL, cold_seconds=0.0, cold_compression=Compression.ZSTD)
    owner = await ObjectStoreBacking(store, zstd).claimed(2)
    await settle(owner)
    blocks = await blocks_of(owner, 2, 0, len(TEXT))
    assert {block.compression for block in blocks} == {int(Compression.ZSTD)}
    with pytest.raises(CorruptedDataError):
        await read_all(owner, 1, 0, len(TEXT))


async def test_a_lost_chunk_holds_up_nobody_else(store: FaultyStore) -> None:
    backing = ObjectStoreBacking(store, SMALL)
    owner = await backing.claimed(1)
    await trickle(owner, 4)
    lost = [key for key in store.put_keys if "/chunks/" in key][1]
    other = await trickle(owner, 4, segment_id=2)
    await store.delete(lost)
    while await owner.maintain():
        pass
    assert await chunks_of(owner, 2, len(other)) == 1
    assert await read_all(owner, 2, 0, len(other)) == other


async def test_a_bit_that_flips_on_the_way_keeps_no_chunks_from_being_joined(
    store: FaultyStore,
) -> None:
    owner = await ObjectStoreBacking(store, SMALL).claimed(1)
    content = await trickle(owner, 4)
    flips = iter([True])

    def damaged_once(found: bytes) -> bytes:
        return found[:-1] + bytes([found[-1] ^ 1]) if next(flips, False) else found

    store.damage = {key: damaged_once for key in store.put_keys if "/chunks/" in key}
    await settle(owner)
    assert await chunks_of(owner, 1, len(content)) == 1
    assert next(flips, None) is None
    assert owner.statistics().checksum_failures == 0
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_jobs_that_wait_behind_a_damaged_one_hold_no_bytes(store: FaultyStore) -> None:
    owner = await ObjectStoreBacking(store, replace(SMALL, compaction_step_bytes=1 << 20)).claimed(
        1
    )
    for segment_id in range(1, 9):
        await trickle(owner, 4, segment_id=segment_id)
    bad = [key for key in store.put_keys if "/chunks/" in key][-1]
    store.damage = {bad: lambda found: found[:-1] + bytes([found[-1] ^ 1])}
    waiting = 0
    while await owner.maintain():
        compactor = owner._require_claim().compactor
        waiting += len(compactor._alone)
        assert all(not job.parts and not job.chunks for job in compactor._alone)
    assert waiting


@pytest.mark.parametrize("how", ["damaged", "lost"])
async def test_an_sst_that_cannot_be_read_stops_no_owner_and_newer_ones_are_merged(
    store: FaultyStore, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A caller that needs what is in it is told so; an owner that ended would meet it again after each start."""
    backing = ObjectStoreBacking(store, SMALL)
    await trickle(await backing.claimed(1), 1)
    (bad,) = (key for key in store.put_keys if "/runs/" in key)
    if how == "lost":
        await store.delete(bad)
    else:
        store.damage = {bad: lambda found: found if _is_tail(found) else bytes(len(found))}
    owner = await backing.claimed(2)
    await settle(owner)
    assert "not looking for small chunks, an SST cannot be read" in caplog.text
    assert "not deleting garbage, an SST cannot be read" in caplog.text
    if how == "lost":
        return  # nothing can be published any more
    other = await trickle(owner, 20, segment_id=2)
    await settle(owner)
    assert "not merging SSTs, an SST cannot be read" in caplog.text
    assert await chunks_of(owner, 2, len(other)) < 4
    assert len(owner._claimed().manifest.ssts) < 6
    assert await read_all(owner, 2, 0, len(other)) == other
    with pytest.raises(CorruptedDataError):
        await owner.find("s1")


def _is_tail(found: bytes) -> bool:
    return found.endswith(b"NRSS")
