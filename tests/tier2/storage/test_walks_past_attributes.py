"""Walks over all layouts read no table's index, which is as long as the table has keys."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from segmentstore.contracts.identifiers import AttributeKey, ContainerId
from segmentstore.recovery.tier2_copy import find_damaged_chunks
from tests.contracts.storage_publications import change, data, round_of
from tests.tier2.storage.backings import ObjectStoreBacking
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.lost_data import find_lost_chunks
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader

KEYS = 40_000
SETTINGS = StorageSettings(scrub_bytes_per_second=1 << 40)


async def survey(store: MemoryObjectStore) -> int:
    """What a new owner reads to find what is worth joining."""
    owner = await ObjectStoreBacking(store, SETTINGS).claimed(2)
    while await owner.maintain():
        pass
    return owner.statistics().get_bytes


async def scrub(store: MemoryObjectStore) -> int:
    """What a pass reads."""
    owner = await ObjectStoreBacking(store, SETTINGS).claimed(2)
    while not owner.statistics().scrub_passes:
        await owner.scrub(lambda *_: None)
    return owner.statistics().get_bytes


async def search(store: MemoryObjectStore) -> int:
    """What a comparison with a listing reads."""
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SETTINGS, executor=None
    )
    await reader.refresh()
    assert (await find_lost_chunks(reader)).is_sound
    return reader.statistics().get_bytes


async def prove_copy(store: MemoryObjectStore) -> int:
    """What the proof of a copied container reads."""
    reader = ContainerReader(
        object_store=store, container_id=ContainerId(3), settings=SETTINGS, executor=None
    )
    await reader.refresh()
    assert not (await find_damaged_chunks(reader)).range_count
    return reader.statistics().get_bytes


@pytest.mark.parametrize("walk", [survey, scrub, search, prove_copy])
async def test_a_walk_over_layouts_reads_no_tables_index(
    walk: Callable[[MemoryObjectStore], Awaitable[int]],
) -> None:
    store = MemoryObjectStore()
    owner = await ObjectStoreBacking(store, SETTINGS).claimed(1)
    random = Random(1)
    index = {AttributeKey(random.randbytes(16)): random.getrandbits(60) for _ in range(KEYS)}
    await owner.publish(
        round_of(
            change(
                1,
                "table",
                length=100,
                sequence_number=1,
                pieces=[data(0, b"t" * 100)],
                attributes=index,
            ),
            change(2, "a", length=100, sequence_number=1, pieces=[data(0, b"a" * 100)]),
        )
    )
    stored = sum([each.size async for each in store.list("")])
    assert stored > KEYS * 20
    assert await walk(store) < stored // 3
