import pytest

from containers.cache.cache_storage import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, CacheStorage
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


async def test_touching_makes_memory_ahead_of_need_within_the_budget() -> None:
    storage = CacheStorage(budget_bytes=5 * MIB, arena_bytes=2 * MIB)
    await storage.touch(3 * MIB)
    assert storage.resident_bytes == 4 * MIB
    await storage.touch(100 * MIB)
    assert storage.resident_bytes == 5 * MIB
    assert storage.occupied_bytes == 0
    storage.check()
