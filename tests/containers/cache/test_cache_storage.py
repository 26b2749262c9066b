import asyncio

import pytest

from containers.cache.cache_storage import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    CacheStorage,
    new_arena,
)
from segmentstore.contracts.errors import CacheFullError

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("asked", "given"),
    [(1, 4096), (4096, 4096), (4097, 8192), (600_000, MIB), (MIB, MIB)],
)
def test_a_block_is_the_smallest_power_of_two_that_holds_what_is_asked(
    asked: int, given: int
) -> None:
    storage = CacheStorage(budget_bytes=4 * MIB)
    block = storage.allocate(asked)
    assert block.size_bytes == len(block.view) == given
    assert storage.occupied_bytes == given
    storage.free(block)
    assert storage.occupied_bytes == 0
    storage.check()


def test_the_budget_is_hard_and_counts_memory_not_bytes() -> None:
    storage = CacheStorage(budget_bytes=2 * MIB + 5)
    blocks = [storage.allocate(1) for _ in range(2 * MIB // BLOCK_BYTES_MIN)]
    assert storage.occupied_bytes == storage.resident_bytes == storage.budget_bytes == 2 * MIB
    assert storage.largest_free_bytes() == 0
    with pytest.raises(CacheFullError):
        storage.allocate(1)
    storage.free(blocks[5])
    assert storage.largest_free_bytes() == BLOCK_BYTES_MIN
    storage.check()


def test_a_budget_without_a_single_slab_is_refused() -> None:
    with pytest.raises(ValueError):
        CacheStorage(budget_bytes=BLOCK_BYTES_MAX - 1)


def test_memory_is_recycled_and_never_given_back() -> None:
    storage = CacheStorage(budget_bytes=16 * MIB, arena_bytes=2 * MIB)
    for _ in range(50):
        blocks = [storage.allocate(MIB), storage.allocate(4096)]
        for block in blocks:
            storage.free(block)
    assert storage.resident_bytes == 2 * MIB


def test_live_blocks_do_not_share_bytes() -> None:
    storage = CacheStorage(budget_bytes=4 * MIB, arena_bytes=MIB)
    blocks = [storage.allocate(size) for size in (4096, 65536, MIB, 4096, 8192, MIB, 500_000)]
    for number, block in enumerate(blocks):
        block.view[:] = bytes([number]) * block.size_bytes
    for number, block in enumerate(blocks):
        assert bytes(block.view) == bytes([number]) * block.size_bytes


def test_writing_through_a_freed_block_fails() -> None:
    storage = CacheStorage(budget_bytes=MIB)
    block = storage.allocate(4096)
    storage.free(block)
    with pytest.raises(TypeError):
        block.view[0:1] = b"x"


async def test_the_next_arena_is_made_ahead_of_need_and_within_the_budget() -> None:
    storage = CacheStorage(budget_bytes=5 * MIB, arena_bytes=2 * MIB)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        making = tasks.create_task(storage.make_ahead(None))
        for resident, taken in ((4, 2), (5, 4)):
            while storage.occupied_bytes < taken * MIB:
                storage.allocate(MIB // 2)
            while storage.resident_bytes < resident * MIB:
                await asyncio.sleep(0.001)
            assert storage.resident_bytes == resident * MIB
            storage.check()
        await making


async def test_nothing_is_made_ahead_of_a_cache_that_nobody_uses() -> None:
    storage = CacheStorage(budget_bytes=4 * MIB, arena_bytes=2 * MIB)
    making = asyncio.ensure_future(storage.make_ahead(None))
    for _ in range(100):
        await asyncio.sleep(0)
    assert storage.resident_bytes == 0
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making


def test_fresh_memory_is_zeros() -> None:
    arena = new_arena(2 * MIB + 4096)
    assert bytes(arena) == bytes(2 * MIB + 4096)
