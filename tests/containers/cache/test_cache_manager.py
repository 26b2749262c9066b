import pytest

from containers.cache.cache_entry import NO_ROOM, PINNED, CacheEntry
from containers.cache.cache_manager import CacheManager, CacheManagerSettings, CacheShare
from containers.cache.cache_storage import CacheBlock, CacheStorage
from segmentstore.contracts.errors import CacheFullError

MIB = 1024 * 1024
KIB64 = 64 * 1024


class EvictionLog:
    """An index that only remembers what was taken from it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def evicted(self, entry: CacheEntry) -> None:
        self.offsets.append(entry.offset)


def manager_of(
    budget_bytes: int, *, generation_share: float = 1 / 32
) -> tuple[CacheManager, CacheShare]:
    """For one container."""
    manager = CacheManager(
        storage=CacheStorage(budget_bytes=budget_bytes),
        settings=CacheManagerSettings(
            high_mark_share=1.0, unflushed_share_max=1.0, generation_share=generation_share
        ),
    )
    return manager, manager.shares.open()


def written(owner: EvictionLog, offset: int, block: CacheBlock) -> CacheEntry:
    entry = CacheEntry(owner, offset, block)
    entry.add(offset, b"\0")
    return entry


def unflushed_entry(
    manager: CacheManager,
    share: CacheShare,
    owner: EvictionLog,
    offset: int,
    size: int = KIB64,
) -> CacheEntry:
    block = manager.allocate_unflushed(size, share=share)
    return written(owner, offset, block)


def test_the_oldest_generation_leaves_first_and_use_makes_young() -> None:
    manager, share = manager_of(MIB, generation_share=1 / 16)
    log = EvictionLog()
    entries = [unflushed_entry(manager, share, log, offset) for offset in range(6)]
    for entry in entries:
        manager.make_evictable(entry, share=share)
    manager.touch(entries[0])
    manager.touch(entries[2])
    manager.check()
    assert manager.evict(3 * KIB64) == 3 * KIB64
    assert log.offsets == [1, 3, 4]
    manager.evict(MIB)
    assert log.offsets == [1, 3, 4, 5, 0, 2]
    manager.check()


def test_h56_pinned_entries_are_never_found_by_eviction() -> None:
    manager, share = manager_of(MIB)
    log = EvictionLog()
    entry = unflushed_entry(manager, share, log, 0)
    assert manager.evict(MIB) == 0
    manager.touch(entry)
    assert entry.generation == PINNED
    assert manager.unflushed_bytes == KIB64
    manager.make_evictable(entry, share=share)
    assert manager.unflushed_bytes == 0
    assert manager.evict(1) == KIB64
    assert log.offsets == [0]
    assert entry.block is None


def test_allocation_evicts_just_enough() -> None:
    manager, share = manager_of(MIB)
    log = EvictionLog()
    for offset in range(16):
        manager.make_evictable(unflushed_entry(manager, share, log, offset), share=share)
    unflushed_entry(manager, share, log, 100)
    assert log.offsets in ([0], [0, 1])
    manager.check()


def test_allocation_takes_smaller_blocks_when_memory_is_split_up() -> None:
    manager, share = manager_of(MIB)
    log = EvictionLog()
    entries = [unflushed_entry(manager, share, log, offset, 4096) for offset in range(256)]
    for entry in entries[::2]:
        manager.release(entry, share=share)
    block = manager.allocate_unflushed(MIB, share=share)
    assert block.size_bytes == 4096


def test_a_cache_full_of_unflushed_bytes_refuses_and_fetched_bytes_pass_by() -> None:
    manager, share = manager_of(MIB)
    log = EvictionLog()
    for offset in range(16):
        unflushed_entry(manager, share, log, offset)
    with pytest.raises(CacheFullError):
        manager.allocate_unflushed(4096, share=share)
    assert manager.allocate_fetched(4096) is None
    assert not manager.can_hold(4096)
    assert manager.utilisation(share) == 1.0


def test_h38_appends_leave_room_that_only_recovery_may_use() -> None:
    manager = CacheManager(
        storage=CacheStorage(budget_bytes=MIB),
        settings=CacheManagerSettings(unflushed_share_max=0.5),
    )
    share = manager.shares.open()
    log = EvictionLog()
    for offset in range(8):
        unflushed_entry(manager, share, log, offset)
    with pytest.raises(CacheFullError):
        manager.allocate_unflushed(4096, share=share)
    assert manager.allocate_unflushed(KIB64, share=share, recovering=True).size_bytes == KIB64


def test_above_the_high_mark_every_allocation_evicts_down_to_it() -> None:
    manager = CacheManager(
        storage=CacheStorage(budget_bytes=MIB),
        settings=CacheManagerSettings(high_mark_share=0.5),
    )
    share = manager.shares.open()
    log = EvictionLog()
    for offset in range(40):
        manager.make_evictable(unflushed_entry(manager, share, log, offset), share=share)
        assert manager.statistics().occupied_bytes <= MIB // 2
    assert log.offsets == list(range(32))
    manager.check()


def test_at_the_high_mark_the_oldest_block_changes_hands_if_it_has_the_size() -> None:
    manager = CacheManager(
        storage=CacheStorage(budget_bytes=MIB),
        settings=CacheManagerSettings(high_mark_share=0.5),
    )
    share = manager.shares.open()
    log = EvictionLog()
    entries = [unflushed_entry(manager, share, log, offset) for offset in range(8)]
    for entry in entries:
        manager.make_evictable(entry, share=share)
    oldest = entries[0].block
    assert manager.allocate_unflushed(KIB64, share=share) is oldest
    assert log.offsets == [0]
    assert not entries[0].view(0, 1), "the evicted entry still sees memory that is another's now"
    assert manager.statistics().evictable_bytes == 7 * KIB64
    assert manager.statistics().evicted_bytes == KIB64
    assert manager.allocate_unflushed(2 * KIB64, share=share) is not entries[1].block
    assert manager.statistics().occupied_bytes <= MIB // 2


def test_h34_a_block_does_not_change_hands_while_charges_leave_no_room_for_it() -> None:
    manager = CacheManager(
        storage=CacheStorage(budget_bytes=MIB),
        settings=CacheManagerSettings(high_mark_share=0.5),
    )
    share = manager.shares.open()
    log = EvictionLog()
    for offset in range(8):
        manager.make_evictable(unflushed_entry(manager, share, log, offset), share=share)
    share.charge(4 * KIB64)
    unflushed_entry(manager, share, log, 100)
    statistics = manager.statistics()
    assert statistics.occupied_bytes + statistics.charged_bytes <= MIB // 2
    manager.check()


def test_those_who_wait_for_room_are_told_when_there_is_some() -> None:
    manager, share = manager_of(MIB)
    told: list[int] = []
    manager.on_space_freed.append(lambda: told.append(manager.statistics().occupied_bytes))
    manager.make_evictable(unflushed_entry(manager, share, EvictionLog(), 0), share=share)
    assert told == []
    assert manager.evict(1) == KIB64
    assert told == [0]
    assert manager.evict(1) == 0
    assert told == [0]


def test_a_released_entry_may_be_released_again() -> None:
    manager, share = manager_of(MIB)
    entry = unflushed_entry(manager, share, EvictionLog(), 0)
    manager.release(entry, share=share)
    manager.release(entry, share=share)
    assert manager.unflushed_bytes == 0
    manager.check()


def test_an_entry_grows_at_its_end_and_within_its_block() -> None:
    manager, share = manager_of(MIB)
    entry = unflushed_entry(manager, share, EvictionLog(), 7, 4096)
    neighbour = unflushed_entry(manager, share, EvictionLog(), 0, 4096)
    assert entry.add(8, b"x" * 4000) == 4008 == entry.end
    assert entry.add(4007, b"y") == entry.add(4009, b"y") == NO_ROOM
    assert entry.add(4008, b"y" * 96) == NO_ROOM
    assert entry.add(4008, b"y" * 95) == 7 + 4096 == entry.end
    assert entry.add(entry.end, b"") == entry.end
    assert entry.block is not None
    assert neighbour.block is not None
    assert bytes(entry.block.view[1:]) == b"x" * 4000 + b"y" * 95
    assert bytes(neighbour.block.view) == bytes(4096)


def test_an_entry_whose_block_is_free_takes_nothing() -> None:
    manager, share = manager_of(MIB)
    entry = unflushed_entry(manager, share, EvictionLog(), 0, 4096)
    manager.release(entry, share=share)
    assert entry.add(1, b"x") == NO_ROOM
    with pytest.raises(TypeError):
        entry.slab[0:1] = b"x"
